//! Which devices a container may use: v1's `devices` controller, or a BPF program on v2.

mod program;

use super::group::{DeviceControl, Group, is_host_root};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::devices::{DeviceKind, DeviceList, EVERY_ACCESS, Rule, access_bits};
use crate::spec::resources::DeviceRule;
use crate::sys::{bpf, weaken};
use program::build;
use rustix::io::Errno;
use std::os::fd::AsFd;

/// systemd attaches its own program to the same group.
const NAME: &str = "brig_devices";

pub(super) fn control(group: &Group, rules: &[DeviceRule], is_new: bool) -> Result<DeviceControl> {
    if rules.is_empty() {
        return Ok(DeviceControl::NotAsked);
    }
    let rules = Rule::parse_all(rules)?;
    if weaken::is_off("cgroup-devices") {
        return Ok(DeviceControl::InForce);
    }
    let done = if group.is_v2 { attach_filter(group, &rules) } else { write_list(group, &rules, is_new) };
    match done {
        Ok(()) => Ok(DeviceControl::InForce),
        Err(error) if is_not_permitted(&error) && !is_host_root() => Ok(DeviceControl::NotPermitted),
        Err(error) => Err(error),
    }
}

fn is_not_permitted(error: &Error) -> bool {
    matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::PERM | Errno::ACCESS))
}

fn write_list(group: &Group, rules: &[Rule], is_new: bool) -> Result<()> {
    let target = DeviceList::of(rules)?;
    let current = if is_new { None } else { parse_list(&group.directory.get("devices.list")?) };
    for rule in changes(current.as_ref(), &target) {
        let file = if rule.allow { "devices.allow" } else { "devices.deny" };
        group.directory.set(file, &rule.to_v1())?;
    }
    Ok(())
}

fn attach_filter(group: &Group, rules: &[Rule]) -> Result<()> {
    let step = |what: &str| format!("{what} the device filter of `{}`", group.directory.path().display());
    let program = bpf::load_device_filter(&build(rules), NAME).failing(Kind::Cgroup, || step("load"))?;
    let cgroup = group.directory.fd();
    let mut attached = Vec::new();
    for id in bpf::device_filters(cgroup).failing(Kind::Cgroup, || step("find"))? {
        let old = match bpf::open_program(id) {
            // Detached since the list was read.
            Err(Errno::NOENT) => continue,
            other => other.failing(Kind::Cgroup, || step("open"))?,
        };
        if bpf::program_name(old.as_fd()).failing(Kind::Cgroup, || step("read"))? == NAME {
            attached.push(old);
        }
    }
    // Replace in one step: exactly one program is attached at any moment.
    let replaced = attached.first().map(AsFd::as_fd);
    bpf::attach_device_filter(cgroup, program.as_fd(), replaced).failing(Kind::Cgroup, || step("attach"))?;
    for old in attached.iter().skip(1) {
        bpf::detach_device_filter(cgroup, old.as_fd()).failing(Kind::Cgroup, || step("detach"))?;
    }
    Ok(())
}

/// `None` for a group that allows by default: `devices.list` lacks its exceptions.
fn parse_list(text: &str) -> Option<DeviceList> {
    let mut exceptions = Vec::new();
    for line in text.lines() {
        let mut words = line.split([' ', ':']);
        let kind = match words.next()? {
            "b" => DeviceKind::Block,
            "c" => DeviceKind::Character,
            _ => return None,
        };
        let mut number = || match words.next()? {
            "*" => Some(None),
            digits => Some(Some(digits.parse().ok()?)),
        };
        let (major, minor) = (number()?, number()?);
        exceptions.push(Rule { allow: true, kind, major, minor, access: access_bits(words.next()?) });
    }
    Some(DeviceList::denying_all_but(exceptions))
}

/// `current` is `None` if unknown. If both deny by default, a device that stays allowed is never denied in between.
fn changes(current: Option<&DeviceList>, target: &DeviceList) -> Vec<Rule> {
    let all = Rule {
        allow: target.allows_by_default(),
        kind: DeviceKind::All,
        major: None,
        minor: None,
        access: EVERY_ACCESS,
    };
    let Some(current) = current.filter(|current| !current.allows_by_default() && !target.allows_by_default()) else {
        return std::iter::once(all).chain(target.exceptions().iter().cloned()).collect();
    };
    let difference = |from: &DeviceList, minus: &DeviceList, allow: bool| {
        let mut rules = Vec::new();
        for each in from.exceptions() {
            let known =
                minus.exceptions().iter().find(|other| other.same_devices(each)).map_or(0, |other| other.access);
            if each.access & !known != 0 {
                rules.push(Rule { allow, access: each.access & !known, ..each.clone() });
            }
        }
        rules
    };
    let mut rules = difference(current, target, false);
    rules.extend(difference(target, current, true));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::devices::tests::parse;

    fn show(rules: &[Rule]) -> String {
        let words = rules.iter().map(|rule| format!("{} {}", if rule.allow { "allow" } else { "deny" }, rule.to_v1()));
        words.collect::<Vec<_>>().join(", ")
    }

    fn check(rules: &str, expected: &str) {
        let text = match DeviceList::of(&parse(rules)) {
            Ok(list) => show(&changes(None, &list)),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, expected, "{rules}");
    }

    #[test]
    fn rules_collapse_to_the_list_of_the_kernel() {
        check("- a", "deny a *:* rwm");
        check("+ c 1:3 rw, - a, + c 1:5 r, + c 1:5 w", "deny a *:* rwm, allow c 1:5 rw");
        check("+ c 1:3 rwm", "deny a *:* rwm, allow c 1:3 rwm");
        check("- a, + c 1:3 rwm, - c 1:3 w", "deny a *:* rwm, allow c 1:3 rm");
        check("- a, + c 1:3 rwm, + b 8:0 r, - c *:* rwm", "deny a *:* rwm, allow b 8:0 r");
        check("+ a, - b 8:0 w", "allow a *:* rwm, deny b 8:0 w");
    }

    #[test]
    fn rule_that_the_kernel_would_ignore_is_refused() {
        check(
            "- a, + c 1:* rwm, - c 1:3 w",
            "limit devices: `c 1:3 w` cannot be taken out of `c 1:* rwm` on cgroup v1",
        );
        check(
            "+ a, - b *:* rwm, + b 8:0 r",
            "limit devices: `b 8:0 r` cannot be taken out of `b *:* rwm` on cgroup v1",
        );
        check("- a, + c 1:* r, - c 1:3 w", "deny a *:* rwm, allow c 1:* r");
    }

    #[test]
    fn change_writes_only_the_difference() {
        let target = DeviceList::of(&parse("- a, + c 1:3 rw, + c 5:0 rwm")).unwrap();
        let current = parse_list("c 1:3 rwm\nb 8:* m\n").unwrap();
        assert_eq!(show(&changes(Some(&current), &target)), "deny c 1:3 m, deny b 8:* m, allow c 5:0 rwm");
        assert_eq!(changes(Some(&target), &target), []);
        assert_eq!(parse_list("a *:* rwm\n"), None);
    }
}
