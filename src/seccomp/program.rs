//! A compiled filter, installed or evaluated ahead of time.

use super::emit::{
    AND, ARCH, ARGUMENTS, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, JUMP_SET, LOAD, NUMBER, RETURN,
};
use super::{NATIVE, abi, action};
use crate::error::{Error, Kind, Result};
use crate::sys::seccomp::{self as kernel, Instruction};
use crate::sys::weaken;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Empty means no filter.
    pub(super) instructions: Vec<Instruction>,
    /// Flags of seccomp(2).
    pub(super) flags: u32,
    /// Dropped on a kernel without them.
    pub(super) optional_flags: u32,
    pub(super) listens: bool,
    /// The supervisor has the listener and counts refused calls. The filter works without it too.
    pub(super) reports: bool,
    /// Misspelt, or newer than brig.
    pub(super) unknown: Vec<String>,
    /// Installed first. The kernel applies the stricter verdict of both.
    pub(super) beneath: Option<Box<Program>>,
}

impl Program {
    pub(crate) fn empty() -> Program {
        Program {
            instructions: Vec::new(),
            flags: 0,
            optional_flags: 0,
            listens: false,
            reports: false,
            unknown: Vec::new(),
            beneath: None,
        }
    }

    /// A listener belongs to `self`.
    pub(crate) fn over(self, beneath: Program) -> Program {
        if self.is_empty() { beneath } else { Program { beneath: Some(Box::new(beneath)), ..self } }
    }

    /// For the profile's `listenerPath`.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    pub(crate) fn reports(&self) -> bool {
        self.reports
    }

    /// Each once. They were ignored.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// `None` if there is nothing to install.
    pub(crate) fn kernel_flags(&self) -> Option<u32> {
        let listens = if self.listens { kernel::NEW_LISTENER } else { 0 };
        (!self.is_empty()).then_some(self.flags | self.optional_flags | listens)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    #[cfg(all(test, feature = "oracle"))]
    pub(crate) fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether the filter allows this call of the machine's own ABI without a listener or tracer.
    pub(crate) fn allows(&self, number: libc::c_long, arguments: [u64; 6]) -> bool {
        let Some(abi) = NATIVE.and_then(abi::abi).filter(|abi| !abi.big_endian) else { return false };
        let Ok(number) = u32::try_from(number) else { return false };
        let is_allowed =
            |program: &Program| evaluate(&program.instructions, (abi.audit, number, arguments)) == Some(action::ALLOW);
        self.is_empty() || is_allowed(self) && self.beneath.as_deref().is_none_or(is_allowed)
    }
}

/// Installs a filter in this process, which must have one thread, and returns its listener.
///
/// Needs no_new_privs or CAP_SYS_ADMIN. The filter applies to every later call, so install it last. Safe in a process
/// that was just cloned: allocates only after a failure.
pub(crate) fn install(program: &Program) -> Result<Option<OwnedFd>> {
    if program.is_empty() || weaken::is_off("seccomp") {
        return Ok(None);
    }
    if let Some(beneath) = &program.beneath {
        install(beneath)?;
    }
    let result = match install_with_fallback(program, program.listens) {
        // The kernel allows one listener for a process, and an outer container may have it. Then the kernel returns
        // ENOSYS where the listener would refuse.
        Err(Errno::BUSY) if program.reports => install_with_fallback(program, false),
        result => result,
    };
    result.map_err(|errno| explain_refusal(program, errno).doing("install the system-call filter"))
}

fn install_with_fallback(program: &Program, listens: bool) -> Result<Option<OwnedFd>, Errno> {
    match install_with_flags(program, listens, program.flags | program.optional_flags) {
        Err(Errno::INVAL) if program.optional_flags != 0 => install_with_flags(program, listens, program.flags),
        result => result,
    }
}

fn install_with_flags(program: &Program, listens: bool, flags: u32) -> Result<Option<OwnedFd>, Errno> {
    let instructions: &[Instruction] = &program.instructions;
    if listens {
        kernel::add_filter_with_listener(instructions, flags).map(Some)
    } else {
        kernel::add_filter(instructions, flags).map(|()| None)
    }
}

fn explain_refusal(program: &Program, errno: Errno) -> Error {
    let error = Error::os(Kind::Seccomp, errno);
    match errno {
        Errno::ACCESS => error.hint("set `process.noNewPrivileges`, or start the container with CAP_SYS_ADMIN"),
        Errno::INVAL if program.flags != 0 => error.hint("remove the flags of the profile that this kernel lacks"),
        Errno::BUSY => error.hint("remove the other filter with a listener: the kernel allows one"),
        Errno::NOSYS | Errno::INVAL => error.hint("use a kernel built with CONFIG_SECCOMP_FILTER"),
        _ => error,
    }
}

/// `None` for an instruction that [`emit`](super::emit) never writes.
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
    use super::*;
    use crate::seccomp::tests::emulator::{Data, run};
    use crate::seccomp::{compile, profile};

    #[test]
    fn evaluation_agrees_with_the_emulator() {
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
        assert!(Program::empty().allows(0, [0; 6]));
    }
}
