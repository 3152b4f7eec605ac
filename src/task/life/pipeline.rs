//! One attempt from beginning to end: every step has its time, and teardown and record always happen.

mod bases;
mod commits;

use super::canary;
use super::log::{Log, Manner, tell_end};
use super::queue::{self, Turn, Waited};
use super::watcher::Watcher;
use crate::error::{Error, Kind, Result, Step};
use crate::files::Pinned;
use crate::sandbox::{
    self, Audience, Backend, Control, DiskFile, Ledger, Options, Outcome, Place, Progress, Report, Signals, Site,
    Workspace,
};
use crate::task::definition::image::{self, Opened};
use crate::task::definition::layout::Layout;
use crate::task::definition::plan::{check_git, checked_workspace, options};
use crate::task::definition::{Continued, Definition, Keep, WorkspaceSource};
use crate::task::ended::keep;
use crate::task::git::{self, Base, Budget, Errand, GitOptions, Remote};
use crate::task::output::artifact;
use crate::task::output::changes;
use crate::task::output::folder_snapshot::SnapshotInSteps;
use crate::task::output::handback::{self, Handback};
use crate::task::output::result::Expected;
use crate::task::records::event::Writer;
use crate::task::records::receipt::{Course, Receipt, Timing};
use crate::task::records::record::Record;
use crate::task::secrets::{Held, Secret};
use crate::task::store::{Store, json, new_id};
use serde_json::json;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Instant, SystemTime};

/// Runs a task and returns its receipt, which is in the store as well. An error means that the request itself is wrong, and that nothing was
/// made.
pub fn run(store: &Store, definition: &Definition, watcher: &mut dyn Watcher) -> Result<Receipt> {
    crate::process::require_one_thread()?;
    // First of all, so that the number of its descriptor is one that a shell can write to.
    let progress = Some(Progress::open()?);
    // Before anything of the store or of a path is opened.
    let admitted = crate::task::definition::hosted::admit(store, definition)?;
    let declared = admitted.as_ref().and_then(|admitted| admitted.declared);
    let is_hosted = admitted.is_some();
    let pinned = admitted.as_ref().map(|admitted| admitted.pinned.clone()).unwrap_or_default();
    let definition = admitted.as_ref().map_or(definition, |admitted| &admitted.definition);
    keep::check(definition)?;
    let mut image = image::open(store, definition)?;
    let mut layout = Layout::of(definition, image.as_ref(), store)?;
    // A worktree that names another repository since its check shows none.
    layout.repository = layout.repository.filter(|path| !is_hosted || pinned.has(path));
    options(definition, &layout, image.as_ref(), checked_workspace(definition)?)?.check()?;
    if let WorkspaceSource::Directory(folder) = &definition.workspace {
        crate::task::definition::exposure::check(&pinned.path(folder), store)?;
    }
    definition.artifacts.check(&pinned)?;
    check_git(definition)?;
    let expected = definition.result.read(&pinned)?;
    let planted = if definition.canary { canary::secrets()? } else { Vec::new() };
    let open = |secret: &Secret| Secret { source: secret.source.pinned(&pinned), ..secret.clone() };
    let secrets: Vec<_> = definition.secrets.iter().map(open).chain(planted).collect();
    let mut held = Held::read(&secrets)?;
    let git = definition.git.pinned(&pinned, is_hosted);
    let begin_disk = || {
        if definition.keep == Keep::No {
            sandbox::begin_disk(&definition.limits, &store.workshop());
        }
    };
    if definition.max_parallel.is_none() {
        begin_disk();
    }
    let least_free = crate::task::ended::prune::least_free(is_hosted)?;
    if store.has_room(least_free).is_err() {
        crate::task::ended::reconcile::reap(store)?; // which may make room; else it is done when nobody waits for it
        store.has_room(least_free)?;
    }
    if let Some(why) = image.as_mut().map(|image| image.copy_if_needed(&definition.limits)).transpose()?.flatten() {
        watcher.note(&why);
    }
    layout.notes.iter().for_each(|note| watcher.hint(note));
    let id = new_id()?;
    let alive = store.begin(&id)?;
    let directory = store.task(&id);
    let mut record = Record::new(&id, definition, &layout, image.as_ref(), &held);
    record.guarantee = declared.or(record.guarantee);
    let mut attempt = Attempt {
        store,
        definition,
        layout: &layout,
        git: &git,
        pinned: &pinned,
        image: image.as_ref(),
        id: &id,
        record: &record,
        course: Course::default(),
        expected: &expected,
        held: &mut held,
        control: RefCell::default(),
        progress,
        writer: None,
        base: None,
        snapshot: None,
        couriers: RefCell::default(),
        budget: Budget::new(&definition.limits),
    };
    if definition.waits_before_its_sandbox() {
        // Without a receipt the next command reaps what was begun.
        if let Err(error) = attempt.announce(watcher) {
            alive.leave();
            return Err(error);
        }
    }
    let turn = match attempt.wait_for_turn() {
        Ok(turn) => turn,
        Err(error) => {
            alive.leave();
            return Err(error);
        }
    };
    let mut report = match turn {
        Ok(_turn) => {
            begin_disk(); // whoever waits for a turn takes up no disk
            attempt.budget = Budget::new(&definition.limits); // nor of its time
            attempt.carry_out(watcher)
        }
        Err(report) => *report,
    };
    if !is_hosted {
        report.error = report.error.map(|error| super::missing::explain(error, definition));
    }
    if let Some(declared) = declared.filter(|_| report.guarantee == definition.backend.guarantee()) {
        report.guarantee = declared;
    }
    if let Err(error) = attempt.announce(watcher) {
        if !directory.join("record.json").exists() {
            alive.leave(); // the next command removes what was begun
            return Err(error);
        }
        // The work may be done: its receipt has what went wrong.
        if report.outcome == Outcome::Succeeded {
            report.outcome = Outcome::StartFailed;
        }
        report.error.get_or_insert(error);
    }
    if let Err(error) = attempt.keep_or_discard(&report) {
        report.cleanup.left.push(error.to_string());
    }
    attempt.course.couriers = attempt.couriers.take();
    let (writer, course, control) = (attempt.writer.take(), attempt.course, attempt.control);
    let receipt = Receipt::new(&record, report, course, &held);
    let told = tell_end(writer, &directory, &receipt);
    drop(control);
    // Also where the last event could not be written: without a receipt nobody would know of the work.
    let written = json::write(&directory.join("receipt.json"), &receipt);
    if let Err(error) = written {
        alive.leave(); // the next command writes one
        return Err(error).doing(|| format!("write the receipt of `{id}`"));
    }
    told?;
    store.remember(&receipt);
    if !receipt.cleanup.left.is_empty() {
        alive.leave(); // the next command tries again to remove it
    }
    Ok(receipt)
}

struct Attempt<'run> {
    store: &'run Store,
    definition: &'run Definition,
    layout: &'run Layout,
    /// How its repository is reached, with files as they are held open.
    git: &'run GitOptions,
    /// Paths of the host that are held open from their check on.
    pinned: &'run Pinned,
    image: Option<&'run Opened>,
    id: &'run str,
    record: &'run Record,
    course: Course,
    /// The result that it is to leave.
    expected: &'run Expected,
    /// By which it is steered, from its announcement on.
    control: RefCell<Option<Control>>,
    held: &'run mut Held,
    progress: Option<Progress>,
    /// The writer of events, when the sandbox has ended.
    writer: Option<Writer>,
    base: Option<Base>,
    /// What the files of a folder were at the start.
    snapshot: Option<SnapshotInSteps>,
    /// What its couriers reached.
    couriers: RefCell<Option<Ledger>>,
    /// What they may still use, and whether a signal ended one.
    budget: Budget,
}

impl Attempt<'_> {
    /// Makes the task known: its record, its socket, its first event. Once, and where nothing takes long before, not before the sandbox is on its
    /// way: init needs longer than this. Whoever is killed before has left nothing but a lock and groups of this id, which are reaped.
    fn announce(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        if self.control.get_mut().is_some() {
            return Ok(());
        }
        let directory = self.store.make(self.id)?;
        self.record.write(&directory).doing(|| format!("begin the task `{}`", self.id))?;
        self.control = RefCell::new(Some(Control::open(&directory)?));
        watcher.began(self.id);
        Writer::create(&directory, self.id)?.put("state", json!({ "state": "preparing" }))?;
        crate::task::records::forward::start(self.store, self.id, &self.definition.events, self.pinned)?;
        self.held.listen(&directory);
        crate::task::ended::reconcile::reap(self.store).map(|_| ())
    }

    fn carry_out(&mut self, watcher: &mut dyn Watcher) -> Report {
        let prepared = self.timed("prepare", |attempt| attempt.prepare(watcher));
        let workspace = match prepared {
            Ok(workspace) => workspace,
            Err(_) if self.budget.is_cancelled() => {
                let error = Error::new(Kind::State, "it was ended while its workspace was prepared");
                return Report::without_command(Outcome::Cancelled, error);
            }
            Err(error) => return Report::without_command(Outcome::PrepareFailed, error),
        };
        let mut options = match options(self.definition, self.layout, self.image, workspace) {
            Ok(options) => options,
            Err(error) => return Report::without_command(Outcome::PrepareFailed, error),
        };
        options.pinned = self.pinned.clone();
        options.secrets = self.held.files();
        options.broker = self.held.broker();
        options.environment.extend(self.held.variables());
        let mut report = self
            .timed("run", |attempt| attempt.run(&options, watcher))
            .unwrap_or_else(|error| Report::without_command(Outcome::StartFailed, error));
        self.note_commits();
        self.budget.count(&report.usage);
        self.budget.hand_back();
        self.restore_bases();
        if self.base.is_some()
            && self.course.changes.is_some()
            && let Err(error) = self.timed("hand_back", |attempt| attempt.hand_back(&report.outcome))
        {
            // The repository is the agent's: what ended the attempt before is not to be undone by breaking it.
            if report.outcome == Outcome::Succeeded {
                report.outcome = Outcome::PushFailed;
            }
            report.error.get_or_insert(error);
        }
        report
    }

    /// What the couriers of this task share.
    fn errand(&self) -> Errand<'_> {
        Errand {
            store: self.store,
            id: self.id,
            may_degrade: &self.definition.may_degrade,
            pinned: self.pinned,
            options: self.git,
            resolver: self.definition.network.policy.resolver,
            account: &self.couriers,
            redactor: self.held.redactor(),
            progress: &|_| {},
            budget: &self.budget,
            control: &self.control,
        }
    }

    /// Waits until so few others run that it may begin; the report is of one that was ended before.
    fn wait_for_turn(&mut self) -> Result<Result<Option<Turn>, Box<Report>>> {
        let Some(most) = self.definition.max_parallel else { return Ok(Ok(None)) };
        let signals = Signals::take()?;
        let wish = queue::Wish {
            id: self.id,
            most,
            patience: self.definition.queue_wait,
            memory: self.definition.limits.memory,
        };
        let waited = self.timed("queue", |attempt| match attempt.control.get_mut() {
            Some(control) => queue::wait(attempt.store, &wish, control, &signals),
            None => Err(Error::new(Kind::Internal, "it waits before it is known")),
        });
        Ok(match waited {
            Ok(Waited::Turn(turn)) => Ok(Some(turn)),
            Ok(Waited::Cancelled) => {
                let error = Error::new(Kind::State, "it was ended while it waited for its turn");
                Err(Box::new(Report::without_command(Outcome::Cancelled, error)))
            }
            Err(error) => Err(Box::new(Report::without_command(Outcome::PrepareFailed, error))),
        })
    }

    /// The disk of a workspace that may outlive us.
    fn disk(&self) -> DiskFile {
        let own = self.store.task(self.id).join(keep::IMAGE);
        match (&self.definition.continued, self.definition.keep) {
            (Some(Continued { from, is_fork: true }), _) => {
                DiskFile::Copy { of: self.store.task(from).join(keep::IMAGE), to: own }
            }
            (Some(_), _) => DiskFile::Kept(own),
            (None, Keep::No) => DiskFile::Unnamed,
            (None, _) => DiskFile::New(own),
        }
    }

    /// Gives the disk up, unless its outcome keeps it.
    fn keep_or_discard(&self, report: &Report) -> Result<()> {
        if self.definition.keep == Keep::No || self.definition.keep.holds(&report.outcome) {
            return Ok(());
        }
        keep::discard(self.store, self.id).map(|_| ())
    }

    /// The workspace's own tree, which is never written.
    fn prepare(&mut self, watcher: &mut dyn Watcher) -> Result<Workspace> {
        let continued = self.definition.continued.as_ref();
        let workspace = match continued {
            Some(continued) => self.go_on(continued)?,
            None => self.begin(watcher)?,
        };
        if self.definition.keep != Keep::No {
            let base = match &workspace {
                Workspace::Directory(path) => Some(path.clone()),
                Workspace::Empty => None,
            };
            keep::note(self.store, self.id, base, self.course.commit_in.clone(), self.definition)?;
        }
        // After the note: whichever task has the disk when we are killed can be gone on from.
        if let Some(continued) = continued.filter(|continued| !continued.is_fork) {
            keep::take_over(self.store, &continued.from, self.id)?;
        }
        Ok(workspace)
    }

    /// What another task has left.
    fn go_on(&mut self, continued: &Continued) -> Result<Workspace> {
        let note = keep::read_note(self.store, &continued.from)?;
        self.course.commit_in = note.commit.clone();
        keep::workspace(&note, &self.definition.workspace)
    }

    fn begin(&mut self, watcher: &mut dyn Watcher) -> Result<Workspace> {
        match &self.definition.workspace {
            WorkspaceSource::Empty => Ok(Workspace::Empty),
            WorkspaceSource::Directory(path) => Ok(Workspace::Directory(path.clone())),
            WorkspaceSource::Repository { url, reference } => {
                let writer = RefCell::new(Writer::create(&self.store.task(self.id), self.id)?);
                let watcher = RefCell::new(watcher);
                let progress = |text: &str| {
                    let text = self.held.redactor().text(text);
                    watcher.borrow_mut().progress(&text);
                    // An event that cannot be written is no reason to give the work up.
                    let _ = writer.borrow_mut().bounded("progress", json!({ "git": text }));
                };
                let errand = Errand { progress: &progress, ..self.errand() };
                let base = git::base(&errand, &Remote::parse(url)?, reference.as_deref());
                watcher.borrow_mut().progress("");
                let base = base?;
                self.course.commit_in = Some(base.commit.clone());
                let path = base.path.clone();
                self.base = Some(base);
                Ok(Workspace::Directory(path))
            }
        }
    }

    fn run(&mut self, options: &Options, watcher: &mut dyn Watcher) -> Result<Report> {
        let directory = self.store.task(self.id);
        let mut place = Place { disk: self.disk(), ..self.store.place(self.id) };
        if self.definition.backend == Backend::Local {
            place.stage.clone_from(&directory); // its workspace is seen there
        }
        let site = Site {
            place,
            forward_input: watcher.forward_input(),
            open_input: watcher.open_input(),
            progress: self.progress.take(),
        };
        let started = SystemTime::now(); // the sandbox shows the folder itself from here on
        let mut begun = sandbox::begin(options, site)?;
        begun.notes.iter().for_each(|note| watcher.note(note));
        begun.hints.iter().for_each(|hint| watcher.hint(hint));
        self.held.unlock()?;
        begun.give_way();
        self.announce(watcher)?;
        let manner = Manner { stream_json: self.definition.stream_json, interactive: options.terminal };
        let (redactor, has_secrets) = (self.held.redactor().clone(), !self.held.is_empty());
        let snapshot = self.snapshot(started);
        let mut log = Log::create(&directory, self.id, manner, watcher, self.held)?;
        log.snapshot = snapshot;
        let base = match &options.workspace {
            Workspace::Directory(path) => Some(path.as_path()),
            Workspace::Empty => None,
        };
        let (artifacts, expected, keeps_changes) = (&self.definition.artifacts, self.expected, self.definition.changes);
        let mut watch = self.definition.canary.then(|| canary::Watch::new(redactor.clone()));
        let see = |watch: &mut Option<canary::Watch>, place: &str| {
            if let Some(watch) = watch {
                watch.look(place);
            }
        };
        let (course, disk_bytes) = (&mut self.course, options.limits.disk_bytes());
        let mut limits = changes::Limits { disk_bytes, ignored: self.definition.ignored, ..changes::Limits::default() };
        if !matches!(self.definition.workspace, WorkspaceSource::Directory(_)) {
            limits.base_bytes = 0; // a checkout of the store, which nothing changes
        }
        let pinned = self.pinned;
        let tree = base.map(|base| pinned.path(base));
        let place = self.definition.result.path.as_str();
        let mut collect = |scratch: BorrowedFd<'_>| {
            let began = Instant::now();
            let upper = handback::upper(scratch, base)?;
            see(&mut watch, "its output or its events");
            if keeps_changes || watch.is_some() {
                let into = directory.join("changes");
                let mut changes = handback::collect(upper.as_ref(), tree.as_deref(), (&into, place), started, &limits)?;
                changes.base = changes.base.and(base.map(Path::to_owned));
                if let (Some(watch), Some(path)) = (&mut watch, &changes.path) {
                    watch.changes(path)?;
                }
                if let (Some(path), true, true) = (&changes.path, keeps_changes, has_secrets) {
                    changes.secrets = handback::with_secrets(path, &redactor)?;
                }
                changes.not_taken.iter_mut().for_each(|each| each.path = redactor.text(&each.path));
                changes.first_ignored.iter_mut().for_each(|path| *path = redactor.text(path));
                match keeps_changes {
                    true => course.changes = Some(changes),
                    false => handback::forget(&into)?,
                }
            }
            let is_untouched = course.changes.as_ref().is_some_and(Handback::is_nothing);
            let source = upper.as_ref().filter(|_| !is_untouched);
            let source = source.map(|(upper, form)| artifact::Source { upper: upper.as_fd(), form: *form });
            course.result = match source {
                Some(source) => expected.take(source, &redactor),
                None => expected.missing(),
            };
            see(&mut watch, "the result");
            if !artifacts.patterns.is_empty() {
                course.artifacts =
                    Some(artifact::collect(source, (artifacts, pinned), &directory, disk_bytes, &redactor)?);
            }
            see(&mut watch, "an artifact");
            course.steps.push(Timing { step: "collect".to_owned(), seconds: began.elapsed().as_secs_f64() });
            Ok(())
        };
        let audience = Audience { sink: &mut log, control: self.control.get_mut().as_mut(), collect: &mut collect };
        let mut report = begun.watch(audience);
        (self.writer, self.snapshot) = (Some(log.writer), log.snapshot);
        let seen = watch.and_then(|mut watch| {
            watch.egress(report.egress.as_ref());
            watch.verdict()
        });
        if let Some(error) = seen.or_else(|| self.misfit(&report.outcome)) {
            report.outcome = Outcome::Policy;
            report.error = Some(error);
        }
        Ok(report)
    }

    /// The error of a task that succeeded, but for a result that was demanded.
    fn misfit(&self, outcome: &Outcome) -> Option<Error> {
        let result = self.course.result.as_ref().filter(|result| !result.valid)?;
        if *outcome != Outcome::Succeeded || self.definition.result.schema.is_none() {
            return None;
        }
        let fault = result.faults.first().map_or("", String::as_str);
        Some(
            Error::new(Kind::Policy, format!("the result `{}` is not as it must be: {fault}", result.path))
                .hint("the receipt has every fault, and the document"),
        )
    }

    fn timed<T>(&mut self, step: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let began = Instant::now();
        let done = work(self);
        self.course.steps.push(Timing { step: step.to_owned(), seconds: began.elapsed().as_secs_f64() });
        done
    }
}
