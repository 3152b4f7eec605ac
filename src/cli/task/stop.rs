//! `brig task stop`, `kill`, `pause` and `unpause`: one word to running tasks.

use brig::error::{Error, Kind, Result};
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

/// Ask running tasks to end, kill what is left after the grace, and wait for the end
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task stop k3f
  brig task stop --grace 2s k3f k3g
  brig task stop --drain 5m k3f           the receipt names what did not end")]
pub(super) struct StopArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// How long the command may take to end [default: that of the task]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Option<Duration>,
    /// First take no new process, and let those of `brig task exec` and jobs end, for this time at most
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "job")]
    drain: Option<Duration>,
    /// Do not wait for the end
    #[arg(long)]
    no_wait: bool,
    /// End this job of the task, not the task
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
}

/// Send a signal to a running task's command; SIGKILL ends the whole sandbox
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task kill k3f            ends everything at once
  brig task kill k3f USR1       to the command and its process group")]
pub(super) struct KillArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The signal's name or number
    #[arg(default_value = "KILL")]
    signal: String,
    /// Signal this job of the task; SIGKILL ends all its processes
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
}

/// Stop every process of running tasks where it stands
#[derive(Args)]
#[command(after_help = "\
The idle limit rests meanwhile, the wall limit does not. `brig task unpause ID` lets them go on; so does `brig task resume ID`.")]
pub(super) struct PauseArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Let paused tasks go on
#[derive(Args)]
pub(super) struct UnpauseArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(super) fn stop(store: &Store, arguments: &StopArguments) -> Result<ExitCode> {
    let ids = store.find_all(&arguments.ids)?;
    if let Some(job) = &arguments.job {
        let [id] = ids.as_slice() else {
            return Err(Error::new(Kind::Usage, "a job is of one task").hint("name one task with --job"));
        };
        store.reach(id)?.stop_job(job, arguments.grace)?;
        if !arguments.no_wait {
            store.wait_for_job(id, job, None)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // All are asked before any is waited for.
    for id in &ids {
        let live = store.reach(id)?;
        match arguments.drain {
            Some(limit) => live.drain(limit, arguments.grace)?,
            None => live.stop(arguments.grace)?,
        }
    }
    for id in ids.iter().filter(|_| !arguments.no_wait) {
        store.wait(id, None)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn kill(store: &Store, arguments: &KillArguments) -> Result<ExitCode> {
    let signal = signal(&arguments.signal)?;
    let id = store.find(&arguments.id)?;
    match &arguments.job {
        Some(job) => store.reach(&id)?.kill_job(job, signal)?,
        None => store.reach(&id)?.kill(signal)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pause(store: &Store, arguments: &PauseArguments) -> Result<ExitCode> {
    store.find_all(&arguments.ids)?.iter().try_for_each(|id| store.reach(id)?.pause())?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn unpause(store: &Store, arguments: &UnpauseArguments) -> Result<ExitCode> {
    store.find_all(&arguments.ids)?.iter().try_for_each(|id| store.reach(id)?.unpause())?;
    Ok(ExitCode::SUCCESS)
}

/// `TERM`, `SIGTERM`, `term` or `15`.
fn signal(word: &str) -> Result<i32> {
    use nix::sys::signal::Signal;
    let number = word.parse::<i32>().ok().and_then(|number| Signal::try_from(number).ok());
    let name = word.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    number.or_else(|| name.parse().ok()).map(|signal| signal as i32).ok_or_else(|| {
        Error::new(Kind::Usage, format!("`{}` is no signal", word.escape_debug()))
            .hint("give a name like TERM or a number")
    })
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        for word in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(signal(word).unwrap(), 15, "{word}");
        }
        for word in ["", "0", "-1", "99", "TERMINATE", "SIG"] {
            assert!(signal(word).is_err(), "{word:?}");
        }
    }
}
