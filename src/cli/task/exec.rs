//! `brig task exec`: another process in a running sandbox. `attach`: a running task's output as it comes, and its
//! input.

use crate::cli::console::Raw;
use crate::cli::console::{Streams, terminal_size};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::sandbox::{JobLimits, LimitName};
use brig::task::{ExecEnd, Execution, From, Left, Store};
use clap::Args;
use rustix::termios::isatty;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Run another process in a running task: same user, namespaces, filter, rules and limits
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task exec k3f -- git -C /workspace status
  brig task exec -it k3f -- bash
  tar c src | brig task exec -i k3f -- tar x -C /tmp
  brig task exec --timeout 10m k3f -- make test     then all of its processes are killed, with exit status 124
  brig task exec -d --timeout 1h k3f -- make test   a job: prints its id; see brig task jobs, logs --job, wait --job
  brig task exec -d --memory 1G --pids 64 k3f -- make test   with separate limits below the task's

The exit status is the process's own. It ends with the task at the latest, and with this command: so does
all that it has started in the background. Ctrl-C and other signals go to its process group.
It neither sees nor signals the task's own processes: `brig task top` shows them.")]
pub(super) struct ExecArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Pass standard input on
    #[arg(short, long)]
    interactive: bool,
    /// Give the process a terminal
    #[arg(short, long)]
    tty: bool,
    /// Set a variable, or pass on the caller's own
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<OsString>,
    /// The working directory [default: where the task's command started]
    #[arg(short, long, value_name = "PATH")]
    workdir: Option<PathBuf>,
    /// Run as this user of the sandbox [default: the task's]
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// Kill the process and all that it has started after this time; until then it counts as activity
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Run it as a job: print the job's id and return. It ends with the task at the latest
    #[arg(short, long, conflicts_with_all = ["interactive", "tty", "raw"])]
    detach: bool,
    /// Memory of the job, at most the task's; at the limit the job is killed and the task goes on
    #[arg(long, value_name = "SIZE", requires = "detach")]
    memory: Option<String>,
    /// Processes and threads of the job, at most the task's
    #[arg(long, value_name = "N", requires = "detach")]
    pids: Option<String>,
    /// Processor time of the job, at most the task's; then it is killed
    #[arg(long, value_name = "TIME", requires = "detach")]
    cpu_time: Option<String>,
    /// Pass on what it writes as it is: secrets are not hidden
    #[arg(long)]
    raw: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[cfg(test)]
impl ExecArguments {
    /// What the parser has read.
    pub(super) fn words(&self) -> (&str, &[OsString], &[OsString]) {
        (&self.id, &self.environment, &self.command)
    }
}

pub(super) fn exec(store: &Store, arguments: ExecArguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    if arguments.tty && !isatty(rustix::stdio::stdin()) {
        return Err(Error::new(Kind::Usage, "--tty needs a terminal as standard input").hint("leave --tty out"));
    }
    arguments.environment.iter().try_for_each(|each| brig::task::check_variable(each))?;
    let mut environment =
        arguments.environment.iter().map(|each| brig::task::variable(each)).collect::<Result<Vec<_>>>()?;
    if arguments.tty && !environment.iter().any(|(name, _)| name == "TERM") {
        environment.push(("TERM".into(), std::env::var_os("TERM").unwrap_or_else(|| "xterm-256color".into())));
    }
    let mut limits = JobLimits::default();
    let given = [
        (LimitName::Memory, &arguments.memory),
        (LimitName::Pids, &arguments.pids),
        (LimitName::CpuTime, &arguments.cpu_time),
    ];
    for (name, text) in given {
        text.iter().try_for_each(|text| limits.set(name, text))?;
    }
    let execution = Execution {
        command: arguments.command,
        environment,
        directory: arguments.workdir,
        terminal: arguments.tty.then(|| terminal_size().unwrap_or((24, 80))),
        user: arguments.user,
        timeout: arguments.timeout,
        limits,
    };
    if arguments.detach {
        output::lines([store.reach(&id)?.exec_job(execution)?]);
        return Ok(ExitCode::SUCCESS);
    }
    let mut streams = Streams::new(arguments.interactive, arguments.tty)?;
    let live = store.reach(&id)?;
    let mut started = live.exec(execution)?;
    if !arguments.raw {
        started = started.hide_secrets(&live)?;
    }
    if !arguments.interactive {
        started.input = None;
    }
    let raw = if arguments.tty && arguments.interactive { Some(Raw::enter()?) } else { None };
    let status = started.serve(&mut streams);
    drop(raw);
    match status? {
        ExecEnd::Exited(status) => Ok(ExitCode::from(status)),
        ExecEnd::TimedOut => {
            let limit = humantime::format_duration(arguments.timeout.unwrap_or_default());
            let error =
                Error::new(Kind::State, format!("it ran for {limit} and was killed with all that it had started"));
            output::error(&error.doing(format!("run a process in the task `{id}`")));
            Ok(ExitCode::from(124))
        }
    }
}

/// Show a running task's output as it comes, pass input on, and exit as it does
#[derive(Args)]
#[command(after_help = "\
Ctrl-P Ctrl-Q leaves a task that has a terminal, Ctrl-C one that has none; it goes on in the background. Input is passed
on to a task that was begun with a terminal or with --interactive.")]
pub(super) struct AttachArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Begin with the first byte of its output, not with what comes now
    #[arg(long)]
    replay: bool,
    /// Pass no input on
    #[arg(long)]
    no_input: bool,
}

pub(super) fn attach(store: &Store, arguments: &AttachArguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    let live = store.reach(&id)?;
    let output = store.follow_log(&id, if arguments.replay { From::Start } else { From::Now })?;
    let has_terminal = live.has_terminal()?;
    let is_console = has_terminal && isatty(rustix::stdio::stdin()) && !arguments.no_input;
    let mut streams = Streams::new(!arguments.no_input, is_console)?;
    let raw = if is_console { Some(Raw::enter()?) } else { None };
    let left = live.attach(output, &mut streams);
    drop(raw);
    match left? {
        Left::Detached => {
            tell!("brig: left the task {id}, which goes on");
            Ok(ExitCode::SUCCESS)
        }
        Left::Ended(_) => {
            let receipt = store.wait(&id, None)?;
            Ok(receipt.map_or(ExitCode::FAILURE, |receipt| ExitCode::from(receipt.exit_status)))
        }
    }
}
