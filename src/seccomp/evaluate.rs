//! What a filter makes of a call, asked before it is in force: a process that still has calls to make under it must know.

use super::emit::{
    AND, ARCH, ARGUMENTS, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, JUMP_SET, LOAD, NUMBER, RETURN,
};
use super::{NATIVE, Program, abi, action};
use crate::sys::seccomp::Instruction;

impl Program {
    /// Whether the kernel makes this call of this machine's own ABI, and asks no listener or tracer first.
    pub(crate) fn allows(&self, number: libc::c_long, arguments: [u64; 6]) -> bool {
        let Some(abi) = NATIVE.and_then(abi::abi).filter(|abi| !abi.big_endian) else { return false };
        let Ok(number) = u32::try_from(number) else { return false };
        self.is_empty() || evaluate(&self.instructions, (abi.audit, number, arguments)) == Some(action::ALLOW)
    }
}

/// The program's answer. `None` for what [`emit`](super::emit) never writes.
fn evaluate(program: &[Instruction], (arch, number, arguments): (u32, u32, [u64; 6])) -> Option<u32> {
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let Instruction { code, jump_true, jump_false, operand } = *program.get(at)?;
        at += 1;
        let mut branch = |holds: bool| at += usize::from(if holds { jump_true } else { jump_false });
        match code {
            LOAD => {
                accumulator = match operand {
                    NUMBER => number,
                    ARCH => arch,
                    _ => {
                        let offset = operand.checked_sub(ARGUMENTS)?;
                        let value = *arguments.get(offset as usize / 8)?;
                        (if offset % 8 == 0 { value } else { value >> 32 }) as u32
                    }
                };
            }
            AND => accumulator &= operand,
            JUMP => at += operand as usize,
            JUMP_EQUAL => branch(accumulator == operand),
            JUMP_GREATER => branch(accumulator > operand),
            JUMP_GREATER_EQUAL => branch(accumulator >= operand),
            JUMP_SET => branch(accumulator & operand != 0),
            RETURN => return Some(operand),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::emulator::{Data, run};
    use super::*;
    use crate::seccomp::{compile, profile};

    #[test]
    fn answers_are_those_of_the_emulator() {
        let audit = abi::abi(NATIVE.unwrap()).unwrap().audit;
        let program = compile(&profile::agent_spec()).unwrap();
        let (mut allowed, mut refused) = (0, 0);
        for number in 0..500 {
            for first in [0, 1, 0x10000, 0x1000_0000, 0x8000_9000, u64::MAX] {
                let arguments = [first, first, 0, 0, 0, first];
                let data = Data { big_endian: false, number, arch: audit, pointer: 0, arguments };
                let expected = run(&program.instructions, &data);
                assert_eq!(
                    evaluate(&program.instructions, (audit, number, arguments)),
                    Some(expected),
                    "{number} {first}"
                );
                let allows = program.allows(number.into(), arguments);
                assert_eq!(allows, expected == action::ALLOW);
                *(if allows { &mut allowed } else { &mut refused }) += 1;
            }
        }
        assert!(allowed > 100 && refused > 100, "{allowed} {refused}");
        assert!(Program::nothing().allows(0, [0; 6]));
    }
}
