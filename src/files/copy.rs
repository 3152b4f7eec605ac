//! Data ranges of files, and copies that keep holes.

use rustix::fs::{SeekFrom, Stat, Timespec, Timestamps, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};

/// The next data range at or after `offset`; without one both ends are `size`.
pub(crate) fn next_data(file: &File, offset: u64, size: u64) -> Result<(u64, u64), Errno> {
    let data = match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => size,
        // The file system lacks SEEK_DATA: everything is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((offset, size)),
        Err(errno) => return Err(errno),
    };
    if data == size {
        return Ok((size, size));
    }
    let end = match seek(file, SeekFrom::Hole(data)) {
        Ok(end) if end > data => end.min(size),
        _ => size,
    };
    Ok((data, end))
}

/// Copies into the empty `target`: by shared extents if possible, else within the kernel. Keeps holes. A source that
/// grows is cut; one that shrinks is padded with zeros.
pub(crate) fn copy_data(source: &File, target: &File, status: &Stat) -> io::Result<()> {
    let size = u64::try_from(status.st_size).unwrap_or(0);
    if size == 0 {
        return Ok(());
    }
    let allocated = u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512);
    if ioctl_ficlone(target, source).is_ok() {
        return Ok(ftruncate(target, size)?);
    }
    if allocated >= size {
        let copied = copy_range(source, target, 0, size)?;
        return if copied == size { Ok(()) } else { Ok(ftruncate(target, size)?) };
    }
    let mut offset = 0;
    while offset < size {
        let (data, end) = next_data(source, offset, size)?;
        if data < end && copy_range(source, target, data, end)? < end - data {
            break;
        }
        offset = end;
    }
    Ok(ftruncate(target, size)?)
}

/// The time of the last change, for both times of a copy.
pub(crate) fn times(status: &Stat) -> Timestamps {
    let time = Timespec { tv_sec: status.st_mtime, tv_nsec: i64::try_from(status.st_mtime_nsec).unwrap_or(0) };
    Timestamps { last_access: time, last_modification: time }
}

/// Returns the number of copied bytes.
fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<u64> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let wanted = usize::try_from(end - from).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), wanted) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => {
                // Since Linux 5.19 only between file systems of one type: then sendfile(2) or read(2).
                seek(source, SeekFrom::Start(from))?;
                seek(target, SeekFrom::Start(from))?;
                from += io::copy(&mut source.take(end - from), &mut &*target)?;
                break;
            }
        }
    }
    Ok(from - start)
}
