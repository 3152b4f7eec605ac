//! What this machine can do for a sandbox: each check with what was found and its remedy.

use crate::cgroup::Hierarchy;
use crate::container;
use serde::Serialize;

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether it is as a sandbox needs it.
    pub well: bool,
    /// What was found.
    pub found: String,
    /// What to do if it is not well.
    pub remedy: String,
}

/// Looks at everything. Changes nothing.
pub fn examine() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |name: &str, well: bool, found: String, remedy: &str| {
        checks.push(Check { name: name.to_owned(), well, found, remedy: remedy.to_owned() });
    };
    let layout = Hierarchy::probe().map(|hierarchy| hierarchy.layout());
    check("cgroups", layout.is_ok(), format!("{layout:?}"), "mount cgroup2 at /sys/fs/cgroup");
    check("privilege", container::privileged(), String::new(), "run as root for the full guarantee");
    checks
}
