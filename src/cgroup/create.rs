//! Making a container's group in every hierarchy that it needs, with its limits, or nothing at all.

use super::Cgroup;
use super::controller::{Controller, Controllers};
use super::devices::{self, DeviceControl};
use super::directory::{self, Directory};
use super::hierarchy::{Hierarchy, Layout, Tree, join};
use super::limits;
use super::path::{CgroupPath, PARENT};
use super::plan;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What a group is for, and so which controllers it needs besides those with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A task: memory, tasks and processor time are measured, whatever is limited.
    Task,
    /// A container: only what is limited, and what freezing and killing need.
    Container,
    /// A container whose caller reads the groups itself, as Docker's and containerd's statistics do: every controller
    /// that counts something.
    Observed,
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
    pub(super) fn controllers(self, hierarchy: &Hierarchy) -> Controllers {
        use Controller::{Cpu, Cpuacct, Cpuset, Devices, Freezer, Hugetlb, Io, Memory, Pids};
        let mut wanted = match self {
            Purpose::Task => Controllers::of(&[Memory, Pids]),
            Purpose::Container => Controllers::NONE,
            Purpose::Observed => {
                let counting = Controllers::of(&[Cpu, Cpuacct, Cpuset, Memory, Pids, Devices, Freezer, Io, Hugetlb]);
                return counting.iter().filter(|&each| hierarchy.offers(each)).collect();
            }
        };
        // A v2 group counts processor time and can be frozen and killed whether or not it has controllers.
        if hierarchy.layout() == Layout::Legacy {
            wanted.insert(Freezer);
            if self == Purpose::Task {
                wanted.insert(Cpuacct);
            }
        }
        wanted
    }
}

impl Hierarchy {
    fn offers(&self, controller: Controller) -> bool {
        if self.is_v1(controller) {
            return true;
        }
        let (Some(tree), Some(name)) = (&self.v2, controller.name_v2()) else { return false };
        // On a hybrid host what v2 is left with is not worth a change of its root.
        self.layout() == Layout::Unified
            && std::fs::read_to_string(tree.mount.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|each| each == name))
    }
}

/// Groups made so far. Dropped before it is kept, it removes them, newest first.
struct Made {
    paths: Vec<PathBuf>,
    kept: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.kept {
            // An error is on its way already; what cannot be removed here shows up as a leftover.
            for path in self.paths.iter().rev() {
                let _ = directory::remove(path);
            }
        }
    }
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
        let writes = plan::writes(limits, |controller| hierarchy.is_v1(controller))?;
        let mut wanted = plan::controllers(&writes).or(purpose.controllers(hierarchy));
        if !limits.devices.is_empty() && (hierarchy.is_v1(Controller::Devices) || hierarchy.v2.is_none()) {
            wanted.insert(Controller::Devices);
        }
        let mut made = Made { paths: Vec::new(), kept: false };
        let mut groups = Vec::with_capacity(hierarchy.v1.len() + 1);
        if let Some(tree) = &hierarchy.v2 {
            let of_v2: Controllers = wanted.iter().filter(|&each| !hierarchy.is_v1(each)).collect();
            match make_v2(tree, path, of_v2, &mut made) {
                Ok(group) => groups.push(group),
                // The tree beside the v1 controllers may be root's alone: then the freezer does its part.
                Err(error) if is_denied(&error) && of_v2.is_empty() && hierarchy.layout() == Layout::Hybrid => {
                    wanted.insert(Controller::Freezer);
                }
                Err(error) => return Err(error),
            }
        }
        for tree in &hierarchy.v1 {
            if !tree.controllers.and(wanted).is_empty() {
                groups.push(make_v1(tree, path, &mut made)?);
            }
        }
        let mut cgroup = Cgroup { groups, devices: DeviceControl::NotAsked };
        if let Some(controller) = wanted.iter().find(|&each| cgroup.group(each).is_none()) {
            let reason = format!("no cgroup controller `{}` is mounted", controller.name_v1());
            return Err(Error::new(Kind::LimitUnenforceable, reason)
                .doing("create the container's cgroup")
                .hint("run `brig doctor`"));
        }
        limits::write_all(&cgroup, &writes).doing(|| "create the container's cgroup")?;
        if let Some(group) = cgroup.device_group() {
            cgroup.devices =
                devices::control(group, &limits.devices, true).doing(|| "create the container's cgroup")?;
        }
        made.kept = true;
        Ok(cgroup)
    }
}

fn is_denied(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

fn make_v1(tree: &Tree, path: &CgroupPath, made: &mut Made) -> Result<Group> {
    let base = match path {
        CgroupPath::Absolute(_) => tree.mount.clone(),
        CgroupPath::Task(_) | CgroupPath::Relative(_) => tree.own_directory(),
    };
    let is_cpuset = tree.controllers.has(Controller::Cpuset);
    let leaf = make_path(
        &base,
        path,
        made,
        |_| Ok(()),
        |parent, new| {
            if is_cpuset { inherit_cpuset(parent, new) } else { Ok(()) }
        },
    )?;
    let directory = open(&leaf)?;
    Ok(Group { directory, controllers: tree.controllers, is_v2: false })
}

fn make_v2(tree: &Tree, path: &CgroupPath, controllers: Controllers, made: &mut Made) -> Result<Group> {
    let base = match path {
        CgroupPath::Absolute(_) => tree.mount.clone(),
        CgroupPath::Relative(_) if rustix::process::geteuid().is_root() => {
            tree.own_directory().parent().filter(|parent| parent.starts_with(&tree.mount)).unwrap_or(&tree.mount).into()
        }
        CgroupPath::Relative(_) | CgroupPath::Task(_) => match tree.delegated() {
            Some(base) => base,
            None => {
                return Err(Error::os(Kind::Cgroup, Errno::ACCESS)
                    .doing(format!("make a group in `{}`", tree.own_directory().display()))
                    .hint(super::refusal::fix_permission()));
            }
        },
    };
    let leaf =
        make_path(&base, path, made, |parent| super::delegate::enable(tree, parent, controllers), |_, _| Ok(()))?;
    let directory = open(&leaf)?;
    Ok(Group { directory, controllers, is_v2: true })
}

/// Makes each group on the way from `base`, and the last one so that it is ours alone.
fn make_path(
    base: &Path,
    path: &CgroupPath,
    made: &mut Made,
    prepare: impl Fn(&Path) -> Result<()>,
    finish: impl Fn(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let (parents, leaf) = match path {
        CgroupPath::Task(id) => (PARENT, id.as_str()),
        CgroupPath::Absolute(path) | CgroupPath::Relative(path) => path.rsplit_once('/').unwrap_or(("", path)),
    };
    let mut parent = base.to_path_buf();
    for name in parents.split('/').filter(|name| !name.is_empty()) {
        prepare(&parent)?;
        let next = parent.join(name);
        if make(&next)? {
            made.paths.push(next.clone());
            finish(&parent, &next)?;
        }
        parent = next;
    }
    prepare(&parent)?;
    let leaf = join(&parent, leaf);
    if make(&leaf)? {
        made.paths.push(leaf.clone());
        finish(&parent, &leaf)?;
    } else if matches!(path, CgroupPath::Task(_)) {
        return Err(Error::new(Kind::Exists, "there is a group of that name already")
            .doing(format!("make the group `{}`", leaf.display()))
            .hint("run `brig doctor --leaks`"));
    } else {
        check_unused(&leaf)?;
    }
    Ok(leaf)
}

fn make(path: &Path) -> Result<bool> {
    directory::make(path)
        .failing(Kind::Cgroup, || format!("make the group `{}`", path.display()))
        .map_err(|error| if is_denied(&error) { error.hint(super::refusal::fix_permission()) } else { error })
}

fn open(path: &Path) -> Result<Directory> {
    Directory::open(path).failing(Kind::Cgroup, || format!("open the group `{}`", path.display()))
}

/// Somebody else's processes must not come under our limits, nor ours be frozen by somebody else. The words are runc's.
fn check_unused(path: &Path) -> Result<()> {
    let directory = open(path)?;
    let mut processes = Vec::new();
    directory
        .processes(&mut processes)
        .failing(Kind::Cgroup, || format!("list the processes of `{}`", path.display()))?;
    let refuse = |words: String, hint: &str| {
        Err(Error::new(Kind::State, words).doing(format!("use the group `{}`", path.display())).hint(hint))
    };
    if !processes.is_empty() {
        let words = format!("container's cgroup is not empty: {} process(es) found", processes.len());
        return refuse(words, "give the container another `cgroupsPath`");
    }
    let frozen = |file: &str, state: &str| directory.read(file).is_ok_and(|text| text.trim() == state);
    if frozen("cgroup.freeze", "1") || frozen("freezer.state", "FROZEN") || frozen("freezer.state", "FREEZING") {
        return refuse("container's cgroup unexpectedly frozen".to_owned(), "thaw the group, or give another");
    }
    Ok(())
}

/// On v1 a new group may run nowhere until it is told where; what its parent has is no restriction.
fn inherit_cpuset(parent: &Path, new: &Path) -> Result<()> {
    let (parent, new) = (open(parent)?, open(new)?);
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if new.get(file)?.trim().is_empty() {
            new.set(file, parent.get(file)?.trim())?;
        }
    }
    Ok(())
}
