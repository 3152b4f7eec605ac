//! Runs a filter as the kernel would (linux/filter.h, kernel/seccomp.c), and refuses what it would refuse.

use crate::seccomp::emit::{AND, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, JUMP_SET, LOAD, RETURN};
use crate::sys::seccomp::Instruction;

/// struct seccomp_data of linux/seccomp.h.
#[derive(Clone, Copy, Debug)]
pub(in crate::seccomp) struct Data {
    pub big_endian: bool,
    pub number: u32,
    pub arch: u32,
    pub pointer: u64,
    pub arguments: [u64; 6],
}

impl Data {
    fn word(&self, offset: u32) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 64, "a load of word {offset} is refused");
        let low = offset.is_multiple_of(8) != self.big_endian;
        let pair = |value: u64| if low { value as u32 } else { (value >> 32) as u32 };
        match offset {
            0 => self.number,
            4 => self.arch,
            8 | 12 => pair(self.pointer),
            _ => pair(self.arguments[(offset as usize - 16) / 8]),
        }
    }
}

/// Known instructions, jumps inside, words of the data, a return at the end.
pub(in crate::seccomp) fn is_valid(program: &[Instruction]) -> bool {
    let known = program.iter().enumerate().all(|(at, instruction)| {
        let left = program.len() - at - 1;
        let jumps = usize::from(instruction.jump_true.max(instruction.jump_false));
        match instruction.code {
            LOAD => instruction.operand.is_multiple_of(4) && instruction.operand < 64,
            AND | RETURN => true,
            JUMP => (instruction.operand as usize) < left,
            JUMP_EQUAL | JUMP_GREATER | JUMP_GREATER_EQUAL | JUMP_SET => jumps < left,
            _ => false,
        }
    });
    known && program.last().is_some_and(|last| last.code == RETURN) && program.len() <= 4096
}

pub(in crate::seccomp) fn run(program: &[Instruction], data: &Data) -> u32 {
    // BPF_MAXINSNS
    assert!(!program.is_empty() && program.len() <= 4096, "a program of {} instructions is refused", program.len());
    let (mut at, mut accumulator, mut index) = (0, 0u32, 0u32);
    let mut memory = [0u32; 16];
    loop {
        let Instruction { code, jump_true, jump_false, operand } = program[at];
        at += 1;
        let mut branch = |holds: bool| at += usize::from(if holds { jump_true } else { jump_false });
        match code {
            LOAD => accumulator = data.word(operand),
            AND => accumulator &= operand,
            JUMP => at += operand as usize,
            JUMP_EQUAL => branch(accumulator == operand),
            JUMP_GREATER => branch(accumulator > operand),
            JUMP_GREATER_EQUAL => branch(accumulator >= operand),
            JUMP_SET => branch(accumulator & operand != 0),
            RETURN => return operand,
            // Of libseccomp: BPF_ST, BPF_STX, BPF_LD|BPF_MEM, BPF_LDX|BPF_MEM, BPF_TAX, BPF_TXA.
            0x02 => memory[operand as usize] = accumulator,
            0x03 => memory[operand as usize] = index,
            0x60 => accumulator = memory[operand as usize],
            0x61 => index = memory[operand as usize],
            0x07 => index = accumulator,
            0x87 => accumulator = index,
            _ => panic!("instruction {code:#x} is refused"),
        }
    }
}
