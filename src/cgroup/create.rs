//! Making a container's group in every hierarchy that it needs, with its limits, or nothing at all.

use super::Cgroup;
use super::controller::{Controller, Controllers};
use super::devices::{self, DeviceControl};
use super::directory::Directory;
use super::hierarchy::{Hierarchy, Layout};
use super::limits;
use super::make::{Existing, Made, is_denied, make_v1, make_v2};
use super::path::CgroupPath;
use super::plan;
use super::write::{Write, controllers};
use crate::error::{Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use std::os::fd::BorrowedFd;

/// What a group is for, and so which controllers it needs besides those with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A task: memory, tasks and processor time are measured, whatever is limited.
    Task,
    /// A container. Docker and containerd read its groups for their statistics, so it has every controller that counts something.
    Container,
}

/// One group in one hierarchy.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) directory: Directory,
    /// The v1 controllers of this hierarchy, or those of v2 that the group was given.
    pub(super) controllers: Controllers,
    pub(super) is_v2: bool,
}

impl Purpose {
    /// The controllers that a group must have besides those with limits.
    pub(super) fn required(self) -> Controllers {
        match self {
            Purpose::Task => Controllers::of(&[Controller::Memory, Controller::Pids]),
            Purpose::Container => Controllers::NONE,
        }
    }

    /// What it must have in addition where there is no v2 group, which counts processor time and can be frozen and killed
    /// without any controller.
    pub(super) fn without_v2(self) -> Controllers {
        match self {
            Purpose::Task => Controllers::of(&[Controller::Freezer, Controller::Cpuacct]),
            Purpose::Container => Controllers::of(&[Controller::Freezer]),
        }
    }

    /// The controllers that a group has if they can be had.
    pub(super) fn optional(self) -> Controllers {
        use Controller::{Cpu, Cpuacct, Cpuset, Devices, Freezer, Hugetlb, Io, Memory, Pids};
        match self {
            Purpose::Task => Controllers::NONE,
            Purpose::Container => Controllers::of(&[Cpu, Cpuacct, Cpuset, Memory, Pids, Devices, Freezer, Io, Hugetlb]),
        }
    }
}

/// A container's group that is not whole yet: the v2 group is there, for a process to be born in; v1's are not. Dropped, it is removed again.
pub(crate) struct Begun<'all> {
    hierarchy: &'all Hierarchy,
    path: &'all CgroupPath,
    existing: Existing,
    purpose: Purpose,
    limits: &'all Resources,
    writes: Vec<Write>,
    required: Controllers,
    groups: Vec<Group>,
    /// How many of the v1 hierarchies have been looked at.
    looked_at: usize,
    made: Made,
}

impl Cgroup {
    /// Makes the groups of `path` and writes `limits` into them. If anything fails, nothing stays.
    ///
    /// A task's group must be new. A container's may exist (its caller may have made it), but not with processes in it
    /// and not frozen.
    pub(crate) fn create(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        purpose: Purpose,
        limits: &Resources,
    ) -> Result<Cgroup> {
        Cgroup::begin(hierarchy, path, purpose, limits)?.finish() // if that fails, it is dropped, and nobody is in it
    }

    /// The same in two steps: what is left of it, most of the time, can be done while the container's first process is at work already.
    pub(crate) fn begin<'all>(
        hierarchy: &'all Hierarchy,
        path: &'all CgroupPath,
        purpose: Purpose,
        limits: &'all Resources,
    ) -> Result<Begun<'all>> {
        let existing = match path {
            CgroupPath::Task(_) => Existing::Refuse,
            CgroupPath::Absolute(_) | CgroupPath::Relative(_) => Existing::Unused,
        };
        Begun::new(hierarchy, path, existing, purpose, limits)
    }

    /// The same where systemd has made the group at `path` already, with `pid` in it: what systemd does not manage (other
    /// v1 controllers) is made beside it, and what it cannot express is written.
    pub(crate) fn adopt(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        pid: i32,
        purpose: Purpose,
        limits: &Resources,
    ) -> Result<Cgroup> {
        let mut begun = Begun::new(hierarchy, path, Existing::Adopt, purpose, limits)?;
        let cgroup = begun.assemble()?;
        cgroup.join(pid)?;
        begun.made.keep();
        Ok(cgroup)
    }
}

impl<'all> Begun<'all> {
    fn new(
        hierarchy: &'all Hierarchy,
        path: &'all CgroupPath,
        existing: Existing,
        purpose: Purpose,
        limits: &'all Resources,
    ) -> Result<Begun<'all>> {
        let writes = plan::writes(limits, |controller| hierarchy.is_v1(controller))?;
        let mut required = controllers(&writes).or(purpose.required());
        if hierarchy.v2.is_none() {
            required = required.or(purpose.without_v2());
        }
        if !limits.devices.is_empty() && (hierarchy.is_v1(Controller::Devices) || hierarchy.v2.is_none()) {
            required.insert(Controller::Devices);
        }
        let (mut groups, mut made) = (Vec::with_capacity(hierarchy.v1.len() + 1), Made::default());
        if let Some(tree) = &hierarchy.v2 {
            let of_v2: Controllers = required.iter().filter(|&each| !hierarchy.is_v1(each)).collect();
            // On a hybrid host what v2 is left with is not worth a change of its root.
            let optional = if hierarchy.layout() == Layout::Unified { purpose.optional() } else { Controllers::NONE };
            match make_v2(tree, path, of_v2, optional, existing, &mut made) {
                Ok(group) => groups.push(group),
                // The tree beside the v1 controllers may be root's alone: then v1 does its part.
                Err(error) if is_denied(&error) && of_v2.is_empty() && hierarchy.layout() == Layout::Hybrid => {
                    required = required.or(purpose.without_v2());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Begun { hierarchy, path, existing, purpose, limits, writes, required, groups, looked_at: 0, made })
    }

    /// The v2 group, for a process that is to be born in it (`CLONE_INTO_CGROUP`, clone(2)).
    pub(crate) fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.groups.iter().find(|group| group.is_v2).map(|group| group.directory.fd())
    }

    /// Makes the group of one v1 hierarchy, for those who have a moment before [`Begun::finish`]; `false` if all are there.
    pub(crate) fn step(&mut self) -> Result<bool> {
        while let Some(tree) = self.hierarchy.v1.get(self.looked_at) {
            self.looked_at += 1;
            if !tree.controllers.and(self.required.or(self.purpose.optional())).is_empty() {
                self.groups.push(make_v1(tree, self.path, self.existing, &mut self.made)?);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the rest, with all limits. After an error, whoever is in the group already must leave it before this is dropped.
    pub(crate) fn finish(&mut self) -> Result<Cgroup> {
        let cgroup = self.assemble()?;
        self.made.keep();
        Ok(cgroup)
    }

    fn assemble(&mut self) -> Result<Cgroup> {
        while self.step()? {}
        let Begun { hierarchy, path, existing, purpose, limits, ref writes, required, .. } = *self;
        let (mut groups, made) = (std::mem::take(&mut self.groups), &mut self.made);
        if let (Some(tree), Purpose::Container) = (&hierarchy.systemd, purpose) {
            match make_v1(tree, path, existing, made) {
                Ok(group) => groups.push(group),
                // It limits nothing, so that an ordinary user's container does without.
                Err(error) if is_denied(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut cgroup = Cgroup { groups, devices: DeviceControl::NotAsked };
        if let Some(controller) = required.iter().find(|&each| cgroup.group(each).is_none()) {
            let reason = format!("no cgroup controller `{}` is mounted", controller.name_v1());
            return Err(Error::new(Kind::LimitUnenforceable, reason)
                .doing("create the container's cgroup")
                .hint("run `brig doctor`"));
        }
        limits::write_all(&cgroup, writes).doing(|| "create the container's cgroup")?;
        if let Some(group) = cgroup.device_group() {
            cgroup.devices =
                devices::control(group, &limits.devices, true).doing(|| "create the container's cgroup")?;
        }
        Ok(cgroup)
    }
}
