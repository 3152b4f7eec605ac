//! Makes the directories of a group, and hands v2 controllers down to them.

use super::controller::{Controller, Controllers};
use super::directory::{self, Directory, permission_hint};
use super::group::Group;
use super::hierarchy::{Tree, join};
use super::path::{CgroupPath, PREFIX};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, unlinkat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Takes the processes of a delegated group that must enable controllers for children.
const SUPERVISOR: &str = "supervisor";
/// Another process may remove an empty parent meanwhile.
const MAKE_TRIES: u32 = 10;
/// A process may fork between the listing and the move.
const MOVE_ROUNDS: u32 = 10;

/// If the last group of the path exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It belongs to another task.
    Refuse,
    /// The caller made it for this container; it must be empty.
    Unused,
    /// systemd made it for this container.
    Adopt,
}

/// The drop removes them, newest first, unless they are kept.
#[derive(Default)]
pub(super) struct NewGroups(Vec<PathBuf>);

impl NewGroups {
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for NewGroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Not recursive: another process may use a parent by now.
            let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
        }
    }
}

pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// What the groups of a path need besides their directories.
enum Steps<'a> {
    /// A new `cpuset` group has no processor at first.
    V1 { is_cpuset: bool },
    /// The optional controllers are enabled too where the host offers them.
    V2 { tree: &'a Tree, required: Controllers, optional: Controllers },
}

impl Steps<'_> {
    /// Before children are made in `parent`.
    fn prepare(&self, parent: &Path) -> Result<()> {
        let Steps::V2 { tree, required, optional } = *self else { return Ok(()) };
        let enable = |controllers| enable_controllers(tree, parent, controllers);
        let all = enable(required.or(optional));
        if all.is_ok() || optional.is_empty() {
            return all;
        }
        // The parent cgroup may not delegate every controller, or may not be writable, as above an ordinary user's
        // delegated group.
        let offered = offered(&open(parent)?, optional)?;
        enable(required.or(offered)).or_else(|_| enable(required))
    }

    /// After `new` was made.
    fn finish(&self, parent: &Path, new: &Path) -> Result<()> {
        match self {
            Steps::V1 { is_cpuset: true } => inherit_cpuset(parent, new),
            _ => Ok(()),
        }
    }
}

pub(super) fn make_v1(tree: &Tree, path: &CgroupPath, existing: Existing, made: &mut NewGroups) -> Result<Group> {
    let base = match path {
        CgroupPath::Absolute(_) => tree.mount.clone(),
        CgroupPath::Task(_) | CgroupPath::Relative(_) => tree.own_directory(),
    };
    let steps = Steps::V1 { is_cpuset: tree.controllers.has(Controller::Cpuset) };
    let directory = open(&make_path(&base, path, existing, made, &steps)?)?;
    Ok(Group { directory, controllers: tree.controllers, is_v2: false })
}

pub(super) fn make_v2(
    tree: &Tree,
    path: &CgroupPath,
    required: Controllers,
    mut optional: Controllers,
    existing: Existing,
    made: &mut NewGroups,
) -> Result<Group> {
    let base = match path {
        CgroupPath::Absolute(_) => Some(tree.mount.clone()),
        CgroupPath::Relative(_) => tree.base(),
        CgroupPath::Task(_) => tree.delegated(),
    };
    let base = base.ok_or_else(|| {
        Error::os(Kind::Cgroup, Errno::ACCESS)
            .doing(format!("make a group in `{}`", tree.own_directory().display()))
            .hint(permission_hint())
    })?;
    // systemd enables in each of its groups only the controllers that it needs there.
    if matches!(path, CgroupPath::Relative(_))
        && rustix::process::geteuid().is_root()
        && !required.is_empty()
        && offered(&open(&base)?, required)? != required
    {
        enable_above(tree, &tree.mount, &base, required)?;
    }
    if !optional.is_empty() {
        // Below the root, the parent decides.
        optional = offered(&open(&base)?, optional)?;
    }
    let directory = open(&make_path(&base, path, existing, made, &Steps::V2 { tree, required, optional })?)?;
    let controllers = required.or(offered(&directory, optional)?);
    Ok(Group { directory, controllers, is_v2: true })
}

/// The controllers of `wanted` that a v2 group has.
fn offered(directory: &Directory, wanted: Controllers) -> Result<Controllers> {
    match wanted.is_empty() {
        true => Ok(wanted),
        false => Ok(wanted.and(Controllers::parse_v2(&directory.get("cgroup.controllers")?))),
    }
}

/// `existing` decides about the last group of the path.
fn make_path(
    base: &Path,
    path: &CgroupPath,
    existing: Existing,
    made: &mut NewGroups,
    steps: &Steps<'_>,
) -> Result<PathBuf> {
    let (parents, leaf) = match path {
        CgroupPath::Task(id) => ("", format!("{PREFIX}{id}")),
        CgroupPath::Absolute(path) | CgroupPath::Relative(path) => {
            let (parents, leaf) = path.rsplit_once('/').unwrap_or(("", path));
            (parents, leaf.to_owned())
        }
    };
    for attempt in 1.. {
        match make_once(base, parents, &leaf, existing, made, steps) {
            // Another process has just removed an empty parent.
            Err(error) if error.errno() == Some(Errno::NOENT.raw_os_error()) && attempt < MAKE_TRIES => {}
            other => return other,
        }
    }
    Ok(join(base, &leaf))
}

fn make_once(
    base: &Path,
    parents: &str,
    leaf: &str,
    existing: Existing,
    made: &mut NewGroups,
    steps: &Steps<'_>,
) -> Result<PathBuf> {
    let mut parent = base.to_path_buf();
    for name in parents.split('/').filter(|name| !name.is_empty()) {
        steps.prepare(&parent)?;
        let next = parent.join(name);
        if make_one(&next)? {
            made.0.push(next.clone());
            steps.finish(&parent, &next)?;
        }
        parent = next;
    }
    steps.prepare(&parent)?;
    let leaf = join(&parent, leaf);
    if make_one(&leaf)? {
        made.0.push(leaf.clone());
        steps.finish(&parent, &leaf)?;
        return Ok(leaf);
    }
    match existing {
        Existing::Refuse => Err(Error::new(Kind::Exists, "a group of that name exists")
            .doing(format!("make the group `{}`", leaf.display()))
            .hint("run `brig doctor --leaks`")),
        Existing::Unused if weaken::is_off("cgroup-unused") => Ok(leaf),
        Existing::Unused => check_unused(&leaf).map(|()| leaf),
        Existing::Adopt => Ok(leaf),
    }
}

fn make_one(path: &Path) -> Result<bool> {
    directory::make(path)
        .failing(Kind::Cgroup, || format!("make the group `{}`", path.display()))
        .map_err(|error| if is_denied(&error) { error.hint(permission_hint()) } else { error })
}

fn open(path: &Path) -> Result<Directory> {
    Directory::open(path).failing(Kind::Cgroup, || format!("open the group `{}`", path.display()))
}

/// The limits would hit the processes of an existing group. The messages are runc's.
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

/// Fills the parent first if the program that made it did not (a pod's group).
fn inherit_cpuset(parent: &Path, new: &Path) -> Result<()> {
    const FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
    let group = open(parent)?;
    let is_empty = |group: &Directory, file: &str| group.get(file).map(|text| text.trim().is_empty());
    if let Some(above) = parent.parent().filter(|above| above.join(FILES[0]).exists())
        && (is_empty(&group, FILES[0])? || is_empty(&group, FILES[1])?)
    {
        inherit_cpuset(above, parent)?;
    }
    let new = open(new)?;
    for file in FILES {
        if is_empty(&new, file)? {
            new.set(file, group.get(file)?.trim())?;
        }
    }
    Ok(())
}

fn enable_controllers(tree: &Tree, parent: &Path, controllers: Controllers) -> Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let directory =
        Directory::open(parent).failing(Kind::Cgroup, || format!("open the group `{}`", parent.display()))?;
    // A read costs a tenth of a write that changes nothing.
    let missing = controllers.without(Controllers::parse_v2(&directory.get("cgroup.subtree_control")?));
    if missing.is_empty() {
        return Ok(());
    }
    let order: String = missing.iter().filter_map(|each| each.name_v2()).map(|name| format!("+{name} ")).collect();
    let mut result = directory.write("cgroup.subtree_control", order.trim_end());
    if result == Err(Errno::BUSY) && parent == tree.own_directory() {
        move_processes(&directory, SUPERVISOR)?;
        result = directory.write("cgroup.subtree_control", order.trim_end());
    }
    result.map_err(|errno| explain_refusal(&directory, missing, order.trim_end(), errno))
}

/// In every group above `below`, from `top` on.
pub(super) fn enable_above(tree: &Tree, top: &Path, below: &Path, controllers: Controllers) -> Result<()> {
    let mut above: Vec<_> = below.ancestors().skip(1).take_while(|path| path.starts_with(top)).collect();
    above.reverse();
    above.into_iter().try_for_each(|parent| enable_controllers(tree, parent, controllers))
}

/// Empties the caller's own delegated group ("No Internal Process Constraint").
pub(super) fn move_processes(directory: &Directory, name: &str) -> Result<()> {
    let path = directory.path().join(name);
    directory::make(&path).failing(Kind::Cgroup, || format!("make the group `{}`", path.display()))?;
    let child = directory.child(name).failing(Kind::Cgroup, || format!("open the group `{}`", path.display()))?;
    for _ in 0..MOVE_ROUNDS {
        let list = directory.get("cgroup.procs")?;
        if list.trim().is_empty() {
            return Ok(());
        }
        for process in list.lines() {
            match child.write("cgroup.procs", process) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(child.refused("cgroup.procs", process, errno)),
            }
        }
    }
    Err(Error::new(Kind::Cgroup, "its processes fork faster than they can be moved")
        .doing(format!("empty the group `{}`", directory.path().display())))
}

/// Names the controller at fault.
fn explain_refusal(directory: &Directory, missing: Controllers, order: &str, errno: Errno) -> Error {
    let error = directory.refused("cgroup.subtree_control", order, errno);
    let offered = Controllers::parse_v2(&directory.read("cgroup.controllers").unwrap_or_default());
    if let Some(absent) = missing.without(offered).iter().next() {
        let reason = format!("the cgroup controller `{}` is not delegated to it", absent.name_v1());
        return Error::new(Kind::LimitUnenforceable, reason)
            .doing(format!("use the group `{}`", directory.path().display()))
            .hint("run `brig doctor`");
    }
    let kind = directory.read("cgroup.type").unwrap_or_default();
    match (errno, kind.trim()) {
        (Errno::OPNOTSUPP, kind) if kind != "domain" => {
            error.hint(format!("choose a `cgroupsPath` outside this group, which is `{kind}`"))
        }
        (Errno::BUSY, _) => error.hint("move the processes of this group into a child of it"),
        _ => error,
    }
}
