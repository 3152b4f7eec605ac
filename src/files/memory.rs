//! Anonymous files in memory (memfd_create(2)) pass data between processes without a disk.

use super::failed;
use crate::error::{Context, Kind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The largest message between brig's processes.
const LARGEST: u64 = 16 << 20;

/// Creates an empty file that no process can execute: `vm.memfd_noexec=2` permits no other
/// (userspace-api/mfd_noexec.rst).
pub(crate) fn new_memory(name: &str) -> Result<OwnedFd> {
    let step = || "make a file in memory";
    let memory = new_sealable_memory(name).failing(Kind::Internal, step)?;
    // NOEXEC_SEAL allows further seals: a process that has the file could keep brig from writing.
    fcntl_add_seals(&memory, SealFlags::SEAL).failing(Kind::Internal, step)?;
    Ok(memory)
}

/// Like [`new_memory`], but takes further seals.
pub(crate) fn new_sealable_memory(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags),
        other => other,
    }
}

/// A file like [`new_sealable_memory`] makes, with these bytes, to be read from its beginning.
pub(crate) fn memory_of(name: &str, bytes: &[u8]) -> Result<OwnedFd> {
    let memory = new_sealable_memory(name).failing(Kind::Internal, || "make a file in memory")?;
    write_memory(&memory, bytes)?;
    Ok(memory)
}

pub(crate) fn write_memory(memory: impl AsFd, bytes: &[u8]) -> Result<()> {
    let step = || "write a file in memory".to_owned();
    let file = memory.as_fd().try_clone_to_owned().map(File::from).map_err(|cause| failed(cause, step()))?;
    file.write_all_at(bytes, 0).map_err(|cause| failed(cause, step()))
}

/// Reads a file that has no other reader, by read(2) alone.
pub(crate) fn take_memory(memory: OwnedFd) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::from(memory).take(LARGEST).read_to_end(&mut bytes);
    read.map_err(|cause| failed(cause, "read a file in memory".into()))?;
    Ok(bytes)
}

/// Whatever the file's offset.
pub(crate) fn read_memory(memory: impl AsFd) -> Result<Vec<u8>> {
    let step = || "read a file in memory".to_owned();
    let file = memory.as_fd().try_clone_to_owned().map(File::from).map_err(|cause| failed(cause, step()))?;
    let length = file.metadata().map_err(|cause| failed(cause, step()))?.len().min(LARGEST);
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|cause| failed(cause, step()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, fchmod, fcntl_get_seals, fstat};

    #[test]
    fn a_file_in_memory_cannot_become_executable_and_takes_no_further_seal() {
        let (plain, sealable) = (new_memory("plain").unwrap(), new_sealable_memory("sealable").unwrap());
        write_memory(&plain, b"text").unwrap();
        assert_eq!(read_memory(&plain).unwrap(), b"text");
        assert_eq!(fcntl_add_seals(&plain, SealFlags::WRITE), Err(Errno::PERM));
        fcntl_add_seals(&sealable, SealFlags::WRITE).unwrap();
        let old = memfd_create("old", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL).is_err();
        if old {
            return crate::files::skip("a file in memory that cannot be executed needs kernel 6.3");
        }
        for memory in [plain, sealable] {
            assert!(fcntl_get_seals(&memory).unwrap().contains(SealFlags::EXEC));
            assert_eq!(fstat(&memory).unwrap().st_mode & 0o111, 0);
            assert_eq!(fchmod(&memory, Mode::RWXU), Err(Errno::PERM));
        }
    }
}
