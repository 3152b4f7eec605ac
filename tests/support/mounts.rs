//! Copies of `/proc/PID/mountinfo` that are compared.

use std::collections::BTreeSet;
use std::path::Path;

/// Whether no mount was changed, added or removed in between. The kernel removes a mount in all namespaces when its
/// mount point is removed, and other tests do that: such a mount does not count.
pub fn same_mounts(before: &str, after: &str) -> bool {
    let [before, after] = [before, after].map(|text| text.lines().collect::<BTreeSet<_>>());
    let is_there = |line: &str| Path::new(line.split(' ').nth(4).unwrap()).exists();
    after.is_subset(&before) && !before.difference(&after).any(|line| is_there(line))
}
