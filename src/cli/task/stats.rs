//! `brig task stats` and `top`: what running tasks use.

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::sandbox::{Sample, size};
use brig::task::{Status, Store};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Show what running tasks use
#[derive(Args)]
pub(super) struct StatsArguments {
    /// The tasks' names, ids or beginnings of these, or @ for the newest task [default: all that run]
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Show them again every so often, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    every: Option<Duration>,
}

/// Show the processes of a running task
#[derive(Args)]
pub(super) struct TopArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    id: String,
    #[serde(flatten)]
    sample: Sample,
}

pub(super) fn stats(store: &Store, arguments: &StatsArguments) -> Result<ExitCode> {
    let ids = store.find_all(&arguments.ids)?;
    if arguments.every.is_some_and(|every| every.is_zero()) {
        return Err(Error::new(Kind::Usage, "`--every` is no time at all").hint("give it like `--every 2s`"));
    }
    loop {
        let rows = if ids.is_empty() { of_all(store)? } else { of_these(store, &ids)? };
        show(&rows, arguments.json);
        match arguments.every {
            Some(every) => std::thread::sleep(every),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Those that run; one that ends while it is asked is left out.
fn of_all(store: &Store) -> Result<Vec<Row>> {
    let (tasks, _) = store.list()?;
    let running = tasks.into_iter().filter(|task| task.status == Status::Running);
    Ok(running
        .filter_map(|task| {
            let sample = store.reach(&task.id).and_then(|live| live.stats()).ok()?;
            Some(Row { id: task.id, sample })
        })
        .collect())
}

fn of_these(store: &Store, ids: &[String]) -> Result<Vec<Row>> {
    ids.iter().map(|id| Ok(Row { id: id.clone(), sample: store.reach(id)?.stats()? })).collect()
}

fn show(rows: &[Row], json: bool) {
    if json {
        return output::json(&rows);
    }
    let part = |used: Option<u64>, limit: u64| match used {
        Some(used) => format!("{} / {}", output::approximate(used), size(limit)),
        None => "-".to_owned(),
    };
    let cells = rows.iter().map(|Row { id, sample }| {
        [
            id.clone(),
            if sample.paused { "paused".to_owned() } else { "running".to_owned() },
            format!("{:.1}s", sample.wall_seconds),
            sample.cpu_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}s")),
            part(sample.memory_bytes, sample.memory_limit),
            sample.pids.map_or_else(|| "-".to_owned(), |pids| format!("{pids} / {}", sample.pids_limit)),
            part(sample.disk_bytes, sample.disk_limit),
            output::approximate(sample.output_bytes),
        ]
    });
    output::table(["ID", "STATE", "TIME", "CPU", "MEMORY", "PROCESSES", "DISK", "OUTPUT"], cells);
}

pub(super) fn top(store: &Store, arguments: &TopArguments) -> Result<ExitCode> {
    let id = store.find(&arguments.id)?;
    let processes = store.reach(&id)?.processes()?;
    if arguments.json {
        output::json(&processes);
        return Ok(ExitCode::SUCCESS);
    }
    let cells = processes.iter().map(|each| {
        [
            each.pid.to_string(),
            each.inside.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            each.state.clone(),
            format!("{:.2}s", each.cpu_seconds),
            output::approximate(each.memory_bytes),
            each.threads.to_string(),
            output::shortened(&each.command, 80),
        ]
    });
    output::table(["PID", "INSIDE", "STATE", "CPU", "MEMORY", "THREADS", "COMMAND"], cells);
    Ok(ExitCode::SUCCESS)
}
