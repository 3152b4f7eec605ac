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
    let escape = isatty(rustix::stdio::stdout());
    let mut out = std::io::stdout().lock();
    let mut buffer = [0_u8; 64 * 1024];
    loop {
        let count = log
            .read(&mut buffer)
            .map_err(|cause| Error::os(Kind::Store, cause).doing(format!("read the log of `{id}`")))?;
        let bytes = &buffer[..count];
        let written = if escape { out.write_all(&output::escaped_bytes(bytes)) } else { out.write_all(bytes) };
        if count == 0 || written.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
