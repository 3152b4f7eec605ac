//! The checks of this machine: the facts of `host`, and the result of a start with default limits.
//!
//! Changes nothing. It calls the same function as a start, so their answers agree: hence on the top floor, beside
//! `task`.

use crate::engine::{self, Engine};
use crate::error::Error;
use crate::host;
pub use crate::host::{Check, State};
use crate::sandbox::{self, Guarantee};
use crate::task;

/// Runs all checks.
pub fn examine() -> Vec<Check> {
    let mut checks = vec![mode(), guarantee()];
    checks.extend(host::checks());
    checks.extend(groups());
    checks.push(engines());
    checks
}

/// Whether the operator's rules, if any, permit a start.
fn mode() -> Check {
    const NAME: &str = "mode";
    let refused = |error: &Error| {
        Check::bad(NAME, State::Missing, error.to_string(), error.advice().unwrap_or("see docs/host.md").to_owned())
    };
    match task::machine_rules() {
        Ok(None) => Check::good(NAME, "open: the caller of a task sets its rules"),
        Ok(Some(rules)) => match rules.objection(sandbox::guarantee()) {
            Some(error) => refused(&error),
            None => Check::good(NAME, rules.words()),
        },
        Err(error) => refused(&error),
    }
}

fn guarantee() -> Check {
    const NAME: &str = "guarantee";
    match sandbox::guarantee() {
        Guarantee::Full => {
            Check::good(NAME, "full: run by root, so each sandbox has separate host ids and a disk cap on a device")
        }
        Guarantee::Nested => Check::bad(
            NAME,
            State::Weaker,
            "nested: run by the root of another user namespace, with the rights of an ordinary user",
            "run as the machine's root for the full guarantee",
        ),
        _ => Check::bad(
            NAME,
            State::Weaker,
            "rootless: a sandbox's files are this user's, and its disk cap is memory",
            "run as root for the full guarantee",
        ),
    }
}

fn groups() -> Vec<Check> {
    let possible = match sandbox::possible() {
        Ok(possible) => possible,
        Err(error) => {
            let advice = error.advice().unwrap_or("mount cgroup2 at /sys/fs/cgroup").to_owned();
            return vec![Check::bad("cgroups", State::Missing, error.to_string(), advice)];
        }
    };
    let limits = if possible.refused.is_empty() {
        Check::good("limits", "every default limit can be enforced")
    } else {
        let found: Vec<_> = possible.refused.iter().map(|(limit, reason, _)| format!("{limit}: {reason}")).collect();
        let remedy = remedy(possible.refused.iter().map(|(limit, _, fix)| (*limit, fix.as_str())));
        Check::bad("limits", State::Missing, found.join("; "), remedy)
    };
    vec![Check::good("cgroups", possible.groups), limits]
}

fn engines() -> Check {
    let for_user = !rustix::process::geteuid().is_root();
    let registered = Engine::ALL.iter().copied();
    let registered = registered.filter_map(|each| Some((each, engine::registered(each, for_user)?)));
    let found: Vec<_> = registered.map(|(each, found)| format!("{}: {}", each.word(), found.path.display())).collect();
    let none = || "brig is a runtime of no engine; `brig engine setup` makes it one".to_owned();
    Check::good("engines", if found.is_empty() { none() } else { found.join("; ") })
}

/// Also names the limits that are optional.
fn remedy<'a>(refused: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> String {
    let mut remedies: Vec<_> = refused.clone().map(|(_, fix)| fix).collect();
    remedies.dedup();
    let names: Vec<_> = refused.filter_map(|(limit, _)| task::degradable(limit).ok()).collect();
    format!("{}; or run with --allow-degraded {}", remedies.join("; "), names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_limits_is_one_that_a_command_line_takes() {
        let refused = [("memory", "delegate a group"), ("freezer", "delegate a group"), ("pids", "delegate pids")];
        assert_eq!(
            remedy(refused.into_iter()),
            "delegate a group; delegate pids; or run with --allow-degraded memory,pids"
        );
    }

    #[test]
    fn every_check_has_a_section_in_the_page_about_the_host() {
        let page = include_str!("../docs/host.md");
        for check in examine() {
            assert!(page.contains(&format!("\n## {}\n", check.name)), "docs/host.md has no section `{}`", check.name);
            assert_eq!(check.see, format!("docs/host.md#{}", check.name.replace(' ', "-")));
            assert_eq!(check.state == State::Good, check.remedy.is_none(), "{check:?}");
        }
    }
}
