//! Writes instructions for ranges.
//!
//! Jumps of classic BPF go forward only, and a conditional one by at most 255. So the program is written from its end:
//! each target exists before its jump. A binary search tree finds a number with at most nine comparisons for x86-64,
//! and an argument's value if its conditions allow it.

use super::action;
use super::rules::{FOREIGN, Outcome, Plan, Test};
use super::split::{End, Remaining, Split, by_high_word, end, split};
use crate::spec::seccomp::{Condition, Operator};
use crate::sys::seccomp::{Instruction, MAX_INSTRUCTIONS};

// linux/bpf_common.h
pub(super) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(super) const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub(super) const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(super) const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
pub(super) const JUMP_GREATER_EQUAL: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub(super) const JUMP_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

// linux/seccomp.h
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCH: u32 = 4;
pub(super) const ARGUMENTS: u32 = 16;

/// Of a conditional jump.
const REACH: usize = 255;

/// Counted from the end.
#[derive(Clone, Copy)]
struct Label(usize);

struct Writer<'a> {
    style: Style,
    reversed: Vec<Instruction>,
    /// The nearest of each value.
    returns: Vec<(u32, Label)>,
    tests: &'a [Test],
    written: Vec<Option<Label>>,
}

/// Decisions, or chains if those are too long.
pub(super) fn emit(plan: &Plan) -> Vec<Instruction> {
    let program = write(plan, Style::Decisions);
    if program.len() > MAX_INSTRUCTIONS { write(plan, Style::Chains) } else { program }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Style {
    /// Fast, and short for common profiles, but not for all.
    Decisions,
    /// As long as the profile.
    Chains,
}

pub(super) fn write(plan: &Plan, style: Style) -> Vec<Instruction> {
    let mut writer = Writer {
        style,
        reversed: Vec::with_capacity(1024),
        returns: Vec::new(),
        tests: &plan.tests,
        written: vec![None; plan.tests.len()],
    };
    let mut next = writer.return_label(FOREIGN);
    for section in plan.sections.iter().rev() {
        let elsewhere = next;
        let numbers = writer.tree(&section.ranges, &mut |writer, outcome| writer.outcome(outcome));
        let here = writer.load(NUMBER, numbers);
        next = writer.jump(JUMP_EQUAL, section.audit, here, elsewhere);
    }
    writer.load(ARCH, next);
    writer.reversed.reverse();
    writer.reversed
}

impl Writer<'_> {
    fn put(&mut self, code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Label {
        self.reversed.push(Instruction { code, jump_true, jump_false, operand });
        Label(self.reversed.len() - 1)
    }

    fn load(&mut self, offset: u32, next: Label) -> Label {
        self.within(next, 0);
        self.put(LOAD, offset, 0, 0)
    }

    /// Within reach of the next instruction.
    fn return_label(&mut self, value: u32) -> Label {
        // Two trampolines and the jump itself may come between.
        let near = self.reversed.len().saturating_sub(REACH - 4);
        if let Some((_, label)) = self.returns.iter().find(|(known, label)| *known == value && label.0 >= near) {
            return *label;
        }
        let label = self.put(RETURN, value, 0, 0);
        self.returns.retain(|(known, _)| *known != value);
        self.returns.push((value, label));
        label
    }

    /// Uses trampolines for labels that are too far.
    fn jump(&mut self, code: u16, operand: u32, if_true: Label, if_false: Label) -> Label {
        if if_true.0 == if_false.0 {
            return if_true;
        }
        // The second trampoline moves the first target one further.
        let if_true = self.within(if_true, REACH - 1);
        let if_false = self.within(if_false, REACH);
        let (jump_true, jump_false) = (self.distance(if_true), self.distance(if_false));
        self.put(code, operand, jump_true as u8, jump_false as u8)
    }

    fn within(&mut self, label: Label, reach: usize) -> Label {
        match self.distance(label) {
            near if near <= reach => label,
            far => self.put(JUMP, far as u32, 0, 0),
        }
    }

    fn distance(&self, label: Label) -> usize {
        self.reversed.len() - 1 - label.0
    }

    /// `leaf` writes each range.
    fn tree<T: Copy>(&mut self, ranges: &[(u32, T)], leaf: &mut impl FnMut(&mut Self, T) -> Label) -> Label {
        match ranges {
            [] => self.return_label(action::KILL_PROCESS), // never reached: the first range starts at 0
            [(_, only)] => leaf(self, *only),
            _ => {
                let middle = ranges.len() / 2;
                let above = self.tree(&ranges[middle..], leaf);
                let below = self.tree(&ranges[..middle], leaf);
                self.jump(JUMP_GREATER_EQUAL, ranges[middle].0, above, below)
            }
        }
    }

    fn outcome(&mut self, outcome: Outcome) -> Label {
        let test_index = match outcome {
            Outcome::Return(value) => return self.return_label(value),
            Outcome::Test(test_index) => usize::from(test_index),
        };
        if let Some(label) = self.written[test_index] {
            return label;
        }
        let tests = self.tests;
        let test = &tests[test_index];
        let label = self.end(test, &end(test.cases.clone(), test.otherwise));
        self.written[test_index] = Some(label);
        label
    }

    fn end(&mut self, test: &Test, end: &End) -> Label {
        let cases = match end {
            End::Return(value) => return self.return_label(*value),
            End::Test(cases) => cases,
        };
        // A program that is too long already will be discarded.
        let decide = self.style == Style::Decisions && self.reversed.len() <= MAX_INSTRUCTIONS;
        match if decide { split(cases, test.otherwise, test.wide) } else { None } {
            Some(split) => self.split(test, &split),
            None => self.chain(test, cases),
        }
    }

    fn split(&mut self, test: &Test, split: &Split) -> Label {
        let mut written = vec![None; split.ends.len()];
        let mut leaf = |writer: &mut Self, place: u32| match (&split.ends[place as usize], written[place as usize]) {
            (End::Return(value), _) => writer.return_label(*value),
            (End::Test(_), Some(label)) => label,
            (end, None) => {
                let label = writer.end(test, end);
                written[place as usize] = Some(label);
                label
            }
        };
        if split.low_only {
            let ranges: Vec<_> = split.ranges.iter().map(|(start, place)| (*start as u32, *place)).collect();
            return self.low(test, split.index, &ranges, &mut leaf);
        }
        let words = by_high_word(&split.ranges);
        let high = self.tree(&words.highs, &mut |writer, (from, to)| {
            writer.low(test, split.index, &words.lows[from..to], &mut leaf)
        });
        self.load(high_word(test, split.index), high)
    }

    fn low(
        &mut self,
        test: &Test,
        index: u32,
        ranges: &[(u32, u32)],
        leaf: &mut impl FnMut(&mut Self, u32) -> Label,
    ) -> Label {
        if let [(_, place)] = ranges {
            return leaf(self, *place);
        }
        let low = self.tree(ranges, leaf);
        self.load(low_word(test, index), low)
    }

    fn chain(&mut self, test: &Test, cases: &[Remaining]) -> Label {
        let mut next = self.return_label(test.otherwise);
        for case in cases.iter().rev() {
            let mut holds = self.return_label(case.value);
            for condition in case.conditions.iter().rev() {
                holds = self.condition(test, condition, holds, next);
            }
            next = holds;
        }
        next
    }

    fn condition(&mut self, test: &Test, condition: &Condition, yes: Label, no: Label) -> Label {
        let Condition { index, value, value_two, op } = *condition;
        match op {
            Operator::Equal => self.masked(test, index, u64::MAX, value, yes, no),
            Operator::NotEqual => self.masked(test, index, u64::MAX, value, no, yes),
            Operator::MaskedEqual => self.masked(test, index, value, value_two & value, yes, no),
            Operator::GreaterThan => self.above(test, index, JUMP_GREATER, value, yes, no),
            Operator::GreaterEqual => self.above(test, index, JUMP_GREATER_EQUAL, value, yes, no),
            Operator::LessThan => self.above(test, index, JUMP_GREATER_EQUAL, value, no, yes),
            Operator::LessEqual => self.above(test, index, JUMP_GREATER, value, no, yes),
        }
    }

    fn masked(&mut self, test: &Test, index: u32, mask: u64, wanted: u64, yes: Label, no: Label) -> Label {
        let low = self.masked_word(low_word(test, index), mask as u32, wanted as u32, yes, no);
        if !test.wide {
            return low;
        }
        self.masked_word(high_word(test, index), (mask >> 32) as u32, (wanted >> 32) as u32, low, no)
    }

    fn masked_word(&mut self, offset: u32, mask: u32, wanted: u32, yes: Label, no: Label) -> Label {
        let compared = match mask {
            0 => return yes,
            u32::MAX => self.jump(JUMP_EQUAL, wanted, yes, no),
            _ if wanted == 0 => self.jump(JUMP_SET, mask, no, yes),
            _ => {
                let equal = self.jump(JUMP_EQUAL, wanted, yes, no);
                self.within(equal, 0);
                self.put(AND, mask, 0, 0)
            }
        };
        self.load(offset, compared)
    }

    fn above(&mut self, test: &Test, index: u32, low_word_is: u16, value: u64, yes: Label, no: Label) -> Label {
        let low = self.jump(low_word_is, value as u32, yes, no);
        let low = self.load(low_word(test, index), low);
        if !test.wide {
            return low;
        }
        let high = (value >> 32) as u32;
        let equal = self.jump(JUMP_EQUAL, high, low, no);
        let greater = self.jump(JUMP_GREATER, high, yes, equal);
        self.load(high_word(test, index), greater)
    }
}

fn low_word(test: &Test, index: u32) -> u32 {
    ARGUMENTS + 8 * index + if test.big_endian { 4 } else { 0 }
}

fn high_word(test: &Test, index: u32) -> u32 {
    ARGUMENTS + 8 * index + if test.big_endian { 0 } else { 4 }
}
