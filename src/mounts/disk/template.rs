//! Formatting takes 5 to 10 ms, so an empty image of each size is kept. A start copies its few allocated blocks into a
//! file that is never flushed (`volatile`).

use super::Size;
use super::volatile::{self, Directories, WorkDirectory};
use crate::error::{Context, Kind, Result, Step};
use crate::files;
use rustix::fs::{Advice, Mode, OFlags, SeekFrom, fadvise, fstat, fsync, ftruncate, open, seek};
use rustix::io::{Errno, pread, pwrite};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const PREFIX: &str = "ext4-";
/// A machine needs one for each size of its tasks, and a tenant may ask for any size.
const MOST: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Template(PathBuf);

/// Its directories are removed with it; a mounted image does not need them.
pub(super) struct Image {
    file: OwnedFd,
    /// The template, if its contents are not copied yet. Open: another start may remove its name.
    blank: Option<OwnedFd>,
    _directories: Option<Directories>,
}

impl Image {
    /// In a file that outlives its user.
    pub(super) fn lasting(file: OwnedFd) -> Image {
        Image { file, blank: None, _directories: None }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes what a mount reads first to `device`, not to the file, so that the mount finds the pages. Otherwise each
    /// read would wait for the loop device's worker. (Both have one block size, else the mount would drop the pages.)
    pub(super) fn fill(&self, device: BorrowedFd<'_>) -> Result<()> {
        match &self.blank {
            Some(template) => copy_data(template, device, false).doing(|| "copy the template of a disk"),
            None => {
                read_ahead(self.file(), device);
                Ok(())
            }
        }
    }
}

impl Template {
    pub(super) fn at(path: PathBuf) -> Template {
        Template(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Made (in `live`) if missing. Of two makers, the later rename wins.
    pub(super) fn of(directory: &Path, live: &Path, size: Size) -> Result<Template> {
        let path = directory.join(format!("{PREFIX}v6-{}-{}.img", size.bytes, size.inodes));
        if path.exists() {
            return Ok(Template(path));
        }
        let step = || format!("keep the template `{}`", path.display());
        files::create_directories(directory, 0o700)?;
        files::create_directories(live, 0o700)?;
        let unfinished = WorkDirectory::make(live).failing(Kind::Disk, step)?;
        let image = unfinished.path().join("image");
        super::format::format(&image, size, super::format::SCRATCH)?;
        let file = open(&image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).failing(Kind::Disk, step)?;
        fsync(&file).failing(Kind::Disk, step)?; // after a power cut a template of zeroes would fail every start
        std::fs::rename(&image, &path).failing(Kind::Disk, step)?;
        remove_oldest(directory, &path);
        Ok(Template(path))
    }

    /// [`Image::fill`] copies the contents later. Without an overlay the start waits for the host's disk.
    pub(super) fn image(&self, live: &Path, size: Size) -> Result<Image> {
        let images = self.directory();
        let template = self.open(live, size)?;
        let (file, directories) = match volatile::file(live, images) {
            Ok((file, directories)) => (file, Some(directories)),
            Err(_) => (unnamed_file(images)?, None),
        };
        make_as_long(&template, &file).failing(Kind::Disk, || format!("copy `{}`", self.0.display()))?;
        Ok(Image { file, blank: Some(template), _directories: directories })
    }

    pub(super) fn copy_to(&self, file: OwnedFd, live: &Path, size: Size) -> Result<OwnedFd> {
        copy_open(&self.open(live, size)?, file).doing(|| format!("copy `{}`", self.0.display()))
    }

    /// Made again if another start has removed it.
    fn open(&self, live: &Path, size: Size) -> Result<OwnedFd> {
        match open_image(&self.0) {
            Err(Errno::NOENT) => open_image(&Template::of(self.directory(), live, size)?.0),
            other => other,
        }
        .failing(Kind::Disk, || format!("open the template `{}`", self.0.display()))
    }

    fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("."))
    }
}

/// Keeps `newest` and the others that were used last, as far as the file system keeps times of access.
fn remove_oldest(directory: &Path, newest: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut others: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.path() != newest)
        .filter_map(|entry| {
            let status = entry.metadata().ok()?;
            Some((status.accessed().ok().max(status.modified().ok()), entry.path()))
        })
        .collect();
    others.sort_unstable();
    for (_, path) in others.iter().rev().skip(MOST - 1) {
        let _ = std::fs::remove_file(path); // another start may have done so
    }
}

pub(super) fn copy_allocated(image: &Path, to: OwnedFd) -> Result<OwnedFd> {
    let step = || format!("copy the disk image `{}`", image.display());
    let from = open_image(image).failing(Kind::Disk, step)?;
    copy_open(&from, to).doing(step)
}

fn copy_open(from: &OwnedFd, to: OwnedFd) -> Result<OwnedFd> {
    make_as_long(from, &to).failing(Kind::Disk, || "make the copy as long")?;
    copy_data(from, to.as_fd(), true)?;
    Ok(to)
}

fn open_image(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn make_as_long(from: &OwnedFd, file: &OwnedFd) -> Result<(), Errno> {
    ftruncate(file, fstat(from)?.st_size as u64)
}

/// Copies only allocated blocks, a hundred kilobytes of an empty image of gigabytes, to where there are zeroes.
/// copy_file_range(2) works for files only.
fn copy_data(from: &OwnedFd, to: BorrowedFd<'_>, mut by_kernel: bool) -> Result<()> {
    let step = || "copy its data";
    let mut position = 0;
    while let Some(start) = found(seek(from, SeekFrom::Data(position))).failing(Kind::Disk, step)? {
        let end = seek(from, SeekFrom::Hole(start)).failing(Kind::Disk, step)?;
        let (mut read, mut write) = (start, start);
        while read < end {
            let wanted = usize::try_from(end - read).unwrap_or(usize::MAX);
            let copied = match by_kernel {
                true => rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), wanted),
                false => copy_by_hand(from, to, &mut read, wanted),
            };
            match copied {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP) if by_kernel => by_kernel = false,
                Err(errno) => return Err(errno).failing(Kind::Disk, step),
            }
        }
        position = end;
    }
    Ok(())
}

/// Between file systems copy_file_range(2) returns EXDEV.
fn copy_by_hand(from: &OwnedFd, to: BorrowedFd<'_>, position: &mut u64, wanted: usize) -> Result<usize, Errno> {
    let mut buffer = [0; 16 << 10];
    let most = wanted.min(buffer.len());
    let read = pread(from, &mut buffer[..most], *position)?;
    let mut written = 0;
    while written < read {
        written += pwrite(to, &buffer[written..read], *position + written as u64)?;
    }
    *position += read as u64;
    Ok(read)
}

/// A mount first reads superblock, tables and directories, the first data of the file. Only a hint: failures are
/// ignored.
fn read_ahead(image: BorrowedFd<'_>, device: BorrowedFd<'_>) {
    const RUNS: usize = 4; // superblock and descriptors, bitmap, inode table, directories
    const MOST: u64 = 128 << 10;
    let mut position = 0;
    for _ in 0..RUNS {
        let Ok(start) = seek(image, SeekFrom::Data(position)) else { return };
        let Ok(end) = seek(image, SeekFrom::Hole(start)) else { return };
        let _ = fadvise(device, start, NonZeroU64::new((end - start).min(MOST)), Advice::WillNeed);
        position = end;
    }
}

/// Freed with its last user, also after a crash (open(2), O_TMPFILE).
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
    fn two_images_of_a_template_are_whole_and_separate() {
        let (directory, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let size = Size { bytes: 16 << 20, inodes: 256, synchronous: false };
        let template = Template::of(directory.path(), live.path(), size).unwrap();
        let (one, two) = (template.image(live.path(), size).unwrap(), template.image(live.path(), size).unwrap());
        one.fill(one.file()).unwrap();
        two.fill(two.file()).unwrap();
        pwrite(one.file(), b"changed", 0).unwrap();
        let whole = std::fs::read(&template.0).unwrap();
        let mut copy = vec![0; whole.len()];
        assert_eq!(pread(two.file(), &mut copy, 0), Ok(whole.len()));
        assert!(copy == whole);
        drop((one, two));
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the template");
    }

    #[test]
    fn without_an_overlay_the_image_is_an_unnamed_file_of_the_templates() {
        let (directory, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let size = Size { bytes: 16 << 20, inodes: 256, synchronous: false };
        let template = Template::of(directory.path(), live.path(), size).unwrap();
        let image = template.image(Path::new("/proc/nowhere"), size).unwrap();
        assert!(image._directories.is_none());
        assert_eq!(fstat(image.file()).unwrap().st_size as u64, std::fs::metadata(&template.0).unwrap().len());
    }

    #[test]
    fn the_least_used_templates_are_removed_and_a_start_makes_its_own_again() {
        let (directory, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let day = |days| std::time::SystemTime::now() - std::time::Duration::from_secs(86_400 * days);
        let old = |name: String, days| {
            let file = std::fs::File::create(directory.path().join(name)).unwrap();
            file.set_times(std::fs::FileTimes::new().set_accessed(day(days)).set_modified(day(100))).unwrap();
        };
        (0..MOST as u64).for_each(|number| old(format!("ext4-v6-{number}-1.img"), number + 1));
        old("root-v1-0".to_owned(), 99);
        let size = Size { bytes: 16 << 20, inodes: 256, synchronous: false };
        let template = Template::of(directory.path(), live.path(), size).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), MOST + 1);
        assert!(template.0.exists() && !directory.path().join("ext4-v6-31-1.img").exists());
        std::fs::remove_file(&template.0).unwrap();
        let image = template.image(live.path(), size).unwrap();
        std::fs::remove_file(&template.0).unwrap();
        image.fill(image.file()).unwrap();
    }
}
