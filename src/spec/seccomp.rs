//! `linux.seccomp` of config.json (runtime-spec, config-linux.md "Seccomp").
//!
//! Unknown fields are ignored, as the specification requires; an unknown word or number is an error that names it.
//! `crate::seccomp` interprets the words.

use super::resources::nullable;
use crate::error::words;
use serde::{Deserialize, Serialize};

words! {
    /// The result of a system call.
    pub enum Action {
        /// As `KillThread`.
        Kill = "SCMP_ACT_KILL",
        /// The whole process dies of SIGSYS (4.14).
        KillProcess = "SCMP_ACT_KILL_PROCESS",
        /// The calling thread dies of SIGSYS.
        KillThread = "SCMP_ACT_KILL_THREAD",
        /// The thread gets SIGSYS and may handle it.
        Trap = "SCMP_ACT_TRAP",
        /// The call fails with an error number.
        Errno = "SCMP_ACT_ERRNO",
        /// A tracer decides; without one the call returns ENOSYS.
        Trace = "SCMP_ACT_TRACE",
        Allow = "SCMP_ACT_ALLOW",
        /// The call runs and is logged (4.14).
        Log = "SCMP_ACT_LOG",
        /// The process at the other end of the listener decides (5.0).
        Notify = "SCMP_ACT_NOTIFY",
    }
}

words! {
    /// The comparison of an unsigned argument.
    pub enum Operator {
        NotEqual = "SCMP_CMP_NE",
        LessThan = "SCMP_CMP_LT",
        LessEqual = "SCMP_CMP_LE",
        Equal = "SCMP_CMP_EQ",
        GreaterEqual = "SCMP_CMP_GE",
        GreaterThan = "SCMP_CMP_GT",
        /// `value` masks the bits, which are compared with `valueTwo`.
        MaskedEqual = "SCMP_CMP_MASKED_EQ",
    }
}

words! {
    /// A flag of seccomp(2).
    pub enum Flag {
        /// For all threads of the process (3.17).
        Tsync = "SECCOMP_FILTER_FLAG_TSYNC",
        /// Logs every action but `SCMP_ACT_ALLOW` (4.14).
        Log = "SECCOMP_FILTER_FLAG_LOG",
        /// No mitigation of speculative store bypass because of the filter (4.17).
        SpecAllow = "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
        /// A call that waits for the listener's answer can only be killed, not interrupted (5.19).
        WaitKillableRecv = "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
    }
}

words! {
    /// A system-call ABI.
    pub enum Arch {
        X86 = "SCMP_ARCH_X86",
        X86_64 = "SCMP_ARCH_X86_64",
        /// x86-64 with pointers of 32 bits.
        X32 = "SCMP_ARCH_X32",
        /// ARM EABI.
        Arm = "SCMP_ARCH_ARM",
        Aarch64 = "SCMP_ARCH_AARCH64",
        /// MIPS o32, big endian.
        Mips = "SCMP_ARCH_MIPS",
        /// MIPS n64, big endian.
        Mips64 = "SCMP_ARCH_MIPS64",
        /// MIPS n32, big endian.
        Mips64N32 = "SCMP_ARCH_MIPS64N32",
        /// MIPS o32, little endian.
        Mipsel = "SCMP_ARCH_MIPSEL",
        /// MIPS n64, little endian.
        Mipsel64 = "SCMP_ARCH_MIPSEL64",
        /// MIPS n32, little endian.
        Mipsel64N32 = "SCMP_ARCH_MIPSEL64N32",
        Ppc = "SCMP_ARCH_PPC",
        /// PowerPC of 64 bits, big endian.
        Ppc64 = "SCMP_ARCH_PPC64",
        /// PowerPC of 64 bits, little endian.
        Ppc64le = "SCMP_ARCH_PPC64LE",
        /// s390 of 31 bits.
        S390 = "SCMP_ARCH_S390",
        S390x = "SCMP_ARCH_S390X",
        Parisc = "SCMP_ARCH_PARISC",
        Parisc64 = "SCMP_ARCH_PARISC64",
        Riscv64 = "SCMP_ARCH_RISCV64",
        Loongarch64 = "SCMP_ARCH_LOONGARCH64",
        /// Motorola 68000.
        M68k = "SCMP_ARCH_M68K",
        /// SuperH, little endian.
        Sh = "SCMP_ARCH_SH",
        /// SuperH, big endian.
        Sheb = "SCMP_ARCH_SHEB",
    }
}

/// `linux.seccomp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    /// The result of a call without a rule.
    pub default_action: Action,
    /// The error number of `default_action`, if it takes one. EPERM if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    /// Besides the machine's own ABI. Calls through any other end the thread.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<Arch>,
    /// Flags of seccomp(2). Absent differs from empty: see `crate::seccomp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<Vec<Flag>>,
    /// The unix socket for the listener of `SCMP_ACT_NOTIFY`.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub listener_path: String,
    /// The listening agent gets it unchanged.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub listener_metadata: String,
    /// The rules.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub syscalls: Vec<Rule>,
}

/// The result of these calls with such arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// An ABI ignores a name that it does not have.
    #[serde(deserialize_with = "nullable")]
    pub names: Vec<String>,
    /// The result.
    pub action: Action,
    /// The error number of `action`, if it takes one. EPERM if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    /// All must hold. Of two about one argument, one is enough.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Condition>,
}

/// A condition on one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// 0 to 5.
    pub index: u32,
    /// The value to compare with; the mask of `SCMP_CMP_MASKED_EQ`.
    pub value: u64,
    /// The other side of `SCMP_CMP_MASKED_EQ`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub value_two: u64,
    /// The comparison.
    pub op: Operator,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Seccomp, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_null_and_empty_flags_are_told_apart() {
        let flags = |text: &str| parse(text).unwrap().flags;
        assert_eq!(flags(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#), None);
        assert_eq!(flags(r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":null}"#), None);
        assert_eq!(flags(r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":[]}"#), Some(vec![]));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X32"],"flags":["SECCOMP_FILTER_FLAG_LOG"],"listenerPath":"/run/l","listenerMetadata":"m","syscalls":[{"names":["read"],"action":"SCMP_ACT_TRACE","errnoRet":3,"args":[{"index":1,"value":18446744073709551615,"valueTwo":7,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#;
        assert_eq!(serde_json::to_string(&parse(text).unwrap()).unwrap(), text);
    }

    #[test]
    fn unknown_fields_and_nulls_are_no_fault() {
        let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","x":1,"architectures":null,"listenerPath":null,
            "syscalls":[{"names":["read"],"action":"SCMP_ACT_LOG","args":null,"comment":"","errnoRet":null}]}"#;
        assert_eq!(parse(text).unwrap().syscalls[0].args, []);
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (text, word) in [
            (r#"{"defaultAction":"SCMP_ACT_MAYBE"}"#, "SCMP_ACT_MAYBE"),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["VAX"]}"#, "VAX"),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":["FAST"]}"#, "FAST"),
            (r#"{"defaultAction":"SCMP_ACT_ALLOW","defaultErrnoRet":-1}"#, "-1"),
            (
                r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_KILL","args":[{"index":0,"value":0,"op":"ABOUT"}]}]}"#,
                "ABOUT",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
