//! A sandbox for one untrusted command: safe default limits, a root of the host's system files, one run, one outcome.
//!
//! [`Options`] are checked, `container_spec` turns them into a spec (pure), `container` carries it out, `supervise`
//! watches it, `outcome` decides (pure). The result is a [`Report`]. `task` prepares the workspace and uses its
//! changes.

mod backend;
mod check;
mod checkpoint;
mod control;
mod deadlines;
mod devices;
mod health;
mod host_mounts;
mod image;
mod job_limits;
mod known;
pub(crate) mod limits;
mod location;
mod meters;
mod monitor;
mod mount;
mod network;
mod options;
pub(crate) mod outcome;
mod profile;
mod refusals;
mod report;
mod requests;
mod run;
mod signals;
mod streams;
mod submounts;
mod supervise;
mod system;
mod trust;
mod visitor;
mod volume;
mod volumes;

/// Not 0: no process inside runs as root, even as a root without power.
pub(crate) const USER: u32 = 1000;
/// The home without an image.
pub(crate) const HOME: &str = "/home/agent";
/// The home of root inside, without an image.
const ROOTS_HOME: &str = "/root";

/// Begins the slowest part of the next sandbox in a child process. For a program with one thread that will probably run
/// a sandbox now. Else a start takes half a millisecond longer.
pub fn begin_ahead() {
    if crate::process::require_one_thread().is_ok() {
        crate::container::begin_ahead();
    }
}

/// Remains of the OCI runtime's containers whose `create` was killed: a kind and a path each.
pub(crate) fn left_containers() -> Vec<(&'static str, std::path::PathBuf)> {
    crate::container::Containers::new(None).left()
}

pub use crate::container::SecretOpener;
pub(crate) use crate::container::archive::{
    Bounds as ArchiveBounds, pack, pack_kept, pack_own_volume, pack_volume, unpack_at, unpack_own_volume, unpack_volume,
};
pub(crate) use crate::container::{
    DiskFile, HostPaths, ImageAccess, Leftover, NewVolumeImage, Opened as OpenedImage, PackedVolume, PendingVolume,
    VolumeFiles, VolumeImage, Workshop, backing_name, capped_roots, groups, is_begun_disk_abandoned, left_devices,
    remove_begun_disk, remove_devices, remove_groups, volume_files,
};
pub(crate) use crate::egress::{Broker, PLACEHOLDER, Renewal, Value, check_credentials, fits_a_header, make_authority};
pub use crate::egress::{Credential, Ech, Ledger, Policy, Row, Rule, Wording};
pub(crate) use crate::process::{Starter, in_background};
pub use crate::spec::parse_size;
pub(crate) use crate::spec::root::Hidden;
pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::{CHECKPOINTS, checkpoint_path, checkpoints};
pub use control::Caller;
pub(crate) use control::{Client, Control, Exec, Idle, Reply, Request, idle};
pub use health::{Health, HealthCheck, HealthState};
pub(crate) use host_mounts::also_shows;
pub use image::{Files, ImageRoot};
pub use job_limits::JobLimits;
pub use limits::{LimitName, Limits, counted, size};
pub(crate) use location::{SECRETS, WORKSPACE, conflict};
pub use mount::{Mount, MountMode};
pub use network::{Network, NetworkMode, Publish};
pub use options::{Backend, Options, Workspace};
pub use outcome::{ExitCodes, LimitHit, Outcome};
pub(crate) use outcome::{Facts, Stopped, decide};
pub(crate) use profile::{CHANGES, FILES, begin_disk, on_disk};
pub use refusals::Refused;
pub use report::{Cleanup, Degraded, Guarantee, Report, Sample, Usage};
pub(crate) use run::{Audience, Remains, Site, begin, explain, guarantee, possible, run};
pub(crate) use signals::Signals;
pub(crate) use streams::{JobEnd, JobEvent, Notice, Progress, Sink, Stream};
pub(crate) use visitor::FileRequest;
pub use visitor::{FileEntry, as_visitor};
pub use volume::{Volume, VolumeAccess, check_volume_name};
pub(crate) use volumes::{are_packed, check_owner};
