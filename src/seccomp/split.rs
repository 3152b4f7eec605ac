//! Tests on arguments as decisions over ranges of values.
//!
//! `socket` of Docker's profile has 31 rules that compare the family with one number. As ranges they need a few
//! comparisons instead of 31 times four. The first argument in all cases is decided first; each of its ranges decides
//! the remaining conditions.

use crate::spec::seccomp::{Condition, Operator};

/// All must hold for this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub conditions: Vec<Condition>,
    pub value: u32,
}

pub(super) struct Split {
    pub index: u32,
    /// A 32-bit ABI, or masks without the high bits.
    pub low_only: bool,
    /// Each range's start (the first is 0) and index in `ends`.
    pub ranges: Vec<(u64, u32)>,
    pub ends: Vec<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Return(u32),
    Test(Vec<Remaining>),
}

/// The first case that holds decides.
pub(super) fn end(mut cases: Vec<Remaining>, otherwise: u32) -> End {
    if let Some(certain) = cases.iter().position(|case| case.conditions.is_empty()) {
        cases.truncate(certain + 1);
    }
    match cases.first() {
        None => End::Return(otherwise),
        Some(first) if cases.iter().all(|case| case.conditions.is_empty() && case.value == first.value) => {
            End::Return(first.value)
        }
        Some(_) => End::Test(cases),
    }
}

/// Of the cases, by overlapping ranges. Above it a chain is shorter.
const GROWTH: usize = 4;

/// Splits by an argument on which each case has one condition of one or two ranges.
pub(super) fn split(cases: &[Remaining], otherwise: u32, wide: bool) -> Option<Split> {
    let first = cases.first()?;
    first.conditions.iter().find_map(|condition| split_by(cases, condition.index, otherwise, wide))
}

fn split_by(cases: &[Remaining], index: u32, otherwise: u32, wide: bool) -> Option<Split> {
    let on_index = |case: &Remaining| case.conditions.iter().find(|condition| condition.index == index).copied();
    let conditions: Vec<Condition> = cases.iter().map_while(on_index).collect();
    if conditions.len() < cases.len() {
        return None;
    }
    let low_only = !wide || conditions.iter().all(masks_low_word);
    let most = if low_only { u64::from(u32::MAX) } else { u64::MAX };
    let holds = conditions.iter().map(|condition| intervals(condition, most)).collect::<Option<Vec<_>>>()?;

    let mut starts = vec![0];
    for (from, to) in holds.iter().flatten().flatten() {
        starts.push(*from);
        starts.extend(to.checked_add(1).filter(|start| *start <= most));
    }
    starts.sort_unstable();
    starts.dedup();

    let mut split = Split { index, low_only, ranges: Vec::with_capacity(starts.len()), ends: Vec::new() };
    let mut left = (cases.len() + 1) * GROWTH;
    for start in starts {
        let here =
            |intervals: &[Interval; 2]| intervals.iter().flatten().any(|(from, to)| (*from..=*to).contains(&start));
        let remaining: Vec<Remaining> = cases
            .iter()
            .zip(&holds)
            .filter(|(_, intervals)| here(intervals))
            .map(|(case, _)| case.without(index))
            .collect();
        let end = end(remaining, otherwise);
        if let End::Test(cases) = &end {
            left = left.checked_sub(cases.len())?;
        }
        let place = split.ends.iter().position(|known| *known == end).unwrap_or_else(|| {
            split.ends.push(end);
            split.ends.len() - 1
        });
        if split.ranges.last().is_none_or(|last| last.1 != place as u32) {
            split.ranges.push((start, place as u32));
        }
    }
    Some(split)
}

impl Remaining {
    fn without(&self, index: u32) -> Remaining {
        let conditions = self.conditions.iter().filter(|condition| condition.index != index).copied().collect();
        Remaining { conditions, value: self.value }
    }
}

fn masks_low_word(condition: &Condition) -> bool {
    condition.op == Operator::MaskedEqual && condition.value <= u64::from(u32::MAX)
}

type Interval = Option<(u64, u64)>;

/// The values up to `most` (all ones) for which a condition holds; `None` if they are scattered.
fn intervals(condition: &Condition, most: u64) -> Option<[Interval; 2]> {
    // 32-bit ABIs truncate the value, so that a 64-bit -1 means -1.
    let value = condition.value & most;
    let below = value.checked_sub(1).map(|last| (0, last));
    let above = (value < most).then(|| (value + 1, most));
    Some(match condition.op {
        Operator::Equal => [Some((value, value)), None],
        Operator::NotEqual => [below, above],
        Operator::LessThan => [below, None],
        Operator::LessEqual => [Some((0, value)), None],
        Operator::GreaterThan => [None, above],
        Operator::GreaterEqual => [Some((value, most)), None],
        Operator::MaskedEqual => {
            let free = !value & most;
            if free & free.wrapping_add(1) != 0 {
                return None;
            }
            let from = condition.value_two & value;
            [Some((from, from | free)), None]
        }
    })
}

/// For a machine that compares 32 bits.
pub(super) struct Words {
    /// Each with its part of `lows`.
    pub highs: Vec<(u32, (usize, usize))>,
    pub lows: Vec<(u32, u32)>,
}

pub(super) fn by_high_word(ranges: &[(u64, u32)]) -> Words {
    let high = |range: &(u64, u32)| (range.0 >> 32) as u32;
    let mut words = Words { highs: Vec::new(), lows: Vec::new() };
    let mut value = 0;
    let mut groups = ranges.chunk_by(|a, b| high(a) == high(b)).peekable();
    while let Some(group) = groups.next() {
        let word = high(&group[0]);
        let from = words.lows.len();
        if group[0].0 as u32 != 0 {
            words.lows.push((0, value));
        }
        words.lows.extend(group.iter().map(|range| (range.0 as u32, range.1)));
        words.highs.push((word, (from, words.lows.len())));
        value = group[group.len() - 1].1;
        let next = groups.peek().map(|group| high(&group[0]));
        // With one range in this word, it also covers the words up to the next group.
        let split = words.lows.len() - from > 1;
        if split && word < u32::MAX && next != Some(word + 1) {
            words.lows.push((0, value));
            words.highs.push((word + 1, (words.lows.len() - 1, words.lows.len())));
        }
    }
    words
}
