//! Giving a v2 group's children their controllers.

use super::controller::Controllers;
use super::directory::{self, Directory};
use super::hierarchy::Tree;
use crate::error::{Context, Error, Kind, Result};
use rustix::io::Errno;
use std::path::Path;

/// Where the processes of a delegated group go when the group must give controllers to children.
const SUPERVISOR: &str = "supervisor";
/// How often a group's processes are listed and moved: new ones may be born meanwhile.
const MOVE_ROUNDS: u32 = 10;

/// Makes sure that children of `parent` have `controllers`.
pub(super) fn enable(tree: &Tree, parent: &Path, controllers: Controllers) -> Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let directory =
        Directory::open(parent).failing(Kind::Cgroup, || format!("open the group `{}`", parent.display()))?;
    // Reading is a tenth of the price of a write that changes nothing.
    let missing = controllers.without(Controllers::parse_v2(&directory.get("cgroup.subtree_control")?));
    if missing.is_empty() {
        return Ok(());
    }
    let order: String = missing.iter().filter_map(|each| each.name_v2()).map(|name| format!("+{name} ")).collect();
    let mut result = directory.write("cgroup.subtree_control", order.trim_end());
    if result == Err(Errno::BUSY) && parent == tree.own_directory() {
        move_processes(&directory)?;
        result = directory.write("cgroup.subtree_control", order.trim_end());
    }
    result.map_err(|errno| explain(&directory, missing, order.trim_end(), errno))
}

/// Makes sure that the group `below` has `controllers` itself: every group above it, from `top` on, hands them down.
pub(super) fn enable_above(tree: &Tree, top: &Path, below: &Path, controllers: Controllers) -> Result<()> {
    let mut above: Vec<_> = below.ancestors().skip(1).take_while(|path| path.starts_with(top)).collect();
    above.reverse();
    above.into_iter().try_for_each(|parent| enable(tree, parent, controllers))
}

/// Moves the processes of our own delegated group, ourselves among them, into a child: a group with processes cannot
/// give controllers to its children (cgroup-v2.rst, "No Internal Process Constraint"). The group is ours alone, or it
/// would not be delegated to us.
fn move_processes(directory: &Directory) -> Result<()> {
    let path = directory.path().join(SUPERVISOR);
    directory::make(&path).failing(Kind::Cgroup, || format!("make the group `{}`", path.display()))?;
    let child = directory.child(SUPERVISOR).failing(Kind::Cgroup, || format!("open the group `{}`", path.display()))?;
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
    Err(Error::new(Kind::Cgroup, "processes are born in it faster than they can be moved")
        .doing(format!("empty the group `{}`", directory.path().display())))
}

/// Which controller it was, and why.
fn explain(directory: &Directory, missing: Controllers, order: &str, errno: Errno) -> Error {
    let error = directory.refused("cgroup.subtree_control", order, errno);
    let offered = Controllers::parse_v2(&directory.read("cgroup.controllers").unwrap_or_default());
    if let Some(absent) = missing.without(offered).iter().next() {
        let reason = format!("no cgroup controller `{}` is given to it", absent.name_v1());
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
