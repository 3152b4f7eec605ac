//! Creates a container's groups, adopts systemd's group, and adds controllers or an owner later.

use super::controller::{Controller, Controllers, Purpose};
use super::devices;
use super::group::{Cgroup, Group};
use super::hierarchy::{Hierarchy, Layout};
use super::limits;
use super::make::{self, Existing, NewGroups, is_denied, make_v1, make_v2};
use super::path::CgroupPath;
use super::plan::{self, Write, controllers};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use rustix::fs::{AtFlags, CWD, chownat};
use rustix::io::Errno;
use rustix::process::Uid;
use std::os::fd::BorrowedFd;

/// A process may fork between the listing and the move.
const MOVE_ROUNDS: u32 = 10;

/// The v2 group exists, so that a process can be born in it. Dropping it removes the groups.
pub(crate) struct PendingCgroup<'all> {
    hierarchy: &'all Hierarchy,
    path: &'all CgroupPath,
    existing: Existing,
    purpose: Purpose,
    limits: &'all Resources,
    writes: Vec<Write>,
    required: Controllers,
    groups: Vec<Group>,
    done_v1: usize,
    made: NewGroups,
}

impl Cgroup {
    /// A failure leaves no group behind. A task's group must be new. A container's group may exist, made by its caller,
    /// but must be empty and not frozen.
    pub(crate) fn create(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        purpose: Purpose,
        limits: &Resources,
    ) -> Result<Cgroup> {
        Cgroup::begin(hierarchy, path, purpose, limits)?.finish()
    }

    /// The second step can run while the container's first process already works.
    pub(crate) fn begin<'all>(
        hierarchy: &'all Hierarchy,
        path: &'all CgroupPath,
        purpose: Purpose,
        limits: &'all Resources,
    ) -> Result<PendingCgroup<'all>> {
        let existing = match path {
            CgroupPath::Task(_) => Existing::Refuse,
            CgroupPath::Absolute(_) | CgroupPath::Relative(_) => Existing::Unused,
        };
        PendingCgroup::new(hierarchy, path, existing, purpose, limits)
    }

    /// Adds to the group that systemd made for `pid` the v1 groups and the limits that systemd does not manage.
    pub(crate) fn adopt(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        pid: i32,
        purpose: Purpose,
        limits: &Resources,
    ) -> Result<Cgroup> {
        let mut begun = PendingCgroup::new(hierarchy, path, Existing::Adopt, purpose, limits)?;
        let cgroup = begun.assemble()?;
        cgroup.join(pid)?;
        begun.made.keep();
        Ok(cgroup)
    }
}

impl<'all> PendingCgroup<'all> {
    fn new(
        hierarchy: &'all Hierarchy,
        path: &'all CgroupPath,
        existing: Existing,
        purpose: Purpose,
        limits: &'all Resources,
    ) -> Result<PendingCgroup<'all>> {
        let writes = plan::writes(limits, |controller| hierarchy.is_v1(controller))?;
        let mut required = controllers(&writes).or(purpose.required());
        if hierarchy.v2.is_none() {
            required = required.or(purpose.without_v2());
        }
        if !limits.devices.is_empty() && (hierarchy.is_v1(Controller::Devices) || hierarchy.v2.is_none()) {
            required.insert(Controller::Devices);
        }
        let (mut groups, mut made) = (Vec::with_capacity(hierarchy.v1.len() + 1), NewGroups::default());
        if let Some(tree) = &hierarchy.v2 {
            let of_v2: Controllers = required.iter().filter(|&each| !hierarchy.is_v1(each)).collect();
            // The few v2 controllers of a hybrid host are not worth a change of the v2 root.
            let optional = if hierarchy.layout() == Layout::Unified { purpose.optional() } else { Controllers::NONE };
            match make_v2(tree, path, of_v2, optional, existing, &mut made) {
                Ok(group) => groups.push(group),
                // Only root may write to the v2 tree of a hybrid host: v1 controllers replace it.
                Err(error) if is_denied(&error) && of_v2.is_empty() && hierarchy.layout() == Layout::Hybrid => {
                    required = required.or(purpose.without_v2());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(PendingCgroup { hierarchy, path, existing, purpose, limits, writes, required, groups, done_v1: 0, made })
    }

    /// The v2 group (`CLONE_INTO_CGROUP`, clone(2)).
    pub(crate) fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.groups.iter().find(|group| group.is_v2).map(|group| group.directory.fd())
    }

    /// For a caller with time before [`PendingCgroup::finish`]; `false` if all v1 groups exist.
    pub(crate) fn step(&mut self) -> Result<bool> {
        while let Some(tree) = self.hierarchy.v1.get(self.done_v1) {
            self.done_v1 += 1;
            if !tree.controllers.and(self.required.or(self.purpose.optional())).is_empty() {
                self.groups.push(make_v1(tree, self.path, self.existing, &mut self.made)?);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// After an error, a process in the group must leave it before the drop.
    pub(crate) fn finish(&mut self) -> Result<Cgroup> {
        let cgroup = self.assemble()?;
        self.made.keep();
        Ok(cgroup)
    }

    fn assemble(&mut self) -> Result<Cgroup> {
        while self.step()? {}
        let PendingCgroup { hierarchy, path, existing, purpose, limits, ref writes, required, .. } = *self;
        let (mut groups, made) = (std::mem::take(&mut self.groups), &mut self.made);
        if let (Some(tree), Purpose::Container) = (&hierarchy.systemd, purpose) {
            match make_v1(tree, path, existing, made) {
                Ok(group) => groups.push(group),
                // It limits nothing: an ordinary user's container goes without it.
                Err(error) if is_denied(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut cgroup = Cgroup::of(groups);
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

impl Cgroup {
    /// Also moves the container's processes into the new groups. `path` is that of the creation.
    pub(crate) fn widen(&mut self, hierarchy: &Hierarchy, path: &CgroupPath, limits: &Resources) -> Result<()> {
        let writes = plan::writes(limits, |controller| hierarchy.is_v1(controller))?;
        let wanted = controllers(&writes);
        let missing: Controllers = wanted.iter().filter(|&each| self.group(each).is_none()).collect();
        let (v1, v2): (Controllers, Controllers) = {
            let v1: Controllers = missing.iter().filter(|&each| hierarchy.is_v1(each)).collect();
            (v1, missing.without(v1))
        };
        if !v2.is_empty() {
            self.widen_v2(hierarchy, v2)?;
        }
        let mut made = NewGroups::default();
        let before = self.groups.len();
        for tree in &hierarchy.v1 {
            if !tree.controllers.and(v1).is_empty() {
                self.groups.push(make_v1(tree, path, Existing::Unused, &mut made)?);
            }
        }
        for at in before..self.groups.len() {
            if let Err(error) = self.move_into(at) {
                // A moved process stays in the new group, which can then not be removed.
                self.groups.truncate(before);
                return Err(error);
            }
        }
        made.keep();
        Ok(())
    }

    /// The groups above must enable the controllers.
    fn widen_v2(&mut self, hierarchy: &Hierarchy, controllers: Controllers) -> Result<()> {
        let missing = |controller: Option<Controller>| {
            let name = controller.map_or("", Controller::name_v1);
            Error::new(Kind::LimitUnenforceable, format!("no cgroup controller `{name}` is mounted"))
        };
        let first = controllers.iter().next();
        if let Some(controller) = controllers.iter().find(|each| each.name_v2().is_none()) {
            return Err(missing(Some(controller)));
        }
        let tree = hierarchy.v2.as_ref().ok_or_else(|| missing(first))?;
        let group = self.groups.iter_mut().find(|group| group.is_v2).ok_or_else(|| missing(first))?;
        let top = tree.delegated().unwrap_or_else(|| tree.mount.clone());
        make::enable_above(tree, &top, group.directory.path(), controllers)?;
        group.controllers = group.controllers.or(controllers);
        Ok(())
    }

    fn move_into(&self, at: usize) -> Result<()> {
        let group = &self.groups[at];
        for _ in 0..MOVE_ROUNDS {
            let mut inside = Vec::new();
            group.directory.processes(&mut inside).failing(Kind::Cgroup, || "list the container's processes")?;
            let outside: Vec<i32> = self.processes()?.into_iter().filter(|each| !inside.contains(each)).collect();
            if outside.is_empty() {
                return Ok(());
            }
            for process in outside {
                let process = process.to_string();
                match group.directory.write("cgroup.procs", &process) {
                    // The next round finds a process that is still being made.
                    Ok(()) | Err(Errno::SRCH | Errno::INVAL) => {}
                    Err(errno) => return Err(group.directory.refused("cgroup.procs", &process, errno)),
                }
            }
        }
        Err(Error::new(Kind::State, "its processes fork faster than they can be moved")
            .doing("move the container's processes")
            .hint("pause the container first"))
    }

    /// Lets the container's root make groups in the v2 group. Changes only the directory and the files that the kernel
    /// names for this (cgroup-v2.rst, "Model of Delegation"). v1 controllers are not safe for an untrusted owner.
    pub(crate) fn give_to(&self, owner: u32) -> Result<()> {
        let Some(group) = self.v2() else { return Ok(()) };
        let path = group.directory.path();
        let step = || format!("give `{}` to the user {owner}", path.display());
        let owner = Some(Uid::from_raw(owner));
        chownat(CWD, path, owner, None, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Cgroup, step)?;
        // Before 4.15 the kernel has no list, and these three files were all.
        let files = std::fs::read_to_string("/sys/kernel/cgroup/delegate")
            .unwrap_or_else(|_| "cgroup.procs\ncgroup.subtree_control\ncgroup.threads\n".to_owned());
        for file in files.lines().filter(|file| !file.is_empty() && !file.contains('/')) {
            match chownat(group.directory.fd(), file, owner, None, AtFlags::SYMLINK_NOFOLLOW) {
                // A controller that the group does not have.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno).failing(Kind::Cgroup, step),
            }
        }
        Ok(())
    }
}
