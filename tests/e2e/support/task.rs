//! One command of brig: what it is given, and the hold on it while it runs.

use super::{Lab, Run, program};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any test waits for one command; after it the command is killed and the test fails.
const LONGEST: Duration = Duration::from_secs(90);

/// One `brig task run` in the making.
pub struct Task<'lab> {
    lab: &'lab Lab,
    program: PathBuf,
    words: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    input: Option<Vec<u8>>,
    longest: Duration,
    is_run: bool,
    json: bool,
    prefix: Vec<OsString>,
}

impl<'lab> Task<'lab> {
    pub(super) fn new(lab: &'lab Lab) -> Task<'lab> {
        let words = ["task", "run"].map(OsString::from).to_vec();
        Task { words, is_run: true, json: true, ..Task::bare(lab, [] as [&str; 0]) }
    }

    pub(super) fn bare<Argument: AsRef<OsStr>>(
        lab: &'lab Lab,
        arguments: impl IntoIterator<Item = Argument>,
    ) -> Task<'lab> {
        Task {
            lab,
            program: program::brig(),
            words: arguments.into_iter().map(|word| word.as_ref().to_owned()).collect(),
            environment: Vec::new(),
            input: None,
            longest: LONGEST * super::patience(),
            is_run: false,
            json: false,
            prefix: Vec::new(),
        }
    }

    /// Adds arguments before the `--`.
    #[must_use]
    pub fn args<Argument: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = Argument>) -> Task<'lab> {
        self.words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Leaves `--json` out: the command's streams are brig's own.
    #[must_use]
    pub fn plain(mut self) -> Task<'lab> {
        self.json = false;
        self
    }

    /// Sets a variable of brig itself.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Task<'lab> {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// What brig reads from its standard input; else that is /dev/null.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Task<'lab> {
        self.input = Some(bytes.into());
        self
    }

    /// Runs the weakened build with this protection (or several, by commas) switched off.
    #[must_use]
    pub fn weakened(mut self, protection: &str) -> Task<'lab> {
        self.program = program::weakened();
        self.env("BRIG_WEAKEN", protection)
    }

    /// Starts brig by another program, which becomes it.
    #[must_use]
    pub fn by<Argument: AsRef<OsStr>>(mut self, prefix: impl IntoIterator<Item = Argument>) -> Task<'lab> {
        self.prefix = prefix.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// The command that these arguments make, not started.
    pub fn command(&self) -> Command {
        let mut words = self.prefix.iter().map(OsString::as_os_str).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(&self.words).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("BRIG_STORE", self.lab.store());
        command
    }

    fn with_command<Argument: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = Argument>) -> Task<'lab> {
        if self.is_run {
            // As an argument, so that the test recognises every process of it; behind the verb, where a start is known
            // by its first two words.
            self.words.splice(2..2, ["--store".into(), self.lab.store().into_os_string()]);
        }
        if self.json {
            self.words.push("--json".into());
        }
        self.words.push("--".into());
        self.words.extend(command.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds the command and returns the whole command, for a test that starts it itself.
    pub fn command_for<Argument: AsRef<OsStr>>(self, command: impl IntoIterator<Item = Argument>) -> Command {
        self.with_command(command).command()
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run<Argument: AsRef<OsStr>>(self, command: impl IntoIterator<Item = Argument>) -> Run {
        self.with_command(command).finish()
    }

    /// Runs a shell script to its end.
    #[track_caller]
    pub fn sh(self, script: &str) -> Run {
        self.run(["sh", "-c", script])
    }

    /// Starts a shell script and returns at once.
    #[track_caller]
    pub fn start_sh(self, script: &str) -> Started {
        self.with_command(["sh", "-c", script]).start()
    }

    #[track_caller]
    pub(super) fn finish(self) -> Run {
        self.start().finish()
    }

    #[track_caller]
    pub(super) fn start(self) -> Started {
        let input = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut command = self.command();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("start {:?}: {cause}", self.program));
        let stdout = Capture::of(child.stdout.take().map(Source::Out).unwrap());
        let stderr = Capture::of(child.stderr.take().map(Source::Error).unwrap());
        if let Some(bytes) = self.input {
            let mut pipe = child.stdin.take().unwrap();
            // A command may leave its input unread.
            std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        Started { child, stdout, stderr, started, longest: self.longest }
    }
}

enum Source {
    Out(ChildStdout),
    Error(ChildStderr),
}

struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Capture {
    fn of(mut source: Source) -> Capture {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            loop {
                let count = match &mut source {
                    Source::Out(pipe) => pipe.read(&mut buffer),
                    Source::Error(pipe) => pipe.read(&mut buffer),
                };
                match count {
                    Ok(0) | Err(_) => return,
                    Ok(count) => kept.lock().unwrap().extend_from_slice(&buffer[..count]),
                }
            }
        });
        Capture { bytes, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

/// A command of brig that runs.
pub struct Started {
    child: Child,
    stdout: Capture,
    stderr: Capture,
    started: Instant,
    longest: Duration,
}

impl Started {
    /// brig's own process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal to brig.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// What came on both streams until now.
    pub fn output(&self) -> String {
        self.stdout.text() + &self.stderr.text()
    }

    /// Waits until the command has written `words`.
    #[track_caller]
    pub fn wait_for(&self, words: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while !self.output().contains(words) {
            assert!(Instant::now() < end, "`{words}` never came: {}", self.output());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether brig has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The sandbox's pid 1, as the host sees it: brig's last child.
    #[track_caller]
    pub fn pid_1(&self) -> i32 {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        // Brig has other children too, for a moment. `NSpid` lists the process's number in each PID namespace, the
        // innermost last.
        let is_first = |child: &&str| {
            let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
        };
        let first = children.split_whitespace().find(is_first);
        first.unwrap_or_else(|| panic!("brig has no pid 1: {}", self.output())).parse().unwrap()
    }

    /// Waits for brig's end and for the end of its output.
    #[track_caller]
    pub fn finish(mut self) -> Run {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > self.longest {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("brig has not ended after {:?}; it wrote: {}", self.longest, self.output());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let elapsed = self.started.elapsed();
        let text = |capture: Capture| {
            capture.reader.join().unwrap();
            String::from_utf8_lossy(&std::mem::take(&mut *capture.bytes.lock().unwrap())).into_owned()
        };
        Run {
            status: status.code(),
            signal: status.signal(),
            stdout: text(self.stdout),
            stderr: text(self.stderr),
            elapsed,
        }
    }
}
