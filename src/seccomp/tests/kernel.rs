//! Installs programs in the kernel, each in a separate thread.

use super::attacks::call;
use super::emulator::{Data, run};
use super::samples::docker;
use super::samples::{condition, value};
use crate::error::Kind;
use crate::seccomp::abi::{NATIVE, abi};
use crate::seccomp::table::Call;
use crate::seccomp::{Program, compile, install};
use crate::spec::seccomp::{Action, Condition, Operator, Rule, Seccomp};
use crate::sys::seccomp::{LOG, NEW_LISTENER, SPEC_ALLOW, TSYNC, WAIT_KILLABLE_RECV, knows_action, knows_flags};
use proptest::prelude::*;
use rustix::io::Errno;

/// No kernel has it yet.
const UNKNOWN: u32 = 1 << 31;

fn program(text: &str) -> Program {
    compile(&serde_json::from_str::<Seccomp>(text).unwrap()).unwrap()
}

fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

fn getpriority(which: u64) -> Result<i64, Errno> {
    call("getpriority", [which, 0, 0, 0, 0, 0])
}

#[test]
fn a_filter_does_what_the_profile_says() {
    let program = program(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":["SECCOMP_FILTER_FLAG_LOG","SECCOMP_FILTER_FLAG_SPEC_ALLOW"],"syscalls":[
        {"names":["getpriority"],"action":"SCMP_ACT_ERRNO","errnoRet":77,"args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]},
        {"names":["sethostname"],"action":"SCMP_ACT_TRACE"}]}"#,
    );
    in_a_thread(|| {
        assert!(install(&program).unwrap().is_none());
        assert_eq!(getpriority(1), Err(Errno::from_raw_os_error(77)));
        // The kernel truncates the argument to 32 bits, the filter sees all 64.
        assert!(getpriority(1 << 32 | 1).is_ok() && getpriority(0).is_ok());
        assert_eq!(call("sethostname", [0; 6]), Err(Errno::NOSYS));
    });
    assert!(getpriority(1).is_ok(), "a filter belongs to its thread");
}

#[test]
fn dockers_profile_is_taken() {
    in_a_thread(|| {
        install(&compile(&docker()).unwrap()).unwrap();
        assert_eq!(call("unshare", [0; 6]), Err(Errno::PERM));
        assert_eq!(call("clone3", [0; 6]), Err(Errno::NOSYS));
    });
}

#[test]
fn a_notifying_filter_yields_its_listener() {
    let program = program(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/l","flags":["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"],
        "syscalls":[{"names":["getpriority"],"action":"SCMP_ACT_NOTIFY"}]}"#,
    );
    assert!(program.listens());
    in_a_thread(|| {
        let listener = install(&program).unwrap().unwrap();
        // The kernel allows one listener.
        let second = install(&program).unwrap_err();
        assert_eq!(second.errno(), Some(Errno::BUSY.raw_os_error()));
        drop(listener);
        assert_eq!(getpriority(0), Err(Errno::NOSYS), "the listener is closed");
    });
}

#[test]
fn a_flag_that_is_only_wished_is_left_out_where_it_is_unknown() {
    let plain = program(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":[],"syscalls":[{"names":["getpriority"],"action":"SCMP_ACT_ERRNO"}]}"#,
    );
    in_a_thread(|| {
        assert!(install(&Program { optional_flags: UNKNOWN, ..plain.clone() }).is_ok());
        assert_eq!(getpriority(0), Err(Errno::PERM));
    });
    in_a_thread(|| {
        let error = install(&Program { flags: UNKNOWN, ..plain.clone() }).unwrap_err();
        assert_eq!(error.to_string(), "install the system-call filter: Invalid argument (os error 22)");
        assert!(error.advice().is_some_and(|hint| hint.contains("flags")));
        assert!(getpriority(0).is_ok(), "nothing was installed");
    });
}

#[test]
fn without_the_right_the_error_says_which() {
    let program = program(r#"{"defaultAction":"SCMP_ACT_LOG"}"#);
    let error = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            caps::clear(None, caps::CapSet::Effective).unwrap();
            install(&program).unwrap_err()
        });
        thread.join().unwrap()
    });
    assert_eq!((error.kind(), error.errno()), (Kind::Seccomp, Some(Errno::ACCESS.raw_os_error())));
    assert!(error.advice().is_some_and(|hint| hint.contains("noNewPrivileges")));
}

#[test]
fn the_kernel_tells_what_it_knows() {
    assert!(knows_action(0x7fff_0000) && knows_action(0x8000_0000) && !knows_action(0x1234_0000));
    assert!(knows_flags(TSYNC | LOG | SPEC_ALLOW) && knows_flags(WAIT_KILLABLE_RECV | NEW_LISTENER));
    assert!(!knows_flags(UNKNOWN) && !knows_flags(WAIT_KILLABLE_RECV));
}

/// Each rule has another error number, which the kernel does not use.
fn rules() -> impl Strategy<Value = Seccomp> {
    let near = (0u32..2, 0u64..4, 0u64..4, proptest::sample::select(Operator::ALL))
        .prop_map(|(index, value, value_two, op)| Condition { index, value, value_two, op });
    let args = proptest::collection::vec(prop_oneof![condition(), near], 0..4);
    proptest::collection::vec(args, 1..6).prop_map(|rules| Seccomp {
        default_action: Action::Allow,
        default_errno_ret: None,
        architectures: vec![],
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: (1000..)
            .zip(rules)
            .map(|(errno, args)| Rule {
                names: vec!["getpriority".to_string()],
                action: Action::Errno,
                errno_ret: Some(errno),
                args,
            })
            .collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_runs_a_program_as_the_emulator_does(
        rules in rules(),
        calls in proptest::collection::vec(proptest::array::uniform6(prop_oneof![value(), 0u64..4]), 32),
    ) {
        let program = compile(&rules).unwrap();
        let abi = NATIVE.and_then(abi).unwrap();
        let number = Call::named("getpriority").unwrap().number(abi.column).unwrap();
        let wrong = in_a_thread(|| {
            install(&program).unwrap();
            calls.iter().find(|arguments| {
                let data = Data { big_endian: abi.big_endian, number, arch: abi.audit, pointer: 0, arguments: **arguments };
                let expected = match run(&program.instructions, &data) {
                    0x7fff_0000 => None,
                    errno => Some(errno & 0xffff),
                };
                let got = call("getpriority", **arguments).err().map(|errno| errno.raw_os_error() as u32);
                got.filter(|errno| *errno >= 1000) != expected
            })
        });
        prop_assert!(wrong.is_none(), "{wrong:x?} of {}", serde_json::to_string(&rules).unwrap());
    }
}
