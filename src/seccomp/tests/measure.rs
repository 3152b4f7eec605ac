//! Not a test: `cargo test --release --features oracle -- --ignored --nocapture measure`.

use super::attacks::call;
use super::oracle::libseccomp;
use super::samples::docker;
use crate::seccomp::{Program, compile, install, profile};
use crate::spec::seccomp::Seccomp;
use crate::sys::seccomp::{Instruction, SPEC_ALLOW};
use libseccomp::ScmpArch;
use std::time::Instant;

/// Least and middle, in microseconds.
fn times(runs: usize, mut work: impl FnMut() -> f64) -> String {
    let mut times: Vec<f64> = (0..runs).map(|_| work()).collect();
    times.sort_by(f64::total_cmp);
    format!("{:>8.1} / {:>8.1}", times[0], times[runs / 2])
}

fn took(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

/// A thread each: filters add up.
fn load(program: &Program) -> f64 {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            took(|| drop(install(program).unwrap()))
        });
        thread.join().unwrap()
    })
}

/// Nanoseconds of an allowed and of a refused call.
fn calls(program: &Program) -> (f64, f64) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            install(program).unwrap();
            let each = |name| {
                let one = || took(|| (0..1000).for_each(|_| assert_ne!(call(name, [0; 6]), Ok(0))));
                (0..50).map(|_| one()).fold(f64::MAX, f64::min)
            };
            (each("getppid"), each("setns"))
        });
        thread.join().unwrap()
    })
}

fn report(name: &str, compiled: &str, program: &Program) {
    let loaded = times(100, || load(program));
    let (allowed, refused) = calls(program);
    eprintln!(
        "{name:<38} {:>5} instructions, made in {compiled}, loaded in {loaded} us; {allowed:.0} / {refused:.0} ns a call",
        program.len()
    );
}

fn loose(instructions: Vec<Instruction>) -> Program {
    Program {
        instructions,
        flags: 0,
        optional_flags: SPEC_ALLOW,
        listens: false,
        reports: false,
        unknown: Vec::new(),
        beneath: None,
    }
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let one = Seccomp { architectures: vec![], ..docker() };
    for (name, spec) in
        [("agent", profile::agent_spec()), ("Docker's, x86-64", one), ("Docker's, three ABIs", docker())]
    {
        let program = compile(&spec).unwrap();
        let cold = took(|| drop(compile(&spec).unwrap()));
        let compiled = times(500, || took(|| drop(compile(&spec).unwrap())));
        report(name, &format!("{compiled} ({cold:.0} before)"), &program);
        let archs = if spec.architectures.is_empty() {
            vec![ScmpArch::X8664]
        } else {
            vec![ScmpArch::X8664, ScmpArch::X86, ScmpArch::X32]
        };
        let theirs = loose(libseccomp(&spec, &archs, false).unwrap());
        let compiled = times(30, || took(|| drop(libseccomp(&spec, &archs, false))));
        report("  libseccomp", &compiled, &theirs);
    }
    let text = serde_json::to_string(&docker()).unwrap();
    let parsed = times(500, || took(|| drop(serde_json::from_str::<Seccomp>(&text).unwrap())));
    let made = times(500, || took(|| drop(profile::agent_spec())));
    eprintln!("Docker's from JSON ({} bytes) {parsed} us, the agent's from its table {made} us", text.len());
}
