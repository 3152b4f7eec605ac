//! A running task, and the requests that its supervisor serves.
//!
//! Output of the task's command does not pass here. A process of [`Live::exec`] has separate streams, which its caller
//! copies through the same escaping.

use super::hiding::Hiding;
use crate::error::{Error, Kind, Result, Step, wire};
use crate::files::{self, Patterns};
use crate::image::{Accounts, LARGEST_ACCOUNT_FILE, User};
use crate::sandbox::{
    ArchiveBounds, Checkpoint, Client, Exec, FileEntry, FileRequest, JobLimits, Limits, Reply, Request, Rule, Sample,
};
use crate::task::records::job::job_id;
use crate::task::records::receipt::Receipt;
use crate::task::store::{Status, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The status at the time limit, as timeout(1) has it.
pub(in crate::task) const TIMED_OUT: u8 = 124;

/// A running task.
#[derive(Debug)]
pub struct Live {
    /// The first connection, until a request or a process takes it.
    spare: Mutex<Option<Client>>,
    client: OnceLock<Client>,
    directory: PathBuf,
    id: String,
    store: Store,
    file_timeout: Option<Duration>,
}

/// A process to start in a running task.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Variables in addition to those of the task's command.
    pub environment: Vec<(OsString, OsString)>,
    /// Default: `/workspace`.
    pub directory: Option<PathBuf>,
    /// Rows and columns, if it has a terminal.
    pub terminal: Option<(u16, u16)>,
    /// `USER[:GROUP]`, by the sandbox's own account files or in numbers. Default: the user of the task's command.
    pub user: Option<String>,
    /// At this limit its process tree is killed.
    pub timeout: Option<Duration>,
    /// Limits of a job, below those of the task.
    pub limits: JobLimits,
}

/// A process in a running task. Its drop ends the process.
#[derive(Debug)]
pub struct Executed {
    pub(crate) client: Client,
    /// Standard input; `None` with a terminal.
    pub input: Option<OwnedFd>,
    /// Standard output; `None` with a terminal.
    pub output: Option<OwnedFd>,
    /// Standard error; `None` with a terminal.
    pub error: Option<OwnedFd>,
    /// The master of the terminal.
    pub terminal: Option<OwnedFd>,
    /// `None` if raw output is requested.
    pub(crate) hiding: Option<Hiding>,
}

/// Bytes: the sandbox decides how many entries there are.
const LARGEST_ANSWER: u64 = 64 << 20;

/// The longest time between the lock of a task and its socket.
const A_MOMENT: Duration = Duration::from_secs(1);

impl Store {
    /// Connects to a running task.
    pub fn reach(&self, id: &str) -> Result<Live> {
        let step = || format!("reach the task `{id}`");
        match self.status(id)? {
            Status::Running => {}
            Status::Ended => {
                let words = self.receipt(id)?.map_or_else(|| "it has ended".to_owned(), |receipt| receipt.end_words());
                return Err(Error::new(Kind::State, words).doing(step()).hint(format!("see brig task show {id}")));
            }
            Status::Lost => {
                return Err(Error::new(Kind::State, "its supervisor died").doing(step()).hint("see `brig task ls`"));
            }
        }
        let directory = self.task(id);
        let end = Instant::now() + A_MOMENT;
        let client = loop {
            match Client::connect(&directory) {
                Err(_) if Instant::now() < end && self.status(id)? == Status::Running => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => break other.doing(step)?,
            }
        };
        let spare = Mutex::new(Some(client));
        let (client, id, store) = (OnceLock::new(), id.to_owned(), self.clone());
        Ok(Live { spare, client, directory, id, store, file_timeout: None })
    }

    /// Waits for the end and returns the receipt; `None` after the time limit.
    pub fn wait(&self, id: &str, limit: Option<Duration>) -> Result<Option<Receipt>> {
        const LOOK: Duration = Duration::from_millis(5);
        let end = limit.map(Limits::end_of);
        loop {
            if let Some(receipt) = self.receipt(id)? {
                return Ok(Some(receipt));
            }
            if self.status(id)? == Status::Lost {
                crate::task::ended::reconcile::reconcile_one(self, id)?;
                return self.receipt(id)?.map(Some).ok_or_else(|| {
                    Error::new(Kind::Lost, "its supervisor died before it had begun").doing(format!("wait for `{id}`"))
                });
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            // The socket closes shortly before the receipt is written.
            match Client::connect(&self.task(id)) {
                Ok(client) => wait_for_end(&client, left),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

/// Waits until the connection ends or the time is up. The caller checks again.
fn wait_for_end(client: &Client, left: Option<Duration>) {
    let limit = left.and_then(|left| Timespec::try_from(left).ok());
    if poll(&mut [PollFd::new(client, PollFlags::IN)], limit.as_ref()).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Live {
    /// Limits the time of each work with files: the sandbox may stop the process that does it.
    pub fn limit_files(mut self, timeout: Duration) -> Live {
        self.file_timeout = Some(timeout);
        self
    }

    /// Asks the command to end, and kills the rest after the grace (default: the task's own).
    pub fn stop(&self, grace: Option<Duration>) -> Result<()> {
        self.client()?.request(&Request::Stop { grace, drain: None }).doing(|| format!("stop the task `{}`", self.id))
    }

    /// Refuses new processes, lets running ones end until `limit`, and then stops the task.
    pub fn drain(&self, limit: Duration, grace: Option<Duration>) -> Result<()> {
        self.client()?
            .request(&Request::Stop { grace, drain: Some(limit) })
            .doing(|| format!("drain the task `{}`", self.id))
    }

    /// Signals the command; 9 ends the whole sandbox.
    pub fn kill(&self, signal: i32) -> Result<()> {
        self.client()?.request(&Request::Kill { signal }).doing(|| format!("signal the task `{}`", self.id))
    }

    /// Freezes every process.
    pub fn pause(&self) -> Result<()> {
        self.client()?.request(&Request::Pause).doing(|| format!("pause the task `{}`", self.id))
    }

    /// Resumes them.
    pub fn unpause(&self) -> Result<()> {
        self.client()?.request(&Request::Unpause).doing(|| format!("let the task `{}` go on", self.id))
    }

    /// Allows or refuses what an egress rule covers from now on; a refusal closes open connections. A new port needs a
    /// spare socket; without one, the receipt reports it.
    pub fn reach(&self, rule: &Rule, allow: bool) -> Result<()> {
        if allow {
            crate::task::definition::hosted::check_live_rule(rule)?;
        }
        let request = Request::Reach { rule: rule.to_string(), allow };
        self.client()?.request(&request).doing(|| format!("change the rules of the task `{}`", self.id))
    }

    /// Copies the files at this moment, under `name` or the first free number, to fork from or return to.
    pub fn checkpoint(&self, name: Option<&str>) -> Result<Checkpoint> {
        self.client()?
            .checkpoint(name.map(str::to_owned))
            .doing(|| format!("make a checkpoint of the task `{}`", self.id))
    }

    /// Current usage.
    pub fn stats(&self) -> Result<Sample> {
        self.client()?.stats().doing(|| format!("measure the task `{}`", self.id))
    }

    /// Ids on the host.
    pub fn process_ids(&self) -> Result<Vec<i32>> {
        self.client()?.processes().doing(|| format!("list the processes of `{}`", self.id))
    }

    /// Variables of the command.
    pub fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        self.client()?.environment()
    }

    /// Whether the command has a terminal.
    pub fn has_terminal(&self) -> Result<bool> {
        self.client()?.attach().map(|(terminal, _)| terminal)
    }

    pub(crate) fn hiding(&self) -> Result<Hiding> {
        Hiding::new(&self.directory, false)
    }

    pub(crate) fn client(&self) -> Result<&Client> {
        match self.client.get() {
            Some(client) => Ok(client),
            None => {
                let client = self.connect()?;
                Ok(self.client.get_or_init(|| client))
            }
        }
    }

    /// Of the supervisor's bounded connections, `exec` takes only one.
    fn connect(&self) -> Result<Client> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.map_or_else(|| Client::connect(&self.directory), Ok)
    }

    /// Starts a process, and returns when its program runs. It has the task's user, filter, rules and limits, and ends
    /// with the sandbox at the latest.
    pub fn exec(&self, execution: Execution) -> Result<Executed> {
        self.begin(execution, false)
    }

    /// Starts a process that outlives this client, and returns its id. It has no input; its output is in its own log.
    pub fn exec_job(&self, execution: Execution) -> Result<String> {
        if execution.terminal.is_some() {
            return Err(Error::new(Kind::Usage, "a job has no terminal").hint("leave --tty out"));
        }
        let started = self.begin(execution, true)?;
        next_of(&started.client, |reply, _| match reply {
            Reply::Job(number) => Some(Ok(job_id(number))),
            Reply::Failed(error) => Some(Err(error)),
            _ => None,
        })
    }

    fn begin(&self, execution: Execution, is_job: bool) -> Result<Executed> {
        let Execution { command, mut environment, directory, terminal, user, timeout, limits } = execution;
        if command.is_empty() {
            return Err(Error::new(Kind::Usage, "no command is given").hint("put it after `--`, like `-- sh`"));
        }
        if timeout.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::new(Kind::Usage, "a time-out of 0 ends a process before it begins")
                .hint("give a time like `--timeout 30s`, or leave it out"));
        }
        let step = || format!("run a process in the task `{}`", self.id);
        let user = user.map(|text| self.find_user(&text)).transpose().doing(step)?;
        let home = user.as_ref().and_then(|user| user.home.clone());
        if let Some(home) = home.filter(|_| environment.iter().all(|(name, _)| name != "HOME")) {
            environment.push(("HOME".into(), home.into()));
        }
        let user = user.map(|user| (user.uid, user.gid, user.additional_gids));
        let exec = Exec { command, environment, directory, terminal, errand: false, user, timeout, is_job };
        self.start(exec, limits).doing(step).hint(|| "name a program and a folder that the sandbox has")
    }

    /// Finds it in the sandbox's own account files. The supervisor checks the numbers.
    fn find_user(&self, text: &str) -> Result<User> {
        let read = |path: &str| {
            let mut bytes = Vec::new();
            match self.read_file(Path::new(path), &mut files::Bounded::new(&mut bytes, LARGEST_ACCOUNT_FILE)) {
                Err(error) if error.kind() == Kind::NotFound => Ok(Vec::new()),
                other => other.map(|_| bytes),
            }
        };
        Accounts { passwd: read("/etc/passwd")?, group: read("/etc/group")? }.user(text)
    }

    /// Asks a job to end, and kills its process tree after the grace (default: the task's own).
    pub fn stop_job(&self, job: &str, grace: Option<Duration>) -> Result<()> {
        let number = self.store.job_number(&self.id, job)?;
        self.client()?
            .request(&Request::StopJob { job: number, grace })
            .doing(|| format!("stop the job `{job}` of the task `{}`", self.id))
    }

    /// Signals a job; 9 kills its process tree.
    pub fn kill_job(&self, job: &str, signal: i32) -> Result<()> {
        let number = self.store.job_number(&self.id, job)?;
        self.client()?
            .request(&Request::KillJob { job: number, signal })
            .doing(|| format!("signal the job `{job}` of the task `{}`", self.id))
    }

    fn start(&self, exec: Exec, limits: JobLimits) -> Result<Executed> {
        let client = self.connect()?;
        let is_plain = limits.is_empty();
        client.send(&if is_plain { Request::Exec(exec) } else { Request::LimitedJob { exec, limits } })?;
        let mut started = Executed { client, input: None, output: None, error: None, terminal: None, hiding: None };
        next_of(&started.client, |reply, descriptor| {
            match reply {
                Reply::Stream(Some(0)) => started.input = descriptor,
                Reply::Stream(Some(1)) => started.output = descriptor,
                Reply::Stream(Some(2)) => started.error = descriptor,
                Reply::Stream(_) => started.terminal = descriptor,
                Reply::Started => return Some(Ok(())),
                Reply::Failed(error) => return Some(Err(error)),
                _ => {}
            }
            None
        })?;
        Ok(started)
    }

    fn errand(&self, errand: &FileRequest) -> Result<Executed> {
        let exec = Exec { errand: true, timeout: self.file_timeout, ..Exec::default() };
        let mut started = self.start(exec, JobLimits::default())?;
        let mut line = serde_json::to_vec(errand).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
        line.push(b'\n');
        if let Some(input) = &started.input {
            let written = File::from(input.try_clone().map_err(lost)?).write_all(&line);
            // The reason of its end comes first.
            written.or_else(|cause| started.errand_error().and(Err(lost(cause))))?;
        }
        Ok(started)
    }

    /// Resolves the path inside.
    pub fn read_file(&self, path: &Path, sink: &mut dyn Write) -> Result<u64> {
        self.copy(&FileRequest::Read(path.to_owned()), sink, "write a copy")
    }

    fn copy(&self, request: &FileRequest, sink: &mut dyn Write, step: &str) -> Result<u64> {
        let mut started = self.errand(request)?;
        started.receive(|output| std::io::copy(output, sink).map_err(|cause| files::failed(cause, step.to_owned())))
    }

    /// Writes as the sandbox's user; `mode` applies to a new file.
    pub fn write_file(&self, path: &Path, mode: u32, source: &mut dyn Read) -> Result<()> {
        let mut started = self.errand(&FileRequest::Write { path: path.to_owned(), mode })?;
        started.write_input(|input| std::io::copy(source, input).map(|_| ()))
    }

    /// Entries of a folder in the sandbox.
    pub fn list(&self, path: &Path) -> Result<Vec<FileEntry>> {
        self.answer(&FileRequest::List(path.to_owned()))
    }

    /// The first entries of a folder in the sandbox, and the number of all.
    pub fn list_first(&self, path: &Path, most: usize) -> Result<(Vec<FileEntry>, usize)> {
        self.answer(&FileRequest::ListFirst(path.to_owned(), most))
    }

    fn answer<T: serde::de::DeserializeOwned>(&self, request: &FileRequest) -> Result<T> {
        let mut started = self.errand(request)?;
        let mut bytes = Vec::new();
        started.receive(|output| output.take(LARGEST_ANSWER).read_to_end(&mut bytes).map(|_| ()).map_err(lost))?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::new(Kind::Lost, cause.to_string()))
    }

    /// The status of a path in the sandbox, with links followed inside. The `name` is empty.
    pub fn look(&self, path: &Path) -> Result<FileEntry> {
        self.answer(&FileRequest::Look(path.to_owned()))
    }

    /// Writes a tree of the sandbox as a tar stream, under the name `name`, without what `exclude` matches
    /// (gitignore(5)).
    pub fn pack(&self, path: &Path, name: &Path, exclude: &[String], sink: &mut dyn Write) -> Result<()> {
        self.copy(&self.pack_request(path, name, exclude)?, sink, "write the archive").map(|_| ())
    }

    fn pack_request(&self, path: &Path, name: &Path, exclude: &[String]) -> Result<FileRequest> {
        Patterns::of_flag("--exclude", exclude)?;
        Ok(FileRequest::Pack(path.to_owned(), name.to_owned(), exclude.to_vec()))
    }

    /// Copies a tree of the sandbox into a host folder as `name`: files, folders and links, all inside that folder.
    /// Leaves out what `exclude` matches.
    pub fn copy_out(&self, path: &Path, target: &Path, name: &Path, exclude: &[String]) -> Result<()> {
        let limits = self.store.record(&self.id)?.limits;
        let bounds = ArchiveBounds { bytes: limits.disk_bytes(), names: limits.inodes };
        let mut started = self.errand(&self.pack_request(path, name, exclude)?)?;
        let unpack = |output: &mut File| crate::sandbox::unpack_at(BufReader::new(output), target, name, bounds);
        started.receive(unpack).map_err(|error| match (error.kind(), error.errno()) {
            (Kind::Disk, None) => {
                error.hint("copy a part of it, or take it as a stream: brig task cp ID:PATH - | tar x")
            }
            _ => error,
        })
    }

    /// Copies a tree of the host into a folder of the sandbox as `name`, without what `exclude` matches.
    pub fn copy_in(&self, path: &Path, target: &Path, name: &Path, exclude: &[String]) -> Result<()> {
        let exclude = Patterns::of_flag("--exclude", exclude)?;
        let mut started = self.errand(&FileRequest::Unpack(target.to_owned(), name.to_owned()))?;
        let mut packed = Ok(0);
        let given = started.write_input(|input| {
            packed = crate::sandbox::pack(path, name, &exclude, input);
            Ok(())
        });
        // The other side's error is the cause; a failed write here is its consequence.
        given.and(packed.map(|_| ()))
    }

    /// Unpacks a tar stream in a folder of the sandbox; its only top name is `name`.
    pub fn unpack(&self, target: &Path, name: &Path, source: &mut dyn Read) -> Result<()> {
        let mut started = self.errand(&FileRequest::Unpack(target.to_owned(), name.to_owned()))?;
        started.write_input(|input| std::io::copy(source, input).map(|_| ()))
    }
}

impl Executed {
    /// Hides secrets and shapes of tokens in the output of [`Executed::serve`].
    pub fn hide_secrets(mut self, live: &Live) -> Result<Executed> {
        self.hiding = Some(Hiding::new(&live.directory, self.terminal.is_some())?);
        Ok(self)
    }

    /// Closes open input and returns the status at the end: 124 at the time limit.
    pub fn wait(&mut self) -> Result<u8> {
        self.input = None;
        next_of(&self.client, |reply, _| match reply {
            Reply::Exited(status) => Some(Ok(status)),
            Reply::TimedOut => Some(Ok(TIMED_OUT)),
            _ => None,
        })
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.client.send(&Request::Kill { signal })
    }

    /// The file process's own error comes first: a local error follows from it. Without an error message, the process
    /// ended because this side stopped.
    fn receive<T>(&mut self, take: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
        self.input = None;
        let taken = match self.output.take() {
            Some(output) => take(&mut File::from(output)),
            None => Err(Error::new(Kind::Lost, "it has no output")),
        };
        match (taken, self.errand_error()) {
            (Err(ours), Err(lost)) if lost.kind() == Kind::Lost => Err(ours),
            (taken, ended) => ended.and(taken),
        }
    }

    fn write_input(&mut self, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
        let written = match self.input.take() {
            Some(input) => write(&mut File::from(input)).map_err(lost),
            None => Ok(()),
        };
        self.errand_error()?;
        written
    }

    fn errand_error(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        if let Some(error) = self.error.take() {
            File::from(error).take(64 << 10).read_to_end(&mut bytes).map_err(lost)?;
        }
        let status = self.wait()?;
        match (status, bytes.is_empty()) {
            (0, _) => Ok(()),
            (TIMED_OUT, _) => Err(Error::new(Kind::State, "the files did not come within the time limit")
                .hint("see that no process of the sandbox stops others, or start another sandbox")),
            (_, false) => {
                Err(wire::from_bytes(&bytes).hint("name a path of the sandbox; see `brig task exec ID -- ls`"))
            }
            (status, true) => Err(Error::new(Kind::Lost, format!("it ended with status {status} and no word"))),
        }
    }
}

/// Passes each reply to `pick` until it returns a result.
fn next_of<T>(client: &Client, mut pick: impl FnMut(Reply, Option<OwnedFd>) -> Option<Result<T>>) -> Result<T> {
    loop {
        let (reply, descriptor) = client.next()?.ok_or_else(over)?;
        if let Some(picked) = pick(reply, descriptor) {
            return picked;
        }
    }
}

pub(crate) fn over() -> Error {
    Error::new(Kind::State, "the task ended meanwhile").hint("see `brig task show ID`")
}

fn lost(cause: std::io::Error) -> Error {
    Error::os(Kind::Lost, cause).doing("work with a file of the sandbox")
}
