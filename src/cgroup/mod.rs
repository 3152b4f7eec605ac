//! A container's cgroup: made, limited, joined, read, frozen, killed and removed, on three layouts picked once.
//!
//! In: [`Hierarchy::probe`], a [`CgroupPath`], what the group is for, and the limits of `spec::Resources`.
//! Out: a [`Cgroup`], which holds one open directory for each hierarchy, and a [`Record`] from which another process of
//! ours opens it again.
//! Order: [`Hierarchy::refusals`] before anything is made; [`Cgroup::create`], or [`Cgroup::begin`] and the rest later; the process is born in it
//! ([`Cgroup::clone_into`]) or joins ([`join::enter`] on [`Cgroup::join_files`]); [`Cgroup::kill`]; [`Cgroup::remove`].
//! Layouts: v2 alone; v1 controllers beside a v2 tree, which then kills, freezes and counts time; v1 alone.
//! Not here: who may have which limits, and when. Never: moving a survivor of a container to the root group.

mod below;
mod child;
mod controller;
mod create;
mod delegate;
mod devices;
mod directory;
mod freeze;
mod hierarchy;
mod join;
mod kill;
mod limits;
mod make;
mod notify;
mod path;
mod plan;
mod plan_v1;
mod plan_v2;
mod record;
mod refusal;
mod stats;
pub(crate) mod systemd;
mod usage;
mod widen;
mod write;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use create::{Begun, Purpose};
pub(crate) use directory::remove_empty;
pub(crate) use hierarchy::Hierarchy;
pub(crate) use hierarchy::Layout;
pub(crate) use join::enter;
pub(crate) use path::CgroupPath;
pub(crate) use record::{Record, leftovers, remove_leftover};
pub(crate) use refusal::Refusal;
pub(crate) use usage::{Evidence, Usage};

use controller::Controller;
use create::Group;
use devices::DeviceControl;

/// The groups of one container: at most one for each hierarchy.
#[derive(Debug)]
pub(crate) struct Cgroup {
    groups: Vec<Group>,
    devices: DeviceControl,
}

impl Cgroup {
    /// The group of `controller`, if it was needed.
    fn group(&self, controller: Controller) -> Option<&Group> {
        self.groups.iter().find(|group| group.controllers.has(controller))
    }

    /// The group of the v2 tree.
    fn v2(&self) -> Option<&Group> {
        self.groups.iter().find(|group| group.is_v2)
    }

    /// How far the device rules went when this was created.
    #[cfg(test)]
    pub(crate) fn devices(&self) -> DeviceControl {
        self.devices
    }

    /// The group that has the device rules.
    fn device_group(&self) -> Option<&Group> {
        self.group(Controller::Devices).or_else(|| self.v2())
    }

    /// The group that knows all processes: every one of ours does, v2's can do most with it.
    fn any(&self) -> Option<&Group> {
        self.v2().or_else(|| self.group(Controller::Freezer)).or_else(|| self.groups.first())
    }
}

/// The inode of the first user namespace (`PROC_USER_INIT_INO` of linux/proc_ns.h). A map of ids says less: a namespace may
/// have the same one.
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Whether we are root of the host, and not only of a user namespace.
fn is_host_root() -> bool {
    let is_first = || {
        let namespace = rustix::fs::stat("/proc/self/ns/user");
        namespace.is_ok_and(|status| status.st_ino == FIRST_USER_NAMESPACE)
    };
    rustix::process::geteuid().is_root() && is_first()
}
