//! What this kernel and this machine can do for a sandbox, looked at and never guessed, each with what to do about it.
//!
//! In: nothing. Out: [`Check`]s, which `brig doctor` prints, and single facts for errors ([`user_namespace_advice`]).
//! Facts are probed when somebody asks, and the kernel's version once. A probe changes nothing: what must be tried is tried in
//! a child with namespaces of its own, which is gone when the answer is there.
//! Not here: cgroups, whose own module decides which limits can be had (`container::possible`).

mod accounts;
mod certificates;
mod disk;
mod hardening;
mod kernel;
mod mounts;
mod namespaces;
mod trial;

// For `sandbox`, which names no module of system calls.
pub(crate) use crate::sys::weaken::is_off;
pub(crate) use certificates::{certificates, has_certificate, ignore_callers_certificates, in_pem, roots};
pub(crate) use kernel::{is_local, shows_other_owners};
pub(crate) use mounts::{MountEntry, mounts, parse_mounts};
pub(crate) use namespaces::{can_be_mapped, overlays_take, user_namespace_advice};

use serde::Serialize;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As a sandbox needs it.
    Good,
    /// A sandbox starts; something is weaker than it could be.
    Weaker,
    /// A sandbox does not start as asked, and says so.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name, which is also the heading of its section in `docs/host.md`.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do, one action; nothing where nothing needs to be done.
    pub remedy: Option<String>,
    /// Where to read more.
    pub see: String,
}

impl Check {
    /// All is well.
    pub(crate) fn good(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: State::Good, found: found.into(), remedy: None, see: page(name) }
    }

    /// Weaker, or missing, with what to do.
    pub(crate) fn bad(name: &'static str, state: State, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { name, state, found: found.into(), remedy: Some(remedy.into()), see: page(name) }
    }
}

/// Every probe of the table, in the order in which it is shown.
const PROBES: [fn() -> Check; 12] = [
    kernel::version,
    kernel::system_calls,
    kernel::seccomp,
    kernel::landlock,
    namespaces::user_namespaces,
    namespaces::id_mapped_mounts,
    namespaces::overlay,
    disk::loop_devices,
    disk::formatter,
    accounts::subordinate_ids,
    hardening::security_modules,
    hardening::switches,
];

/// Looks at everything. Changes nothing.
pub(crate) fn checks() -> Vec<Check> {
    PROBES.iter().map(|probe| probe()).collect()
}

/// The section of the page about the host, by the rule that makes anchors of headings.
fn page(name: &str) -> String {
    format!("docs/host.md#{}", name.replace(' ', "-"))
}

/// One line of a small file of the kernel, without its end.
fn setting(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_section_in_the_page_about_the_host_and_a_bad_one_a_remedy() {
        let page = include_str!("../../docs/host.md");
        let checks = checks();
        for check in &checks {
            assert!(page.contains(&format!("\n## {}\n", check.name)), "docs/host.md has no section `{}`", check.name);
            assert!(!check.found.is_empty() && !check.found.contains('\n'), "{check:?}");
            assert_eq!(check.state == State::Good, check.remedy.is_none(), "{check:?}");
        }
        let mut names: Vec<_> = checks.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
    }
}
