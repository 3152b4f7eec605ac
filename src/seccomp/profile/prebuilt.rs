//! The agent's program as data, where most tasks run: making it from the table takes as long as loading it does twice.
//!
//! A test compares the files with what the table compiles to.

use crate::seccomp::Program;
use crate::sys::seccomp::{Instruction, SPEC_ALLOW};
use std::borrow::Cow;

/// Code, both jumps, operand.
type Row = (u16, u8, u8, u32);

/// The program for this machine, if there is one.
pub(super) const PROGRAM: Option<&Program> = if cfg!(target_arch = "x86_64") {
    Some(&X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(&AARCH64)
} else {
    None
};

pub(super) static X86_64: Program = program({
    const ROWS: &[Row] = &include!("x86_64.in");
    static PROGRAM: [Instruction; ROWS.len()] = instructions(ROWS);
    &PROGRAM
});

pub(super) static AARCH64: Program = program({
    const ROWS: &[Row] = &include!("aarch64.in");
    static PROGRAM: [Instruction; ROWS.len()] = instructions(ROWS);
    &PROGRAM
});

/// With the flags that absent ones mean, as the profile has none.
const fn program(instructions: &'static [Instruction]) -> Program {
    let instructions = Cow::Borrowed(instructions);
    Program {
        instructions,
        flags: 0,
        wishes: SPEC_ALLOW,
        listens: true,
        reports: true,
        unknown: Vec::new(),
        beneath: None,
    }
}

const fn instructions<const LENGTH: usize>(rows: &[Row]) -> [Instruction; LENGTH] {
    let mut all = [Instruction { code: 0, jump_true: 0, jump_false: 0, operand: 0 }; LENGTH];
    let mut at = 0;
    while at < LENGTH {
        let (code, jump_true, jump_false, operand) = rows[at];
        all[at] = Instruction { code, jump_true, jump_false, operand };
        at += 1;
    }
    all
}

/// A program as it stands in a file.
#[cfg(test)]
pub(super) fn text(program: &Program) -> String {
    let row = |one: &Instruction| {
        format!("    ({:#04x}, {}, {}, {:#x}),\n", one.code, one.jump_true, one.jump_false, one.operand)
    };
    format!("[\n{}]\n", program.instructions.iter().map(row).collect::<String>())
}
