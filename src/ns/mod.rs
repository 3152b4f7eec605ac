//! Namespaces: which are made, and the id maps of user namespaces.
//!
//! In: what a container asks for. Out: clone flags, mapped user namespaces as descriptors.
//! Not here: entering a running container (`process::join`).

use crate::sys::weaken;

pub(crate) mod ahead;
mod idmap;
mod plan;
mod range;
mod user;

pub(crate) use idmap::{IdMap, Maps, swapped};
pub(crate) use plan::{Left, Namespaces, can_return, flag, shift_time, unshare_mounts, visit};
pub(crate) use range::Range;
pub(crate) use user::{Helper, Mapped, is_initial, mapped, mapped_above, write_maps, write_own_map};

/// Every new namespace of a sandbox but the user and cgroup ones, as clone3(2) takes them. The cgroup namespace must be unshared later, when
/// the process is in its cgroup, or its root would be the caller's cgroup.
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
