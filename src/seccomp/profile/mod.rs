//! The agent's profile: an allow-list for processes without capabilities, stricter than Docker's default.
//!
//! [`agent`] is for this machine, [`agent_spec`] for another runtime. Only the former sends the calls of [`REPORTED`]
//! to the supervisor, which refuses and counts them. Only the machine's own ABI is allowed: a 32-bit program dies of
//! SIGSYS. The compatibility layer is a second, less reviewed surface, and its `socketcall` hides the checked
//! arguments.

mod cases;
#[cfg(test)]
mod document;
mod table;
#[cfg(test)]
mod tests;

use super::{NATIVE, Program, compile_for};
use crate::error::{Error, Kind, Result};
use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};
pub(crate) use cases::COMMON_TYPES;
use cases::Case;
use std::sync::OnceLock;
use table::{GROUPS, MAKES_FILE, MODES, REPORTED, SET_ID};

pub(super) struct Group {
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/seccomp.md is made from it, by a test"))]
    name: &'static str,
    verdict: Verdict,
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/seccomp.md is made from it, by a test"))]
    reason: &'static str,
    /// Separated by spaces.
    calls: &'static str,
}

enum Verdict {
    Allowed,
    /// EPERM, or ENOSYS if newer than every allowed call.
    Refused,
    /// ENOSYS, so that callers use another call.
    Missing,
    /// Returns 0.
    Ignored,
    /// EPERM if no case matches.
    Checked(&'static [Case]),
    /// Allowed unless the low 32 bits of an argument are one of these.
    Unless {
        index: u32,
        values: &'static [u32],
    },
}

pub(crate) fn agent() -> Result<&'static Program> {
    static PROGRAM: OnceLock<Result<Program>> = OnceLock::new();
    PROGRAM.get_or_init(|| build(&reporting_spec())).as_ref().map_err(Clone::clone)
}

/// For a command that is root inside: adds the calls of [`OF_ROOT`], and locks of open file descriptions, which the
/// supervisor counts. systemd-sysusers locks the accounts with one.
pub(crate) fn root_inside() -> Result<&'static Program> {
    static PROGRAM: OnceLock<Result<Program>> = OnceLock::new();
    let spec = || {
        let mut spec = reporting_spec();
        for rule in spec.syscalls.iter_mut().filter(|rule| rule.names == ["fcntl"] && rule.action == Action::Errno) {
            (rule.action, rule.errno_ret) = (Action::Notify, None);
        }
        let names = OF_ROOT.iter().map(|&name| name.to_owned()).collect();
        spec.syscalls.push(Rule { names, action: Action::Allow, errno_ret: None, args: Vec::new() });
        spec
    };
    PROGRAM.get_or_init(|| build(&spec())).as_ref().map_err(Clone::clone)
}

/// Only user 0 can make them. A restricted process cannot change mounts, so a changed root leads nowhere else.
const OF_ROOT: [&str; 1] = ["chroot"];

/// For an agent that writes host folders: sets no set-user-ID and set-group-ID bit.
pub(crate) fn sharing() -> Result<&'static Program> {
    static PROGRAM: OnceLock<Result<Program>> = OnceLock::new();
    PROGRAM.get_or_init(|| build(&without_set_id(reporting_spec()))).as_ref().map_err(Clone::clone)
}

fn build(spec: &Seccomp) -> Result<Program> {
    match NATIVE {
        Some(native) if MACHINES.contains(&native) => reporting(spec, native),
        _ => Err(Error::new(Kind::Seccomp, "no agent profile for this machine")),
    }
}

fn reporting(spec: &Seccomp, native: Arch) -> Result<Program> {
    compile_for(spec, native).map(|program| Program { reports: true, ..program })
}

/// The table has a row for each of their calls, and their numbers in its conditions.
const MACHINES: [Arch; 6] = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64, Arch::Loongarch64, Arch::S390x, Arch::Ppc64le];

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

/// The supervisor refuses with the filter's error number.
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

/// The calls of [`MODES`] return EPERM for a set-user-ID or set-group-ID bit. openat2, which has its mode in memory,
/// returns ENOSYS, and callers use openat.
fn without_set_id(mut spec: Seccomp) -> Seccomp {
    let decided = |name: &String| name == "openat2" || MODES.iter().any(|(call, ..)| call == name);
    spec.syscalls.iter_mut().for_each(|rule| rule.names.retain(|name| !decided(name)));
    spec.syscalls.retain(|rule| !rule.names.is_empty());
    let mut rule = |name: &str, errno_ret: Option<u32>, args: Vec<Condition>| {
        let action = if errno_ret.is_some() { Action::Errno } else { Action::Allow };
        spec.syscalls.push(Rule { names: vec![name.to_owned()], action, errno_ret, args });
    };
    rule("openat2", Some(libc::ENOSYS as u32), Vec::new());
    let is_zero = |index, bits| Condition { index, value: bits, value_two: 0, op: Operator::MaskedEqual };
    for (call, mode, bits, flags) in MODES {
        rule(call, None, vec![is_zero(*mode, *bits)]);
        // A call that makes no file ignores its mode.
        if let Some(flags) = flags {
            let mode_is_set = SET_ID_BITS.map(|set| vec![is_zero(*flags, MAKES_FILE), bits_of(*mode, set)]);
            mode_is_set.into_iter().for_each(|args| rule(call, None, args));
        }
    }
    spec
}

/// At least one of the two bits is set.
const SET_ID_BITS: [u64; 3] = [0o2000, 0o4000, 0o6000];

fn bits_of(index: u32, value: u64) -> Condition {
    Condition { index, value: SET_ID, value_two: value, op: Operator::MaskedEqual }
}

/// Masks and values that match every 32-bit number except `values`. A profile cannot exclude two values of one argument
/// otherwise. Masks ignore the high half, as the kernel does.
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
