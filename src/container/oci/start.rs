//! `start`: opens the gate of a created container and waits until its program runs.

use super::create::{Created, unable};
use super::id::ContainerId;
use super::record::{Place, REPORT, Record};
use super::{Containers, Notify, delete, signal};
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::is_ready_by;
use crate::hooks;
use crate::spec::config::Hooks;
use crate::spec::state::Status;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Signal;
use std::io::Read;
use std::time::{Duration, Instant};

/// For the end of a process, whose memory may be large.
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
    /// Returns the notifier if a service manager waits for the program to be ready.
    pub fn start(&self) -> Result<Option<Notify>> {
        let notify = Notify::listen(&self.place)?;
        open_gate(&self.place, &self.record)?;
        poststart(&self.config.hooks, &self.record)?;
        Ok(notify)
    }

    /// Removes the container if its command could not be started.
    pub fn discard(self) {
        // The caller reports the first error. Another command may have removed the container.
        if self.place.hold().is_ok() && !self.place.is_removed() {
            let _ = delete::destroy(&self.place, &self.record, true);
        }
    }
}

fn refuse(words: &str) -> Error {
    Error::new(Kind::State, words)
}

/// Waits until init's program runs or init reports an error. After the gate no other command can start the container,
/// so the lock is released. The container and its hooks, which may call the runtime, decide how long the rest takes.
fn open_gate(place: &Place, record: &Record) -> Result<()> {
    let fifo = place.fifo();
    let step = || "open the container's gate";
    let gate = match rustix::fs::open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        // Init has ended.
        Err(Errno::NXIO) => return Err(refuse("container process is already dead")),
        other => other.failing(Kind::State, step)?,
    };
    // Before another container can have this name.
    let report = place.path.join(REPORT);
    let mut words = std::fs::File::open(&report).failing(Kind::State, || format!("open `{}`", report.display()))?;
    rustix::io::write(&gate, b"s").failing(Kind::State, step)?;
    rustix::fs::unlink(&fifo).failing(Kind::State, step)?;
    rustix::fs::unlink(&report).failing(Kind::State, || format!("remove `{}`", report.display()))?;
    place.release()?;
    // When init's end is closed, by execve or by its end, the pipe has no reader.
    retry_on_intr(|| poll(&mut [PollFd::new(&gate, PollFlags::empty())], None)).failing(Kind::State, step)?;
    let mut said = Vec::new();
    words.read_to_end(&mut said).failing(Kind::State, || format!("read `{}`", report.display()))?;
    if said.is_empty() {
        return Ok(());
    }
    await_end(record);
    Err(unable(wire::from_bytes(&said)))
}

/// Engines read the state and delete the container at once after an error.
fn await_end(record: &Record) {
    let Ok(Some(process)) = signal::hold(record) else { return };
    // The error of the start counts.
    let _ = is_ready_by(&process, PollFlags::IN, Instant::now() + END);
}

/// If one fails, so does `start`, and the container ends (runtime-spec 1.3; runc only warned).
fn poststart(hooks: &Hooks, record: &Record) -> Result<()> {
    hooks::run("poststart", &hooks.poststart, &record.state(Status::Running)).inspect_err(|_| {
        // `delete` removes what still runs.
        let _ = signal::send(record, Signal::KILL);
        await_end(record);
    })
}
