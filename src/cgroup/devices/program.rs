//! Compiles device rules to a BPF program. Pure.
//!
//! It tests the rules from the last to the first. A register holds the kinds of access that are still undecided. A rule
//! that allows clears its bits; no bit left means allowed. A rule that denies any of the bits ends the program.
//! `allow r` and `allow w` together allow `rw`, as on v1.

use crate::spec::devices::{DeviceKind, EVERY_ACCESS, Rule};

// linux/bpf_common.h, linux/bpf.h.
const LOAD_WORD: u8 = 0x61; // LDX | MEM | W
const MOVE: u8 = 0xb7; // ALU64 | MOV | K
const MOVE_REGISTER: u8 = 0xbf; // ALU64 | MOV | X
const AND_32: u8 = 0x54; // ALU | AND | K
const SHIFT_RIGHT_32: u8 = 0x74; // ALU | RSH | K
const JUMP: u8 = 0x05; // JMP | JA
// Kernel 5.1. A 64-bit comparison would sign-extend a device number above 2^31.
const JUMP_UNEQUAL_32: u8 = 0x56; // JMP32 | JNE | K
const JUMP_ANY_BIT_32: u8 = 0x46; // JMP32 | JSET | K
const EXIT: u8 = 0x95; // JMP | EXIT

const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const UNDECIDED: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

// Offsets in `struct bpf_cgroup_dev_ctx`. The first field has the kind in its low half and the access in its high half.
const ACCESS_TYPE_AT: i16 = 0;
const MAJOR_AT: i16 = 4;
const MINOR_AT: i16 = 8;
const KIND_BLOCK: u32 = 1;
const KIND_CHARACTER: u32 = 2;

/// `struct bpf_insn` as a little-endian number.
fn instruction(code: u8, target: u8, source: u8, offset: i16, value: u32) -> u64 {
    u64::from(code) | u64::from(target | source << 4) << 8 | u64::from(offset as u16) << 16 | u64::from(value) << 32
}

/// In the machine's byte order.
pub(super) fn build(rules: &[Rule]) -> Vec<u64> {
    let mut program = vec![
        instruction(LOAD_WORD, KIND, CONTEXT, ACCESS_TYPE_AT, 0),
        instruction(MOVE_REGISTER, UNDECIDED, KIND, 0, 0),
        instruction(AND_32, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT_32, UNDECIDED, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, MAJOR_AT, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, MINOR_AT, 0),
    ];
    for rule in rules.iter().rev() {
        if rule.kind == DeviceKind::All {
            // The kernel refuses a program with unreachable instructions.
            program.extend(verdict(rule.allow));
            return in_machine_order(program);
        }
        program.extend(block(rule));
    }
    program.extend(verdict(false));
    in_machine_order(program)
}

fn verdict(allow: bool) -> [u64; 2] {
    [instruction(MOVE, RESULT, 0, 0, u32::from(allow)), instruction(EXIT, 0, 0, 0, 0)]
}

fn block(rule: &Rule) -> Vec<u64> {
    let mut conditions = vec![match rule.kind {
        DeviceKind::Block => (KIND, KIND_BLOCK),
        _ => (KIND, KIND_CHARACTER),
    }];
    conditions.extend(rule.major.map(|major| (MAJOR, major)));
    conditions.extend(rule.minor.map(|minor| (MINOR, minor)));

    let mut body = Vec::new();
    if rule.allow && rule.access != EVERY_ACCESS {
        body.push(instruction(AND_32, UNDECIDED, 0, 0, u32::from(!rule.access & EVERY_ACCESS)));
        body.push(instruction(JUMP_UNEQUAL_32, UNDECIDED, 0, 2, 0));
    } else if rule.access != EVERY_ACCESS {
        body.push(instruction(JUMP_ANY_BIT_32, UNDECIDED, 0, 1, u32::from(rule.access)));
        body.push(instruction(JUMP, 0, 0, 2, 0));
    }
    body.extend(verdict(rule.allow));

    let length = conditions.len() + body.len();
    let jumps = conditions
        .iter()
        .enumerate()
        .map(|(at, &(register, value))| instruction(JUMP_UNEQUAL_32, register, 0, (length - at - 1) as i16, value));
    jumps.chain(body).collect()
}

/// A big-endian machine needs the fields and the register halves swapped.
fn in_machine_order(program: Vec<u64>) -> Vec<u64> {
    if cfg!(target_endian = "little") {
        return program;
    }
    let swap = |word: u64| {
        let (code, registers) = (word & 0xff, word >> 8 & 0xff);
        let (offset, value) = (word >> 16 & 0xffff, word >> 32);
        code << 56 | (registers << 4 & 0xf0 | registers >> 4) << 48 | offset << 32 | value
    };
    program.into_iter().map(swap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::devices::tests::parse;
    use crate::spec::devices::{MKNOD, READ, WRITE};

    /// Runs a program as the kernel does.
    fn run(program: &[u64], kind: u32, major: u32, minor: u32, access: u8) -> bool {
        let mut registers = [0u64; 11];
        let mut at = 0;
        loop {
            let word = program[at];
            let (code, target, source) = (word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
            let (offset, value) = ((word >> 16) as i16, (word >> 32) as u32);
            let jump = match code {
                LOAD_WORD => {
                    registers[target] = u64::from(match offset {
                        ACCESS_TYPE_AT => u32::from(access) << 16 | kind,
                        MAJOR_AT => major,
                        MINOR_AT => minor,
                        _ => panic!("no such field"),
                    });
                    false
                }
                MOVE => {
                    registers[target] = u64::from(value);
                    false
                }
                MOVE_REGISTER => {
                    registers[target] = registers[source];
                    false
                }
                AND_32 => {
                    registers[target] = u64::from(registers[target] as u32 & value);
                    false
                }
                SHIFT_RIGHT_32 => {
                    registers[target] = u64::from((registers[target] as u32) >> value);
                    false
                }
                JUMP => true,
                JUMP_UNEQUAL_32 => registers[target] as u32 != value,
                JUMP_ANY_BIT_32 => registers[target] as u32 & value != 0,
                EXIT => return registers[0] == 1,
                other => panic!("no such instruction: {other:#x}"),
            };
            at = if jump { (at as isize + 1 + offset as isize) as usize } else { at + 1 };
        }
    }

    /// For each kind of access the last rule that matches decides.
    fn expected(rules: &[Rule], kind: DeviceKind, major: u32, minor: u32, access: u8) -> bool {
        [READ, WRITE, MKNOD].into_iter().filter(|bit| access & bit != 0).all(|bit| {
            let matches = |rule: &&Rule| {
                rule.covers(&Rule { allow: true, kind, major: Some(major), minor: Some(minor), access })
                    && rule.access & bit != 0
            };
            rules.iter().rev().find(matches).is_some_and(|rule| rule.allow)
        })
    }

    fn check(rules: &[Rule]) {
        let program = build(rules);
        for (kind, number) in [(DeviceKind::Block, KIND_BLOCK), (DeviceKind::Character, KIND_CHARACTER)] {
            for major in [0, 1, 5, 0x8000_0001] {
                for minor in [0, 3, 0xffff_ffff] {
                    for access in 1..=EVERY_ACCESS {
                        let got = run(&program, number, major, minor, access);
                        let wanted = expected(rules, kind, major, minor, access);
                        assert_eq!(got, wanted, "{rules:?}: {kind:?} {major}:{minor} {access}");
                    }
                }
            }
        }
    }

    #[test]
    fn program_decides_as_the_rules() {
        for rules in [
            "",
            "- a",
            "+ a",
            "- a, + c 1:3 rwm, + c 5:* rw, + b *:* m",
            "+ a, - b *:* rwm, + b 1:0 r",
            "- a, + c 1:3 r, + c 1:3 w",
            "- a, + c 1:* rwm, - c 1:3 w, + c 1:3 m",
            "+ c 1:3 rw, - a, + c 5:3 r",
            "- a, + c 2147483649:4294967295 rw",
            "+ c *:3 rw, - c 1:3 r, + c 1:3 r, - c *:* m",
        ] {
            check(&parse(rules));
        }
    }

    proptest::proptest! {
        #[test]
        fn random_rules_are_decided_as_the_rules(rules in proptest::collection::vec(
            (proptest::bool::ANY, 0..5u8, 0..4usize, 0..4usize, 1..=EVERY_ACCESS), 0..12,
        )) {
            let numbers = [None, Some(1), Some(3), Some(0x8000_0001)];
            let rules: Vec<Rule> = rules.into_iter().map(|(allow, kind, major, minor, access)| match kind {
                0 => parse(if allow { "+ a" } else { "- a" }).remove(0),
                kind => Rule {
                    allow,
                    kind: if kind < 3 { DeviceKind::Block } else { DeviceKind::Character },
                    major: numbers[major],
                    minor: numbers[minor],
                    access,
                },
            }).collect();
            check(&rules);
        }
    }
}
