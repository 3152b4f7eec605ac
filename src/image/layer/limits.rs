//! A bomb is refused while it unpacks, before the disk is full.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// For one image with all its layers. The defaults are far above honest images.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of uncompressed tars, and of lower files copied for a hard link. Also of compressed layers, checked before
    /// any is fetched.
    pub bytes: u64,
    /// Apparent bytes of files, holes included.
    pub apparent_bytes: u64,
    /// Entries, one inode each.
    pub entries: u64,
    /// Bytes of a path, the kernel's PATH_MAX.
    pub path: usize,
    /// Components of a path.
    pub depth: usize,
    /// Bytes of memory for a layer's records until the layers below are ready.
    pub paths: u64,
    /// Uncompressed to compressed. gzip's maximum is 1,032; honest layers stay below 100.
    pub ratio: u64,
    /// The ratio is ignored below this many bytes.
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

/// Bytes of a record besides its path.
const PATH: u64 = 64;

/// All layers of an image share one budget.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(super) limits: Limits,
    packed: AtomicU64,
    unpacked: AtomicU64,
    apparent: AtomicU64,
    entries: AtomicU64,
    paths: AtomicU64,
    /// Checks what a fork counts.
    parent: Option<Arc<Budget>>,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Arc<Budget> {
        Arc::new(Budget::empty(limits, None))
    }

    fn empty(limits: Limits, parent: Option<Arc<Budget>>) -> Budget {
        let zero = || AtomicU64::new(0);
        Budget { limits, packed: zero(), unpacked: zero(), apparent: zero(), entries: zero(), paths: zero(), parent }
    }

    /// Takes from this budget, and can give all of that back.
    pub(crate) fn fork(self: &Arc<Budget>) -> Arc<Budget> {
        Arc::new(Budget::empty(self.limits, Some(Arc::clone(self))))
    }

    /// The layer of this fork was thrown away.
    pub(crate) fn refund(&self) {
        let Some(parent) = &self.parent else { return };
        for (own, whole) in self.sums().into_iter().zip(parent.sums()) {
            let own = own.load(Ordering::Relaxed);
            // Saturates, and so never fails.
            let _ = whole.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_sub(own)));
        }
    }

    fn sums(&self) -> [&AtomicU64; 5] {
        [&self.packed, &self.unpacked, &self.apparent, &self.entries, &self.paths]
    }

    pub(crate) fn check_announced(&self, sizes: impl Iterator<Item = u64>) -> Result<()> {
        let announced = sizes.fold(0, u64::saturating_add);
        if announced > self.limits.bytes && !weaken::is_off("image-limits") {
            let bytes = self.limits.bytes;
            return Err(bomb(format!(
                "its layers are said to have {announced} bytes, packed, which is more than {bytes} bytes"
            )));
        }
        Ok(())
    }

    pub(crate) fn take_layer(&self, packed: u64, unpacked: u64, entries: u64) -> Result<()> {
        self.take_packed(packed);
        self.take_unpacked(unpacked)?;
        self.take_entries(entries, 0)
    }

    pub(super) fn take_packed(&self, bytes: u64) {
        add(&self.packed, bytes);
        if let Some(parent) = &self.parent {
            parent.take_packed(bytes);
        }
    }

    pub(super) fn take_unpacked(&self, bytes: u64) -> Result<()> {
        let Limits { bytes: most, ratio, ratio_from, .. } = self.limits;
        let unpacked = add(&self.unpacked, bytes);
        if let Some(parent) = &self.parent {
            return parent.take_unpacked(bytes);
        }
        let packed = self.packed.load(Ordering::Relaxed);
        if weaken::is_off("image-limits") {
            return Ok(());
        }
        if unpacked > most {
            return Err(bomb(format!("the image unpacks to more than {most} bytes")));
        }
        if unpacked > ratio_from && unpacked / packed.max(1) > ratio {
            let cause = format!("{packed} bytes unpack to more than {unpacked}, over {ratio} times as much");
            return Err(bomb(cause));
        }
        Ok(())
    }

    pub(super) fn take_entries(&self, count: u64, apparent: u64) -> Result<()> {
        let Limits { entries: most, apparent_bytes, .. } = self.limits;
        let (entries, added) = (add(&self.entries, count), apparent);
        let apparent = add(&self.apparent, added);
        if let Some(parent) = &self.parent {
            return parent.take_entries(count, added);
        }
        if entries > most && !weaken::is_off("image-limits") {
            return Err(bomb(format!("the image has more than {most} entries")));
        }
        if apparent > apparent_bytes && !weaken::is_off("image-limits") {
            return Err(bomb(format!("the image's files claim more than {apparent_bytes} bytes")));
        }
        Ok(())
    }

    pub(super) fn take_path(&self, path: &[u8]) -> Result<()> {
        let most = self.limits.paths;
        let paths = add(&self.paths, path.len() as u64 + PATH);
        if let Some(parent) = &self.parent {
            return parent.take_path(path);
        }
        if paths > most && !weaken::is_off("image-limits") {
            return Err(bomb(format!(
                "its directories, whiteouts and hard links take more than {most} bytes to remember"
            )));
        }
        Ok(())
    }
}

/// Saturates instead of wrapping.
fn add(sum: &AtomicU64, number: u64) -> u64 {
    let before = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old.saturating_add(number)));
    before.unwrap_or_else(|old| old).saturating_add(number)
}

impl Limits {
    /// For blobs of the store: they were accepted once, perhaps with `--limit`, and their digests are checked.
    pub(crate) fn highest() -> Limits {
        Limits {
            bytes: u64::MAX,
            entries: u64::MAX,
            depth: usize::MAX,
            paths: u64::MAX,
            ratio: u64::MAX,
            ..Limits::default()
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_one_bound() {
        let budget = Budget::new(Limits { bytes: 100, ratio: 2, ratio_from: 50, entries: 3, ..Limits::default() });
        budget.take_layer(10, 40, 1).unwrap();
        budget.take_packed(20);
        budget.take_unpacked(20).unwrap();
        let refused = budget.take_unpacked(31).unwrap_err().to_string();
        assert!(refused.contains("30 bytes unpack to more than 91, over 2 times as much"), "{refused}");
        let refused = budget.take_unpacked(u64::MAX).unwrap_err().to_string();
        assert!(refused.contains("more than 100 bytes"), "{refused}");
        assert!(budget.take_unpacked(1).is_err(), "a sum has begun anew");
        (0..2).for_each(|_| budget.take_entries(1, 0).unwrap());
        assert!(budget.take_entries(1, 0).unwrap_err().to_string().contains("more than 3 entries"));
        let announced = |sizes: &[u64]| budget.check_announced(sizes.iter().copied());
        announced(&[50, 50]).unwrap();
        let refused = announced(&[50, 51]).unwrap_err();
        assert!(refused.advice().is_some_and(|advice| advice.contains("--limit")), "{refused:?}");
        announced(&[u64::MAX, u64::MAX]).unwrap_err();
    }

    #[test]
    fn fork_takes_from_the_whole_and_gives_back() {
        let budget = Budget::new(Limits { bytes: 100, entries: 3, ..Limits::default() });
        budget.take_layer(10, 40, 1).unwrap();
        for _ in 0..5 {
            let fork = budget.fork();
            fork.take_layer(10, 60, 2).unwrap();
            assert!(fork.take_unpacked(1).is_err() && budget.take_entries(0, 0).is_ok());
            fork.refund();
        }
        budget.take_unpacked(60).unwrap();
        budget.take_unpacked(1).unwrap_err();
    }
}
