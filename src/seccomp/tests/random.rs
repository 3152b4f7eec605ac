//! Random parts of profiles, for properties. Tests only.

use crate::spec::seccomp::{Action, Condition, Operator};
use proptest::prelude::*;

/// Where comparisons of one and of two words differ.
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
