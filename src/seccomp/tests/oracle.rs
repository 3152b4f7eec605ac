//! Programs beside libseccomp's, in the emulator. Only with the feature `oracle`.

use super::emulator::{Data, run};
use super::samples::docker;
use super::samples::{action, condition, value};
use crate::seccomp::abi::{Abi, abi, offered};
use crate::seccomp::action::errno;
use crate::seccomp::compile_for;
use crate::seccomp::table::{Call, Column, names};
use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};
use crate::sys::seccomp::Instruction;
use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use proptest::prelude::*;
use std::io::{Read, Seek};

fn scmp_action(action: Action, errno: Option<u32>) -> ScmpAction {
    let data = errno.unwrap_or(1);
    match action {
        Action::Kill | Action::KillThread => ScmpAction::KillThread,
        Action::KillProcess => ScmpAction::KillProcess,
        Action::Trap => ScmpAction::Trap,
        Action::Errno => ScmpAction::Errno(data as i32),
        Action::Trace => ScmpAction::Trace(data as u16),
        Action::Allow => ScmpAction::Allow,
        Action::Log => ScmpAction::Log,
        Action::Notify => ScmpAction::Notify,
    }
}

fn compare(condition: &Condition) -> ScmpArgCompare {
    let Condition { index, value, value_two, op } = *condition;
    match op {
        Operator::NotEqual => ScmpArgCompare::new(index, ScmpCompareOp::NotEqual, value),
        Operator::LessThan => ScmpArgCompare::new(index, ScmpCompareOp::Less, value),
        Operator::LessEqual => ScmpArgCompare::new(index, ScmpCompareOp::LessOrEqual, value),
        Operator::Equal => ScmpArgCompare::new(index, ScmpCompareOp::Equal, value),
        Operator::GreaterEqual => ScmpArgCompare::new(index, ScmpCompareOp::GreaterEqual, value),
        Operator::GreaterThan => ScmpArgCompare::new(index, ScmpCompareOp::Greater, value),
        Operator::MaskedEqual => ScmpArgCompare::new(index, ScmpCompareOp::MaskedEqual(value), value_two),
    }
}

fn scmp_arch(arch: Arch) -> Option<ScmpArch> {
    Some(match arch {
        Arch::X86_64 => ScmpArch::X8664,
        Arch::X86 => ScmpArch::X86,
        Arch::X32 => ScmpArch::X32,
        Arch::Aarch64 => ScmpArch::Aarch64,
        Arch::Arm => ScmpArch::Arm,
        Arch::Riscv64 => ScmpArch::Riscv64,
        Arch::S390x => ScmpArch::S390X,
        Arch::S390 => ScmpArch::S390,
        Arch::Ppc64le => ScmpArch::Ppc64Le,
        Arch::Ppc => ScmpArch::Ppc,
        Arch::Ppc64 => ScmpArch::Ppc64,
        Arch::Mips => ScmpArch::Mips,
        Arch::Mips64 => ScmpArch::Mips64,
        Arch::Mips64N32 => ScmpArch::Mips64N32,
        _ => return None,
    })
}

/// As runc makes it, without runc's ENOSYS stub. `None` if the library refuses two actions for one selector of
/// socketcall.
pub(super) fn libseccomp(profile: &Seccomp, archs: &[ScmpArch], big_endian: bool) -> Option<Vec<Instruction>> {
    let default = scmp_action(profile.default_action, profile.default_errno_ret);
    let mut filter = ScmpFilterContext::new(default).unwrap();
    if !archs.contains(&ScmpArch::X8664) {
        filter.remove_arch(ScmpArch::X8664).unwrap();
    }
    for arch in archs {
        filter.add_arch(*arch).unwrap();
    }
    for rule in &profile.syscalls {
        let action = scmp_action(rule.action, rule.errno_ret);
        if action == default {
            continue;
        }
        let mut indexes: Vec<u32> = rule.args.iter().map(|condition| condition.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let args: Vec<ScmpArgCompare> = rule.args.iter().map(compare).collect();
        for name in &rule.names {
            let Ok(call) = ScmpSyscall::from_name(name) else { continue };
            if indexes.len() < args.len() {
                for arg in &args {
                    filter.add_rule_conditional(action, call, &[*arg]).ok()?;
                }
            } else {
                filter.add_rule_conditional(action, call, &args).ok()?;
            }
        }
    }
    let mut file = tempfile::tempfile().unwrap();
    filter.export_bpf(&file).unwrap();
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let half = |bytes: [u8; 2]| if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
    let word = |bytes: [u8; 4]| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    let read = |chunk: &[u8]| Instruction {
        code: half([chunk[0], chunk[1]]),
        jump_true: chunk[2],
        jump_false: chunk[3],
        operand: word([chunk[4], chunk[5], chunk[6], chunk[7]]),
    };
    Some(bytes.chunks_exact(8).map(read).collect())
}

/// As runc finds it; numbers above get ENOSYS.
fn newest(profile: &Seccomp, arch: ScmpArch) -> Option<u32> {
    let number = |name: &String| {
        let number = ScmpSyscall::from_name_by_arch(name, arch).ok()?.as_raw_syscall();
        // The library answers with what socketcall and ipc take; runc then passes over the calls' own numbers.
        let own = || Call::named(name)?.number(Column::X86).map(|number| number as i32);
        if number < 0 && arch == ScmpArch::X86 { own() } else { Some(number) }
    };
    let all = profile.syscalls.iter().flat_map(|rule| rule.names.iter().filter_map(number));
    all.max().and_then(|newest| u32::try_from(newest).ok())
}

/// map_shadow_stack is common to x86-64 and x32 since 6.8; the library has it for x86-64 alone.
const NEWER: &[(Arch, u32)] = &[(Arch::X32, 453)];

fn differences(profile: &Seccomp, native: Arch, arguments: &[[u64; 6]]) -> Vec<String> {
    let ours = compile_for(profile, native).unwrap();
    let known = |arch: &Arch| *arch == native || profile.architectures.contains(arch);
    let archs: Vec<ScmpArch> =
        offered(native).iter().filter(|arch| known(arch)).filter_map(|arch| scmp_arch(*arch)).collect();
    let Some(theirs) = libseccomp(profile, &archs, abi(native).unwrap().big_endian) else { return Vec::new() };
    if ours.is_empty() {
        return Vec::new(); // runc does not ask libseccomp either
    }
    let mut found = Vec::new();
    for arch in offered(native) {
        let Abi { audit, base, big_endian, .. } = abi(*arch).unwrap();
        let newest = newest(profile, scmp_arch(*arch).unwrap());
        for number in base..base + 600 {
            // runc has no stub for the machine's own ABI if it is not listed; nothing speaks for that.
            let stub = known(arch)
                && !matches!(profile.default_action, Action::Allow | Action::Log | Action::Trace)
                && newest.is_some_and(|newest| number > newest || (number == 0 && audit & 0xffff == 22)); // s390's setup(2)
            for arguments in arguments {
                let data = Data { big_endian, number, arch: audit, pointer: 0, arguments: *arguments };
                let expected = if stub { errno(38) } else { run(&theirs, &data) };
                let got = run(&ours.instructions, &data);
                if got != expected && !NEWER.contains(&(*arch, number - base)) {
                    found.push(format!("{arch:?} {} {arguments:x?}: {got:#x}, theirs {expected:#x}", number - base));
                }
            }
        }
    }
    found
}

/// Drops names that are newer than the library.
fn known(mut profile: Seccomp) -> Seccomp {
    profile.syscalls.iter_mut().for_each(|rule| rule.names.retain(|name| ScmpSyscall::from_name(name).is_ok()));
    profile
}

#[test]
fn all_names_have_libseccomps_numbers() {
    let natives = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64, Arch::S390x, Arch::Ppc64, Arch::Ppc64le, Arch::Mips64];
    let archs = natives.iter().flat_map(|native| offered(*native));
    let wrong: Vec<String> = archs
        .flat_map(|arch| names().map(|name| (*arch, name)))
        .filter_map(|(arch, name)| {
            let abi = abi(arch).unwrap();
            let theirs = ScmpSyscall::from_name_by_arch(name, scmp_arch(arch)?).ok()?.as_raw_syscall();
            let ours = Call::named(name)?.number(abi.column).map(|number| (number + abi.base) as i32);
            let same = ours == Some(theirs).filter(|number| *number >= 0) || (abi.multiplexed && theirs < 0);
            (!same).then(|| format!("{arch:?} {name}: {ours:?}, theirs {theirs}"))
        })
        .collect();
    // Newer than the library; the kernel's other name for `arm_sync_file_range`.
    let expected =
        ["X32 map_shadow_stack: Some(1073742277), theirs -10245", "Arm sync_file_range2: Some(341), theirs -10089"];
    assert_eq!(wrong, expected);
}

#[test]
fn dockers_profile_is_libseccomps() {
    let arguments: Vec<[u64; 6]> =
        [0, 1, 2, 8, 12, 16, 17, 37, 38, 39, 40, 45, 46, 0x2_0000, 0xffff_ffff, 0x1000_0011, 1 << 32, !0]
            .iter()
            .map(|value| [*value; 6])
            .collect();
    let found = differences(&known(docker()), Arch::X86_64, &arguments);
    assert!(found.is_empty(), "{} {found:#?}", found.len());
}

/// All x86 ABIs have them. For others, the library (2.5.4) can compare the architecture instead of the number, if their
/// rules come first.
const NAMES: &[&str] = &[
    "read",
    "write",
    "socket",
    "connect",
    "sendto",
    "shmget",
    "clone",
    "listen",
    "personality",
    "execve",
    "openat",
    "landlock_add_rule",
];
/// On different arguments; or values of one argument, each of which becomes a rule.
fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let all = proptest::collection::vec(condition(), 0..3).prop_map(|mut all| {
        let mut seen = Vec::new();
        all.retain(|condition| {
            !seen.contains(&condition.index) && {
                seen.push(condition.index);
                true
            }
        });
        all
    });
    let any = (0u32..6, proptest::collection::vec(value(), 2..5)).prop_map(|(index, values)| {
        let low: std::collections::BTreeSet<u64> = values.into_iter().map(|value| value & 0xffff_ffff).collect();
        low.into_iter().map(|value| Condition { index, value, value_two: 0, op: Operator::Equal }).collect()
    });
    prop_oneof![3 => all, 1 => any]
}

/// At most one rule with conditions for a call: the library's merged trees (2.5.4) lose some that overlap.
fn profile() -> impl Strategy<Value = Seccomp> {
    let names = proptest::collection::vec(proptest::sample::select(NAMES), 1..4);
    let rule = (names, action(), conditions());
    let archs = proptest::sample::subsequence(vec![Arch::X86_64, Arch::X86, Arch::X32], 1..=3);
    (action(), archs, proptest::collection::vec(rule, 0..8)).prop_map(|(default, architectures, rules)| {
        let mut taken = Vec::new();
        let rule = |(mut names, (action, errno_ret), args): (Vec<&'static str>, _, Vec<Condition>)| {
            if !args.is_empty() {
                names.retain(|name| {
                    !taken.contains(name) && {
                        taken.push(name);
                        true
                    }
                });
            }
            Rule { names: names.into_iter().map(str::to_string).collect(), action, errno_ret, args }
        };
        Seccomp {
            default_action: default.0,
            default_errno_ret: default.1,
            architectures,
            flags: None,
            listener_path: String::new(),
            listener_metadata: String::new(),
            syscalls: rules.into_iter().map(rule).collect(),
        }
    })
}

/// Rules about one argument of one call, with different 32-bit values and no masks. The library merges rules that share
/// a comparison: their order is accidental, and some cases are never found.
fn overlapping() -> impl Strategy<Value = Seccomp> {
    let ops: Vec<Operator> = Operator::ALL.iter().copied().filter(|op| *op != Operator::MaskedEqual).collect();
    let condition = (proptest::sample::select(ops), value()).prop_map(|(op, value)| (op, value & 0xffff_ffff));
    let distinct = proptest::collection::vec(condition, 2..4).prop_map(|mut conditions| {
        conditions.sort_by_key(|(_, value)| *value);
        conditions.dedup_by_key(|(_, value)| *value);
        conditions
    });
    distinct.prop_shuffle().prop_map(|conditions| Seccomp {
        default_action: Action::Errno,
        default_errno_ret: Some(38),
        architectures: vec![Arch::X86, Arch::X32],
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: (1..)
            .zip(conditions)
            .map(|(errno, (op, value))| Rule {
                names: vec!["read".to_string()],
                action: Action::Errno,
                errno_ret: Some(errno),
                args: vec![Condition { index: 2, value, value_two: 0, op }],
            })
            .collect(),
    })
}

/// Only names that all ABIs of the machine have.
fn elsewhere(mut profile: Seccomp, native: Arch) -> Seccomp {
    profile.architectures = offered(native).to_vec();
    let common = |name: &String| {
        offered(native).iter().all(|arch| {
            scmp_arch(*arch)
                .and_then(|arch| ScmpSyscall::from_name_by_arch(name, arch).ok())
                .is_some_and(|call| call.as_raw_syscall() >= 0)
        })
    };
    profile.syscalls.iter_mut().for_each(|rule| rule.names.retain(common));
    profile.syscalls.retain(|rule| !rule.names.is_empty());
    profile
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_profiles_are_libseccomps(profile in profile(), arguments in proptest::collection::vec(proptest::array::uniform6(value()), 24)) {
        let found = differences(&profile, Arch::X86_64, &arguments);
        let text = serde_json::to_string(&profile).unwrap();
        prop_assert!(found.is_empty(), "{} {:#?} {text}", found.len(), &found[..found.len().min(6)]);
    }

    #[test]
    fn overlapping_rules_are_asked_in_its_order(profile in overlapping(), arguments in proptest::collection::vec(proptest::array::uniform6(value()), 24)) {
        let arguments: Vec<_> = arguments.into_iter().map(|words| words.map(|word| word & 0xffff_ffff)).collect();
        let found = differences(&profile, Arch::X86_64, &arguments);
        let text = serde_json::to_string(&profile).unwrap();
        prop_assert!(found.is_empty(), "{} {:#?} {text}", found.len(), &found[..found.len().min(6)]);
    }

    #[test]
    fn random_profiles_of_other_machines_are_libseccomps(
        profile in profile(),
        native in proptest::sample::select(vec![Arch::Aarch64, Arch::Riscv64, Arch::S390x, Arch::Ppc64, Arch::Ppc64le, Arch::Mips64]),
        arguments in proptest::collection::vec(proptest::array::uniform6(value()), 24),
    ) {
        let profile = elsewhere(profile, native);
        let found = differences(&profile, native, &arguments);
        let text = serde_json::to_string(&profile).unwrap();
        prop_assert!(found.is_empty(), "{} {:#?} {text}", found.len(), &found[..found.len().min(6)]);
    }
}
