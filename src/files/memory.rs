//! Anonymous files in memory (memfd_create(2)), to pass data between processes without a disk.

use super::failed;
use crate::error::{Context, Kind, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The largest message between our processes.
const LARGEST: u64 = 16 << 20;

/// Creates an empty file.
pub(crate) fn new_memory(name: &str) -> Result<OwnedFd> {
    memfd_create(name, MemfdFlags::CLOEXEC).failing(Kind::Internal, || "make a file in memory")
}

/// Writes at the beginning.
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

/// Reads the whole file, whatever its offset.
pub(crate) fn read_memory(memory: impl AsFd) -> Result<Vec<u8>> {
    let step = || "read a file in memory".to_owned();
    let file = memory.as_fd().try_clone_to_owned().map(File::from).map_err(|cause| failed(cause, step()))?;
    let length = file.metadata().map_err(|cause| failed(cause, step()))?.len().min(LARGEST);
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|cause| failed(cause, step()))?;
    Ok(bytes)
}
