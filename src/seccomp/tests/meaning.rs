//! Programs of random profiles beside a direct reading of the profile, call by call.

use super::emulator::{Data, is_valid, run};
use super::samples::{action, condition, value};
use crate::seccomp::abi::{abi, offered};
use crate::seccomp::emit::{Style, write};
use crate::seccomp::table::{Call, Multiplexer};
use crate::seccomp::{action as returns, compile_for, rules};
use crate::spec::seccomp::{Action, Arch, Condition, Operator, Rule, Seccomp};
use proptest::prelude::*;

const NAMES: &[&str] = &[
    "read",
    "write",
    "socket",
    "connect",
    "send",
    "accept",
    "semop",
    "clone",
    "chown32",
    "execve",
    "mmap2",
    "openat",
    "set_tls",
    "statmount",
    "socketcall",
    "exit",
    "no_such_call",
];

fn profile() -> impl Strategy<Value = Seccomp> {
    let names = proptest::collection::vec(proptest::sample::select(NAMES), 1..4);
    // Few values, so that conditions overlap, touch and contradict each other.
    let near = (0u32..3, 0u64..6, 0u64..6, proptest::sample::select(Operator::ALL))
        .prop_map(|(index, value, value_two, op)| Condition { index, value, value_two, op });
    let args = proptest::collection::vec(prop_oneof![condition(), near], 0..4);
    let rules = proptest::collection::vec((names, action(), args), 0..8);
    let archs = proptest::sample::subsequence(Arch::ALL.to_vec(), 0..8);
    (action(), archs, rules).prop_map(|(default, architectures, rules)| Seccomp {
        default_action: default.0,
        default_errno_ret: default.1,
        architectures,
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: rules
            .into_iter()
            .map(|(names, (action, errno_ret), args)| Rule {
                names: names.into_iter().map(str::to_string).collect(),
                action,
                errno_ret,
                args,
            })
            .collect(),
    })
}

fn holds(condition: &Condition, arguments: &[u64; 6], wide: bool) -> bool {
    let cut = |value: u64| if wide { value } else { value & 0xffff_ffff };
    let (is, value) = (cut(arguments[condition.index as usize]), cut(condition.value));
    match condition.op {
        Operator::NotEqual => is != value,
        Operator::LessThan => is < value,
        Operator::LessEqual => is <= value,
        Operator::Equal => is == value,
        Operator::GreaterEqual => is >= value,
        Operator::GreaterThan => is > value,
        Operator::MaskedEqual => is & value == condition.value_two & value,
    }
}

fn rule_holds(rule: &Rule, selector: Option<u32>, arguments: &[u64; 6], wide: bool) -> bool {
    let mut indexes: Vec<u32> = rule.args.iter().map(|condition| condition.index).collect();
    indexes.sort_unstable();
    let alternatives = indexes.windows(2).any(|pair| pair[0] == pair[1]);
    let selected =
        selector.is_none_or(|selector| arguments[0] as u32 == selector && (!wide || arguments[0] >> 32 == 0));
    // The selector replaces the first argument.
    let one = |condition: &Condition| (selector.is_some() && condition.index == 0) || holds(condition, arguments, wide);
    selected
        && (rule.args.is_empty() || if alternatives { rule.args.iter().any(one) } else { rule.args.iter().all(one) })
}

/// Several values where rules with conditions overlap and contradict each other.
fn meaning(profile: &Seccomp, native: Arch, arch: Arch, number: u32, arguments: &[u64; 6]) -> Vec<u32> {
    let abi = abi(arch).unwrap();
    if arch != native && !profile.architectures.contains(&arch) {
        return vec![returns::KILL_THREAD];
    }
    let default = returns::value(profile.default_action, profile.default_errno_ret).unwrap();
    let of = |name: &str| Call::named(name).and_then(|call| call.number(abi.column)).map(|own| own + abi.base);
    let names = || profile.syscalls.iter().flat_map(|rule| &rule.names);
    let through = |name: &String| match Call::named(name)?.multiplexer().filter(|_| abi.multiplexed)? {
        Multiplexer::Socketcall(_) => of("socketcall"),
        Multiplexer::Ipc(_) => of("ipc"),
    };
    let mentioned = names().flat_map(|name| [of(name), through(name)]).flatten();
    let newest = mentioned.filter(|number| *number < 0x0f_0000 || abi.base > 0).max();
    let permissive = matches!(profile.default_action, Action::Allow | Action::Log | Action::Trace);
    let private = arch == Arch::Arm && (0x0f_0000..0x1000_0000).contains(&number);
    if let Some(newest) = newest.filter(|_| !permissive) {
        let lost = matches!(arch, Arch::S390 | Arch::S390x) && number == 0;
        if (number > newest && !private) || lost {
            return vec![returns::errno(38)];
        }
    }
    let (mut conditional, mut certain) = (Vec::new(), None);
    for rule in &profile.syscalls {
        let value = returns::value(rule.action, rule.errno_ret).unwrap();
        for name in &rule.names {
            if value == default {
                continue;
            }
            if of(name) == Some(number) {
                let nothing = |condition: &Condition| {
                    condition.op == Operator::MaskedEqual
                        && holds(condition, &[5; 6], abi.wide)
                        && if abi.wide { condition.value == 0 } else { condition.value as u32 == 0 }
                };
                let mut indexes: Vec<u32> = rule.args.iter().map(|condition| condition.index).collect();
                indexes.sort_unstable();
                let any = indexes.windows(2).any(|pair| pair[0] == pair[1]);
                let always = if any { rule.args.iter().any(nothing) } else { rule.args.iter().all(nothing) };
                if always {
                    certain = certain.or(Some(value));
                } else if rule_holds(rule, None, arguments, abi.wide) {
                    conditional.push(value);
                }
            }
            let through = Call::named(name).and_then(Call::multiplexer).filter(|_| abi.multiplexed);
            let (multiplexer, selector) = match through {
                Some(Multiplexer::Socketcall(selector)) => ("socketcall", selector),
                Some(Multiplexer::Ipc(selector)) => ("ipc", selector),
                None => continue,
            };
            if of(multiplexer) == Some(number) && rule_holds(rule, Some(selector.into()), arguments, abi.wide) {
                conditional.push(value);
            }
        }
    }
    match certain {
        Some(value) => vec![value],
        None if conditional.is_empty() => vec![default],
        None => conditional,
    }
}

fn natives() -> impl Strategy<Value = Arch> {
    proptest::sample::select(Arch::ALL.iter().copied().filter(|arch| !offered(*arch).is_empty()).collect::<Vec<_>>())
}

/// Programs get too long for conditional jumps.
fn long() -> impl Strategy<Value = Seccomp> {
    let near = (0u32..4, 0u64..40, 0u64..40, proptest::sample::select(Operator::ALL))
        .prop_map(|(index, value, value_two, op)| Condition { index, value, value_two, op });
    let args = proptest::collection::vec(near, 1..4);
    let rule = (action(), args).prop_map(|((action, errno_ret), args)| Rule {
        names: vec!["mmap".to_string(), "read".to_string()],
        action,
        errno_ret,
        args,
    });
    proptest::collection::vec(rule, 40..120).prop_map(|syscalls| Seccomp {
        default_action: Action::Errno,
        default_errno_ret: Some(3000),
        architectures: vec![Arch::X86, Arch::X32],
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls,
    })
}

proptest! {
    #[test]
    fn decisions_and_chains_say_the_same(
        profile in long(),
        arguments in proptest::collection::vec(proptest::array::uniform6(0u64..42), 64),
    ) {
        let plan = rules::plan(&profile, Arch::X86_64).unwrap();
        let [decisions, chains] = [Style::Decisions, Style::Chains].map(|style| write(&plan, style));
        prop_assert!(is_valid(&chains));
        prop_assume!(is_valid(&decisions));
        for arguments in arguments {
            for (arch, number) in [(0xc000_003e, 9), (0xc000_003e, 0x4000_0009), (0x4000_0003, 3)] {
                let data = Data { big_endian: false, number, arch, pointer: 0, arguments };
                prop_assert_eq!(run(&decisions, &data), run(&chains, &data));
            }
        }
    }

    #[test]
    fn a_random_profile_means_what_it_says(
        profile in profile(),
        native in natives(),
        arguments in proptest::collection::vec(proptest::array::uniform6(prop_oneof![value(), 0u64..6]), 8),
    ) {
        let program = compile_for(&profile, native).unwrap();
        prop_assume!(!program.is_empty());
        prop_assert!(is_valid(&program.instructions));
        for arch in offered(native) {
            let abi = abi(*arch).unwrap();
            let known = NAMES.iter().filter_map(|name| Call::named(name)?.number(abi.column)).map(|own| own + abi.base);
            let ends = [0, 1, 600, 0x0f_0001, 0x0f_0006].map(|number| number + abi.base);
            for number in known.flat_map(|number| [number, number + 1, number.saturating_sub(1).max(abi.base)]).chain(ends) {
                for arguments in &arguments {
                    let data = Data { big_endian: abi.big_endian, number, arch: abi.audit, pointer: 0, arguments: *arguments };
                    let got = run(&program.instructions, &data);
                    let expected = meaning(&profile, native, *arch, number, arguments);
                    prop_assert!(
                        expected.contains(&got),
                        "{arch:?} {number} {arguments:x?}: {got:#x}, not {expected:x?}, of {}", serde_json::to_string(&profile).unwrap()
                    );
                }
            }
        }
    }
}
