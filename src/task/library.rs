//! The library for programs: a [`Sandbox`] to work in, and a [`Task`] to run.
//!
//! A caller may have threads, and a process with threads cannot make a sandbox: `task::run` and `Containers` refuse it.
//! So the supervisor is a separate process: the `brig` program from [`Options::program`], else `BRIG_BIN`, else `PATH`.
//! The library starts it and steers it through the task's socket, like the command line does.
//!
//! ```
//! # fn main() -> brig::error::Result<()> {
//! # let store = std::env::temp_dir().join(format!("brig-doc-{}", std::process::id()));
//! use brig::{Options, Sandbox};
//!
//! let sandbox = Sandbox::start(&Options::new().store(&store).limit("memory", "512M"))?;
//! sandbox.write_file("/workspace/hello.txt", b"hello\n")?;
//! let done = sandbox.exec(["tr", "a-z", "A-Z"], Some(b"from outside\n"))?;
//! assert_eq!((done.status, done.output.as_slice()), (0, &b"FROM OUTSIDE\n"[..]));
//! assert_eq!(sandbox.read_file("/workspace/hello.txt")?, b"hello\n");
//! let receipt = sandbox.stop()?;
//! assert!(receipt.cleanup.left.is_empty());
//! # // Its supervisor ends a moment after the receipt is there, and writes the index on its way: then its lock is gone.
//! # while std::fs::read_dir(store.join("live")).is_ok_and(|mut live| live.next().is_some()) {
//! #     std::thread::sleep(std::time::Duration::from_millis(20));
//! # }
//! # std::fs::remove_dir_all(store).ok();
//! # Ok(())
//! # }
//! ```

use crate::error::{Context, Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{FileEntry, Reply, Request, Sample};
use crate::task::life::live::{Execution, Live, TIMED_OUT, over};
use crate::task::life::pump::{Console, ExecEnd};
use crate::task::records::receipt::Receipt;
use crate::task::store::{Status, Store};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The most that is kept of each stream of a process.
const LONGEST_STREAM: usize = 256 << 20;
/// The largest file read into memory.
const LONGEST_FILE: u64 = 1 << 30;

/// Options of a sandbox or task; defaults as on the command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    program: Option<PathBuf>,
    store: Option<PathBuf>,
    words: Vec<OsString>,
}

impl Options {
    /// An empty workspace, the host's own programs, no network.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the path of the program `brig`.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Options {
        self.program = Some(path.into());
        self
    }

    /// Sets the store.
    #[must_use]
    pub fn store(mut self, path: impl Into<PathBuf>) -> Options {
        self.store = Some(path.into());
        self
    }

    /// Works on a folder, copy-on-write.
    #[must_use]
    pub fn directory(self, path: impl AsRef<OsStr>) -> Options {
        self.flag("--dir", path)
    }

    /// Works on a clone of a repository.
    #[must_use]
    pub fn repository(self, url: impl AsRef<OsStr>) -> Options {
        self.flag("--repo", url)
    }

    /// Reads a profile (docs/profile.md).
    #[must_use]
    pub fn profile(self, path: impl AsRef<OsStr>) -> Options {
        self.flag("--profile", path)
    }

    /// Sets a variable inside.
    #[must_use]
    pub fn env(self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Options {
        let mut word = name.as_ref().to_owned();
        word.push("=");
        word.push(value);
        self.flag("--env", word)
    }

    /// Sets a limit by its name in profiles, such as `memory` or `cpu_time`.
    #[must_use]
    pub fn limit(self, name: &str, value: impl AsRef<OsStr>) -> Options {
        self.flag(&format!("--{}", name.replace('_', "-")), value)
    }

    /// Sets a flag of `brig task run` with a value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl AsRef<OsStr>) -> Options {
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value);
        self.words.push(word);
        self
    }

    /// Sets a flag of `brig task run` without a value.
    #[must_use]
    pub fn switch(mut self, name: &str) -> Options {
        self.words.push(name.into());
        self
    }

    fn open_store(&self) -> Result<Store> {
        self.store.clone().map_or_else(Store::default_path, Ok).map(Store::at)
    }

    fn begin(&self, more: &[&str], command: &[OsString]) -> Result<(Store, String)> {
        let store = self.open_store()?;
        let program = self.program.clone().or_else(|| std::env::var_os("BRIG_BIN").map(PathBuf::from));
        let program = program.unwrap_or_else(|| "brig".into());
        let run = ["task", "run", "--detach", "--store"].map(OsString::from).into_iter();
        let run = run.chain([store.root().into()]).chain(more.iter().map(OsString::from)).chain(self.words.clone());
        let words = run.chain(["--".into()]).chain(command.iter().cloned());
        let id = call_program(&program, words, Command::output)?;
        Ok((store, id.trim().to_owned()))
    }
}

/// `run` returns when the program has ended.
pub(crate) fn call_program(
    program: &Path,
    words: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(&mut Command) -> std::io::Result<std::process::Output>,
) -> Result<String> {
    let done = run(Command::new(program).args(words).stdin(Stdio::null())).map_err(|cause| {
        Error::os(Kind::NotFound, cause)
            .doing(format!("start `{}`", program.display()))
            .hint("install brig, or say where it is: Options::program")
    })?;
    if !done.status.success() {
        return Err(told(&String::from_utf8_lossy(&done.stderr)));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn told(text: &str) -> Error {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let code = line("code:").and_then(|rest| rest.split_whitespace().next());
    let kind = Kind::ALL.iter().copied().find(|kind| Some(kind.code()) == code);
    let error = match line("error:") {
        Some(words) => Error::new(kind.unwrap_or(Kind::Usage), words),
        None => Error::new(Kind::Lost, format!("brig said nothing that is known: {}", text.trim())),
    };
    match line("hint:") {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The result of a process in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit status, or 128 plus the signal's number.
    pub status: u8,
    /// Its standard output, at most 256 MiB.
    pub output: Vec<u8>,
    /// Its standard error, at most 256 MiB.
    pub error: Vec<u8>,
    /// Whether a stream was longer: its rest was read and discarded.
    pub truncated: bool,
}

/// A sandbox without a command, to work in. Its drop ends it, and so does the end of this program, unless
/// [`Options::flag`] names another process (`--end-with`).
#[derive(Debug)]
pub struct Sandbox {
    store: Store,
    id: String,
    live: Live,
}

impl Sandbox {
    /// Starts a sandbox.
    pub fn start(options: &Options) -> Result<Sandbox> {
        // A drop does not happen in a program that dies.
        let end_with = format!("--end-with={}", std::process::id());
        let is_given = options.words.iter().any(|word| word.as_encoded_bytes().starts_with(b"--end-with"));
        let mut more = if is_given { Vec::new() } else { vec![end_with.as_str()] };
        // An ordinary user enters through the command's process, so it must be a program: brig's own cannot be
        // inspected.
        let (store, id) = if rustix::process::geteuid().is_root() {
            more.push("--hold");
            options.begin(&more, &[])?
        } else {
            options.begin(&more, &["sleep".into(), "infinity".into()])?
        };
        let live = reach(&store, &id).inspect_err(|_| {
            if let Ok(live) = store.reach(&id) {
                // It may end by itself meanwhile.
                let _ = live.kill(9);
            }
        })?;
        Ok(Sandbox { store, id, live })
    }

    /// Its id, for `brig task`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Runs a program to its end with the task's user, filter, rules and limits.
    ///
    /// Processes that it leaves in the background end with it. The sandbox decides the length of the output: at most
    /// 256 MiB of each stream are kept.
    pub fn exec<Word: Into<OsString>>(
        &self,
        command: impl IntoIterator<Item = Word>,
        input: Option<&[u8]>,
    ) -> Result<Output> {
        let command = command.into_iter().map(Into::into).collect();
        self.exec_with(Execution { command, ..Execution::default() }, input)
    }

    /// Like [`Sandbox::exec`] with environment and working directory, without a terminal.
    pub fn exec_with(&self, execution: Execution, input: Option<&[u8]>) -> Result<Output> {
        let nothing = eventfd(0, EventfdFlags::CLOEXEC).failing(Kind::Internal, || "run a process")?;
        let input = input.map(|bytes| files::memory_of("input", bytes)).transpose()?;
        let mut started = self.live.exec(Execution { terminal: None, ..execution })?;
        if input.is_none() {
            started.input = None;
        }
        let mut collector = Collector { done: Output::default(), input, nothing };
        let status = match started.serve(&mut collector)? {
            ExecEnd::Exited(status) => status,
            ExecEnd::TimedOut => TIMED_OUT,
        };
        Ok(Output { status, ..collector.done })
    }

    /// Reads at most 1 GiB: the sandbox decides the length. The path is resolved inside.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.live.read_file(path.as_ref(), &mut files::Bounded::new(&mut bytes, LONGEST_FILE))?;
        Ok(bytes)
    }

    /// Writes a file as the sandbox's user.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        self.live.write_file(path.as_ref(), 0o644, &mut &*bytes)
    }

    /// The entries of a folder.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<FileEntry>> {
        self.live.list(path.as_ref())
    }

    /// The environment of its programs.
    pub fn env(&self) -> Result<Vec<(OsString, OsString)>> {
        self.live.environment()
    }

    /// Its current usage.
    pub fn usage(&self) -> Result<Sample> {
        self.live.stats()
    }

    /// Ends it and returns its receipt.
    pub fn stop(self) -> Result<Receipt> {
        self.live.kill(9)?;
        finished(&self.store, &self.id)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // After `stop` it is over already.
        let _ = self.live.kill(9);
    }
}

/// Keeps the beginnings of both streams.
struct Collector {
    done: Output,
    input: Option<OwnedFd>,
    /// Never readable: no signal is passed on.
    nothing: OwnedFd,
}

impl Console for Collector {
    fn output(&mut self, error: bool, bytes: &[u8]) {
        let stream = if error { &mut self.done.error } else { &mut self.done.output };
        let kept = bytes.len().min(LONGEST_STREAM - stream.len());
        stream.extend_from_slice(&bytes[..kept]);
        self.done.truncated |= kept < bytes.len();
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    fn input_ended(&mut self) {
        self.input = None;
    }

    fn signals_ready(&self) -> BorrowedFd<'_> {
        self.nothing.as_fd()
    }

    fn signals(&mut self) -> (Vec<i32>, Option<(u16, u16)>) {
        (Vec::new(), None)
    }
}

/// A new task's supervisor answers when the sandbox is built.
fn reach(store: &Store, id: &str) -> Result<Live> {
    loop {
        match store.reach(id).and_then(|live| live.stats().map(|_| live)) {
            // It waits for its turn (--max-parallel), or it ends: then the next answer has the reason.
            Err(error) if error.kind() == Kind::State && store.status(id)? == Status::Running => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other.doing(|| format!("start the sandbox `{id}`")),
        }
    }
}

impl Live {
    /// Waits until the supervisor answers, as [`Live::stats`], or `cancel` is readable.
    pub(crate) fn wait_until_built(&self, cancel: BorrowedFd<'_>) -> Result<()> {
        let client = self.client()?;
        client.send(&Request::Stats)?;
        let mut waits = [PollFd::new(client, PollFlags::IN), PollFd::from_borrowed_fd(cancel, PollFlags::IN)];
        retry_on_intr(|| poll(&mut waits, None)).failing(Kind::Internal, || "wait for the sandbox")?;
        if waits[0].revents().is_empty() {
            return Ok(());
        }
        match client.next()? {
            Some((Reply::Failed(error), _)) => Err(error),
            Some(_) => Ok(()),
            None => Err(over()),
        }
    }
}

fn finished(store: &Store, id: &str) -> Result<Receipt> {
    store.wait(id, None)?.ok_or_else(|| Error::new(Kind::Lost, format!("the task `{id}` has no receipt")))
}

/// One command in a new sandbox.
///
/// ```
/// # fn main() -> brig::error::Result<()> {
/// # let store = std::env::temp_dir().join(format!("brig-doc-task-{}", std::process::id()));
/// use brig::{Options, Task};
///
/// let task = Task::start(&Options::new().store(&store), ["sh", "-c", "echo working; exit 2"])?;
/// let receipt = task.wait()?;
/// assert_eq!((receipt.outcome.word(), receipt.retryable), ("failed", false));
/// assert_eq!(task.log()?, b"working\n");
/// # // Its supervisor ends a moment after the receipt is there, and writes the index on its way: then its lock is gone.
/// # while std::fs::read_dir(store.join("live")).is_ok_and(|mut live| live.next().is_some()) {
/// #     std::thread::sleep(std::time::Duration::from_millis(20));
/// # }
/// # std::fs::remove_dir_all(store).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Task {
    store: Store,
    id: String,
}

impl Task {
    /// Starts it. It outlives this value and this program.
    pub fn start<Word: Into<OsString>>(options: &Options, command: impl IntoIterator<Item = Word>) -> Result<Task> {
        let command: Vec<OsString> = command.into_iter().map(Into::into).collect();
        let (store, id) = options.begin(&[], &command)?;
        Ok(Task { store, id })
    }

    /// Its id, for `brig task`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits for its end.
    pub fn wait(&self) -> Result<Receipt> {
        finished(&self.store, &self.id)
    }

    /// The same with a time limit; `None` when it still runs.
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Receipt>> {
        self.store.wait(&self.id, Some(limit))
    }

    /// Its output so far.
    pub fn log(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.store.log(&self.id)?.read_to_end(&mut bytes);
        read.failing(Kind::Store, || format!("read the log of `{}`", self.id))?;
        Ok(bytes)
    }

    /// Its events, oldest first.
    pub fn events(&self) -> Result<crate::task::records::event::Reader> {
        self.store.events(&self.id)
    }

    /// A connection to it while it runs.
    pub fn live(&self) -> Result<Live> {
        self.store.reach(&self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_program_is_the_same_error_here() {
        let error = told(
            "error: use the workspace `/x`: No such file\nhint:  name another\ncode:  E-WORKSPACE   (docs/errors.md#e-workspace)\n",
        );
        assert_eq!(error.kind(), Kind::Workspace);
        assert_eq!(
            (error.to_string().as_str(), error.advice()),
            ("use the workspace `/x`: No such file", Some("name another"))
        );
        assert!(told("error: x\ncode:  E-DISK\n").retryable());
        assert_eq!(told("rubbish").kind(), Kind::Lost);
    }
}
