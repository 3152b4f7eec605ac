//! A process that outlives its caller and the caller's terminal.

use crate::error::{Context, Error, Kind, Result, wire};
use crate::files;
use crate::sys::clone::{Side, clone_process, close_from, exit};
use rustix::fs::{Mode, OFlags};
use rustix::process::{chdir, setsid};
use std::os::fd::{AsFd, BorrowedFd};

/// Sends the first report of a background process to its starter.
#[derive(Debug)]
pub(crate) struct Starter(Option<files::Channel>);

impl Starter {
    /// Only the first call has an effect.
    pub(crate) fn began(&mut self, words: &str) {
        if let Some(channel) = self.0.take() {
            // The starter may have ended.
            let _ = channel.send(&[b"B", words.as_bytes()].concat(), None);
        }
    }

    fn failed(&mut self, error: &Error) {
        if let Some(channel) = self.0.take() {
            let _ = channel.send(&[b"F", wire::to_bytes(error).as_slice()].concat(), None);
        }
    }
}

/// Runs `work` in a new session and `/`, with only /dev/null and `kept` open. Returns its first report, or an earlier
/// error.
pub(crate) fn in_background(kept: &[BorrowedFd<'_>], work: impl FnOnce(&mut Starter) -> Result<()>) -> Result<String> {
    let step = || "start a process in the background";
    let (ours, theirs) = files::Channel::pair().failing(Kind::Internal, step)?;
    match clone_process(0, None).failing(Kind::Internal, step)? {
        Side::Parent(..) => {
            drop(theirs);
            let packet = ours.receive().failing(Kind::Lost, step)?;
            let bytes = packet.map(|packet| packet.bytes).unwrap_or_default();
            match bytes.split_first() {
                Some((b'B', words)) => Ok(String::from_utf8_lossy(words).into_owned()),
                Some((b'F', error)) => Err(wire::from_bytes(error)),
                _ => Err(Error::new(Kind::Lost, "it ended without a word").doing(step())),
            }
        }
        Side::Child => {
            let mut starter = Starter(Some(theirs));
            let done = alone(&starter, kept).and_then(|()| work(&mut starter));
            if let Err(error) = &done {
                starter.failed(error);
            }
            exit(i32::from(done.is_err()))
        }
    }
}

/// A reader of the caller's pipe then gets the end of file, and no file system stays in use.
fn alone(starter: &Starter, kept: &[BorrowedFd<'_>]) -> Result<()> {
    let step = || "leave the terminal";
    // They are children of the caller.
    crate::mounts::disk::forget_ahead();
    crate::mounts::disk::maker::forget();
    crate::ns::ahead::forget();
    setsid().failing(Kind::Internal, step)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.failing(Kind::Internal, step)?;
    rustix::stdio::dup2_stdin(&null).failing(Kind::Internal, step)?;
    rustix::stdio::dup2_stdout(&null).failing(Kind::Internal, step)?;
    rustix::stdio::dup2_stderr(&null).failing(Kind::Internal, step)?;
    std::mem::forget(null); // `close_from` closes it
    let kept: Vec<_> = starter.0.iter().map(AsFd::as_fd).chain(kept.iter().copied()).collect();
    close_from(3, &kept).failing(Kind::Internal, step)?;
    chdir("/").failing(Kind::Internal, step)
}
