//! A range of 65,536 host ids for one root sandbox: without accounts, files or other sandboxes.
//!
//! systemd's UIDS-GIDS table leaves 0x70000000..0x7FFD0000 unused. A byte of a lock file stands for each range. The
//! supervisor holds its lock, so the range is free when supervisor and sandbox end (fcntl(2), open file description
//! locks).

use crate::error::{Error, Kind, Result};
use crate::files::Slot;
use std::path::Path;

const FIRST: u32 = 0x7000_0000;
const SLOTS: u32 = 0x0FFD;

/// Reserved until its last holder exits.
#[derive(Debug)]
pub(crate) struct Range {
    pub base: u32,
    /// Holds the lock.
    _slot: Slot,
}

impl Range {
    pub(crate) const SIZE: u32 = 65_536;

    /// `directory` is the same for the whole machine, whatever the store.
    pub(crate) fn take(directory: &Path) -> Result<Range> {
        let delegated = delegated_to_others();
        let base = |slot: u32| FIRST + slot * Self::SIZE;
        let is_nobodys = |slot: u32| {
            let (from, to) = (u64::from(base(slot)), u64::from(base(slot) + Self::SIZE));
            !delegated.iter().any(|&(first, count)| from < first + count && first < to)
        };
        let slot = Slot::take(directory, "id-ranges", SLOTS, is_nobodys)?.ok_or_else(|| {
            Error::new(Kind::UserNamespace, "all 4,093 ranges of host ids are in use").hint("stop some sandboxes")
        })?;
        Ok(Range { base: base(slot.number), _slot: slot })
    }
}

/// From /etc/subuid and /etc/subgid. Skips lines that do not parse.
fn delegated_to_others() -> Vec<(u64, u64)> {
    let parse = |line: &str| {
        let mut fields = line.split(':').skip(1).map(str::trim);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ["/etc/subuid", "/etc/subgid"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| text.lines().filter_map(parse).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_never_share_a_range() {
        let directory = tempfile::tempdir().unwrap();
        let held: Vec<_> = (0..40).map(|_| Range::take(directory.path()).unwrap()).collect();
        let mut bases: Vec<_> = held.iter().map(|range| range.base).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), held.len());
        assert!(bases.iter().all(|base| base % 65_536 == 0 && *base < 0x7FFD_0000));
    }
}
