//! The profile of a task's sandbox: what an untrusted agent may ask of the kernel.
//!
//! An allow-list for processes without capabilities, stricter than Docker's default. In: the table. Out: a ready program for this
//! machine ([`agent`]), and the same as `linux.seccomp` for another runtime ([`agent_spec`]). The two differ in one point: what
//! [`REPORTED`](table::REPORTED) lists goes to the supervisor, which refuses it and counts; another runtime refuses it itself. Only the machine's own ABI is
//! let through: a 32-bit program is ended by SIGSYS, since the kernel's compatibility layer is a second, less watched
//! surface, and since its `socketcall` hides the arguments that are checked here.

mod case;
#[cfg(test)]
mod document;
mod prebuilt;
mod sockets;
mod table;
#[cfg(test)]
mod tests;

use super::{NATIVE, Program, compile_for};
use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};
use case::Case;
use std::sync::OnceLock;
use table::{GROUPS, REPORTED};

/// Calls that share a verdict and a reason.
pub(super) struct Group {
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/seccomp.md is made from it, by a test"))]
    name: &'static str,
    verdict: Verdict,
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/seccomp.md is made from it, by a test"))]
    reason: &'static str,
    /// Their names, between spaces.
    calls: &'static str,
}

enum Verdict {
    Allowed,
    /// EPERM, or ENOSYS if it is newer than every call that is allowed.
    Refused,
    /// ENOSYS, so that callers take another way.
    Missing,
    /// Returns 0 and does nothing.
    Ignored,
    /// By its arguments; EPERM if no case holds.
    Checked(&'static [Case]),
    /// Allowed unless the low 32 bits of an argument are one of these.
    Unless {
        index: u32,
        values: &'static [u32],
    },
}

/// The agent's filter for this machine.
pub(crate) fn agent() -> Result<&'static Program> {
    static PROGRAM: OnceLock<Result<Program>> = OnceLock::new();
    match prebuilt::PROGRAM {
        Some(program) => Ok(program),
        None => PROGRAM.get_or_init(make).as_ref().map_err(Clone::clone),
    }
}

fn make() -> Result<Program> {
    match NATIVE {
        Some(native) if MACHINES.contains(&native) => reporting(native),
        _ => Err(Error::new(Kind::Seccomp, "there is no profile for agents on this machine")),
    }
}

/// The program whose listener is the supervisor's.
fn reporting(native: Arch) -> Result<Program> {
    compile_for(&reporting_spec(), native).map(|program| Program { reports: true, ..program })
}

/// Where the table holds: their calls all have a row, and the numbers in its conditions are theirs.
const MACHINES: [Arch; 6] = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64, Arch::Loongarch64, Arch::S390x, Arch::Ppc64le];

/// The agent's profile as `linux.seccomp`: all of it is within what any OCI runtime understands.
pub(crate) fn agent_spec() -> Seccomp {
    let mut syscalls = Vec::new();
    for group in GROUPS {
        let mut rule = |errno_ret: Option<u32>, args: Vec<Condition>| {
            syscalls.push(Rule {
                names: group.calls.split_whitespace().map(str::to_string).collect(),
                action: if errno_ret.is_some() { Action::Errno } else { Action::Allow },
                errno_ret,
                args,
            });
        };
        match &group.verdict {
            Verdict::Allowed => rule(None, Vec::new()),
            Verdict::Refused => {}
            Verdict::Missing => rule(Some(libc::ENOSYS as u32), Vec::new()),
            Verdict::Ignored => rule(Some(0), Vec::new()),
            Verdict::Checked(cases) => cases.iter().for_each(|case| rule(case.errno, case.when.to_vec())),
            Verdict::Unless { index, values } => {
                all_but(values).into_iter().for_each(|(mask, value)| {
                    let (value, value_two) = (u64::from(mask), u64::from(value));
                    rule(None, vec![Condition { index: *index, value, value_two, op: Operator::MaskedEqual }]);
                });
            }
        }
    }
    Seccomp {
        default_action: Action::Errno,
        default_errno_ret: Some(libc::EPERM as u32),
        architectures: Vec::new(),
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls,
    }
}

/// The same for a supervisor that listens: it refuses what [`REPORTED`] lists, with the error number that the filter would return.
pub(super) fn reporting_spec() -> Seccomp {
    let mut spec = Seccomp { listener_path: "the supervisor".to_owned(), ..agent_spec() };
    for (call, index, bits) in REPORTED {
        for bit in (0..u32::BITS).map(|shift| 1 << shift).filter(|bit| bits & bit != 0) {
            let when = Condition { index: *index, value: bit, value_two: bit, op: Operator::MaskedEqual };
            let names = vec![(*call).to_owned()];
            spec.syscalls.push(Rule { names, action: Action::Notify, errno_ret: None, args: vec![when] });
        }
    }
    spec
}

/// Masks and values that together match every 32-bit number but these: as routes cover an address range. Profiles cannot
/// say "neither this nor that" about one argument in another way, and masks leave the high half out, as the kernel does.
fn all_but(values: &[u32]) -> Vec<(u32, u32)> {
    let mut covered = Vec::new();
    let mut open = vec![(0u32, 0u32)];
    while let Some((mask, value)) = open.pop() {
        if !values.iter().any(|each| each & mask == value) {
            covered.push((mask, value));
        } else if mask != u32::MAX {
            let longer = mask >> 1 | 1 << 31;
            open.push((longer, value | (longer ^ mask)));
            open.push((longer, value));
        }
    }
    covered
}
