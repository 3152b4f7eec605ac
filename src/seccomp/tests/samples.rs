//! Docker's default profile, and random parts of profiles.

use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};
use proptest::prelude::*;

/// As Docker passes it to a runtime on x86-64.
pub(in crate::seccomp) fn docker() -> Seccomp {
    let mut statements: Vec<String> = Vec::new();
    for line in include_str!("docker.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match statements.last_mut() {
            Some(last) if line.starts_with(' ') => last.push_str(line),
            _ => statements.push(line.to_string()),
        }
    }
    Seccomp {
        default_action: Action::Errno,
        default_errno_ret: Some(1),
        architectures: vec![Arch::X86_64, Arch::X86, Arch::X32],
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: statements.iter().flat_map(|statement| rules(statement)).collect(),
    }
}

/// `allow NAMES`, `allow if ARGUMENT OPERATOR VALUES: NAMES` (a rule for each value), `errno NUMBER: NAMES`.
fn rules(statement: &str) -> Vec<Rule> {
    let (head, names) = statement.split_once(':').unwrap_or_else(|| ("", statement.strip_prefix("allow").unwrap()));
    let names: Vec<String> = names.split_whitespace().map(str::to_string).collect();
    let rule = |action, errno_ret, args| Rule { names: names.clone(), action, errno_ret, args };
    let words: Vec<&str> = head.split_whitespace().collect();
    match words.as_slice() {
        [] => vec![rule(Action::Allow, None, vec![])],
        ["errno", number] => vec![rule(Action::Errno, Some(number.parse().unwrap()), vec![])],
        ["allow", "if", index, operator, values @ ..] => values
            .iter()
            .map(|value| {
                let op = *Operator::ALL.iter().find(|op| op.word().ends_with(&format!("_{operator}"))).unwrap();
                let (index, value) = (index.parse().unwrap(), value.parse().unwrap());
                rule(Action::Allow, None, vec![Condition { index, value, value_two: 0, op }])
            })
            .collect(),
        _ => panic!("not understood: {statement}"),
    }
}

/// Comparisons of one and of two words differ here.
const VALUES: &[u64] = &[
    0,
    1,
    2,
    3,
    5,
    0x7f,
    0x100,
    0x5412,
    0xffff_fffe,
    0xffff_ffff,
    1 << 32,
    (1 << 32) + 1,
    (1 << 32) + 5,
    7 << 33,
    !0 - 1,
    !0,
];

pub(super) fn action() -> impl Strategy<Value = (Action, Option<u32>)> {
    prop_oneof![
        Just((Action::Allow, None)),
        Just((Action::KillThread, None)),
        Just((Action::KillProcess, None)),
        Just((Action::Trap, None)),
        Just((Action::Log, None)),
        Just((Action::Errno, None)),
        (0u32..200).prop_map(|errno| (Action::Errno, Some(errno))),
        (0u32..200).prop_map(|data| (Action::Trace, Some(data))),
    ]
}

pub(super) fn value() -> impl Strategy<Value = u64> {
    prop_oneof![3 => proptest::sample::select(VALUES), 1 => any::<u64>(), 1 => 0u64..64]
}

pub(super) fn condition() -> impl Strategy<Value = Condition> {
    (0u32..6, value(), value(), proptest::sample::select(Operator::ALL))
        .prop_map(|(index, value, value_two, op)| Condition { index, value, value_two, op })
}
