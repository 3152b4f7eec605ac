//! Profiles as tables: calls, and what the filter returns.

use super::emulator::{Data, is_valid, run};
use crate::seccomp::{Program, compile_for};
use crate::spec::seccomp::{Arch, Seccomp};
use crate::sys::seccomp::{LOG, SPEC_ALLOW, TSYNC, TSYNC_ESRCH, WAIT_KILLABLE_RECV};

const X86_64: u32 = 0xc000_003e;
const X86: u32 = 0x4000_0003;
const X32: u32 = 0x4000_0000;

fn profile(text: &str) -> Seccomp {
    serde_json::from_str(text).unwrap()
}

fn program(text: &str) -> Program {
    compile_for(&profile(text), Arch::X86_64).unwrap()
}

fn word(value: u32) -> String {
    match (value >> 16, value & 0xffff) {
        (0x7fff, 0) => "allow".to_string(),
        (0x7ffc, 0) => "log".to_string(),
        (0x7fc0, 0) => "notify".to_string(),
        (0x8000, 0) => "kill process".to_string(),
        (0x0000, 0) => "kill".to_string(),
        (0x0003, 0) => "trap".to_string(),
        (0x0005, errno) => format!("errno {errno}"),
        (0x7ff0, data) => format!("trace {data}"),
        _ => format!("{value:#x}"),
    }
}

/// The profile's default is errno 1. Absent arguments are 0.
fn check(rules: &str, arch: u32, calls: &[(u32, &[u64], &str)]) {
    let archs = r#"["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"]"#;
    check_all(
        &format!(r#"{{"defaultAction":"SCMP_ACT_ERRNO","architectures":{archs},"syscalls":[{rules}]}}"#),
        arch,
        calls,
    );
}

fn check_all(text: &str, arch: u32, calls: &[(u32, &[u64], &str)]) {
    let program = program(text);
    assert!(is_valid(&program.instructions), "{text}");
    for (number, some, expected) in calls {
        assert_eq!(&ask(&program, arch, *number, some), expected, "{number:#x} {some:x?} of {text}");
    }
}

fn ask(program: &Program, arch: u32, number: u32, some: &[u64]) -> String {
    let mut arguments = [0; 6];
    arguments[..some.len()].copy_from_slice(some);
    word(run(&program.instructions, &Data { big_endian: false, number, arch, pointer: 0, arguments }))
}

fn refused(text: &str, because: &str) {
    let error = compile_for(&profile(text), Arch::X86_64).unwrap_err().to_string();
    assert!(error.contains(because), "{error}");
}

#[test]
fn every_action_has_its_value() {
    for (action, expected) in [
        (r#""SCMP_ACT_KILL""#, "kill"),
        (r#""SCMP_ACT_KILL_THREAD""#, "kill"),
        (r#""SCMP_ACT_KILL_PROCESS""#, "kill process"),
        (r#""SCMP_ACT_TRAP""#, "trap"),
        (r#""SCMP_ACT_ERRNO""#, "errno 1"),
        (r#""SCMP_ACT_ERRNO","errnoRet":0"#, "errno 0"),
        (r#""SCMP_ACT_ERRNO","errnoRet":4095"#, "errno 4095"),
        (r#""SCMP_ACT_TRACE""#, "trace 1"),
        (r#""SCMP_ACT_TRACE","errnoRet":65535"#, "trace 65535"),
        (r#""SCMP_ACT_ALLOW""#, "allow"),
        (r#""SCMP_ACT_LOG""#, "log"),
    ] {
        let default = action.replace("errnoRet", "defaultErrnoRet");
        check(&format!(r#"{{"names":["read"],"action":{action}}}"#), X86_64, &[(0, &[], expected)]);
        let other = r#"{"names":["listns"],"action":"SCMP_ACT_ERRNO","errnoRet":99}"#;
        check_all(&format!(r#"{{"defaultAction":{default},"syscalls":[{other}]}}"#), X86_64, &[(0, &[], expected)]);
    }
    let notify = r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/l","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}"#;
    check_all(notify, X86_64, &[(0, &[], "notify"), (1, &[], "allow")]);
    assert!(program(notify).listens());
}

#[test]
fn abis_that_are_not_listed_end_the_thread() {
    let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_TRAP"}]}"#;
    check_all(text, X86_64, &[(0, &[], "trap"), (1, &[], "allow"), (X32, &[], "kill"), (X32 | 1, &[], "kill")]);
    for foreign in [X86, 0xc000_00b7, 0] {
        check_all(text, foreign, &[(3, &[], "kill")]);
    }
    let listed = text.replace(r#""syscalls""#, r#""architectures":["SCMP_ARCH_X86"],"syscalls""#);
    check_all(&listed, X86, &[(3, &[], "trap"), (0, &[], "allow")]);
    check_all(&listed, X86_64, &[(0, &[], "trap"), (X32, &[], "kill")]);
    let x32 = text.replace(r#""syscalls""#, r#""architectures":["SCMP_ARCH_X32"],"syscalls""#);
    check_all(&x32, X86_64, &[(X32, &[], "trap"), (X32 | 1, &[], "allow"), (0, &[], "trap"), (u32::MAX, &[], "allow")]);
    // Foreign ABIs cause neither an error nor an instruction.
    let foreign = text.replace(r#""syscalls""#, r#""architectures":["SCMP_ARCH_ARM","SCMP_ARCH_SHEB"],"syscalls""#);
    assert_eq!(program(&foreign), program(text));
}

#[test]
fn a_call_has_another_number_on_each_abi() {
    let rules = r#"{"names":["execve","openat","chown32"],"action":"SCMP_ACT_ALLOW"}"#;
    check(rules, X86_64, &[(59, &[], "allow"), (257, &[], "allow"), (212, &[], "errno 1"), (X32 | 520, &[], "allow")]);
    check(rules, X86_64, &[(X32 | 59, &[], "errno 1"), (X32 | 257, &[], "allow"), (520, &[], "errno 38")]);
    check(rules, X86, &[(11, &[], "allow"), (295, &[], "allow"), (212, &[], "allow"), (59, &[], "errno 1")]);
}

#[test]
fn arguments_are_compared_with_64_bits() {
    let (big, max) = (0x7_0000_0003u64, u64::MAX);
    for (op, value, two, yes, no) in [
        ("EQ", big, 0u64, vec![big], vec![3, big + 1, 0x8_0000_0003, max]),
        ("NE", big, 0, vec![3, big - 1, 0x8_0000_0003, max], vec![big]),
        ("LT", big, 0, vec![0, 0xffff_ffff, big - 1], vec![big, big + 1, 0x8_0000_0000, max]),
        ("LE", big, 0, vec![0, 0xffff_ffff, big], vec![big + 1, 0x8_0000_0000, max]),
        ("GT", big, 0, vec![big + 1, 0x8_0000_0000, max], vec![0, 0xffff_ffff, big]),
        ("GE", big, 0, vec![big, 0x8_0000_0000, max], vec![0, 0xffff_ffff, big - 1]),
        ("LT", 0, 0, vec![], vec![0, 1, max]),
        ("GE", 0, 0, vec![0, 1, max], vec![]),
        ("GT", max, 0, vec![], vec![0, max]),
        ("LE", max, 0, vec![0, max], vec![]),
        ("MASKED_EQ", 0xf_0000_00f0, 0x3_0000_0010, vec![0x3_0000_0010, 0xff3_ffff_ff1f], vec![0x10, 0x3_0000_0020]),
        ("MASKED_EQ", 0xff, 0x1_0012, vec![0x12, 0xfff_ff12], vec![0x13]), // what the mask leaves out does not count
        ("MASKED_EQ", 0x7e02_0000, 0, vec![0, 0x11, 1 << 40], vec![0x1000_0000, 0x2_0000, 1 << 40 | 0x2_0000]),
        ("MASKED_EQ", 0, 5, vec![0, max], vec![]),
    ] {
        for index in [0, 5] {
            let rule = format!(
                r#"{{"names":["mmap"],"action":"SCMP_ACT_ALLOW","args":[{{"index":{index},"value":{value},"valueTwo":{two},"op":"SCMP_CMP_{op}"}}]}}"#
            );
            for (values, expected) in [(&yes, "allow"), (&no, "errno 1")] {
                for value in values {
                    let mut arguments = [u64::MAX / 3; 6];
                    arguments[index] = *value;
                    check(&rule, X86_64, &[(9, &arguments, expected)]);
                }
            }
        }
    }
}

#[test]
fn arguments_of_32_bit_abis_are_compared_with_32() {
    let rule = |op: &str, value: u64| {
        format!(
            r#"{{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{{"index":1,"value":{value},"op":"SCMP_CMP_{op}"}}]}}"#
        )
    };
    for (arch, number) in [(X86, 3), (X86_64, X32)] {
        check(&rule("EQ", u64::MAX), arch, &[(number, &[0, 0xffff_ffff], "allow"), (number, &[0, 1], "errno 1")]);
        check(&rule("EQ", 7), arch, &[(number, &[0, 0xdead_0000_0007], "allow")]);
        check(&rule("GT", 7), arch, &[(number, &[0, 0xdead_0000_0007], "errno 1"), (number, &[0, 8], "allow")]);
    }
}

#[test]
fn conditions_on_different_arguments_must_all_hold() {
    let rules = r#"{"names":["mmap"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"},
        {"index":3,"value":2,"op":"SCMP_CMP_GT"},{"index":2,"value":6,"valueTwo":2,"op":"SCMP_CMP_MASKED_EQ"}]}"#;
    check(
        rules,
        X86_64,
        &[(9, &[1, 0, 2, 3], "allow"), (9, &[1, 0, 3, 1 << 40], "allow"), (9, &[1, 0, 2, 2], "errno 1")],
    );
    check(rules, X86_64, &[(9, &[2, 0, 2, 3], "errno 1"), (9, &[1, 0, 4, 3], "errno 1"), (9, &[], "errno 1")]);
}

#[test]
fn conditions_on_one_argument_are_alternatives() {
    let rules = r#"{"names":["mmap"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"},
        {"index":0,"value":5,"op":"SCMP_CMP_EQ"},{"index":1,"value":9,"op":"SCMP_CMP_EQ"}]}"#;
    check(rules, X86_64, &[(9, &[1], "allow"), (9, &[5], "allow"), (9, &[2, 9], "allow"), (9, &[2], "errno 1")]);
}

#[test]
fn a_rule_without_conditions_outweighs_those_with() {
    let conditional =
        r#"{"names":["read"],"action":"SCMP_ACT_TRAP","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]}"#;
    let (log, kill) =
        (r#"{"names":["read"],"action":"SCMP_ACT_LOG"}"#, r#"{"names":["read"],"action":"SCMP_ACT_KILL"}"#);
    check(&format!("{conditional},{log}"), X86_64, &[(0, &[1], "log"), (0, &[], "log")]);
    check(&format!("{log},{conditional},{kill}"), X86_64, &[(0, &[1], "log")]);
    check(&format!("{kill},{log}"), X86_64, &[(0, &[1], "kill")]);
}

#[test]
fn a_rule_that_says_what_the_default_says_is_skipped() {
    let rules = r#"{"names":["read"],"action":"SCMP_ACT_ERRNO"},
        {"names":["read"],"action":"SCMP_ACT_LOG","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]}"#;
    check(rules, X86_64, &[(0, &[1], "log"), (0, &[], "errno 1")]);
}

#[test]
fn numbers_above_the_newest_call_of_a_profile_are_not_there() {
    let rules = r#"{"names":["read","openat"],"action":"SCMP_ACT_ALLOW"}"#;
    let newer: &[(u32, &[u64], &str)] =
        &[(256, &[], "errno 1"), (257, &[], "allow"), (258, &[], "errno 38"), (9999, &[], "errno 38")];
    check(rules, X86_64, newer);
    check(rules, X86_64, &[(X32 | 258, &[], "errno 38"), (X32 | 256, &[], "errno 1"), (u32::MAX, &[], "errno 38")]);
    check(rules, X86, &[(295, &[], "allow"), (296, &[], "errno 38"), (u32::MAX, &[], "errno 38")]);
    // A skipped rule counts, an unknown name does not.
    let mentioned =
        r#"{"names":["read"],"action":"SCMP_ACT_ALLOW"},{"names":["openat","frobnicate"],"action":"SCMP_ACT_ERRNO"}"#;
    check(mentioned, X86_64, &[(257, &[], "errno 1"), (258, &[], "errno 38")]);
    for (default, unknown) in
        [("ALLOW", "allow"), ("LOG", "log"), ("TRACE", "trace 1"), ("TRAP", "errno 38"), ("KILL", "errno 38")]
    {
        let text = format!(
            r#"{{"defaultAction":"SCMP_ACT_{default}","syscalls":[{{"names":["read"],"action":"SCMP_ACT_ERRNO"}}]}}"#
        );
        check_all(&text, X86_64, &[(1, &[], unknown), (0, &[], "errno 1")]);
    }
}

#[test]
fn socketcall_and_ipc_take_the_calls_behind_them() {
    let rules = r#"{"names":["connect","semop"],"action":"SCMP_ACT_ALLOW"},
        {"names":["socket"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":38,"op":"SCMP_CMP_LT"}]}"#;
    check(
        rules,
        X86,
        &[
            (362, &[], "allow"),
            (102, &[3], "allow"),
            (102, &[4], "errno 1"),
            (117, &[1], "allow"),
            (117, &[2], "errno 1"),
        ],
    );
    check(rules, X86, &[(359, &[38], "errno 1"), (359, &[2], "allow"), (102, &[1], "allow")]);
    check(rules, X86_64, &[(102, &[3], "errno 38"), (41, &[38], "errno 1"), (41, &[2], "allow")]);
    // Otherwise all calls behind them would seem too new.
    let alone = r#"{"names":["read","semop"],"action":"SCMP_ACT_ALLOW"}"#;
    check(alone, X86, &[(117, &[1], "allow"), (117, &[2], "errno 1"), (116, &[], "errno 1"), (118, &[], "errno 38")]);
    let whole = r#"{"names":["socketcall"],"action":"SCMP_ACT_LOG"},{"names":["connect"],"action":"SCMP_ACT_ALLOW"}"#;
    check(whole, X86, &[(102, &[3], "log"), (102, &[9], "log"), (362, &[], "allow")]);
}

#[test]
fn other_machines_have_their_own_ways() {
    let one = |names: &str, native, arch, number, arguments, big_endian| {
        let text = format!(
            r#"{{"defaultAction":"SCMP_ACT_ERRNO","architectures":["SCMP_ARCH_ARM","SCMP_ARCH_S390","SCMP_ARCH_MIPS"],
            "syscalls":[{{"names":["{names}"],"action":"SCMP_ACT_ALLOW","args":[{{"index":0,"value":4294967297,"op":"SCMP_CMP_EQ"}}]}},
            {{"names":["exit","set_tls"],"action":"SCMP_ACT_LOG"}}]}}"#
        );
        let program = compile_for(&profile(&text), native).unwrap();
        assert!(is_valid(&program.instructions));
        word(run(&program.instructions, &Data { big_endian, number, arch, pointer: 0, arguments }))
    };
    let wide = [(1 << 32) | 1, 0, 0, 0, 0, 0];
    assert_eq!(one("read", Arch::Aarch64, 0xc000_00b7, 63, wide, false), "allow");
    assert_eq!(one("read", Arch::Aarch64, 0xc000_00b7, 63, [1; 6], false), "errno 1");
    assert_eq!(one("read", Arch::Aarch64, 0x4000_0028, 3, [1; 6], false), "allow");
    // ARM's private calls are beyond the newest call.
    assert_eq!(one("read", Arch::Aarch64, 0x4000_0028, 0x0f_0005, [0; 6], false), "log");
    assert_eq!(one("read", Arch::Aarch64, 0x4000_0028, 0x0f_0001, [0; 6], false), "errno 1");
    assert_eq!(one("read", Arch::Aarch64, 0x4000_0028, 400, [0; 6], false), "errno 38");
    let text = r#"{"defaultAction":"SCMP_ACT_TRAP","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}"#;
    let arm = compile_for(&profile(text), Arch::Arm).unwrap();
    assert_eq!(ask(&arm, 0x4000_0028, 0x0f_0002, &[]), "trap");
    assert_eq!(one("read", Arch::S390x, 0x8000_0016, 3, wide, true), "allow");
    assert_eq!(one("read", Arch::S390x, 0x8000_0016, 3, [1 << 32; 6], true), "errno 1");
    // Numbers that do not fit s390's instruction arrive as 0; exit is 1 there.
    assert_eq!(one("read", Arch::S390x, 0x8000_0016, 0, [0; 6], true), "errno 38");
    assert_eq!(one("read", Arch::S390x, 0x8000_0016, 1, [0; 6], true), "log");
    assert_eq!(one("read", Arch::S390x, 0x0000_0016, 3, [1; 6], true), "allow");
    assert_eq!(one("read", Arch::Mips64, 0x8000_0008, 5000, wide, true), "allow");
    assert_eq!(one("read", Arch::Mips64, 0x0000_0008, 4003, [1; 6], true), "allow");
    assert_eq!(one("read", Arch::Mips64, 0x8000_0008, 3, wide, true), "errno 1");
}

#[test]
fn names_that_no_abi_has_are_reported_once() {
    let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","raed","set_tls"],"action":"SCMP_ACT_ALLOW"},
        {"names":["raed"],"action":"SCMP_ACT_LOG"}]}"#;
    assert_eq!(program(text).unknown(), ["raed"]);
}

#[test]
fn what_no_filter_can_do_is_refused_and_named() {
    let rule = |rest: &str| format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":["read"],{rest}}}]}}"#);
    refused(
        &rule(r#""action":"SCMP_ACT_KILL","errnoRet":1"#),
        "rule for `read`: `SCMP_ACT_KILL` takes no error number, `1` was given",
    );
    refused(&rule(r#""action":"SCMP_ACT_ERRNO","errnoRet":4096"#), "invalid error number `4096`");
    refused(&rule(r#""action":"SCMP_ACT_TRACE","errnoRet":65536"#), "`65536`");
    refused(&rule(r#""action":"SCMP_ACT_KILL","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]"#), "no argument 6");
    refused(&rule(r#""action":"SCMP_ACT_NOTIFY""#), "needs a `listenerPath`");
    refused(r#"{"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":3}"#, "`SCMP_ACT_ALLOW` takes no error number");
    refused(r#"{"defaultAction":"SCMP_ACT_NOTIFY","listenerPath":"/l"}"#, "cannot be the default action");
    refused(r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerMetadata":"m"}"#, "`listenerMetadata` needs");
    let write = r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/l","syscalls":[{"names":["write"],"action":"SCMP_ACT_NOTIFY"}]}"#;
    refused(write, "cannot be used for `write`");
    refused(r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[""],"action":"SCMP_ACT_KILL"}]}"#, "no name");
}

#[test]
fn a_program_that_the_kernel_would_refuse_for_its_length_is_refused_here() {
    let args = |n: u64| {
        format!(r#"[{{"index":0,"value":{},"valueTwo":{n},"op":"SCMP_CMP_MASKED_EQ"}}]"#, 0x5555_0000 | n << 1 | 1)
    };
    let rules: Vec<String> =
        (0..2000).map(|n| format!(r#"{{"names":["read"],"action":"SCMP_ACT_KILL","args":{}}}"#, args(n))).collect();
    let text = |n: usize| format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{}]}}"#, rules[..n].join(","));
    refused(&text(2000), "the kernel takes 4096");
    assert!(is_valid(&program(&text(1000)).instructions));
}

#[test]
fn nothing_to_refuse_is_nothing_to_install() {
    assert!(program(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).is_empty());
    assert!(!program(r#"{"defaultAction":"SCMP_ACT_LOG"}"#).is_empty());
}

#[test]
fn flags_are_those_of_the_kernel() {
    let notify = r#""listenerPath":"/l","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]"#;
    let other = r#""syscalls":[{"names":["read"],"action":"SCMP_ACT_KILL"}]"#;
    for (flags, rest, expected) in [
        ("null", other, (0, SPEC_ALLOW)),
        ("[]", other, (0, 0)),
        (r#"["SECCOMP_FILTER_FLAG_LOG","SECCOMP_FILTER_FLAG_SPEC_ALLOW"]"#, other, (LOG | SPEC_ALLOW, 0)),
        (r#"["SECCOMP_FILTER_FLAG_TSYNC"]"#, other, (TSYNC, 0)),
        (r#"["SECCOMP_FILTER_FLAG_TSYNC"]"#, notify, (TSYNC | TSYNC_ESRCH, 0)),
        (r#"["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]"#, notify, (WAIT_KILLABLE_RECV, 0)),
        (r#"["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]"#, other, (0, 0)),
    ] {
        let program = program(&format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","flags":{flags},{rest}}}"#));
        assert_eq!((program.flags, program.optional_flags), expected, "{flags} {rest}");
    }
}
