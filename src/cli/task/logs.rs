//! `brig task logs`

use crate::cli::output;
use brig::error::Result;
use brig::task::{From, Store};
use clap::Args;
use rustix::termios::isatty;
use std::io::Write;
use std::process::ExitCode;

/// Print the output of a task
#[derive(Args)]
pub(super) struct Arguments {
    /// The task's id, its beginning, or @ for the newest task
    id: String,
    /// Print what comes, too, until the task has ended
    #[arg(short, long)]
    follow: bool,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let mut log = store.follow_log(&id, From::Start)?;
    let mut escaper = isatty(rustix::stdio::stdout()).then(output::Escaper::default);
    let mut out = std::io::stdout().lock();
    let mut buffer = [0_u8; 64 * 1024];
    loop {
        let bytes = log.available(&mut buffer)?;
        let at_end = bytes.is_none() || (!arguments.follow && bytes.is_some_and(<[u8]>::is_empty));
        let bytes = bytes.unwrap_or_default();
        let escaped = escaper.as_mut().map(|escaper| if at_end { escaper.finish() } else { escaper.escape(bytes) });
        let written = out.write_all(escaped.as_deref().unwrap_or(bytes)).and_then(|()| out.flush());
        if at_end || written.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        if bytes.is_empty() {
            log.wait()?;
        }
    }
}
