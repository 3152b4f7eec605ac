//! Copies files into and out of a sandbox or a volume as a tar stream. Each side takes the other for hostile.
//!
//! Only files, folders and links; holes and hard links stay. The unpacking process owns the files, except those of
//! root's volumes; set-id bits are dropped. Unpacking opens one component at a time and follows no link: an archive
//! with `a -> /etc` and `a/passwd` writes nothing outside of its target.

mod pack;
mod unpack;

pub(crate) use pack::{pack, pack_own_volume, pack_volume};
pub(crate) use unpack::{Bounds, unpack_at, unpack_own_volume, unpack_volume};

use crate::error::{Context, Kind, Result, Step};
use crate::files::DIRECTORY;
use crate::image::tar::EntryKind;
use pack::{Pack, entry};
use rustix::fs::{AtFlags, Mode, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use unpack::unpack_as;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The unpacking process owns them.
    Copy,
    /// With marks of overlayfs, and with files that their owner may not read.
    Kept,
    /// With the files' owners.
    Volume,
    /// With files that their owner may not read. The archive names this user and group inside.
    OwnVolume(u32, u32),
}

/// Directory and name of the trees that a kept task goes on from.
const KEPT: [(&str, &str); 4] = [("", "home"), ("", "files"), ("workspace", "upper"), ("root", "upper")];
/// Has these trees in an archive, each under its number.
const TOP: &str = "kept";
/// Hides the lower directory (overlayfs, `userxattr`).
const OPAQUE: &CStr = c"user.overlay.opaque";

/// No process writes to the file system, and its files are this user's.
pub(crate) fn pack_kept<W: Write>(scratch: BorrowedFd<'_>, sink: W) -> Result<()> {
    let mut pack = Pack::new(sink, Form::Kept);
    let step = || "read the files of the sandbox";
    let status = fstat(scratch).failing(Kind::Disk, step)?;
    pack.writer.entry(&entry(EntryKind::Directory, Path::new(TOP), &status))?;
    for (number, (directory, name)) in KEPT.iter().enumerate() {
        let top = match openat(scratch, Path::new(directory).join(name), DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            other => other.failing(Kind::Disk, step)?,
        };
        pack.tree(top, &Path::new(TOP).join(number.to_string()), Path::new(name), None)?;
    }
    pack.finish().map(|_| ())
}

/// The file system must be empty.
pub(crate) fn restore_kept(archive: OwnedFd, scratch: BorrowedFd<'_>) -> Result<()> {
    let step = || "put the kept files back";
    let source = BufReader::new(File::from(archive));
    unpack_as(source, scratch, Path::new(TOP), Bounds::NONE, Form::Kept).doing(step)?;
    let top = openat(scratch, TOP, DIRECTORY, Mode::empty()).failing(Kind::Disk, step)?;
    for (number, (directory, name)) in KEPT.iter().enumerate() {
        if !directory.is_empty() {
            match mkdirat(scratch, *directory, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).failing(Kind::Disk, step),
            }
        }
        match renameat(&top, number.to_string(), scratch, Path::new(directory).join(name)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).failing(Kind::Disk, step),
        }
    }
    unlinkat(scratch, TOP, AtFlags::REMOVEDIR).failing(Kind::Disk, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Patterns;
    use crate::image::tar::Entry;
    use crate::image::tar::write::Writer;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::fs::FileExt;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_tree_arrives_as_it_was() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(from.path().join("a/b")).unwrap();
        std::fs::write(from.path().join("a/b/file"), vec![7; 100_000]).unwrap();
        symlink("/etc", from.path().join("a/link")).unwrap();
        let mut bytes = Vec::new();
        pack(&from.path().join("a"), Path::new("new"), &Patterns::none(), &mut bytes).unwrap();
        for _ in 0..2 {
            unpack_at(&bytes[..], to.path(), Path::new("new"), Bounds::NONE).unwrap();
        }
        assert_eq!(std::fs::read(to.path().join("new/b/file")).unwrap(), vec![7; 100_000]);
        assert_eq!(std::fs::read_link(to.path().join("new/link")).unwrap(), Path::new("/etc"));
    }

    /// Each entry has its whole path: without a bound this chain costs the square of its depth.
    #[test]
    fn a_tree_deeper_than_a_path_may_be_long_is_refused() {
        use rustix::fs::{Mode, OFlags, mkdirat, openat};
        let from = tempfile::tempdir().unwrap();
        let open = |at: BorrowedFd<'_>, name: &Path| openat(at, name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        let (top, name) = (open(rustix::fs::CWD, from.path()), "n".repeat(250));
        let mut last = top.try_clone().unwrap();
        for depth in 1..=70 {
            mkdirat(&last, &name, Mode::RWXU).unwrap();
            last = open(last.as_fd(), Path::new(&name));
            let packed = pack_volume(top.try_clone().unwrap(), std::io::sink());
            assert_eq!(packed.is_ok(), depth * 251 < 16 << 10, "{depth}");
        }
        assert!(pack_volume(top, std::io::sink()).unwrap_err().to_string().contains("16384 bytes"));
    }

    #[test]
    fn holes_and_hard_links_arrive_as_they_were_and_data_has_a_bound() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("a")).unwrap();
        let file = File::create(from.path().join("a/holes")).unwrap();
        file.set_len(8 << 40).unwrap();
        file.write_all_at(b"one", 5 << 30).unwrap();
        file.write_all_at(b"two", (8 << 40) - 3).unwrap();
        File::create(from.path().join("a/empty")).unwrap().set_len(3 << 30).unwrap();
        std::fs::write(from.path().join("a/first"), vec![7; 50_000]).unwrap();
        std::fs::hard_link(from.path().join("a/first"), from.path().join("a/second")).unwrap();
        let mut bytes = Vec::new();
        pack(&from.path().join("a"), Path::new("a"), &Patterns::none(), &mut bytes).unwrap();
        assert!(bytes.len() < 200_000, "{} bytes", bytes.len());
        let unpack = |bytes_allowed, names| {
            unpack_at(&bytes[..], to.path(), Path::new("a"), Bounds { bytes: bytes_allowed, names })
        };
        unpack(100_000, 5).unwrap();
        let status = |name: &str| to.path().join("a").join(name).metadata().unwrap();
        assert!(status("holes").len() == 8 << 40 && status("holes").blocks() < 100);
        assert!(status("empty").len() == 3 << 30 && status("empty").blocks() == 0);
        assert_eq!((status("first").ino(), status("first").nlink()), (status("second").ino(), 2));
        let mut end = [0; 3];
        File::open(to.path().join("a/holes")).unwrap().read_exact_at(&mut end, (8 << 40) - 3).unwrap();
        assert_eq!(&end, b"two");
        for (bytes_allowed, names) in [(40_000, 5), (100_000, 4)] {
            let error = unpack(bytes_allowed, names).unwrap_err();
            assert!(error.to_string().contains("than the disk limit allows"), "{error}");
        }
        // Other tar programs can read it.
        std::fs::write(to.path().join("archive"), &bytes).unwrap();
        let words = ["-xf", "archive", "--one-top-level=tar"];
        let status_of_tar = std::process::Command::new("tar").args(words).current_dir(to.path()).status().unwrap();
        let there = to.path().join("tar/a/holes").metadata().unwrap();
        assert!(status_of_tar.success() && there.len() == 8 << 40 && there.blocks() < 100);
    }

    #[test]
    fn an_archive_writes_nowhere_but_into_its_target() {
        let check = |entries: &[(EntryKind, &str, &str)]| {
            let around = tempfile::tempdir().unwrap();
            std::fs::create_dir(around.path().join("target")).unwrap();
            std::fs::write(around.path().join("secret"), "mine").unwrap();
            let mut writer = Writer::new(Vec::new());
            let status = rustix::fs::stat(around.path()).unwrap();
            for (kind, path, link) in entries {
                let made = Entry { link: link.as_bytes().to_vec(), size: 0, ..entry(*kind, Path::new(path), &status) };
                writer.entry(&made).unwrap();
            }
            let bytes = writer.finish().unwrap();
            let done = unpack_at(&bytes[..], &around.path().join("target"), Path::new("x"), Bounds::NONE);
            assert!(done.is_err(), "{entries:?}");
            assert_eq!(std::fs::read_to_string(around.path().join("secret")).unwrap(), "mine", "{entries:?}");
            assert_eq!(std::fs::read_dir(around.path()).unwrap().count(), 2, "{entries:?}");
        };
        let (file, link, folder) = (EntryKind::File, EntryKind::Symlink, EntryKind::Directory);
        check(&[(folder, "x", ""), (link, "x/a", "../.."), (file, "x/a/secret", "")]);
        check(&[(link, "x", ".."), (file, "x/secret", "")]);
        check(&[(file, "x/../../secret", "")]);
        check(&[(file, "/secret", "")]);
        check(&[(file, "y", "")]);
        check(&[(folder, "x", ""), (EntryKind::Fifo, "x/fifo", "")]);
        check(&[(folder, "x", ""), (link, "x/s", "../../secret"), (EntryKind::HardLink, "x/h", "x/s")]);
        let hard = EntryKind::HardLink;
        check(&[(folder, "x", ""), (hard, "x/h", "../secret")]);
        check(&[(file, "x", ""), (link, "x", "secret"), (hard, "x/h", "x")]);
        check(&[(folder, "x", ""), (file, "x/f", ""), (link, "x/f", "../../secret"), (hard, "x/h", "x/f")]);
    }
}
