//! The order of rules that overlap and have different actions.
//!
//! No specification defines it. Profiles are written against libseccomp, which tests the more special rule first:
//! - a later argument before an earlier one;
//! - an equality before a limit, an upper limit before a lower one;
//! - the smallest upper limit first, the greatest other number first;
//! - equal rules in their original order.

use super::split::Remaining;
use crate::spec::seccomp::{Condition, Operator};
use std::cmp::Ordering;

pub(super) fn order(cases: Vec<Remaining>, wide: bool) -> Vec<Remaining> {
    if cases.windows(2).all(|pair| pair[0].value == pair[1].value) {
        return cases;
    }
    let mut ordered: Vec<Remaining> = Vec::with_capacity(cases.len());
    for mut case in cases {
        case.conditions.sort_by_key(|condition| condition.index);
        // Not `sort_by`: equality is not transitive, and libseccomp inserts one by one, too.
        let before = |earlier: &Remaining| compare(&earlier.conditions, &case.conditions, wide) != Ordering::Greater;
        let place = ordered.iter().rposition(before).map_or(0, |last| last + 1);
        ordered.insert(place, case);
    }
    ordered
}

/// `Less` if `a` is tested before `b`.
fn compare(a: &[Condition], b: &[Condition], wide: bool) -> Ordering {
    let order = a.iter().zip(b).map(|(a, b)| compare_one(a, b, wide)).find(|order| *order != Some(Ordering::Equal));
    order.flatten().unwrap_or(Ordering::Equal)
}

/// `None` if the conditions have no order; then later ones do not matter either.
fn compare_one(a: &Condition, b: &Condition, wide: bool) -> Option<Ordering> {
    let order = b.index.cmp(&a.index).then(rank(b.op).cmp(&rank(a.op)));
    if order != Ordering::Equal {
        return Some(order);
    }
    let words: &[u32] = if wide { &[32, 0] } else { &[0] };
    for word in words {
        let (mask_a, wanted_a) = parts(a, *word);
        let (mask_b, wanted_b) = parts(b, *word);
        let order = if rank(a.op) == 2 { wanted_a.cmp(&wanted_b) } else { wanted_b.cmp(&wanted_a) };
        if order != Ordering::Equal {
            return Some(order);
        }
        let masked = |condition: &Condition| condition.op == Operator::MaskedEqual;
        if mask_a != mask_b || masked(a) != masked(b) {
            return None;
        }
    }
    Some(Ordering::Equal)
}

fn rank(op: Operator) -> u8 {
    match op {
        Operator::Equal | Operator::NotEqual | Operator::MaskedEqual => 3,
        Operator::LessThan | Operator::LessEqual => 2,
        Operator::GreaterThan | Operator::GreaterEqual => 1,
    }
}

/// Of one word.
fn parts(condition: &Condition, shift: u32) -> (u32, u32) {
    let (mask, wanted) = match condition.op {
        Operator::MaskedEqual => (condition.value, condition.value_two & condition.value),
        _ => (u64::MAX, condition.value),
    };
    ((mask >> shift) as u32, (wanted >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn condition(index: u32, op: Operator, value: u64) -> Condition {
        Condition { index, value, value_two: 0, op }
    }

    #[test]
    fn the_more_special_rule_is_asked_first() {
        use Operator::*;
        for (first, second) in [
            (condition(0, GreaterThan, 5), condition(0, GreaterThan, 3)),
            (condition(0, GreaterThan, 1 << 33), condition(0, GreaterThan, 3)),
            (condition(0, LessThan, 3), condition(0, LessThan, 5)),
            (condition(0, Equal, 5), condition(0, GreaterThan, 3)),
            (condition(0, Equal, 5), condition(0, LessThan, 9)),
            (condition(0, LessThan, 9), condition(0, GreaterThan, 3)),
            (condition(0, NotEqual, 9), condition(0, Equal, 5)),
            (condition(1, GreaterThan, 0), condition(0, Equal, 5)),
        ] {
            let case = |condition, value| Remaining { conditions: vec![condition], value };
            for cases in [[case(first, 1), case(second, 2)], [case(second, 2), case(first, 1)]] {
                assert_eq!(order(cases.to_vec(), true)[0].value, 1, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn equals_stay_in_the_order_of_the_profile() {
        let case = |op, value| Remaining { conditions: vec![condition(0, op, 3)], value };
        let cases = vec![case(Operator::GreaterEqual, 1), case(Operator::GreaterThan, 2)];
        assert_eq!(order(cases.clone(), true), cases);
    }
}
