//! What one layer may ask of the disk: bombs are refused while they unpack, long before the disk is full.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;

/// The bounds of one layer. The defaults are far above what honest images have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the uncompressed tar.
    pub bytes: u64,
    /// Bytes that the files claim to have, holes included.
    pub apparent_bytes: u64,
    /// Entries; an inode each.
    pub entries: u64,
    /// Bytes of a path, as the kernel's PATH_MAX.
    pub path: usize,
    /// Components of a path: removing a tree holds a descriptor a level.
    pub depth: usize,
    /// Bytes of memory for what is remembered until the layers below are there: the paths of directories, of removed names and of
    /// hard links to files below. Unlike all else it is not given back while the layer unpacks.
    pub paths: u64,
    /// Uncompressed to compressed. gzip cannot do more than 1,032; honest layers stay below 100.
    pub ratio: u64,
    /// Below this many bytes the ratio does not matter.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 128 << 30,
            apparent_bytes: 1 << 40,
            entries: 4_000_000,
            path: 4096,
            depth: 255,
            paths: 64 << 20,
            ratio: 400,
            ratio_from: 1 << 30,
        }
    }
}

impl Limits {
    /// The tar's size so far.
    pub(super) fn check_size(&self, size: u64) -> Result<()> {
        if size > self.bytes && !weaken::is_off("image-limits") {
            return Err(bomb(format!("it unpacks to more than {} bytes", self.bytes)));
        }
        Ok(())
    }

    /// Refuses what is compressed beyond belief.
    pub(super) fn check_ratio(&self, compressed: u64, size: u64) -> Result<()> {
        if size > self.ratio_from && size / compressed.max(1) > self.ratio && !weaken::is_off("image-limits") {
            return Err(bomb(format!(
                "{compressed} bytes unpack to more than {size}, over {} times as much",
                self.ratio
            )));
        }
        Ok(())
    }

    pub(super) fn check_entries(&self, entries: u64, apparent: u64) -> Result<()> {
        if entries > self.entries && !weaken::is_off("image-limits") {
            return Err(bomb(format!("it has more than {} entries", self.entries)));
        }
        if apparent > self.apparent_bytes && !weaken::is_off("image-limits") {
            return Err(bomb(format!("its files claim more than {} bytes", self.apparent_bytes)));
        }
        Ok(())
    }

    /// What is remembered of paths so far.
    pub(super) fn check_paths(&self, remembered: u64) -> Result<()> {
        if remembered > self.paths && !weaken::is_off("image-limits") {
            return Err(bomb(format!(
                "its directories, whiteouts and hard links take more than {} bytes to remember",
                self.paths
            )));
        }
        Ok(())
    }

    /// A normalised path.
    pub(super) fn check_path(&self, path: &[u8]) -> Result<()> {
        let depth = path.iter().filter(|byte| **byte == b'/').count() + 1;
        if path.len() > self.path {
            return Err(bomb(format!("a path has {} bytes; {} are allowed", path.len(), self.path)));
        }
        if depth > self.depth {
            return Err(bomb(format!("a path is {depth} levels deep; {} are allowed", self.depth)));
        }
        Ok(())
    }
}

fn bomb(cause: String) -> Error {
    Error::new(Kind::Image, cause).hint("if you trust this image, raise the limit with --limit")
}
