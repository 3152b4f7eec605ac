//! Where the images of disks come from. Formatting one takes 5 to 10 ms, so an empty image of each size is kept as a template, and a start
//! copies its few allocated blocks.
//!
//! Even that waits for the host's disk: attaching a file to a loop device first writes the file out (`vfs_fsync` in `loop_configure`,
//! drivers/block/loop.c), 2 to 20 ms. So who ends leaves a copy that is written out already, and the next start takes that one.

use super::disk::Size;
use crate::error::{Context, Kind, Result};
use crate::files;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, SeekFrom, flock, fstat, fsync, ftruncate, linkat, open, seek,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How many written copies are kept of each template, a few hundred kilobytes each: for as many starts in quick succession.
const SPARES: u32 = 4;

/// The formatted, empty image of one size.
#[derive(Clone, Debug)]
pub(crate) struct Template(PathBuf);

/// An empty image that is one sandbox's own.
pub(super) struct Image {
    file: OwnedFd,
    /// The name that a spare still has, and its lock keeps others away from.
    name: Option<PathBuf>,
}

impl Image {
    /// One that stays when its user is gone.
    pub(super) fn lasting(file: OwnedFd) -> Image {
        Image { file, name: None }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes it a file that is gone with its last user. The loop device has it open by now, and with it the lock.
    pub(super) fn forget_name(&self) -> Result<()> {
        let Some(name) = &self.name else { return Ok(()) };
        rustix::fs::unlink(name).failing(Kind::Disk, || format!("take the spare image `{}`", name.display()))
    }
}

impl Template {
    /// The template of this size in `directory`, made if it is not there. Two that make it at once both make a whole one, and the later rename
    /// wins.
    pub(super) fn of(directory: &Path, size: Size) -> Result<Template> {
        let path = directory.join(format!("ext4-v4-{}-{}.img", size.bytes, size.inodes));
        if path.exists() {
            return Ok(Template(path));
        }
        files::create_directories(directory, 0o700)?;
        let unfinished = directory.join(format!("new-{}", std::process::id()));
        let image = unfinished.join("image");
        files::create_directories(&unfinished, 0o700)?;
        let step = || format!("keep the template `{}`", path.display());
        let made = super::format::format(&image, size).and_then(|()| {
            let file = open(&image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Disk, step)?;
            fsync(&file).failing(Kind::Disk, step)?; // a template that a power cut made of zeroes would fail every start
            std::fs::rename(&image, &path).failing(Kind::Disk, step)
        });
        // What a crash leaves here has nothing in it but zeroes, and a later process of that number removes it.
        let _ = std::fs::remove_dir_all(&unfinished);
        made.map(|()| Template(path))
    }

    /// A spare if there is one, else a copy.
    pub(super) fn image(&self) -> Result<Image> {
        for name in self.spares() {
            // Any refusal means that another has it, or takes it just now; the copy below says what is wrong with the directory.
            let Ok(file) = open(&name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && fstat(&file).is_ok_and(|status| status.st_nlink == 1)
            {
                return Ok(Image { file, name: Some(name) });
            }
        }
        Ok(Image { file: self.copy()?, name: None })
    }

    /// Leaves one written copy more, or two while there are few, for the next starts.
    pub(super) fn spare(&self) -> Result<()> {
        let step = || format!("make a spare image of `{}`", self.0.display());
        let missing: Vec<_> = self.spares().filter(|name| !name.exists()).collect();
        for name in missing.iter().take(2) {
            let file = self.copy()?;
            // Nobody takes it before the lock is free.
            flock(&file, FlockOperation::NonBlockingLockExclusive).failing(Kind::Disk, step)?;
            fsync(&file).failing(Kind::Disk, step)?; // before it has a name: a power cut leaves no broken one
            match linkat(&file, "", CWD, name, AtFlags::EMPTY_PATH) {
                Err(Errno::EXIST) => {} // another's was sooner
                other => other.failing(Kind::Disk, step)?,
            }
            fsync(&file).failing(Kind::Disk, step)?; // its number of names
        }
        Ok(())
    }

    fn spares(&self) -> impl Iterator<Item = PathBuf> {
        (0..SPARES).map(|number| self.0.with_extension(format!("spare-{number}")))
    }

    fn copy(&self) -> Result<OwnedFd> {
        copy_allocated(&self.0, unnamed_file(self.0.parent().unwrap_or(Path::new(".")))?)
    }

    /// The same into a file that there is.
    pub(super) fn copy_to(&self, file: OwnedFd) -> Result<OwnedFd> {
        copy_allocated(&self.0, file)
    }
}

/// Copies only what is allocated, a few hundred kilobytes of an empty image of gigabytes.
pub(super) fn copy_allocated(image: &Path, to: OwnedFd) -> Result<OwnedFd> {
    let step = || format!("copy the disk image `{}`", image.display());
    let from = open(image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Disk, step)?;
    let length = fstat(&from).failing(Kind::Disk, step)?.st_size as u64;
    ftruncate(&to, length).failing(Kind::Disk, step)?;
    let mut position = 0;
    while let Some(start) = found(seek(&from, SeekFrom::Data(position))).failing(Kind::Disk, step)? {
        let end = seek(&from, SeekFrom::Hole(start)).failing(Kind::Disk, step)?;
        let (mut read, mut write) = (start, start);
        while read < end {
            let wanted = usize::try_from(end - read).unwrap_or(usize::MAX);
            let copied = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut write), wanted)
                .failing(Kind::Disk, step)?;
            if copied == 0 {
                break;
            }
        }
        position = end;
    }
    Ok(to)
}

/// A file that is gone when its last user is: no crash can leave it behind. open(2), O_TMPFILE; by hand where the file system has none.
fn unnamed_file(directory: &Path) -> Result<OwnedFd> {
    let step = || format!("make a disk image in `{}`", directory.display());
    let mode = Mode::from_raw_mode(0o600);
    match open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {}
        other => return other.failing(Kind::Disk, step),
    }
    let path = directory.join(format!("image-{}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(&path, flags, mode).failing(Kind::Disk, step)?;
    rustix::fs::unlink(&path).failing(Kind::Disk, step)?;
    Ok(file)
}

/// ENXIO means that no data follows.
fn found(position: Result<u64, Errno>) -> Result<Option<u64>, Errno> {
    match position {
        Ok(position) => Ok(Some(position)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_is_taken_by_one_and_never_twice() {
        let directory = tempfile::tempdir().unwrap();
        let size = Size { bytes: 16 << 20, inodes: 256, synchronous: false };
        let template = Template::of(directory.path(), size).unwrap();
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("a_spare_is_taken_by_one_and_never_twice: needs root"); // to give an unnamed file a name
            return;
        }
        assert!(template.image().unwrap().name.is_none());
        template.spare().unwrap();
        template.spare().unwrap();
        template.spare().unwrap();
        let taken: Vec<_> = (0..SPARES).map(|_| template.image().unwrap()).collect();
        let names: std::collections::BTreeSet<_> = taken.iter().map(|image| image.name.clone().unwrap()).collect();
        assert_eq!(names.len(), SPARES as usize);
        assert!(template.image().unwrap().name.is_none(), "all are locked");
        taken[0].forget_name().unwrap();
        assert!(template.image().unwrap().name.is_none());
        drop(taken);
        assert_eq!(template.spares().filter(|name| name.exists()).count(), SPARES as usize - 1);
        let whole = std::fs::read(&template.0).unwrap();
        let image = template.image().unwrap();
        assert_eq!(std::fs::read(image.name.unwrap()).unwrap(), whole);
    }
}
