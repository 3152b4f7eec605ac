//! What the supervisor does for the clients of the control socket.

use super::checkpoint::{checkpoints, new_checkpoint};
use super::control::{ClientMessage, Connected, Control, Exec, Job, Reply, Request, Session, Slot};
use super::job_limits::JobLimits;
use super::limits::Limits;
use super::outcome::Stopped;
use super::streams::Notice;
use super::supervise::{Findings, State, Watch};
use crate::egress::Rule;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files;
use rustix::process::Signal;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

impl Watch<'_> {
    pub(super) fn serve(&mut self, slot: Slot, state: &mut State, seen: &mut Findings) {
        match slot {
            Slot::Listener => {
                if let Some(control) = &mut self.control {
                    control.accept();
                }
            }
            Slot::CallerEnd => {
                if let Some(control) = &mut self.control {
                    control.forget_caller();
                }
                if let Err(error) = self.ask(self.wish(), state, seen) {
                    seen.failure.get_or_insert(error);
                }
            }
            Slot::Client(index) => self.receive_from_client(index, state, seen),
            Slot::Start(index) => {
                self.with(index, |client| {
                    if let Some(session) = &mut client.session {
                        client.gone |= session.pass_message(&client.peer, &mut seen.refusals).is_err();
                    }
                });
                let Some(control) = self.control.as_mut() else { return };
                if let Some(job) = control.promote(index, &mut |job, event| self.sink.job(job, event)) {
                    self.with(index, |client| client.answer(&Reply::Job(job)));
                }
            }
            Slot::JobOutput(index, stream) => {
                let Some(control) = self.control.as_mut() else { return };
                if control.read_job(index, stream, &mut |job, event| self.sink.job(job, event)) {
                    state.last_output = Instant::now();
                }
            }
            Slot::JobEnd(index) => {
                if let Some(control) = self.control.as_mut() {
                    control.note_job_end(index);
                }
            }
            Slot::End(index) => self.with(index, |client| {
                if let Some(session) = &mut client.session {
                    client.gone |= session.report_end(&client.peer).is_err();
                }
            }),
        }
    }

    /// Called after all ready ones were served: clients' indexes change.
    pub(super) fn forget(&mut self) {
        if let Some(control) = &mut self.control {
            control.forget();
        }
    }

    pub(super) fn check_jobs(&mut self, now: Instant, is_ending: bool) {
        if let Some(control) = self.control.as_mut() {
            control.check_jobs(now, is_ending, &mut |job, event| self.sink.job(job, event));
        }
    }

    pub(super) fn report_jobs(&mut self) {
        if let Some(control) = self.control.as_mut() {
            control.report_jobs(&mut |job, event| self.sink.job(job, event));
        }
    }

    fn with(&mut self, index: usize, act: impl FnOnce(&mut Connected)) {
        if let Some(client) = self.control.as_mut().and_then(|control| control.clients.get_mut(index)) {
            act(client);
        }
    }

    fn receive_from_client(&mut self, index: usize, state: &mut State, seen: &mut Findings) {
        let mut heard = Ok(None);
        self.with(index, |client| heard = client.peer.receive());
        match heard {
            Ok(None) => self.with(index, |client| client.gone = true),
            Ok(Some(ClientMessage::Input(bytes))) => {
                let mut is_attached = false;
                self.with(index, |client| is_attached = client.is_attached);
                if is_attached {
                    self.streams.feed(&bytes);
                }
            }
            Ok(Some(ClientMessage::Request(request))) => {
                self.with(index, |client| client.silent_since = None);
                match self.carry_out(index, request, state, seen) {
                    Ok(None) => {}
                    Ok(Some(reply)) => self.with(index, |client| client.answer(&reply)),
                    Err(error) => self.with(index, |client| client.answer(&Reply::Failed(error))),
                }
            }
            // EAGAIN: nothing to read, not an error. An invalid message gets an answer.
            Err(error) if error.errno() == Some(libc::EAGAIN) => {}
            Err(error) => self.with(index, |client| {
                client.answer(&Reply::Failed(error));
                client.gone = true;
            }),
        }
    }

    /// `None` where the answer comes later.
    fn carry_out(
        &mut self,
        index: usize,
        request: Request,
        state: &mut State,
        seen: &mut Findings,
    ) -> Result<Option<Reply>> {
        match request {
            Request::Version => return Ok(Some(Reply::version())),
            Request::Stop { grace, drain } => self.stop(grace, drain, state, seen)?,
            Request::Kill { signal } => self.pass_signal(signal, index, state, seen)?,
            Request::StopJob { job, grace } => {
                let (signal, grace) = (self.stop_signal, grace.unwrap_or(self.grace));
                self.job(job)?.stop(signal, grace)?;
            }
            Request::KillJob { job, signal } => self.job(job)?.kill(named(signal)?)?,
            Request::Pause => self.pause(state)?,
            Request::Unpause => self.unpause(state)?,
            Request::Checkpoint { name } => return self.checkpoint(name, state).map(Some),
            Request::Reach { rule, allow } => self.running.change_egress(&Rule::parse(&rule)?, allow)?,
            Request::Active => {
                state.last_output = Instant::now();
                return Ok(None);
            }
            Request::Stats => return Ok(Some(Reply::Stats(Box::new(self.measure(state)?)))),
            Request::Processes => return Ok(Some(Reply::Processes(self.running.processes()?))),
            Request::Resize { rows, columns } => self.resize_to(rows, columns),
            Request::Environment => return Ok(Some(Reply::Environment(self.running.environment().to_vec()))),
            Request::Values => {
                let memory = values(&self.sink.values())?;
                self.with(index, |client| {
                    client.gone |= client.peer.reply(&Reply::Values, Some(memory.as_fd())).is_err()
                });
                return Ok(None);
            }
            Request::Attach => {
                let reply = Reply::Attached { terminal: self.streams.is_terminal(), input: self.streams.takes_input() };
                self.with(index, |client| client.is_attached = true);
                return Ok(Some(reply));
            }
            Request::Release => self
                .control
                .as_mut()
                .ok_or_else(|| Error::new(Kind::Internal, "a request without a socket"))?
                .release(index)?,
            Request::Exec(exec) => return self.exec(index, exec, JobLimits::default(), state),
            Request::LimitedJob { exec, limits } => return self.exec(index, exec, limits, state),
        }
        Ok(Some(Reply::Done))
    }

    fn exec(&mut self, index: usize, exec: Exec, limits: JobLimits, state: &mut State) -> Result<Option<Reply>> {
        if state.paused.is_some() {
            return Err(Error::new(Kind::State, "the sandbox is paused").hint("let it go on: brig task unpause ID"));
        }
        if !exec.errand {
            check_open(state)?; // files may be copied during a drain
        }
        if !limits.is_empty() && !exec.is_job {
            return Err(Error::new(Kind::Usage, "only a job has separate limits").hint("run it with --detach"));
        }
        limits.check(self.limits)?;
        if let Some(control) = &self.control {
            if exec.is_job { control.has_room_for_job() } else { control.has_room_for_session() }?;
        }
        state.last_output = Instant::now();
        let words = exec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        self.sink.notice(Notice::Exec(words))?;
        let (running, mut started) = (&*self.running, Ok(()));
        if let Some(client) = self.control.as_mut().and_then(|control| control.clients.get_mut(index)) {
            if client.session.is_some() {
                return Err(Error::new(Kind::Usage, "one process for each connection"));
            }
            started = Session::start(running, exec, limits, &client.peer).map(|(session, sent)| {
                client.session = Some(session);
                client.gone |= sent.is_err();
            });
        }
        started?;
        Ok(None)
    }

    fn job(&mut self, id: u32) -> Result<&mut Job> {
        let control = self.control.as_mut().ok_or_else(|| Error::new(Kind::Internal, "a request without a socket"))?;
        control.job(id)
    }

    /// Signals this client's process, else the command. SIGKILL ends the whole sandbox.
    fn pass_signal(&mut self, number: i32, index: usize, state: &mut State, seen: &mut Findings) -> Result<()> {
        let signal = named(number)?;
        let clients = self.control.as_ref().map(|control| control.clients.as_slice()).unwrap_or_default();
        if let Some(session) = clients.get(index).and_then(|client| client.session.as_ref()) {
            return session.signal(signal);
        }
        match signal {
            Signal::KILL => {
                self.unpause(state)?;
                match seen.ended {
                    Some(_) => self.running.kill(),
                    None => self.kill(Stopped::Cancelled, seen),
                }
            }
            // From outside they would stop pid 1, while the command goes on.
            Signal::STOP | Signal::CONT => {
                Err(Error::new(Kind::Usage, "a sandbox is paused, and not stopped by a signal")
                    .hint("brig task pause ID, brig task unpause ID"))
            }
            other => self.running.signal(other),
        }
    }

    /// A paused sandbox stays paused.
    fn checkpoint(&mut self, name: Option<String>, state: &mut State) -> Result<Reply> {
        let Some(image) = self.disk_file.map(Path::to_owned) else {
            return Err(Error::new(Kind::State, "its files end with it, and cannot be copied")
                .hint("run the task with --keep or --keep-on-failure"));
        };
        let used = self.running.used_bytes(self.is_on_disk.then_some(&*image))?;
        let (path, name) = new_checkpoint(image.parent().unwrap_or(Path::new(".")), name, used, self.disk_bytes)?;
        let directory = path.parent().unwrap_or(&image).to_owned();
        let was_paused = state.paused.is_some();
        self.pause(state)?;
        let copied = match self.is_on_disk {
            true => self.running.copy_disk(&image, &directory),
            false => self.running.pack_files(&directory),
        };
        if !was_paused {
            self.unpause(state)?;
        }
        copied.and_then(|copy| copy.keep(&path)).doing(|| format!("make the checkpoint `{name}`"))?;
        let found = checkpoints(image.parent().unwrap_or(&image))?.into_iter().find(|each| each.name == name);
        found.map(Reply::Checkpoint).ok_or_else(|| Error::new(Kind::State, "it was removed meanwhile"))
    }

    /// Paused time does not count as idle.
    fn pause(&mut self, state: &mut State) -> Result<()> {
        if state.paused.is_none() {
            self.running.freeze()?;
            state.paused = Some(Instant::now());
        }
        Ok(())
    }

    pub(super) fn unpause(&mut self, state: &mut State) -> Result<()> {
        if let Some(since) = state.paused {
            self.running.thaw()?;
            state.paused = None;
            let pause = since.elapsed();
            // What a client does during the pause is credited once.
            state.last_output = (state.last_output + pause).min(Instant::now());
            if let Some(monitor) = &mut self.health {
                monitor.add_pause(pause);
            }
        }
        Ok(())
    }

    pub(super) fn resize(&self) {
        if let (Some(master), Ok(size)) = (self.streams.master(), rustix::termios::tcgetwinsize(rustix::stdio::stdin()))
        {
            // A wrong size of a terminal is harmless.
            let _ = rustix::termios::tcsetwinsize(master, size);
        }
    }

    fn resize_to(&self, rows: u16, columns: u16) {
        if let Some(master) = self.streams.master() {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // Harmless, as above.
            let _ = rustix::termios::tcsetwinsize(master, size).failing(Kind::Internal, || "resize");
        }
    }
}

fn named(signal: i32) -> Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| Error::new(Kind::Usage, format!("{signal} is not a named signal")))
}

fn values(values: &[(String, Vec<u8>)]) -> Result<OwnedFd> {
    let bytes = serde_json::to_vec(values).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    let memory = files::new_memory("values")?;
    files::write_memory(&memory, &bytes)?;
    Ok(memory)
}

// The drain of a sandbox: new processes are refused, and running ones may end.
impl Watch<'_> {
    pub(super) fn wish(&self) -> Stopped {
        if self.holds { Stopped::Wished } else { Stopped::Cancelled }
    }

    /// Ends the sandbox at once, or when what entered it has ended, after `limit` at the latest.
    pub(super) fn stop(
        &mut self,
        grace: Option<Duration>,
        limit: Option<Duration>,
        state: &mut State,
        seen: &mut Findings,
    ) -> Result<()> {
        if let Some(limit) = limit
            && seen.stopped.is_none()
        {
            let until = Instant::now().checked_add(limit).ok_or_else(|| {
                Error::new(Kind::Usage, "the time of the drain is too long").hint("give it like `--drain 5m`")
            })?;
            state.drain = Some((until, grace));
            return Ok(());
        }
        state.drain = None;
        self.ask(self.wish(), state, seen)?;
        if let Some(grace) = grace {
            state.kill_at = Some(Limits::end_of(grace));
        }
        Ok(())
    }

    pub(super) fn check_drain(&mut self, now: Instant, state: &mut State, seen: &mut Findings) -> Result<()> {
        let Some((until, grace)) = state.drain else { return Ok(()) };
        let running = self.control.as_deref().map(Control::running).unwrap_or_default();
        if !running.is_empty() && now < until {
            return Ok(());
        }
        seen.unfinished = running;
        self.stop(grace, None, state, seen)
    }
}

pub(super) fn check_open(state: &State) -> Result<()> {
    match state.drain {
        Some(_) => Err(Error::new(Kind::State, "the task is being drained and takes no new process")
            .hint("wait for its end: brig task wait ID")),
        None => Ok(()),
    }
}
