//! The only `unsafe` code: thin wrappers for system calls that rustix and nix do not have, one call a function.
//! Borrowed descriptors in, owned ones out. No policy, no words: errors are bare `Errno`s, and callers say what they meant.

#![allow(unsafe_code, reason = "this is the one room for it; lib.rs denies it everywhere else")]

pub(crate) mod attributes;
pub(crate) mod batch;
pub(crate) mod bpf;
pub(crate) mod clone;
pub(crate) mod code;
pub(crate) mod environment;
mod errno;
pub(crate) mod exec;
pub(crate) mod heap;
pub(crate) mod keyring;
pub(crate) mod landlock;
pub(crate) mod loop_device;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod net;
pub(crate) mod probe;
pub(crate) mod seccomp;
pub(crate) mod share;
pub(crate) mod signal;
pub(crate) mod weaken;

/// Says that a test does not run here, past the capture of a test's output; `tests/run` compares these lines with the ones it expects.
#[cfg(test)]
pub(crate) fn skip(why: &str) {
    // A closed standard error is read by nothing.
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("SKIP {why}\n").as_bytes());
}
