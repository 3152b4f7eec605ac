//! Making the directories of a group, from a group that exists down to one that is ours, with the way back.

use super::controller::{Controller, Controllers};
use super::create::Group;
use super::directory::{self, Directory};
use super::hierarchy::{Tree, join};
use super::path::{CgroupPath, PREFIX};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, unlinkat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// How often a parent may be taken away under our hands.
const MAKE_TRIES: u32 = 10;

/// What it means if the last group is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It is another's.
    Refuse,
    /// It was made for us, if nobody is in it.
    Unused,
    /// It is ours, made by systemd.
    Adopt,
}

/// Groups made so far. Dropped before they are kept, it removes them, newest first.
#[derive(Default)]
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // One by one and not what is below: a parent that we made may be in use by another by now, and stays then.
            let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
        }
    }
}

pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// v1: on `cpuset` a new group may run nowhere until it is told where.
struct OnV1 {
    is_cpuset: bool,
}

impl Steps for OnV1 {
    fn prepare(&self, _parent: &Path) -> Result<()> {
        Ok(())
    }

    fn finish(&self, parent: &Path, new: &Path) -> Result<()> {
        if self.is_cpuset { inherit_cpuset(parent, new) } else { Ok(()) }
    }
}

/// v2: each group on the way hands its controllers down.
struct OnV2<'a> {
    tree: &'a Tree,
    required: Controllers,
    /// What is handed down too where that can be had.
    optional: Controllers,
}

impl Steps for OnV2<'_> {
    fn prepare(&self, parent: &Path) -> Result<()> {
        let enable = |controllers| super::delegate::enable(self.tree, parent, controllers);
        let all = enable(self.required.or(self.optional));
        if all.is_ok() || self.optional.is_empty() {
            return all;
        }
        // Somebody else decides here: not every controller is given to this group, or it is not ours to hand any down, as above the group that
        // systemd delegates to an ordinary user.
        let offered = offered(&open(parent)?, self.optional)?;
        enable(self.required.or(offered)).or_else(|_| enable(self.required))
    }

    fn finish(&self, _parent: &Path, _new: &Path) -> Result<()> {
        Ok(())
    }
}

pub(super) fn make_v1(tree: &Tree, path: &CgroupPath, existing: Existing, made: &mut Made) -> Result<Group> {
    let base = match path {
        CgroupPath::Absolute(_) => tree.mount.clone(),
        CgroupPath::Task(_) | CgroupPath::Relative(_) => tree.own_directory(),
    };
    let steps = OnV1 { is_cpuset: tree.controllers.has(Controller::Cpuset) };
    let directory = open(&make_path(&base, path, existing, made, &steps)?)?;
    Ok(Group { directory, controllers: tree.controllers, is_v2: false })
}

pub(super) fn make_v2(
    tree: &Tree,
    path: &CgroupPath,
    required: Controllers,
    mut optional: Controllers,
    existing: Existing,
    made: &mut Made,
) -> Result<Group> {
    let own = tree.own_directory();
    let base = match path {
        CgroupPath::Absolute(_) => tree.mount.clone(),
        CgroupPath::Relative(_) if rustix::process::geteuid().is_root() => {
            let beside: PathBuf =
                own.parent().filter(|parent| parent.starts_with(&tree.mount)).unwrap_or(&tree.mount).into();
            // Of the host's groups systemd gives each only what it needs for itself.
            if !required.is_empty() && offered(&open(&beside)?, required)? != required {
                super::delegate::enable_above(tree, &tree.mount, &beside, required)?;
            }
            beside
        }
        CgroupPath::Relative(_) | CgroupPath::Task(_) => tree.delegated().ok_or_else(|| {
            Error::os(Kind::Cgroup, Errno::ACCESS)
                .doing(format!("make a group in `{}`", own.display()))
                .hint(super::refusal::fix_permission())
        })?,
    };
    if !optional.is_empty() {
        // Below the root somebody else decides what there is.
        optional = offered(&open(&base)?, optional)?;
    }
    let directory = open(&make_path(&base, path, existing, made, &OnV2 { tree, required, optional })?)?;
    let controllers = required.or(offered(&directory, optional)?);
    Ok(Group { directory, controllers, is_v2: true })
}

/// Those of `wanted` that a v2 group has.
fn offered(directory: &Directory, wanted: Controllers) -> Result<Controllers> {
    match wanted.is_empty() {
        true => Ok(wanted),
        false => Ok(wanted.and(Controllers::parse_v2(&directory.get("cgroup.controllers")?))),
    }
}

/// What is done around the making of one group.
pub(super) trait Steps {
    /// Before children are made in `parent`.
    fn prepare(&self, parent: &Path) -> Result<()>;
    /// After `new` was made.
    fn finish(&self, parent: &Path, new: &Path) -> Result<()>;
}

/// Makes each group on the way from `base`, and the last one so that it is ours alone.
fn make_path(
    base: &Path,
    path: &CgroupPath,
    existing: Existing,
    made: &mut Made,
    steps: &impl Steps,
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
            // Somebody has just removed a parent that was empty: it is made again.
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
    made: &mut Made,
    steps: &impl Steps,
) -> Result<PathBuf> {
    let mut parent = base.to_path_buf();
    for name in parents.split('/').filter(|name| !name.is_empty()) {
        steps.prepare(&parent)?;
        let next = parent.join(name);
        if make(&next)? {
            made.0.push(next.clone());
            steps.finish(&parent, &next)?;
        }
        parent = next;
    }
    steps.prepare(&parent)?;
    let leaf = join(&parent, leaf);
    if make(&leaf)? {
        made.0.push(leaf.clone());
        steps.finish(&parent, &leaf)?;
        return Ok(leaf);
    }
    match existing {
        Existing::Refuse => Err(Error::new(Kind::Exists, "there is a group of that name already")
            .doing(format!("make the group `{}`", leaf.display()))
            .hint("run `brig doctor --leaks`")),
        Existing::Unused if weaken::is_off("cgroup-unused") => Ok(leaf),
        Existing::Unused => check_unused(&leaf).map(|()| leaf),
        Existing::Adopt => Ok(leaf),
    }
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
/// A parent that another program has made and not filled (a pod's group) is filled first.
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
