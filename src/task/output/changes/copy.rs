//! Digests, comparisons, and copies that keep holes and never read beyond the announced size.

use crate::files::hash::{Hasher, sha256};
use crate::files::next_data;
use rustix::fs::ftruncate;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of one read: few calls, and still in the cache of one core.
const CHUNK: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest(pub(crate) [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || de::Error::custom("a sha256 has 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Digest(bytes))
    }
}

/// Reads less than the buffer only at the end of the file.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn part(buffer: &mut [u8], left: u64) -> &mut [u8] {
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
    &mut buffer[..length]
}

/// Reads the first `size` bytes. Returns their actual number too.
pub(in crate::task) fn digest(file: &File, size: u64) -> io::Result<(Digest, u64)> {
    let mut hasher = Hasher::sha256();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        let part = part(&mut buffer, size - offset);
        let read = read_at(file, part, offset)?;
        hasher.update(&part[..read]);
        offset += read as u64;
        if read < part.len() {
            break;
        }
    }
    Ok((Digest(hasher.finish()), offset))
}

pub(in crate::task) fn digest_of(bytes: &[u8]) -> Digest {
    Digest(sha256(bytes))
}

/// Stops at the first different chunk.
pub(in crate::task) fn is_same(one: &File, other: &File, size: u64) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    while offset < size {
        let (left, right) = (part(&mut left, size - offset), part(&mut right, size - offset));
        if read_at(one, left, offset)? != left.len() || read_at(other, right, offset)? != right.len() || left != right {
            return Ok(false);
        }
        offset += left.len() as u64;
    }
    Ok(true)
}

/// Reading fails for the agent's file, writing for the store's.
#[derive(Debug)]
pub(in crate::task) enum Failure {
    Read(io::Error),
    Write(io::Error),
}

/// Copies the first `size` bytes into the empty file `to`, holes as holes. Returns the copy's digest and size.
///
/// Digests a reflink if the file system can make one. Otherwise one pass reads, digests and writes: copy_file_range(2)
/// would need a second pass for the digest, which could see other bytes.
pub(in crate::task) fn copy(from: &File, size: u64, to: &File) -> Result<(Digest, u64), Failure> {
    if size > 0 && rustix::fs::ioctl_ficlone(to, from).is_ok() {
        let cloned = to.metadata().map_err(Failure::Write)?.len();
        if cloned == size {
            return digest(to, size).map_err(Failure::Write);
        }
        // The size changed: copy again, up to the announced size.
        ftruncate(to, 0).map_err(|errno| Failure::Write(errno.into()))?;
    }
    // Beyond the end everything looks like a hole.
    let size = size.min(from.metadata().map_err(Failure::Read)?.len());
    let mut hasher = Hasher::sha256();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        let (data, end) = next_data(from, offset, size).map_err(|errno| Failure::Read(errno.into()))?;
        zeros(&mut hasher, &mut buffer, data - offset);
        offset = data;
        while offset < end {
            let part = part(&mut buffer, end - offset);
            let read = read_at(from, part, offset).map_err(Failure::Read)?;
            hasher.update(&part[..read]);
            to.write_all_at(&part[..read], offset).map_err(Failure::Write)?;
            offset += read as u64;
            if read < part.len() {
                ftruncate(to, offset).map_err(|errno| Failure::Write(errno.into()))?;
                return Ok((Digest(hasher.finish()), offset));
            }
        }
    }
    ftruncate(to, size).map_err(|errno| Failure::Write(errno.into()))?;
    Ok((Digest(hasher.finish()), size))
}

fn zeros(hasher: &mut Hasher, buffer: &mut [u8], mut count: u64) {
    if count > 0 {
        buffer.fill(0);
    }
    while count > 0 {
        let zeros = part(buffer, count);
        hasher.update(&*zeros);
        count -= zeros.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_keeps_holes_and_its_digest_is_that_of_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(directory.path().join(name))
                .unwrap()
        };
        let (from, to) = (open("from"), open("to"));
        from.set_len(40 << 20).unwrap();
        from.write_all_at(b"middle", 9 << 20).unwrap();
        from.write_all_at(b"end", (40 << 20) - 3).unwrap();
        let (copied, size) = copy(&from, 40 << 20, &to).unwrap();
        assert_eq!(size, 40 << 20);
        assert_eq!(copied, digest(&from, u64::MAX).unwrap().0);
        assert_eq!(copied, digest(&to, u64::MAX).unwrap().0);
        assert!(is_same(&from, &to, size).unwrap());
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20, "the holes were filled");
        to.write_all_at(b"X", 30 << 20).unwrap();
        assert!(!is_same(&from, &to, size).unwrap());
    }

    #[test]
    fn a_copy_stops_where_it_was_said_to() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("from"), b"0123456789").unwrap();
        let from = File::open(directory.path().join("from")).unwrap();
        for (announced, copied) in [(4, 4), (10, 10), (99, 10), (0, 0)] {
            let to = tempfile::tempfile_in(directory.path()).unwrap();
            let (found, size) = copy(&from, announced, &to).unwrap();
            assert_eq!((size, to.metadata().unwrap().len()), (copied, copied));
            assert_eq!(found, digest(&from, copied).unwrap().0);
        }
    }
}
