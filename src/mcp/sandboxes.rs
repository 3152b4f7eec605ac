//! The sandboxes of one client.
//!
//! A sandbox is a task without a command, in the background. It ends with this process (`--end-with`), also after kill
//! -9. The client knows it by a short name, which a rollback keeps although it starts another task.

use super::Policy;
use super::running::Cancel;
use crate::error::{Error, Kind, Result};
use crate::host::is_off;
use crate::sandbox::{Checkpoint, Limits, NetworkMode};
use crate::task::{Live, Receipt, Status, Store, call_program};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Checkpoints and rollbacks of one sandbox: each keeps files on the host.
const MAX_CHECKPOINTS: usize = 16;
/// Records of ended sandboxes: each may have changed files.
const MAX_RECORDS: usize = 32;
/// The time for all sandboxes to end with the server.
const LAST: Duration = Duration::from_secs(10);
/// This program, also if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

pub(super) struct Sandboxes {
    policy: Policy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    starting: usize,
    open: BTreeMap<String, Arc<Sandbox>>,
    /// Ended tasks, oldest first, with whether they have changes.
    ended: Vec<(bool, String)>,
    is_closing: bool,
}

pub(super) struct Sandbox {
    /// Its name for the client.
    pub name: String,
    tasks: Mutex<Tasks>,
}

#[derive(Clone, Default)]
struct Tasks {
    id: String,
    /// The tasks before its rollbacks.
    earlier: Vec<String>,
    /// Names of checkpoints, each with its task.
    checkpoints: Vec<(String, String)>,
    is_stopped: bool,
}

impl Tasks {
    fn all(&self) -> Vec<String> {
        self.earlier.iter().chain([&self.id]).cloned().collect()
    }
}

impl Sandbox {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if a checkpoint or a rollback lasts longer.
    fn tasks_before(&self, end: Instant) -> Option<Tasks> {
        loop {
            match self.tasks.try_lock() {
                Ok(tasks) => return Some(tasks.clone()),
                Err(TryLockError::Poisoned(tasks)) => return Some(tasks.into_inner().clone()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// For what begins or copies a task.
    fn open_tasks(&self) -> Result<MutexGuard<'_, Tasks>> {
        let tasks = self.tasks();
        match tasks.is_stopped {
            false => Ok(tasks),
            true => Err(Error::new(Kind::State, "the sandbox has been stopped").hint("start another one")),
        }
    }

    pub(super) fn id(&self) -> String {
        self.tasks().id.clone()
    }
}

/// Counts a start as one of the sandboxes until it is dropped.
struct Reservation<'all>(&'all Sandboxes);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.state().starting -= 1;
    }
}

impl Sandboxes {
    pub(super) fn new(policy: Policy) -> Sandboxes {
        Sandboxes { policy, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn store(&self) -> &Store {
        &self.policy.store
    }

    fn reserve(&self) -> Result<Reservation<'_>> {
        let mut state = self.state();
        if state.is_closing {
            return Err(Error::new(Kind::State, "the server ends").hint("start it again"));
        }
        let most = self.policy.max_sandboxes;
        if state.open.len() + state.starting >= most && !is_off("mcp-sandboxes") {
            let hint = "end one with sandbox_stop; a person can raise `--max-sandboxes` of `brig mcp`";
            return Err(Error::new(Kind::State, format!("{most} sandboxes run already")).hint(hint));
        }
        state.starting += 1;
        Ok(Reservation(self))
    }

    fn add(&self, reservation: Reservation<'_>, id: String) -> Result<Arc<Sandbox>> {
        let mut state = self.state();
        if state.is_closing {
            drop(state);
            self.store().reach(&id)?.kill(9)?;
            self.store().wait(&id, Some(LAST))?;
            drop(reservation);
            return Err(Error::new(Kind::State, "the server ends").hint("start it again"));
        }
        state.last += 1;
        let name = format!("s{}", state.last);
        let tasks = Mutex::new(Tasks { id, ..Tasks::default() });
        let sandbox = Arc::new(Sandbox { name: name.clone(), tasks });
        state.open.insert(name, Arc::clone(&sandbox));
        drop(state);
        drop(reservation);
        Ok(sandbox)
    }

    /// Returns when the sandbox is built. `is_kept`: with what checkpoints need, if the policy has it.
    pub(super) fn start(&self, is_kept: bool, cancel: &Cancel) -> Result<Arc<Sandbox>> {
        let reservation = self.reserve()?;
        let words = self.policy.words(|flag| is_kept || !["--keep", "--keep-on-failure"].contains(&flag));
        let is_root = rustix::process::geteuid().is_root();
        // An ordinary user enters by way of the command, which must be a program.
        let last: &[&str] = if is_root { &["--hold"] } else { &["--", "sleep", "infinity"] };
        let words = words.into_iter().chain(last.iter().map(OsString::from));
        let id = self.call(&["run", "--detach"], words.collect(), |command| cancel.run(command));
        let id = id.or_else(|error| cancel.check().and(Err(error)))?;
        self.wait_until_built(&id, cancel).inspect_err(|_| self.forget(vec![id.clone()]))?;
        self.add(reservation, id)
    }

    /// Starts a task by a verb of `brig task`; returns its id.
    fn call(
        &self,
        verb: &[&str],
        words: Vec<OsString>,
        run: impl FnOnce(&mut Command) -> std::io::Result<Output>,
    ) -> Result<String> {
        let mut store = OsString::from("--store=");
        store.push(self.store().root());
        let end_with = (!is_off("mcp-end")).then(|| format!("--end-with={}", std::process::id()).into());
        let own = std::iter::once(store).chain(end_with);
        let verb = std::iter::once("task").chain(verb.iter().copied()).map(OsString::from);
        call_program(Path::new(PROGRAM), verb.chain(own).chain(words), run).map(|id| id.trim().to_owned())
    }

    /// Waits until the supervisor answers. A failed start has its reason in the receipt.
    fn wait_until_built(&self, id: &str, cancel: &Cancel) -> Result<()> {
        let store = self.store();
        loop {
            let built = store.reach(id).and_then(|live| live.wait_until_built(cancel.as_fd()));
            cancel.check().or_else(|error| self.end(id, Some(LAST)).and(Err(error)))?;
            let Err(error) = built else { return Ok(()) };
            // A task with --max-parallel may wait for its turn.
            if self.policy.definition.max_parallel.is_some() && store.status(id)? == Status::Running {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let receipt = store.wait(id, Some(LAST))?;
            return Err(match receipt.and_then(|receipt| receipt.error) {
                Some(failure) => failure.to_error().doing("start a sandbox"),
                None => error.doing("start a sandbox"),
            });
        }
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Sandbox>> {
        let state = self.state();
        state.open.get(name).cloned().ok_or_else(|| {
            let names: Vec<_> = state.open.keys().map(String::as_str).collect();
            let hint = match names.as_slice() {
                [] => "start one with sandbox_start".to_owned(),
                names => format!("these run: {}", names.join(", ")),
            };
            Error::new(Kind::NotFound, format!("no sandbox is named `{}`", name.escape_debug())).hint(hint)
        })
    }

    /// Forgets a sandbox that has ended by itself; the error has the reason.
    pub(super) fn reach(&self, sandbox: &Sandbox) -> Result<Live> {
        let id = sandbox.id();
        let live = self.store().reach(&id).inspect_err(|_| {
            if self.store().status(&id).is_ok_and(|status| status != Status::Running) {
                self.close(sandbox);
            }
        })?;
        Ok(live.limit_files(self.policy.timeout))
    }

    /// Several calls may find the sandbox ended: one forgets it.
    fn close(&self, sandbox: &Sandbox) {
        let was_open = self.state().open.remove(&sandbox.name).is_some();
        if was_open {
            self.forget(sandbox.tasks().all());
        }
    }

    /// Where commands start.
    pub(super) fn workspace(&self, id: &str) -> Result<PathBuf> {
        let record = self.store().record(id)?;
        let workspace = record.at.unwrap_or_else(|| crate::sandbox::WORKSPACE.into());
        Ok(record.directory.map_or(workspace.clone(), |directory| workspace.join(directory)))
    }

    pub(super) fn stop(&self, sandbox: &Sandbox) -> Result<Receipt> {
        // A rollback that runs ends first, and no later one begins another task.
        let id = {
            let mut tasks = sandbox.tasks();
            tasks.is_stopped = true;
            tasks.id.clone()
        };
        let receipt = self.end(&id, None)?;
        self.close(sandbox);
        receipt.ok_or_else(|| Error::new(Kind::Lost, format!("the sandbox `{}` has no receipt", sandbox.name)))
    }

    fn end(&self, id: &str, limit: Option<Duration>) -> Result<Option<Receipt>> {
        if let Ok(live) = self.store().reach(id) {
            // It may end by itself meanwhile.
            let _ = live.stop(Some(Duration::ZERO));
        }
        self.store().wait(id, limit)
    }

    /// Removes what was kept for checkpoints, and the oldest records, those without changes first.
    fn forget(&self, tasks: Vec<String>) {
        let has_changes = |id: &String| {
            let changes = self.store().receipt(id).ok().flatten().and_then(|receipt| receipt.changes);
            changes.is_some_and(|changes| changes.added + changes.modified + changes.deleted > 0)
        };
        let mut ended = Vec::new();
        for id in tasks {
            // A task without --keep has nothing to discard.
            let _ = self.store().discard(&id);
            ended.push((has_changes(&id), id));
        }
        let (mut state, mut old) = (self.state(), Vec::new());
        state.ended.extend(ended);
        while state.ended.len() > MAX_RECORDS {
            let index = state.ended.iter().position(|(has_changes, _)| !has_changes).unwrap_or(0);
            old.push(state.ended.remove(index).1);
        }
        drop(state);
        for id in old {
            // `brig task prune` removes what stays.
            let _ = self.store().remove(&id);
        }
    }

    pub(super) fn checkpoint(&self, sandbox: &Sandbox, name: Option<&str>) -> Result<Checkpoint> {
        let mut tasks = sandbox.open_tasks()?;
        if tasks.checkpoints.len() >= MAX_CHECKPOINTS {
            return Err(Error::new(Kind::State, format!("the sandbox has {MAX_CHECKPOINTS} checkpoints already"))
                .hint("go on in a fork, or start another sandbox"));
        }
        let is_taken = |name: &str| tasks.checkpoints.iter().any(|(known, _)| known == name);
        let mut free = (1..).map(|number| format!("c{number}")).filter(|name| !is_taken(name));
        let name = name.map(str::to_owned).or_else(|| free.next()).unwrap_or_default();
        if is_taken(&name) {
            return Err(Error::new(Kind::Exists, format!("there is a checkpoint `{}` already", name.escape_debug()))
                .hint("give another name, or none"));
        }
        let made = self.store().reach(&tasks.id)?.checkpoint(Some(&name))?;
        let id = tasks.id.clone();
        tasks.checkpoints.push((name, id));
        Ok(made)
    }

    /// Ends the processes and continues with a checkpoint's files. Returns the new task's id.
    pub(super) fn rollback(&self, sandbox: &Sandbox, checkpoint: &str, cancel: &Cancel) -> Result<String> {
        let mut tasks = sandbox.open_tasks()?;
        let task = find_checkpoint(&tasks, checkpoint)?;
        if tasks.earlier.len() >= MAX_CHECKPOINTS {
            return Err(Error::new(Kind::State, format!("the sandbox was rolled back {MAX_CHECKPOINTS} times"))
                .hint("go on in a fork of the checkpoint"));
        }
        let words = [self.again(), vec![task.clone().into(), checkpoint.into()]].concat();
        let id = self.call(&["rollback"], words, Command::output)?;
        // The verb has ended the task of the checkpoint, which may be an earlier one.
        let before = std::mem::replace(&mut tasks.id, id.clone());
        tasks.earlier.push(before.clone());
        drop(tasks);
        if before != task {
            if let Ok(live) = self.store().reach(&before) {
                let _ = live.kill(9);
            }
            self.store().wait(&before, Some(LAST))?;
        }
        self.wait_until_built(&id, cancel)?;
        Ok(id)
    }

    /// `checkpoint`: by default the files as they are.
    pub(super) fn fork(&self, sandbox: &Sandbox, checkpoint: Option<&str>, cancel: &Cancel) -> Result<Arc<Sandbox>> {
        let reservation = self.reserve()?;
        let name = match checkpoint {
            Some(name) => name.to_owned(),
            None => self.checkpoint(sandbox, None)?.name,
        };
        let task = find_checkpoint(&sandbox.tasks(), &name)?;
        let words = [self.again(), vec![format!("--from={name}").into(), task.into()]].concat();
        let id = self.call(&["fork"], words, Command::output)?;
        self.wait_until_built(&id, cancel).inspect_err(|_| self.forget(vec![id.clone()]))?;
        self.add(reservation, id)
    }

    /// No record has the values of these flags.
    fn again(&self) -> Vec<OsString> {
        self.policy.words(|flag| ["--env", "--secret"].contains(&flag))
    }

    pub(super) fn end_all(&self) {
        let mut state = self.state();
        state.is_closing = true;
        let open: Vec<_> = std::mem::take(&mut state.open).into_values().collect();
        drop(state);
        let end = Instant::now() + LAST;
        let open: Vec<_> = open.iter().filter_map(|sandbox| sandbox.tasks_before(end)).collect();
        for tasks in &open {
            if let Ok(live) = self.store().reach(&tasks.id) {
                let _ = live.kill(9);
            }
        }
        for tasks in &open {
            // What is not over then ends with this process.
            let _ = self.store().wait(&tasks.id, Some(end.saturating_duration_since(Instant::now())));
            self.forget(tasks.all());
        }
        // A start that is under way ends its own sandbox.
        while self.state().starting > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn instructions(&self) -> String {
        let Policy { definition, timeout, max_sandboxes, .. } = &self.policy;
        let network = &definition.sandbox.network;
        let allowed: Vec<_> = network.policy.allowed.iter().map(ToString::to_string).collect();
        let network = match network.mode {
            NetworkMode::None => "no network".to_owned(),
            NetworkMode::Egress => format!("network to these hosts only: {}", allowed.join(", ")),
            _ => "network to public addresses".to_owned(),
        };
        let files = match definition.workspace.folder() {
            Some(folder) => {
                format!("They work on a private copy of {}; the original is never written.", folder.display())
            }
            None => "Their working folder is empty at first.".to_owned(),
        };
        let limits = &definition.sandbox.limits;
        let limits = [(limits.wall, "after its start"), (limits.idle, "without a call or output")];
        let limits = limits.into_iter().filter(|(limit, _)| *limit != Limits::NO_TIME_LIMIT);
        let limits: Vec<_> =
            limits.map(|(limit, words)| format!("{} {words}", humantime::format_duration(limit))).collect();
        let end = if limits.is_empty() { String::new() } else { format!(" A sandbox ends {}.", limits.join(", or ")) };
        format!(
            "Commands run in sandboxes of brig. {files} They have {network}. A command may take {} at most, and {max_sandboxes} \
             sandboxes may run at a time.{end} `run` uses a fresh sandbox for one command; to work in several steps use \
             sandbox_start, then exec, read_file and write_file, and sandbox_stop. No tool changes the network, the limits or \
             the mounts: a person does, with the flags of `brig mcp`.",
            humantime::format_duration(*timeout),
        )
    }
}

fn find_checkpoint(tasks: &Tasks, name: &str) -> Result<String> {
    let found = tasks.checkpoints.iter().find(|(known, _)| known == name);
    found.map(|(_, task)| task.clone()).ok_or_else(|| {
        let known: Vec<_> = tasks.checkpoints.iter().map(|(name, _)| name.as_str()).collect();
        let hint = match known.as_slice() {
            [] => "make one with checkpoint".to_owned(),
            known => format!("it has these: {}", known.join(", ")),
        };
        Error::new(Kind::NotFound, format!("no checkpoint is named `{}`", name.escape_debug())).hint(hint)
    })
}
