//! Namespaces: which to make, and the id maps of user namespaces. `process::join` enters a running container.

use crate::sys::weaken;

pub(crate) mod ahead;
mod idmap;
mod plan;
mod range;
mod user;

pub(crate) use idmap::{IdMap, Maps, swapped};
pub(crate) use plan::{Left, Namespaces, can_return, flag, shift_time, unshare_mounts, visit};
pub(crate) use range::Range;
pub(crate) use user::{Helper, Mapped, forbid_nested, is_initial, mapped, mapped_above, write_maps, write_own_map};

/// clone3(2) flags, without the user and cgroup namespaces. The cgroup namespace is unshared when the process is in its
/// cgroup: earlier, its root would be the caller's cgroup.
pub(crate) fn sandbox() -> u64 {
    let weakenable = [
        ("pid-namespace", libc::CLONE_NEWPID),
        ("network-namespace", libc::CLONE_NEWNET),
        ("ipc-namespace", libc::CLONE_NEWIPC),
        ("uts-namespace", libc::CLONE_NEWUTS),
    ];
    let flags = weakenable
        .into_iter()
        .filter(|(name, _)| !weaken::is_off(name))
        .fold(libc::CLONE_NEWNS, |all, (_, flag)| all | flag);
    flags as u64
}
