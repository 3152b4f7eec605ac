//! One attempt, from a definition to its receipt.
//!
//! | phase | makes | undone by |
//! |---|---|---|
//! | check (`request`) | nothing | |
//! | begin | the task's lock and its name; where a phase takes long, its directory | drop, or the next command |
//! | `queue` | a ticket | drop of the turn |
//! | `prepare` | a checkout, the note of a kept disk, mounts of volumes | discard of the disk |
//! | `run` | the sandbox; with it the directory, if it is new | the supervision of the sandbox |
//! | `collect` (part of `run`) | changes, the result, artifacts | kept for the user |
//! | `fill` | a volume's new files | kept for the user |
//! | `bases` | copies of files that the user edited meanwhile | kept for the user |
//! | `hand_back` | a bundle, a pushed branch | kept for the user |
//! | finish | the receipt | |
//!
//! Each timed phase is a row of [`PHASES`] and of the receipt's steps. The undo of every phase that began runs, in
//! reverse order. The receipt is written whatever failed: without one, the next command reaps the task.

mod after;
mod collect;
mod prepare;
mod request;
mod sandbox;

use super::Watcher;
use super::log::write_end;
use super::queue::Turn;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::sandbox::{Control, Ledger, Outcome, Progress, Report, Starter, Workspace, in_background};
use crate::task::definition::Definition;
use crate::task::definition::naming::Naming;
use crate::task::ended::reconcile::{self, reap_at_start};
use crate::task::git::{Base, Budget, Head};
use crate::task::output::folder_snapshot::SnapshotInSteps;
use crate::task::records::event::Writer;
use crate::task::records::forward;
use crate::task::records::receipt::{AttemptRecord, Receipt, Timing};
use crate::task::records::record::Record;
use crate::task::secrets::TaskSecrets;
use crate::task::store::{Alive, Status, Store, json, new_id};
use crate::task::volumes::TaskVolumes;
use nix::sys::signal::{SigSet, Signal};
use request::Request;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// The store has the receipt as well. An error means that the request itself is wrong, and that nothing was made.
pub fn run(store: &Store, definition: &Definition, watcher: &mut dyn Watcher) -> Result<Receipt> {
    crate::process::require_one_thread()?;
    // The first descriptor: a shell can write to its number.
    let progress = Progress::open()?;
    let mut request = Request::check(store, definition)?;
    let mut held = TaskSecrets::read(&request.secrets)?;
    request.begin_disk_early();
    request.make_room()?;
    request.open_image(watcher)?;
    replace_holder(store, &request.definition.naming)?;
    let id = new_id()?;
    let alive = store.begin(&id)?;
    let mut record = request.record(&id, &held);
    record.name = claim(store, &request.definition.naming, &id)?;
    let mut attempt = Attempt::new(&request, &record, &mut held, progress);
    if request.definition.waits_before_its_sandbox()
        && let Err(error) = attempt.announce(watcher)
    {
        alive.leave();
        return Err(error);
    }
    let report = attempt.run_phases(watcher);
    attempt.finish(report, alive, watcher)
}

struct Phase {
    name: &'static str,
    applies: fn(&Attempt<'_>) -> bool,
    /// An error is the report of an attempt that ends here.
    work: fn(&mut Attempt<'_>, &mut dyn Watcher) -> Result<(), Box<Report>>,
    undo: fn(&mut Attempt<'_>, &Report) -> Result<()>,
}

const PHASES: [Phase; 6] = [
    Phase {
        name: "queue",
        applies: |attempt| attempt.request.definition.max_parallel.is_some(),
        work: |attempt, _| attempt.wait_for_turn(),
        undo: |attempt, _| attempt.release_turn(),
    },
    Phase {
        name: "prepare",
        applies: |_| true,
        work: |attempt, watcher| attempt.prepare(watcher),
        undo: |attempt, report| attempt.discard_disk(report),
    },
    Phase {
        name: "run",
        applies: |_| true,
        work: |attempt, watcher| attempt.run_sandbox(watcher),
        undo: |_, _| Ok(()), // `work` ends with the teardown of the sandbox
    },
    Phase {
        name: "fill",
        applies: |attempt| attempt.volumes.fill.is_some(),
        work: |attempt, _| attempt.replace_volume(),
        undo: |_, _| Ok(()), // an image without a name ends with the attempt
    },
    Phase {
        name: "bases",
        applies: |attempt| attempt.lacks_bases(),
        work: |attempt, _| attempt.restore_bases(),
        undo: |_, _| Ok(()),
    },
    Phase {
        name: "hand_back",
        applies: |attempt| attempt.has_commits(),
        work: |attempt, _| attempt.hand_back(),
        undo: |_, _| Ok(()),
    },
];

struct Attempt<'run> {
    request: &'run Request<'run>,
    record: &'run Record,
    held: &'run mut TaskSecrets,
    course: AttemptRecord,
    /// Rows of [`PHASES`].
    begun: usize,
    /// A user ends the task by this socket, once it is announced.
    control: RefCell<Option<Control>>,
    turn: Option<Turn>,
    workspace: Workspace,
    progress: Option<Progress>,
    /// Until the sandbox has them.
    volumes: TaskVolumes,
    report: Option<Report>,
    writer: Option<Writer>,
    base: Option<Base>,
    /// A folder's HEAD when the sandbox began.
    start: Option<Head>,
    /// Files of a folder at the start.
    snapshot: Option<SnapshotInSteps>,
    couriers: RefCell<Option<Ledger>>,
    /// Also notes whether a signal ended a courier.
    budget: Budget,
}

impl<'run> Attempt<'run> {
    fn new(
        request: &'run Request<'run>,
        record: &'run Record,
        held: &'run mut TaskSecrets,
        progress: Progress,
    ) -> Self {
        Attempt {
            request,
            record,
            held,
            course: AttemptRecord::default(),
            begun: 0,
            control: RefCell::default(),
            turn: None,
            workspace: Workspace::Empty,
            progress: Some(progress),
            volumes: TaskVolumes::default(),
            report: None,
            writer: None,
            base: None,
            start: None,
            snapshot: None,
            couriers: RefCell::default(),
            budget: Budget::new(&request.definition.sandbox.limits),
        }
    }

    /// Makes the task known: its record, its socket, its first event. Runs once.
    ///
    /// A task that waits for nothing is announced while init builds the sandbox, which takes longer. A supervisor that
    /// is killed before leaves a lock and cgroups of this id, which are reaped.
    fn announce(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        if self.control.get_mut().is_some() {
            return Ok(());
        }
        let (store, id) = (self.request.store, self.id());
        let directory = store.make(id)?;
        self.record.write(&directory).doing(|| format!("begin the task `{id}`"))?;
        let mut control = Control::open(&directory)?;
        control.end_with(self.request.definition.end_with.clone());
        self.control = RefCell::new(Some(control));
        watcher.began(id);
        Writer::create(&directory, id)?.put("state", self.record.first_state())?;
        forward::start(store, id, &self.request.definition.events, &self.request.pinned)?;
        self.held.listen(&directory);
        reap_at_start(store, std::process::id());
        Ok(())
    }

    fn run_phases(&mut self, watcher: &mut dyn Watcher) -> Report {
        for phase in &PHASES {
            self.begun += 1;
            if !(phase.applies)(self) {
                continue;
            }
            if let Err(report) = self.timed(phase.name, |attempt| (phase.work)(attempt, watcher)) {
                return *report;
            }
        }
        let missing = || Error::new(Kind::Internal, "the sandbox has no report");
        self.report.take().unwrap_or_else(|| Report::without_command(Outcome::StartFailed, missing()))
    }

    fn undo_phases(&mut self, report: &mut Report) {
        for phase in PHASES[..self.begun].iter().rev() {
            if let Err(error) = (phase.undo)(self, report) {
                report.cleanup.left.push(error.to_string());
            }
        }
    }

    /// Also writes the last event and the receipt.
    fn finish(mut self, report: Report, alive: Alive, watcher: &mut dyn Watcher) -> Result<Receipt> {
        let (request, id) = (self.request, self.id());
        let directory = request.store.task(id);
        let mut report = request.improve(report);
        if let Err(error) = self.announce(watcher) {
            if !directory.join("record.json").exists() {
                alive.leave(); // the next command removes what was begun
                return Err(error);
            }
            // The work may be done: its receipt names the error.
            if report.outcome == Outcome::Succeeded {
                report.outcome = Outcome::StartFailed;
            }
            report.error.get_or_insert(error);
        }
        self.undo_phases(&mut report);
        self.course.couriers = self.couriers.take();
        let is_saved = self.course.has_work();
        let receipt = Receipt::new(self.record, report, self.course, self.held);
        let ended = write_end(self.writer, &directory, &receipt);
        drop(self.control);
        // Also without the last event: a task without a receipt counts as lost.
        let written = json::write(&directory.join("receipt.json"), &receipt);
        if let Err(error) = written {
            alive.leave(); // the next command writes one
            return Err(error).doing(|| format!("write the receipt of `{id}`"));
        }
        if is_saved {
            AttemptRecord::remove_saved(&directory);
        }
        ended?;
        request.store.remember(&receipt);
        if !receipt.cleanup.left.is_empty() {
            alive.leave(); // the next command tries again to remove it
        }
        Ok(receipt)
    }

    fn id(&self) -> &'run str {
        &self.record.id
    }

    fn timed<T>(&mut self, step: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let began = Instant::now();
        let done = work(self);
        self.course.steps.push(Timing { step: step.to_owned(), seconds: began.elapsed().as_secs_f64() });
        done
    }
}

/// The command did not run.
fn stopped(outcome: Outcome, error: Error) -> Box<Report> {
    Box::new(Report::without_command(outcome, error))
}

/// For a task in the background: the log has everything.
struct NoWatcher<'starter> {
    starter: &'starter mut Starter,
    open_input: bool,
}

impl Watcher for NoWatcher<'_> {
    fn began(&mut self, id: &str) {
        self.starter.began(id);
    }

    fn output(&mut self, _error: bool, _bytes: &[u8]) {}

    fn gate(&self, _error: bool) -> Option<BorrowedFd<'_>> {
        None
    }

    fn forward_input(&self) -> bool {
        false
    }

    fn open_input(&self) -> bool {
        self.open_input
    }
}

/// Runs a task whose supervisor is a separate process, which outlives the caller and the terminal. Returns the task's
/// id. The caller has one thread. With `open_input` attached clients write the command's input;
/// otherwise it is /dev/null.
pub fn run_detached(store: &Store, definition: &Definition, open_input: bool) -> Result<String> {
    crate::process::require_one_thread()?;
    let caller = definition.end_with.as_ref().map(AsFd::as_fd);
    in_background(caller.as_slice(), |starter| {
        // A starter may block it.
        SigSet::from_iter([Signal::SIGTERM]).thread_unblock().failing(Kind::Internal, || "start a task")?;
        run(store, definition, &mut NoWatcher { starter, open_input }).map(|_| ())
    })
}

/// Ends and removes the task that has the name, if the definition replaces it. Everything else is checked before: a
/// refused task ends no other.
fn replace_holder(store: &Store, naming: &Naming) -> Result<()> {
    let Some(name) = naming.name.as_deref().filter(|_| naming.replaces) else { return Ok(()) };
    let Some(holder) = store.named(name) else { return Ok(()) };
    let step = || format!("replace the task `{holder}`, which has the name `{name}`");
    if store.status(&holder)? == Status::Running {
        // It may end by itself meanwhile, with a receipt.
        let asked = store.reach(&holder).and_then(|live| live.stop(None));
        if store.status(&holder)? == Status::Running {
            asked.doing(step)?;
        }
        store.wait(&holder, None).doing(step)?;
    }
    reconcile::reap(store)?;
    if store.task(&holder).exists() {
        store.remove(&holder).doing(step)?;
    }
    Ok(())
}

/// Returns the name that the task gets. An optional name that another running task has is left out.
fn claim(store: &Store, naming: &Naming, id: &str) -> Result<Option<String>> {
    let Some(name) = &naming.name else { return Ok(None) };
    match store.claim_name(name, id) {
        Err(_) if naming.is_optional => Ok(None),
        done => done.map(|()| Some(name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_the_steps_of_a_receipt_in_their_order() {
        let names: Vec<_> = PHASES.iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["queue", "prepare", "run", "fill", "bases", "hand_back"]);
    }
}
