//! The running calls: their number is bounded, and each can be cancelled.

use crate::error::{Context, Error, Kind, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
