//! System-call filters: from a profile (`spec::Seccomp`) to a program for the kernel, and into it.
//!
//! In: `linux.seccomp` of a container, or our own profile for agents. Out: a [`Program`], which a process that is about to
//! become someone else's installs with [`install()`], and, where a profile asks for it, the listener of its notifications.
//! Order: `rules` resolves names and merges rules into ranges of numbers, `emit` writes the program, `install` hands it over.
//! [`compile`] is pure: tests are tables, and a program that runs filters the way the kernel does (`tests::emulator`).
//! Not here: which process gets a filter and when (`process`), who listens (`container` delivers the listener).
//! What never happens: an unknown word or a wrong number that is passed over; a program that is installed in part.
//!
//! Why not libseccomp: it takes 7 ms for what takes 0.2 here, and a call that is newer than the library is unknown to it
//! (`docs/decisions/0004-seccomp-compiler.md`).

mod abi;
mod action;
mod emit;
mod evaluate;
mod install;
mod precedence;
pub(crate) mod profile;
mod rules;
mod split;
mod table;

#[cfg(test)]
mod tests;

use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::{Action, Arch, Flag, Seccomp};
use crate::sys::seccomp::{self as kernel, Instruction};
use std::borrow::Cow;

pub(crate) use abi::NATIVE;
pub(crate) use install::install;

/// A filter that is ready for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Nothing means that there is nothing to install.
    instructions: Cow<'static, [Instruction]>,
    /// Flags of seccomp(2) that the profile asks for.
    flags: u32,
    /// Flags that are left out where the kernel does not know them.
    wishes: u32,
    /// Whether installing it yields a listener.
    listens: bool,
    /// Whether the listener is the supervisor's, which counts what is refused. The filter holds without it too.
    reports: bool,
    /// Names in the profile that no ABI has: misspelt, or newer than this program.
    unknown: Vec<String>,
    /// A filter that is installed first; the kernel applies the strictest verdict of both.
    beneath: Option<Box<Program>>,
}

impl Program {
    /// No filter at all.
    pub(crate) fn nothing() -> Program {
        Program {
            instructions: Vec::new().into(),
            flags: 0,
            wishes: 0,
            listens: false,
            reports: false,
            unknown: Vec::new(),
            beneath: None,
        }
    }

    /// This filter on top of another one: what either refuses is refused. The listener, if there is one, is this filter's.
    pub(crate) fn over(self, beneath: Program) -> Program {
        if self.is_empty() { beneath } else { Program { beneath: Some(Box::new(beneath)), ..self } }
    }

    /// Whether [`install()`] will return a listener, which then goes to the profile's `listenerPath`.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    /// Whether the listener goes to the supervisor, which counts what is refused.
    pub(crate) fn reports(&self) -> bool {
        self.reports
    }

    /// The names in the profile that are no system call of any ABI, each once. They were ignored.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// The flags of seccomp(2) with which it is installed; none if there is nothing to install.
    pub(crate) fn kernel_flags(&self) -> Option<u32> {
        let listens = if self.listens { kernel::NEW_LISTENER } else { 0 };
        (!self.is_empty()).then_some(self.flags | self.wishes | listens)
    }

    /// Whether there is nothing to install.
    pub(crate) fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// How many instructions it has.
    #[cfg(all(test, feature = "oracle"))]
    pub(crate) fn len(&self) -> usize {
        self.instructions.len()
    }
}

/// Turns a profile into a program for this machine. Makes no system call.
pub(crate) fn compile(profile: &Seccomp) -> Result<Program> {
    let native = NATIVE.ok_or_else(|| Error::new(Kind::Seccomp, "system calls of this machine are not known"))?;
    compile_for(profile, native)
}

/// Turns a profile into a program for a kernel of `native`.
pub(crate) fn compile_for(profile: &Seccomp, native: Arch) -> Result<Program> {
    let plan = rules::plan(profile, native)?;
    let nothing = profile.default_action == Action::Allow && profile.syscalls.is_empty();
    let instructions = if nothing { Vec::new() } else { emit::emit(&plan) };
    if instructions.len() > kernel::MAX_INSTRUCTIONS {
        let (length, most) = (instructions.len(), kernel::MAX_INSTRUCTIONS);
        let cause = format!("the profile needs {length} instructions, the kernel takes {most}");
        return Err(Error::new(Kind::Seccomp, cause).hint("use fewer rules with conditions on arguments"));
    }
    let listens = profile.syscalls.iter().any(|rule| rule.action == Action::Notify);
    let (flags, wishes) = flags(profile.flags.as_deref(), listens);
    Ok(Program {
        instructions: instructions.into(),
        flags,
        wishes,
        listens,
        reports: false,
        unknown: plan.unknown,
        beneath: None,
    })
}

/// The flags of seccomp(2): what is asked for, and what is only wished.
fn flags(asked: Option<&[Flag]>, listens: bool) -> (u32, u32) {
    let Some(asked) = asked else {
        // As runc: the mitigation that a filter switches on by default costs far more than it protects here.
        return (0, kernel::SPEC_ALLOW);
    };
    let bits = asked.iter().fold(0, |bits, flag| {
        bits | match flag {
            Flag::Tsync if listens => kernel::TSYNC | kernel::TSYNC_ESRCH,
            Flag::Tsync => kernel::TSYNC,
            Flag::Log => kernel::LOG,
            Flag::SpecAllow => kernel::SPEC_ALLOW,
            // It says how to wait for a listener, and the kernel refuses it where there is none.
            Flag::WaitKillableRecv if listens => kernel::WAIT_KILLABLE_RECV,
            Flag::WaitKillableRecv => 0,
        }
    });
    (bits, 0)
}
