//! `process` makes both kinds of containers from one plan. A `sandbox` ends with its supervisor; an engine manages an
//! `oci` container by verbs, with a record between them.

mod check;
mod gateway;
mod oci;
mod sandbox;
mod tree;

pub(crate) use crate::landlock::layers as landlock_layers;
pub(crate) use crate::mounts::bundle::shown::count_images as capped_roots;
pub(crate) use crate::mounts::disk::volatile::{
    backing_name, is_abandoned as is_begun_disk_abandoned, reap as remove_begun_disk,
};
pub(crate) use crate::mounts::disk::volume::{ImageAccess, NewVolumeImage, Opened, VolumeImage, files as volume_files};
pub(crate) use crate::mounts::sandbox::{PackedVolume, PendingVolume, VolumeFiles};
pub(crate) use crate::sys::seccomp::{let_through, next_waiting, refuse};
pub(crate) use check::{Checked, Possible, check, nested, possible, privileged, thoroughly as check_thoroughly};
pub(crate) use gateway::Wish;
pub(crate) use sandbox::archive;
pub(crate) use sandbox::{
    DiskFile, Entered, HostPaths, Leftover, Queues, Running, Visit, Workshop, begin_ahead, begin_disk, check_pasta,
    groups, launch, left_devices, remove_devices, remove_groups,
};
pub(crate) use tree::called;

pub use crate::spec::resources::Resources;
pub use crate::spec::state::Status;
pub use oci::{
    Cgroups, Checkpoint, ContainerId, Containers, Created, Creation, CriuOptions, Executed, Execution, Notify,
    Restoration, Restored, SecretOpener, Snapshot, features, parse_id, parse_user, signal_process, template,
};

/// The number of ids of a sandbox of the machine's root.
pub(crate) const IDS: u32 = crate::ns::Range::SIZE;

/// Pid 1 and the gateway.
pub(crate) const OWN_USERS: [u32; 2] = [crate::process::PID_1_USER, gateway::USER];

/// As `linux.seccomp` of a config.json.
pub(crate) fn agent_filter() -> crate::error::Result<serde_json::Value> {
    use crate::error::{Error, Kind};
    serde_json::to_value(crate::seccomp::profile::agent_spec())
        .map_err(|cause| Error::new(Kind::Internal, cause.to_string()).doing("write the filter of system calls"))
}

/// Releases the program's pages while it waits for a sandbox; ignores failures.
pub(crate) fn rest() {
    let _ = crate::start::pages::release();
}

/// Protects the program from its containers. It may execute itself again with the same arguments, so call it first,
/// with one thread.
pub fn protect_own_executable() -> crate::error::Result<()> {
    crate::process::protect_own_executable()
}

/// Resets SIGCHLD: a caller that ignores it (a daemon) passes this on, and our children could not be waited for. Call
/// it first.
pub fn expect_children() {
    crate::sys::signal::restore_signal(libc::SIGCHLD);
}
