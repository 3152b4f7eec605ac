//! Rules as v1's controller keeps them: everything is allowed but for a list, or nothing is.

use super::rules::{DeviceKind, EVERY_ACCESS, Rule};
use crate::error::{Error, Kind, Result};

/// The state of one `devices` group (kernel: `security/device_cgroup.c`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cgroup) struct DeviceList {
    /// What holds for a device that is not in the list.
    allow: bool,
    exceptions: Vec<Rule>,
}

impl DeviceList {
    /// What the rules come to. The kernel takes a rule back only by the very numbers that it was given with, and passes
    /// over everything else in silence; a list that would come out weaker or stricter than its words is refused here.
    pub(in crate::cgroup) fn of(rules: &[Rule]) -> Result<DeviceList> {
        let mut list = DeviceList { allow: false, exceptions: Vec::new() };
        for rule in rules {
            if rule.kind == DeviceKind::All {
                list = DeviceList { allow: rule.allow, exceptions: Vec::new() };
            } else if rule.allow == list.allow {
                list.take_back(rule)?;
            } else {
                list.add(rule);
            }
        }
        Ok(list)
    }

    /// Whether a device that no exception names may be used.
    pub(in crate::cgroup) fn allows_by_default(&self) -> bool {
        self.allow
    }

    /// What is allowed where nothing else is, or the other way round.
    pub(in crate::cgroup) fn exceptions(&self) -> &[Rule] {
        &self.exceptions
    }

    /// What `devices.list` says. A group in which everything is allowed does not list its exceptions: then `None`.
    pub(in crate::cgroup) fn parse(text: &str) -> Option<DeviceList> {
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
            let access = super::rules::access_bits(words.next()?);
            exceptions.push(Rule { allow: true, kind, major, minor, access });
        }
        Some(DeviceList { allow: false, exceptions })
    }

    fn add(&mut self, rule: &Rule) {
        match self.exceptions.iter_mut().find(|each| each.same_devices(rule)) {
            Some(known) => known.access |= rule.access,
            None => self.exceptions.push(rule.clone()),
        }
    }

    fn take_back(&mut self, rule: &Rule) -> Result<()> {
        for each in &mut self.exceptions {
            if each.access & rule.access == 0 || !each.overlaps(rule) {
                continue;
            }
            if !rule.covers(each) {
                let reason = format!("`{}` cannot be taken out of `{}` on cgroup v1", rule.to_v1(), each.to_v1());
                return Err(Error::new(Kind::LimitUnenforceable, reason)
                    .doing("limit devices")
                    .hint("name the devices one by one, or use a host with cgroup v2"));
            }
            each.access &= !rule.access;
        }
        self.exceptions.retain(|each| each.access != 0);
        Ok(())
    }
}

/// What a group must be told to get from `current` (unknown: anything) to `target`. Where it can be, nothing that stays
/// allowed is denied for a moment.
pub(super) fn orders(current: Option<&DeviceList>, target: &DeviceList) -> Vec<Rule> {
    let all = Rule { allow: target.allow, kind: DeviceKind::All, major: None, minor: None, access: EVERY_ACCESS };
    let Some(current) = current.filter(|current| !current.allow && !target.allow) else {
        return std::iter::once(all).chain(target.exceptions.iter().cloned()).collect();
    };
    let difference = |from: &DeviceList, minus: &DeviceList, allow: bool| {
        let mut rules = Vec::new();
        for each in &from.exceptions {
            let known = minus.exceptions.iter().find(|other| other.same_devices(each)).map_or(0, |other| other.access);
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
    use crate::cgroup::devices::rules::tests::parse;

    fn show(rules: &[Rule]) -> String {
        let words = rules.iter().map(|rule| format!("{} {}", if rule.allow { "allow" } else { "deny" }, rule.to_v1()));
        words.collect::<Vec<_>>().join(", ")
    }

    fn check(rules: &str, expected: &str) {
        let text = match DeviceList::of(&parse(rules)) {
            Ok(list) => show(&orders(None, &list)),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, expected, "{rules}");
    }

    #[test]
    fn rules_collapse_to_what_the_kernel_keeps() {
        check("- a", "deny a *:* rwm");
        check("+ c 1:3 rw, - a, + c 1:5 r, + c 1:5 w", "deny a *:* rwm, allow c 1:5 rw");
        check("+ c 1:3 rwm", "deny a *:* rwm, allow c 1:3 rwm");
        check("- a, + c 1:3 rwm, - c 1:3 w", "deny a *:* rwm, allow c 1:3 rm");
        check("- a, + c 1:3 rwm, + b 8:0 r, - c *:* rwm", "deny a *:* rwm, allow b 8:0 r");
        check("+ a, - b 8:0 w", "allow a *:* rwm, deny b 8:0 w");
    }

    #[test]
    fn what_the_kernel_would_pass_over_in_silence_is_refused() {
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
    fn a_change_touches_only_what_changes() {
        let target = DeviceList::of(&parse("- a, + c 1:3 rw, + c 5:0 rwm")).unwrap();
        let current = DeviceList::parse("c 1:3 rwm\nb 8:* m\n").unwrap();
        assert_eq!(show(&orders(Some(&current), &target)), "deny c 1:3 m, deny b 8:* m, allow c 5:0 rwm");
        assert_eq!(orders(Some(&target), &target), []);
        assert_eq!(DeviceList::parse("a *:* rwm\n"), None);
    }
}
