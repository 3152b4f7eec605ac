//! Copies of `/proc/PID/mountinfo` that are compared.

use std::collections::BTreeSet;
use std::path::Path;

/// The lines of mounts that were changed, added or removed in between. The kernel removes a mount in all namespaces when
/// its mount point is removed, and other tests do that: such a mount does not count.
pub fn changed_mounts<'text>(before: &'text str, after: &'text str) -> Vec<&'text str> {
    let [before, after] = [before, after].map(|text| text.lines().collect::<BTreeSet<_>>());
    let is_there = |line: &&&str| Path::new(line.split(' ').nth(4).unwrap()).exists();
    after.difference(&before).chain(before.difference(&after).filter(is_there)).copied().collect()
}
