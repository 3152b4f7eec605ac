//! The running calls: their number is bounded, and each can be cancelled.

use crate::error::{Context, Error, Kind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Each call has a thread.
pub(super) const MAX_CALLS: usize = 16;
/// Further calls that end others.
pub(super) const MAX_STOPS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<(u64, HashMap<u64, Arc<Cancel>>)>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Arc<Cancel>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cancel_all(&self) {
        self.lock().1.values().for_each(|cancel| cancel.set());
    }
}

/// Its drop frees the place.
pub(super) struct Running {
    number: u64,
    pub cancel: Arc<Cancel>,
    calls: Arc<Calls>,
}

impl Running {
    /// `most`: calls at a time, with this one.
    pub(super) fn begin(calls: &Arc<Calls>, most: usize) -> Result<Running> {
        let cancel = Arc::new(Cancel::new()?);
        let mut running = calls.lock();
        if running.1.len() >= most {
            return Err(Error::new(Kind::State, format!("{most} calls run already"))
                .hint("wait until one of them has ended, or end their sandbox with sandbox_stop"));
        }
        running.0 += 1;
        let number = running.0;
        running.1.insert(number, Arc::clone(&cancel));
        drop(running);
        Ok(Running { number, cancel, calls: Arc::clone(calls) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.calls.lock().1.remove(&self.number);
    }
}

/// Wakes up a poll(2) for a call's process when the client cancels the call.
#[derive(Debug)]
pub(super) struct Cancel {
    is_set: AtomicBool,
    wakeup: OwnedFd,
}

impl Cancel {
    fn new() -> Result<Cancel> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wakeup = wakeup.failing(Kind::Internal, || "begin a call")?;
        Ok(Cancel { is_set: AtomicBool::new(false), wakeup })
    }

    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        // A full counter wakes up too.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.is_set() {
            false => Ok(()),
            true => Err(Error::new(Kind::State, "the call was cancelled").hint("call the tool again")),
        }
    }

    /// Runs a program to its end, and ends it and its children when the client cancels the call.
    pub(super) fn run(&self, command: &mut Command) -> std::io::Result<Output> {
        let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let error = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // After an error, return the bytes read so far.
            let _ = error.map(|mut error| error.read_to_end(&mut bytes));
            bytes
        });
        if let Some(output) = &child.stdout {
            // Readable at the program's end too.
            let mut waits = [PollFd::new(output, PollFlags::IN), PollFd::new(self, PollFlags::IN)];
            retry_on_intr(|| poll(&mut waits, None))?;
        }
        if self.is_set() {
            // It is not reaped: the number is its own. It may have ended.
            let _ = kill_process_group(Pid::from_child(&child), Signal::TERM);
        }
        let mut done = child.wait_with_output()?;
        done.stderr = reader.join().unwrap_or_default();
        Ok(done)
    }

    /// Makes the descriptor wait for the next [`Cancel::set`].
    pub(super) fn take_wakeup(&self) {
        // Without a wakeup there is nothing to take.
        let _ = rustix::io::read(&self.wakeup, &mut [0_u8; 8]);
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
