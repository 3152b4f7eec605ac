//! `start`: opens the gate of a created container and waits until its program runs.

use super::create::{Created, unable};
use super::id::ContainerId;
use super::record::{Place, REPORT, Record};
use super::{Containers, Notify, delete, signal};
use crate::error::{Context, Error, Kind, Result, wire};
use crate::hooks;
use crate::spec::config::Hooks;
use crate::spec::state::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io::Read;
use std::time::Duration;

/// How long a process that ends is waited for: its memory may be large.
const END: Duration = Duration::from_secs(10);

impl Containers {
    /// Starts a created container.
    pub fn start(&self, id: &ContainerId) -> Result<()> {
        let place = Place::find(&self.root, id)?;
        let record = place.read()?;
        match record.status(&place.path) {
            Status::Created => {}
            Status::Stopped => return Err(refuse("cannot start a container that has stopped")),
            Status::Running => return Err(refuse("cannot start an already running container")),
            other => return Err(refuse(&format!("cannot start a container in the {} state", other.word()))),
        }
        let notify = Notify::listen(&place)?;
        let process = notify.as_ref().map(|_| signal::hold(&record)).transpose()?.flatten();
        let hooks = place.late_hooks(&record)?;
        open_gate(&place, &record)?;
        poststart(&hooks, &record)?;
        if let (Some(notify), Some(process)) = (notify, process) {
            notify.pass_on(&process, record.pid)?;
        }
        Ok(())
    }
}

impl Created {
    /// Starts it. What comes back is to be passed on, if somebody waits for the program to be ready.
    pub fn start(&self) -> Result<Option<Notify>> {
        let notify = Notify::listen(&self.place)?;
        open_gate(&self.place, &self.record)?;
        poststart(&self.config.hooks, &self.record)?;
        Ok(notify)
    }

    /// Removes what was created, if its command could not be started after all.
    pub fn discard(self) {
        // The error that led here is the one that is reported. Meanwhile somebody else may have removed it.
        if self.place.hold().is_ok() && !self.place.is_removed() {
            let _ = delete::destroy(&self.place, &self.record);
        }
    }
}

fn refuse(words: &str) -> Error {
    Error::new(Kind::State, words)
}

/// Lets init go on, and waits until its program has taken over or it has said why not. From here on nobody else can start it, and so the lock is given
/// up: how long the rest takes is for the container to decide, and for hooks, which may ask us about it.
fn open_gate(place: &Place, record: &Record) -> Result<()> {
    let fifo = place.fifo();
    let step = || "open the container's gate";
    let gate = match rustix::fs::open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        // Nobody holds the other end: init is gone.
        Err(Errno::NXIO) => return Err(refuse("container process is already dead")),
        other => other.failing(Kind::State, step)?,
    };
    // While the name is ours to take away: later it may be that of another container.
    let report = place.path.join(REPORT);
    let mut words = std::fs::File::open(&report).failing(Kind::State, || format!("open `{}`", report.display()))?;
    rustix::io::write(&gate, b"s").failing(Kind::State, step)?;
    rustix::fs::unlink(&fifo).failing(Kind::State, step)?;
    rustix::fs::unlink(&report).failing(Kind::State, || format!("remove `{}`", report.display()))?;
    place.release()?;
    // When init's end is closed, by execve or because init has ended, the pipe has no reader any more.
    loop {
        match poll(&mut [PollFd::new(&gate, PollFlags::empty())], None) {
            Err(Errno::INTR) => {}
            other => {
                other.failing(Kind::State, step)?;
                break;
            }
        };
    }
    let mut said = Vec::new();
    words.read_to_end(&mut said).failing(Kind::State, || format!("read `{}`", report.display()))?;
    if said.is_empty() {
        return Ok(());
    }
    await_end(record);
    Err(unable(wire::from_bytes(&said)))
}

/// Waits until the first process, which is ending, has ended. Engines delete the container at once after an error, and ask for its state before.
fn await_end(record: &Record) {
    let Ok(Some(process)) = signal::hold(record) else { return };
    let wait = Timespec { tv_sec: END.as_secs() as i64, tv_nsec: 0 };
    // A failed wait changes nothing: the error of the start is what counts.
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait));
}

/// The hooks of this moment. If one fails, so does `start`, and the container ends (runtime-spec 1.3; runc only warned).
fn poststart(hooks: &Hooks, record: &Record) -> Result<()> {
    hooks::run("poststart", &hooks.poststart, &record.state(Status::Running)).inspect_err(|_| {
        // The hook's failure is what is reported; what still runs is removed by `delete`.
        let _ = signal::send(record, Signal::KILL);
        await_end(record);
    })
}
