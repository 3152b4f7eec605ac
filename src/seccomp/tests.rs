//! What profiles mean, as tables: a profile, a call, what the filter returns.

use super::emulator::{Data, run};
use super::{Program, compile_for};
use crate::spec::seccomp::{Arch, Seccomp};

pub(super) const X86_64: u32 = 0xc000_003e;
pub(super) const I386: u32 = 0x4000_0003;

fn profile(text: &str) -> Seccomp {
    serde_json::from_str(text).unwrap()
}

fn program(text: &str) -> Program {
    compile_for(&profile(text), Arch::X86_64).unwrap()
}

fn word(value: u32) -> String {
    match value {
        0x7fff_0000 => "allow".to_string(),
        0x0000_0000 => "kill".to_string(),
        0x7ffc_0000 => "log".to_string(),
        0x7fc0_0000 => "notify".to_string(),
        errno if errno >> 16 == 5 => format!("errno {}", errno & 0xffff),
        other => format!("{other:#x}"),
    }
}

fn asked(program: &Program, arch: u32, number: u32, arguments: [u64; 6]) -> String {
    word(run(&program.instructions, &Data { number, arch, pointer: 0, arguments }))
}

#[test]
fn numbers_have_their_outcome() {
    let program = program(
        r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","write","close","socket"],"action":"SCMP_ACT_ALLOW"},
        {"names":["ptrace"],"action":"SCMP_ACT_KILL"},{"names":["openat"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}"#,
    );
    let expected =
        [(0, "allow"), (1, "allow"), (2, "errno 1"), (3, "allow"), (41, "allow"), (101, "kill"), (257, "errno 13")];
    for (number, result) in expected.into_iter().chain([(258, "errno 38"), (9999, "errno 38"), (0x4000_0000, "kill")]) {
        assert_eq!(asked(&program, X86_64, number, [0; 6]), result, "{number}");
    }
    assert_eq!(asked(&program, I386, 3, [0; 6]), "kill");
    assert_eq!(asked(&program, 0, 3, [0; 6]), "kill");
}
