//! Conditions and cases, as the table writes them.

use crate::spec::seccomp::{Condition, Operator};

/// If these all hold, the call is allowed or returns an error.
pub(super) struct Case {
    pub errno: Option<u32>,
    pub when: &'static [Condition],
}

pub(super) const fn is(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::Equal }
}

pub(super) const fn at_most(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::LessEqual }
}

pub(super) const fn above(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::GreaterThan }
}

pub(super) const fn without(index: u32, bits: u64) -> Condition {
    Condition { index, value: bits, value_two: 0, op: Operator::MaskedEqual }
}

pub(super) const fn low_half(index: u32, mask: u32, value: u32) -> Condition {
    Condition { index, value: mask as u64, value_two: value as u64, op: Operator::MaskedEqual }
}

pub(super) const fn low(index: u32, value: u32) -> Condition {
    low_half(index, !0, value)
}

pub(super) const fn allow(when: &'static [Condition]) -> Case {
    Case { errno: None, when }
}

pub(super) const fn refuse(errno: i32, when: &'static [Condition]) -> Case {
    Case { errno: Some(errno as u32), when }
}
