//! `brig task stop`, `kill`, `pause`, `unpause`, `allow`, `deny` and `revoke`: one request to running
//! tasks. `wait`: until a task has ended, with its exit status.

use crate::cli::oci::signal::number;
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::sandbox::Rule;
use brig::task::{Live, Store};
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
    let ask = |id: &String| {
        let live = store.reach(id)?;
        match arguments.drain {
            Some(limit) => live.drain(limit, arguments.grace),
            None => live.stop(arguments.grace),
        }
    };
    let mut asked: Vec<_> = ids.iter().map(ask).collect();
    for (id, done) in ids.iter().zip(&mut asked).filter(|(_, done)| done.is_ok() && !arguments.no_wait) {
        *done = store.wait(id, None).map(drop);
    }
    Ok(output::failures(asked.iter().filter_map(|done| done.as_ref().err())))
}

/// A task that cannot be asked does not spare the others.
fn ask_all(store: &Store, words: &[String], ask: impl Fn(Live) -> Result<()>) -> Result<ExitCode> {
    let ids = store.find_all(words)?;
    let failed: Vec<_> = ids.iter().filter_map(|id| store.reach(id).and_then(&ask).err()).collect();
    Ok(output::failures(&failed))
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
    ask_all(store, &arguments.ids, |task| task.pause())
}

pub(super) fn unpause(store: &Store, arguments: &UnpauseArguments) -> Result<ExitCode> {
    ask_all(store, &arguments.ids, |task| task.unpause())
}

/// `TERM`, `SIGTERM`, `term` or `15`.
fn signal(word: &str) -> Result<i32> {
    const LAST: i32 = 31; // above are the real-time ones, signal(7)
    number(word).filter(|number| (1..=LAST).contains(number)).ok_or_else(|| {
        Error::new(Kind::Usage, format!("unknown signal `{}`", word.escape_debug()))
            .hint("give a name like TERM or a number")
    })
}

/// Take a secret back from a running task: its file is gone when this returns
#[derive(Args)]
#[command(after_help = "\
Example:
  brig task revoke 1a2b GH_TOKEN

What the command has read already, it has; revoke the credential where it was issued too.")]
pub(super) struct RevokeArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The secret's name
    name: String,
}

pub(super) fn revoke(store: &Store, arguments: &RevokeArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    brig::task::revoke(store, &store.find(&arguments.id)?, &arguments.name)?;
    Ok(ExitCode::SUCCESS)
}

/// Let a running task reach what a rule covers
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task allow k3f api.example.com:443
  brig task allow k3f '*.debian.org'
  brig task allow k3f @npm

The task must run with --network egress. Up to 8 ports that no rule had before can be added; more are named under `egress.faults` of the receipt.")]
pub(super) struct AllowArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// A rule as in --allow of `brig task run`
    rule: String,
}

/// Refuse a running task what a rule covers, and cut what is open
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task deny k3f api.example.com:443")]
pub(super) struct DenyArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// A rule as in --allow of `brig task run`
    rule: String,
}

pub(super) fn allow(store: &Store, arguments: &AllowArguments) -> Result<ExitCode> {
    change(store, &arguments.id, &arguments.rule, true)
}

pub(super) fn deny(store: &Store, arguments: &DenyArguments) -> Result<ExitCode> {
    change(store, &arguments.id, &arguments.rule, false)
}

fn change(store: &Store, id: &str, rule: &str, allow: bool) -> Result<ExitCode> {
    let task = store.reach(&store.find(id)?)?;
    Rule::parse_all(rule)?.iter().try_for_each(|rule| task.reach(rule, allow))?;
    Ok(ExitCode::SUCCESS)
}

/// Wait for the end of a task and exit as it did
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task wait k3f && brig task diff k3f
  brig task wait --timeout 10m --json k3f | jq .outcome")]
pub(super) struct WaitArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Give up after this time, with exit status 124; the task goes on
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Wait for a job of `brig task exec --detach` and exit as it did
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Print the receipt, or the record of the job, as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn wait(store: &Store, arguments: &WaitArguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    if let Some(job) = &arguments.job {
        return wait_for_job(store, &id, job, arguments);
    }
    let Some(receipt) = store.wait(&id, arguments.timeout)? else {
        output::error(&Error::new(Kind::State, "it has not ended in time").doing(format!("wait for the task `{id}`")));
        return Ok(ExitCode::from(124));
    };
    if arguments.json {
        output::json(&receipt);
    } else {
        tell!("brig: task {id} {}", receipt.outcome.word());
    }
    Ok(ExitCode::from(receipt.exit_status))
}

fn wait_for_job(store: &Store, id: &str, job: &str, arguments: &WaitArguments) -> Result<ExitCode> {
    let Some(record) = store.wait_for_job(id, job, arguments.timeout)? else {
        let error = Error::new(Kind::State, "it has not ended in time");
        output::error(&error.doing(format!("wait for the job `{job}` of the task `{id}`")));
        return Ok(ExitCode::from(124));
    };
    if arguments.json {
        output::json(&record);
    } else {
        let limit = record.limit_words().map_or_else(String::new, |words| format!(": it was killed at {words}"));
        tell!("brig: job {} {}{limit}", record.id, record.state.word());
    }
    Ok(record.exit_status.map_or(ExitCode::from(125), ExitCode::from))
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        for word in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(signal(word).unwrap(), 15, "{word}");
        }
        for word in ["", "0", "-1", "99", "RTMIN", "TERMINATE", "SIG"] {
            assert!(signal(word).is_err(), "{word:?}");
        }
    }
}
