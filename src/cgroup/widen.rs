//! Changing a container's groups after they were made: more controllers, another owner.

use super::Cgroup;
use super::controller::{Controller, Controllers};
use super::delegate;
use super::hierarchy::Hierarchy;
use super::make::{self, Existing, Made};
use super::path::CgroupPath;
use super::plan;
use super::write::controllers;
use crate::error::{Context, Error, Kind, Result};
use crate::spec::resources::Resources;
use rustix::fs::{AtFlags, CWD, chownat};
use rustix::io::Errno;
use rustix::process::Uid;

/// How often a container's processes are listed and moved: new ones may be born meanwhile.
const MOVE_ROUNDS: u32 = 10;

impl Cgroup {
    /// Gives the container the groups that `limits` need and that it was made without, and moves its processes in.
    /// `path` is the container's, as it was created.
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
        let mut made = Made::default();
        let before = self.groups.len();
        for tree in &hierarchy.v1 {
            if !tree.controllers.and(v1).is_empty() {
                self.groups.push(make::make_v1(tree, path, Existing::Unused, &mut made)?);
            }
        }
        for at in before..self.groups.len() {
            if let Err(error) = self.move_into(at) {
                // Whoever was moved goes back with the rest when the group is removed: it cannot be.
                self.groups.truncate(before);
                return Err(error);
            }
        }
        made.keep();
        Ok(())
    }

    /// On v2 the group exists; the groups above it must hand the controller down.
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
        delegate::enable_above(tree, &top, group.directory.path(), controllers)?;
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
                    // A process that is still being made is found again in the next round.
                    Ok(()) | Err(Errno::SRCH | Errno::INVAL) => {}
                    Err(errno) => return Err(group.directory.refused("cgroup.procs", &process, errno)),
                }
            }
        }
        Err(Error::new(Kind::State, "processes are born in it faster than they can be moved")
            .doing("move the container's processes")
            .hint("pause the container first"))
    }

    /// Makes `owner` the owner of the v2 group, so that the container's root may make groups in it: the directory and the
    /// files that the kernel names for this, and no other (cgroup-v2.rst, "Model of Delegation"). v1 is never given away:
    /// its controllers are not safe in other hands.
    pub(crate) fn give_to(&self, owner: u32) -> Result<()> {
        let Some(group) = self.v2() else { return Ok(()) };
        let path = group.directory.path();
        let words = || format!("give `{}` to the user {owner}", path.display());
        let owner = Some(Uid::from_raw(owner));
        chownat(CWD, path, owner, None, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Cgroup, words)?;
        // Since 4.15; before that these three were all.
        let files = std::fs::read_to_string("/sys/kernel/cgroup/delegate")
            .unwrap_or_else(|_| "cgroup.procs\ncgroup.subtree_control\ncgroup.threads\n".to_owned());
        for file in files.lines().filter(|file| !file.is_empty() && !file.contains('/')) {
            match chownat(group.directory.fd(), file, owner, None, AtFlags::SYMLINK_NOFOLLOW) {
                // A controller's file, and the controller is not given to the group.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno).failing(Kind::Cgroup, words),
            }
        }
        Ok(())
    }
}
