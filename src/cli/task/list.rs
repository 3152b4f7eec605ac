//! `brig task ls`

use crate::cli::output;
use brig::error::Result;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// List tasks, oldest first
#[derive(Args)]
pub(super) struct Arguments {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print ids only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let (rows, unread) = store.list()?;
    if arguments.json {
        output::json(&rows);
    } else if arguments.quiet {
        output::lines(rows.iter().map(|row| row.id.clone()));
    } else {
        let cells = rows.iter().map(|row| {
            let status = row.outcome.clone().unwrap_or_else(|| format!("{:?}", row.status).to_lowercase());
            let time = row.wall_seconds.map_or_else(String::new, |seconds| format!("{seconds:.2}s"));
            let created = row.created.get(..19).unwrap_or(&row.created).replace('T', " ");
            [row.id.clone(), status, created, time, output::shortened(&row.command.join(" "), 60)]
        });
        output::table(["ID", "OUTCOME", "CREATED", "TIME", "COMMAND"], cells);
    }
    unread.iter().for_each(output::error);
    Ok(ExitCode::SUCCESS)
}
