//! From a description to a container and back to nothing.
//!
//! Both kinds of container are made and entered by one engine, `process`, from one plan. They differ in their owner: a supervisor watches a
//! [`sandbox`] and its end is the sandbox's; an engine manages an [`oci`] container by verbs, and a record holds it between them.

mod check;
mod gateway;
mod oci;
mod sandbox;
mod tree;

pub(crate) use crate::mounts::disk::volatile::{
    backing_name, is_abandoned as is_begun_disk_abandoned, reap as remove_begun_disk,
};
pub(crate) use crate::sys::seccomp::{next_waiting, refuse};
pub(crate) use check::{Checked, Possible, check, nested, possible, privileged, thoroughly as check_thoroughly};
pub(crate) use gateway::Wish;
pub(crate) use sandbox::{
    DiskFile, Entered, Place, Queues, Running, Visit, Workshop, begin_ahead, begin_disk, check_pasta, groups, launch,
    left_devices, remove_devices, remove_groups,
};
pub(crate) use tree::called;

pub use crate::spec::resources::Resources;
pub use crate::spec::state::Status;
pub use oci::{
    Cgroups, Checkpoint, ContainerId, Containers, Created, Creation, CriuOptions, Executed, Execution, Notify,
    Restoration, Restored, Snapshot, features, ids, signal_process, template,
};

/// How many ids a sandbox of the machine's root has.
pub(crate) const IDS: u32 = crate::ns::Range::SIZE;

/// The agent's filter as `linux.seccomp` of a config.json.
pub(crate) fn agent_filter() -> crate::error::Result<serde_json::Value> {
    use crate::error::{Error, Kind};
    serde_json::to_value(crate::seccomp::profile::agent_spec())
        .map_err(|cause| Error::new(Kind::Internal, cause.to_string()).doing("write the filter of system calls"))
}

/// Gives the program's own pages back while it only waits for a sandbox. What cannot be given back stays.
pub(crate) fn rest() {
    let _ = crate::start::pages::release();
}

/// Makes sure that a container cannot change the program that creates it or enters it: it may start this process anew, with the same arguments, so call
/// it first. Only a process with one thread may.
pub fn protect_own_executable() -> crate::error::Result<()> {
    crate::process::protect_own_executable()
}

/// Gives SIGCHLD its default action, so that the ends of our own children are told to us: a caller that ignores it (a daemon that wants no zombies)
/// hands that on to the programs that it starts, and then there is nobody to wait for. Call it first.
pub fn expect_children() {
    crate::sys::signal::restore_signal(libc::SIGCHLD);
}
