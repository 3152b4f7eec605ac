//! `brig task logs`

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::Store;
use clap::Args;
use rustix::termios::isatty;
use std::io::{Read, Write};
use std::process::ExitCode;

/// Print the output of a task
#[derive(Args)]
pub(super) struct Arguments {
    /// The task's id, or its beginning
    id: String,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let mut log = match store.log(&id) {
        Ok(log) => log,
        // A task that never came so far has said nothing.
        Err(error) if error.kind() == Kind::NotFound => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error),
    };
    let mut escaper = isatty(rustix::stdio::stdout()).then(output::Escaper::default);
    let mut out = std::io::stdout().lock();
    let mut buffer = [0_u8; 64 * 1024];
    loop {
        let count = log
            .read(&mut buffer)
            .map_err(|cause| Error::os(Kind::Store, cause).doing(format!("read the log of `{id}`")))?;
        let bytes = &buffer[..count];
        let escaped = escaper.as_mut().map(|escaper| if count == 0 { escaper.finish() } else { escaper.escape(bytes) });
        let written = out.write_all(escaped.as_deref().unwrap_or(bytes));
        if count == 0 || written.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
