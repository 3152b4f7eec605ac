//! Resolves a profile to ranges: for each ABI, the outcome of each number.
//!
//! A profile has the meaning that it has with runc and libseccomp:
//! - A rule with the default's action is skipped. A name that an ABI lacks is ignored there.
//! - A rule without conditions outweighs all others for its calls; the first such rule counts.
//! - All conditions of a rule must hold. Of several about one argument, one is enough.
//! - Numbers above the newest call of a profile return ENOSYS, unless the default allows calls. EPERM would prevent the
//!   fallback to an older call.
//! - Calls through an unlisted ABI end the thread.

use super::abi::{Abi, abi, offered};
use super::split::Remaining;
use super::table::{ARM_PRIVATE, Call, Column, Multiplexer};
use super::{action, precedence};
use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};

/// A return value of the filter, or the index of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Return(u32),
    Test(u16),
}

/// One `AUDIT_ARCH_*`. A range has its start; the first is 0.
pub(super) struct Section {
    pub audit: u32,
    pub ranges: Vec<(u32, Outcome)>,
}

/// The first case that holds decides.
pub(super) struct Test {
    pub cases: Vec<Remaining>,
    pub otherwise: u32,
    pub wide: bool,
    pub big_endian: bool,
    /// The rules behind it, to share it between calls.
    origin: Vec<(u16, u8)>,
}

pub(super) struct Plan {
    pub sections: Vec<Section>,
    pub tests: Vec<Test>,
    pub unknown: Vec<String>,
}

/// One of `alternatives` must hold completely.
struct Checked<'a> {
    value: u32,
    alternatives: Vec<&'a [Condition]>,
    skipped: bool,
}

pub(super) fn plan(profile: &Seccomp, native: Arch) -> Result<Plan> {
    let default = default_value(profile)?;
    let rules = check(profile, default)?;
    let (named, unknown) = resolve(profile);
    let mut plan = Plan { sections: Vec::new(), tests: Vec::new(), unknown };
    for arch in offered(native) {
        if *arch != native && !profile.architectures.contains(arch) {
            continue;
        }
        let Some(abi) = abi(*arch) else { continue };
        let ranges = ranges(&abi, &named, &rules, default, profile.default_action, &mut plan.tests);
        match plan.sections.iter_mut().find(|section| section.audit == abi.audit) {
            // x32 shares x86-64's architecture, from its bit up.
            Some(section) => overlay(&mut section.ranges, abi.base, ranges),
            None => plan.sections.push(Section { audit: abi.audit, ranges }),
        }
    }
    // So an unlisted x32 needs an explicit range.
    if native == Arch::X86_64
        && !profile.architectures.contains(&Arch::X32)
        && let (Some(section), Some(x32)) = (plan.sections.first_mut(), abi(Arch::X32))
    {
        overlay(&mut section.ranges, x32.base, vec![(x32.base, Outcome::Return(FOREIGN))]);
    }
    if plan.sections.is_empty() {
        return Err(Error::new(Kind::Seccomp, format!("system calls of `{}` are not known", native.word())));
    }
    Ok(plan)
}

/// libseccomp's default for an unlisted ABI, and so every runtime's.
pub(super) const FOREIGN: u32 = action::KILL_THREAD;

fn overlay(ranges: &mut Vec<(u32, Outcome)>, from: u32, above: Vec<(u32, Outcome)>) {
    ranges.retain(|(start, _)| *start < from);
    ranges.extend(above);
}

fn default_value(profile: &Seccomp) -> Result<u32> {
    if profile.default_action == Action::Notify {
        return Err(fault(
            "`SCMP_ACT_NOTIFY` cannot be the default action: the start of the container would wait for it",
        ));
    }
    action::value(profile.default_action, profile.default_errno_ret)
}

fn check<'a>(profile: &'a Seccomp, default: u32) -> Result<Vec<Checked<'a>>> {
    let listens = profile.syscalls.iter().any(|rule| rule.action == Action::Notify);
    if listens && profile.listener_path.is_empty() {
        return Err(fault("`SCMP_ACT_NOTIFY` needs a `listenerPath`"));
    }
    if !profile.listener_metadata.is_empty() && profile.listener_path.is_empty() {
        return Err(fault("`listenerMetadata` needs a `listenerPath`"));
    }
    if profile.syscalls.len() > usize::from(u16::MAX) {
        return Err(fault(format!("{} rules are more than a filter can hold", profile.syscalls.len())));
    }
    profile.syscalls.iter().map(|rule| check_rule(rule, default)).collect()
}

fn check_rule(rule: &Rule, default: u32) -> Result<Checked<'_>> {
    let names = || rule.names.join("`, `");
    let value =
        action::value(rule.action, rule.errno_ret).map_err(|error| error.doing(format!("rule for `{}`", names())))?;
    if rule.names.iter().any(String::is_empty) {
        return Err(fault("a rule names a system call with no name"));
    }
    if rule.action == Action::Notify && rule.names.iter().any(|name| name == "write") {
        // Other runtimes send the listener with write(2), and refuse such a profile.
        return Err(fault(
            "`SCMP_ACT_NOTIFY` cannot be used for `write`: the start of the container would wait for it",
        ));
    }
    let mut seen = 0u8;
    let mut any = false;
    for condition in &rule.args {
        if condition.index > 5 {
            return Err(fault(format!("rule for `{}`: no argument {}: the last is 5", names(), condition.index)));
        }
        any |= seen & (1 << condition.index) != 0;
        seen |= 1 << condition.index;
    }
    let alternatives = match (rule.args.is_empty(), any) {
        (true, _) => Vec::new(),
        (false, true) => rule.args.chunks(1).collect(),
        (false, false) => vec![rule.args.as_slice()],
    };
    Ok(Checked { value, alternatives, skipped: value == default })
}

fn fault(cause: impl Into<String>) -> Error {
    Error::new(Kind::Spec, cause)
}

/// The selector of a multiplexed call, else 0.
#[derive(Clone, Copy)]
struct Named {
    rule: u16,
    call: Call,
    selector: u8,
}

fn resolve(profile: &Seccomp) -> (Vec<Named>, Vec<String>) {
    let (mut named, mut unknown) = (Vec::with_capacity(512), Vec::new());
    for (place, rule) in profile.syscalls.iter().enumerate() {
        for name in &rule.names {
            match Call::named(name) {
                Some(call) => {
                    named.push(Named { rule: place as u16, call, selector: 0 });
                    named.extend(multiplexed(call).map(|(call, selector)| Named {
                        rule: place as u16,
                        call,
                        selector,
                    }));
                }
                None if !unknown.contains(name) => unknown.push(name.clone()),
                None => {}
            }
        }
    }
    (named, unknown)
}

fn multiplexed(call: Call) -> Option<(Call, u8)> {
    match call.multiplexer()? {
        Multiplexer::Socketcall(selector) => Some((Call::named("socketcall")?, selector)),
        Multiplexer::Ipc(selector) => Some((Call::named("ipc")?, selector)),
    }
}

/// From 0 or, for x32, from its bit up.
fn ranges(
    abi: &Abi,
    named: &[Named],
    rules: &[Checked<'_>],
    default: u32,
    default_action: Action,
    tests: &mut Vec<Test>,
) -> Vec<(u32, Outcome)> {
    let mut newest = None;
    let mut entries: Vec<(u32, u16, u8)> = Vec::with_capacity(named.len());
    for Named { rule, call, selector } in named.iter().copied() {
        if selector != 0 && !abi.multiplexed {
            continue;
        }
        let Some(number) = call.number(abi.column) else { continue };
        if number < ARM_PRIVATE {
            newest = newest.max(Some(number));
        }
        if !rules[usize::from(rule)].skipped {
            entries.push((number, rule, selector));
        }
    }
    entries.sort_unstable();
    entries.dedup();

    let mut all = Ranges { list: Vec::with_capacity(entries.len() + 4), default: Outcome::Return(default) };
    if abi.column != Column::X32 {
        all.from(0, all.default);
    }
    all.from(abi.base, all.default);
    let mut beyond = newest.filter(|_| !lets_through(default_action)).map(|newest| abi.base + newest + 1);
    if beyond.is_some() && matches!(abi.column, Column::S390 | Column::S390x) {
        // Numbers that exceed the instruction become 0, the former setup(2), if the kernel lacks them.
        all.one(0, MISSING);
        entries.retain(|entry| entry.0 != 0);
    }
    for group in entries.chunk_by(|a, b| a.0 == b.0) {
        let number = abi.base + group[0].0;
        if let Some(end) = beyond.take_if(|end| number >= *end) {
            all.beyond(end, abi);
        }
        all.one(number, outcome(abi, group, rules, default, tests));
    }
    if let Some(end) = beyond {
        all.beyond(end, abi);
    }
    all.list
}

const MISSING: Outcome = Outcome::Return(action::errno(libc::ENOSYS as u32));

/// Ascending. Neighbours with the same outcome are merged.
struct Ranges {
    list: Vec<(u32, Outcome)>,
    default: Outcome,
}

impl Ranges {
    fn from(&mut self, start: u32, outcome: Outcome) {
        self.list.pop_if(|last| last.0 == start);
        if self.list.last().is_none_or(|last| last.1 != outcome) {
            self.list.push((start, outcome));
        }
    }

    /// Unknown numbers from here on, except ARM's private calls.
    fn beyond(&mut self, end: u32, abi: &Abi) {
        self.from(end, MISSING);
        if abi.column == Column::Arm {
            self.from(ARM_PRIVATE, self.default);
        }
    }

    fn one(&mut self, number: u32, outcome: Outcome) {
        self.from(number, outcome);
        self.from(number + 1, self.default);
    }
}

/// runc includes TRACE: a good tracer returns ENOSYS itself.
fn lets_through(default: Action) -> bool {
    matches!(default, Action::Allow | Action::Log | Action::Trace)
}

fn outcome(abi: &Abi, group: &[(u32, u16, u8)], rules: &[Checked<'_>], default: u32, tests: &mut Vec<Test>) -> Outcome {
    let unconditional = |rule: u16| {
        let alternatives = &rules[usize::from(rule)].alternatives;
        alternatives.is_empty() || alternatives.iter().any(|all| all.iter().all(|condition| always(condition, abi)))
    };
    let plain = group.iter().find(|(_, rule, selector)| *selector == 0 && unconditional(*rule));
    if let Some((_, rule, _)) = plain {
        return Outcome::Return(rules[usize::from(*rule)].value);
    }
    let origin: Vec<(u16, u8)> = group.iter().map(|(_, rule, selector)| (*rule, *selector)).collect();
    if let Some(same) = tests.iter().position(|test| test.wide == abi.wide && test.origin == origin) {
        return Outcome::Test(same as u16);
    }
    let mut cases = Vec::new();
    for (rule, selector) in &origin {
        let rule = &rules[usize::from(*rule)];
        let selected = (*selector != 0).then(|| Condition {
            index: 0,
            value: u64::from(*selector),
            value_two: 0,
            op: Operator::Equal,
        });
        if rule.alternatives.is_empty() {
            cases.push(Remaining { conditions: selected.into_iter().collect(), value: rule.value });
        }
        for conditions in &rule.alternatives {
            // No filter can see the arguments of multiplexed calls. The selector replaces the first one; the others are
            // compared anyway, as in libseccomp.
            let others = conditions.iter().filter(|condition| selected.is_none() || condition.index != 0).copied();
            cases.push(Remaining { conditions: selected.into_iter().chain(others).collect(), value: rule.value });
        }
    }
    let cases = precedence::order(cases, abi.wide);
    tests.push(Test { cases, otherwise: default, wide: abi.wide, big_endian: abi.big_endian, origin });
    Outcome::Test((tests.len() - 1) as u16)
}

/// Whether the mask has no bits.
fn always(condition: &Condition, abi: &Abi) -> bool {
    condition.op == Operator::MaskedEqual && if abi.wide { condition.value == 0 } else { condition.value as u32 == 0 }
}
