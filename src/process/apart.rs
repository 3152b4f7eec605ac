//! Work in a child, whose memory never becomes part of the sandbox: init is a copy of this process.

use super::identity;
use crate::error::{Context, Error, Kind, Result, wire};
use crate::sys::clone::{Side, clone_process, exit, is_over, wait};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{Read, Write};

/// The first byte of an answer.
const DONE: u8 = b'+';
const FAILED: u8 = b'-';

pub(crate) fn apart(work: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let step = || "run work in a child process";
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step)?;
    match clone_process(0, None).failing(Kind::Internal, step)? {
        Side::Child => {
            drop(ours);
            // As in `init::run`.
            std::panic::set_hook(Box::new(|_| exit(1)));
            exit(i32::from(answer(theirs, work).is_err()))
        }
        Side::Parent(_, pidfd) => {
            drop(theirs);
            let mut bytes = Vec::new();
            let read = File::from(ours).read_to_end(&mut bytes);
            wait_for(&pidfd)?;
            read.failing(Kind::Internal, step)?;
            match bytes.split_first() {
                Some((&DONE, rest)) => Ok(rest.to_vec()),
                Some((&FAILED, rest)) => Err(wire::from_bytes(rest)),
                _ => Err(Error::new(Kind::Internal, "it ended without an answer").doing(step())),
            }
        }
    }
}

fn answer(to: OwnedFd, work: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
    let done = identity::die_with_parent().and_then(|()| identity::be_undumpable()).and_then(|()| work());
    let (tag, bytes) = match done {
        Ok(bytes) => (DONE, bytes),
        Err(error) => (FAILED, wire::to_bytes(&error)),
    };
    let mut to = File::from(to);
    to.write_all(&[tag]).and_then(|()| to.write_all(&bytes)).failing(Kind::Internal, || "answer the parent")
}

fn wait_for(pidfd: &OwnedFd) -> Result<()> {
    wait(pidfd.as_fd()).failing(Kind::Internal, || "wait for a child process").map(drop)
}

/// Work in a child that runs beside its parent, without a wait.
#[derive(Debug)]
pub(crate) struct Aside(OwnedFd);

impl Aside {
    /// It ends with its parent.
    pub(crate) fn begin(work: impl FnOnce() -> Result<()>) -> Result<Aside> {
        match clone_process(0, None).failing(Kind::Internal, || "start a process beside this one")? {
            Side::Child => {
                // As in `init::run`.
                std::panic::set_hook(Box::new(|_| exit(1)));
                let done = identity::die_with_parent().and_then(|()| identity::be_undumpable()).and_then(|()| work());
                exit(i32::from(done.is_err()))
            }
            Side::Parent(_, pidfd) => Ok(Aside(pidfd)),
        }
    }

    /// `true` also reaps it.
    pub(crate) fn is_over(&self) -> bool {
        is_over(self.0.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_and_error_come_back_whole() {
        // The child allocates: another thread of the tests could hold the allocator's lock for ever.
        if !crate::sys::is_alone("process::apart::tests::result_and_error_come_back_whole") {
            return;
        }
        assert_eq!(apart(|| Ok(vec![7; 200_000])).unwrap(), vec![7; 200_000]);
        let error = apart(|| Err(Error::new(Kind::Secret, "no value").hint("set it"))).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str(), error.advice()),
            (Kind::Secret, "no value", Some("set it"))
        );
    }
}
