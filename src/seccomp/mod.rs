//! System-call filters: compiles a profile to a program for the kernel, and installs it.
//!
//! Order: `rules` resolves names to ranges of numbers; `emit` writes the program. [`install()`] passes it to the kernel
//! in the process that will run the command.
//! Not here: which process gets a filter and when (`process`); the delivery of the listener (`container`).
//! Never: an ignored unknown word or wrong number; a program that is installed in part.
//!
//! libseccomp is only an oracle in tests: `docs/decisions/0004-seccomp-compiler.md`.

mod abi;
mod action;
mod emit;
mod precedence;
pub(crate) mod profile;
mod program;
mod rules;
mod split;
mod table;

#[cfg(test)]
mod tests;

use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::{Action, Arch, Flag, Seccomp};
use crate::sys::seccomp as kernel;

pub(crate) use abi::NATIVE;
pub(crate) use profile::COMMON_TYPES;
pub(crate) use program::{Program, install};

/// Makes no system call.
pub(crate) fn compile(profile: &Seccomp) -> Result<Program> {
    let native = NATIVE.ok_or_else(|| Error::new(Kind::Seccomp, "no system-call table for this machine"))?;
    compile_for(profile, native)
}

pub(crate) fn compile_for(profile: &Seccomp, native: Arch) -> Result<Program> {
    let plan = rules::plan(profile, native)?;
    let allows_all = profile.default_action == Action::Allow && profile.syscalls.is_empty();
    let instructions = if allows_all { Vec::new() } else { emit::emit(&plan) };
    if instructions.len() > kernel::MAX_INSTRUCTIONS {
        let (length, most) = (instructions.len(), kernel::MAX_INSTRUCTIONS);
        let cause = format!("the profile needs {length} instructions, the kernel takes {most}");
        return Err(Error::new(Kind::Seccomp, cause).hint("use fewer rules with conditions on arguments"));
    }
    let listens = profile.syscalls.iter().any(|rule| rule.action == Action::Notify);
    let (flags, optional_flags) = flags(profile.flags.as_deref(), listens);
    Ok(Program { instructions, flags, optional_flags, listens, reports: false, unknown: plan.unknown, beneath: None })
}

fn flags(requested: Option<&[Flag]>, listens: bool) -> (u32, u32) {
    let Some(requested) = requested else {
        // As runc: the mitigation that a filter enables costs more than it protects here.
        return (0, kernel::SPEC_ALLOW);
    };
    let bits = requested.iter().fold(0, |bits, flag| {
        bits | match flag {
            Flag::Tsync if listens => kernel::TSYNC | kernel::TSYNC_ESRCH,
            Flag::Tsync => kernel::TSYNC,
            Flag::Log => kernel::LOG,
            Flag::SpecAllow => kernel::SPEC_ALLOW,
            // The kernel refuses this flag without a listener.
            Flag::WaitKillableRecv if listens => kernel::WAIT_KILLABLE_RECV,
            Flag::WaitKillableRecv => 0,
        }
    });
    (bits, 0)
}
