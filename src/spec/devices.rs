//! Device rules (`linux.resources.devices`), checked once. Pure. A device without a rule is denied, as with runc and
//! crun.

use crate::error::{Error, Kind, Result};
use crate::spec::resources::DeviceRule;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    All,
    Block,
    Character,
}

/// Bits that the kernel passes to a BPF program (`BPF_DEVCG_ACC_*`).
pub(crate) const MKNOD: u8 = 1;
pub(crate) const READ: u8 = 2;
pub(crate) const WRITE: u8 = 4;
pub(crate) const EVERY_ACCESS: u8 = MKNOD | READ | WRITE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub allow: bool,
    pub kind: DeviceKind,
    /// `None` matches every number.
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub access: u8,
}

impl Rule {
    /// Drops a rule without a known access letter: it matches nothing.
    pub(crate) fn parse_all(rules: &[DeviceRule]) -> Result<Vec<Rule>> {
        let rules = rules.iter().map(Rule::parse).filter(|rule| rule.as_ref().map_or(true, |rule| rule.access != 0));
        rules.collect()
    }

    /// A rule of type `a` matches every device; the kernel ignores its numbers.
    pub(crate) fn parse(rule: &DeviceRule) -> Result<Rule> {
        let fail = |reason: String| Err(Error::new(Kind::Spec, reason).doing("read a device rule"));
        let kind = match rule.kind.as_deref() {
            None | Some("" | "a") => DeviceKind::All,
            Some("b") => DeviceKind::Block,
            Some("c" | "u") => DeviceKind::Character,
            Some(other) => return fail(format!("invalid type `{}`: use a, b or c", other.escape_default())),
        };
        let word = rule.access.as_deref().filter(|word| !word.is_empty()).unwrap_or("rwm");
        let access = access_bits(word);
        let number = |value: Option<i64>| match value {
            None | Some(..0) => Ok(None),
            Some(value) => u32::try_from(value).map(Some),
        };
        let (Ok(major), Ok(minor)) = (number(rule.major), number(rule.minor)) else {
            return fail("a device number is above 4294967295".to_owned());
        };
        if kind == DeviceKind::All {
            return Ok(Rule { allow: rule.allow, kind, major: None, minor: None, access: EVERY_ACCESS });
        }
        Ok(Rule { allow: rule.allow, kind, major, minor, access })
    }

    pub(crate) fn same_devices(&self, other: &Rule) -> bool {
        (self.kind, self.major, self.minor) == (other.kind, other.major, other.minor)
    }

    /// Whether it matches every device that `other` matches.
    pub(crate) fn covers(&self, other: &Rule) -> bool {
        let covers = |ours: Option<u32>, others: Option<u32>| ours.is_none() || ours == others;
        let kind = self.kind == DeviceKind::All || self.kind == other.kind;
        kind && covers(self.major, other.major) && covers(self.minor, other.minor)
    }

    pub(crate) fn overlaps(&self, other: &Rule) -> bool {
        let meet = |ours: Option<u32>, others: Option<u32>| ours.is_none() || others.is_none() || ours == others;
        let kind = self.kind == DeviceKind::All || other.kind == DeviceKind::All || self.kind == other.kind;
        kind && meet(self.major, other.major) && meet(self.minor, other.minor)
    }

    /// For v1's `devices.allow` and `devices.deny`: `c 1:3 rwm`.
    pub(crate) fn to_v1(&self) -> String {
        let number = |value: Option<u32>| value.map_or("*".to_owned(), |value| value.to_string());
        let kind = match self.kind {
            DeviceKind::All => 'a',
            DeviceKind::Block => 'b',
            DeviceKind::Character => 'c',
        };
        format!("{kind} {}:{} {}", number(self.major), number(self.minor), self.access_letters())
    }

    pub(crate) fn access_letters(&self) -> String {
        let letters = [(READ, 'r'), (WRITE, 'w'), (MKNOD, 'm')];
        letters.iter().filter(|(bit, _)| self.access & bit != 0).map(|(_, letter)| letter).collect()
    }
}

/// Ignores letters other than `rwm`, as runc does.
pub(crate) fn access_bits(word: &str) -> u8 {
    word.chars().fold(0, |bits, letter| match letter {
        'r' => bits | READ,
        'w' => bits | WRITE,
        'm' => bits | MKNOD,
        _ => bits,
    })
}

/// A default and its exceptions, as in v1's `devices` controller (kernel: `security/device_cgroup.c`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceList {
    allow: bool,
    exceptions: Vec<Rule>,
}

impl DeviceList {
    /// Applies the rules in order. The kernel removes an exception only by its original numbers and ignores other rules
    /// in silence. Such a rule is refused here: the list would be weaker or stricter than the rules.
    pub(crate) fn of(rules: &[Rule]) -> Result<DeviceList> {
        let mut list = DeviceList { allow: false, exceptions: Vec::new() };
        for rule in rules {
            if rule.kind == DeviceKind::All {
                list = DeviceList { allow: rule.allow, exceptions: Vec::new() };
            } else if rule.allow == list.allow {
                list.remove(rule)?;
            } else {
                list.add(rule);
            }
        }
        Ok(list)
    }

    pub(crate) fn denying_all_but(exceptions: Vec<Rule>) -> DeviceList {
        DeviceList { allow: false, exceptions }
    }

    pub(crate) fn allows_by_default(&self) -> bool {
        self.allow
    }

    pub(crate) fn exceptions(&self) -> &[Rule] {
        &self.exceptions
    }

    fn add(&mut self, rule: &Rule) {
        match self.exceptions.iter_mut().find(|each| each.same_devices(rule)) {
            Some(known) => known.access |= rule.access,
            None => self.exceptions.push(rule.clone()),
        }
    }

    fn remove(&mut self, rule: &Rule) -> Result<()> {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Short form for tests: `+ c 1:3 rw, - a`.
    pub(crate) fn parse(text: &str) -> Vec<Rule> {
        let rule = |text: &str| {
            let words: Vec<_> = text.split_whitespace().collect();
            let number = |at: usize| {
                let word = words.get(2)?.split(':').nth(at)?;
                word.parse::<i64>().ok()
            };
            let rule = DeviceRule {
                allow: words[0] == "+",
                kind: Some(words[1].to_owned()),
                major: number(0),
                minor: number(1),
                access: words.get(3).map(|word| (*word).to_owned()),
            };
            Rule::parse(&rule).unwrap()
        };
        text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(rule).collect()
    }

    fn check(json: &str, expected: &str) {
        let text = match Rule::parse(&serde_json::from_str(json).unwrap()) {
            Ok(rule) => format!("{} {}", if rule.allow { "allow" } else { "deny" }, rule.to_v1()),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, expected, "{json}");
    }

    #[test]
    fn rule_parses_as_the_kernel_reads_it() {
        check(r#"{"allow": false, "access": "rwm"}"#, "deny a *:* rwm");
        check(r#"{"allow": true, "type": "a", "major": 5, "minor": 1, "access": "r"}"#, "allow a *:* rwm");
        check(r#"{"allow": true, "type": "c", "major": 1, "minor": 3}"#, "allow c 1:3 rwm");
        check(r#"{"allow": true, "type": "c", "major": 136, "minor": -1, "access": "mr"}"#, "allow c 136:* rm");
        check(r#"{"allow": true, "type": "b", "access": "m"}"#, "allow b *:* m");
        check(r#"{"allow": true, "type": "p"}"#, "read a device rule: invalid type `p`: use a, b or c");
        check(r#"{"allow": true, "type": "c", "access": "rx"}"#, "allow c *:* r");
        check(
            r#"{"allow": true, "type": "c", "major": 4294967296}"#,
            "read a device rule: a device number is above 4294967295",
        );
    }
}
