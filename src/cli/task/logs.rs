//! `brig task logs` and `events`: what a task has written, and its record of events.

use crate::cli::output;
use brig::error::Result;
use brig::task::{From, Store};
use clap::Args;
use rustix::termios::isatty;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Print the output of a task
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task logs -f k3f
  brig task logs --tail 20 k3f
  brig task logs --stderr k3f > errors.txt
  brig task logs --json k3f | jq -r 'select(.stream == \"stderr\") | .text'

Without --stdout and --stderr both come, in the order in which they were written. A task with a terminal has one stream:
all of it is standard output.")]
pub(super) struct LogsArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print what comes, too, until the task has ended
    #[arg(short, long)]
    follow: bool,
    /// Print the last lines only, of both streams together; `all` for all
    #[arg(short = 'n', long, value_name = "LINES", value_parser = last_lines, default_value = "all")]
    #[arg(hide_default_value = true, allow_hyphen_values = true)]
    tail: From,
    /// Print the output of a job of `brig task exec --detach`
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Print what came on standard output
    #[arg(long)]
    stdout: bool,
    /// Print what came on standard error
    #[arg(long)]
    stderr: bool,
    /// Print JSON objects, one a line, with `stream` (stdout, stderr) and `text`
    #[arg(long)]
    json: bool,
}

/// `all`, or a number; docker takes a negative one for all.
fn last_lines(text: &str) -> Result<From, String> {
    match text.parse::<i64>() {
        _ if text == "all" => Ok(From::Start),
        Ok(lines) => Ok(u64::try_from(lines).map_or(From::Start, From::Last)),
        Err(_) => Err("give a number of lines, or `all`".to_owned()),
    }
}

/// What is read at once.
const CHUNK: usize = 64 << 10;

pub(super) fn logs(store: &Store, arguments: &LogsArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if arguments.stderr && arguments.job.is_none() && store.record(&id).is_ok_and(|record| record.terminal) {
        tell!("brig: the task {id} has a terminal: standard error is in its standard output");
    }
    if arguments.json || arguments.stdout != arguments.stderr {
        return by_stream(store, &id, arguments);
    }
    let mut log = match &arguments.job {
        Some(job) => store.follow_job_log(&id, job, arguments.tail)?,
        None => store.follow_log(&id, arguments.tail)?,
    };
    let mut escaper = isatty(rustix::stdio::stdout()).then(output::Escaper::default);
    let mut out = std::io::stdout().lock();
    let mut buffer = [0_u8; CHUNK];
    loop {
        let bytes = log.available(&mut buffer)?;
        let at_end = bytes.is_none() || (!arguments.follow && bytes.is_some_and(<[u8]>::is_empty));
        let bytes = bytes.unwrap_or_default();
        let escaped = escaper.as_mut().map(|escaper| if at_end { escaper.finish() } else { escaper.escape(bytes) });
        let written = out.write_all(escaped.as_deref().unwrap_or(bytes)).and_then(|()| out.flush());
        if !output::is_taken(written) || at_end {
            return Ok(ExitCode::SUCCESS);
        }
        if bytes.is_empty() {
            log.wait()?;
        }
    }
}

/// Prints one of the streams, or both as JSON.
fn by_stream(store: &Store, id: &str, arguments: &LogsArguments) -> Result<ExitCode> {
    let mut log = match &arguments.job {
        Some(job) => store.job_log_by_stream(id, job, arguments.tail)?,
        None => store.log_by_stream(id, arguments.tail)?,
    };
    let mut printer = Printer {
        wanted: if arguments.stdout == arguments.stderr { [true; 2] } else { [arguments.stdout, arguments.stderr] },
        json: arguments.json,
        escaper: isatty(rustix::stdio::stdout()).then(output::Escaper::default),
        cut: Default::default(),
        is_taken: true,
    };
    let mut buffer = [0_u8; CHUNK];
    loop {
        let count = log.available(&mut buffer, |error, bytes| printer.print(error, bytes))?;
        if count.is_none() || (!arguments.follow && count == Some(0)) || !printer.is_taken {
            printer.finish();
            return Ok(ExitCode::SUCCESS);
        }
        if count == Some(0) {
            log.wait()?;
        }
    }
}

struct Printer {
    /// Whether standard output and standard error are printed.
    wanted: [bool; 2],
    json: bool,
    escaper: Option<output::Escaper>,
    /// The beginning of a character, for each stream, whose rest has not come.
    cut: [Vec<u8>; 2],
    /// Whether the reader is still there.
    is_taken: bool,
}

impl Printer {
    fn print(&mut self, error: bool, bytes: &[u8]) {
        let stream = usize::from(error);
        if !self.wanted[stream] || !self.is_taken {
            return;
        }
        if !self.json {
            return match &mut self.escaper {
                Some(escaper) => Printer::write(&mut self.is_taken, &escaper.escape(bytes)),
                None => Printer::write(&mut self.is_taken, bytes),
            };
        }
        let mut text = std::mem::take(&mut self.cut[stream]);
        text.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&text) {
            Err(wrong) if wrong.error_len().is_none() => wrong.valid_up_to(),
            // Of text with a wrong byte before its end the cut character is replaced as well.
            _ => text.len(),
        };
        self.cut[stream] = text.split_off(whole);
        self.object(error, &text);
    }

    fn object(&mut self, error: bool, text: &[u8]) {
        if !text.is_empty() && self.is_taken {
            let stream = if error { "stderr" } else { "stdout" };
            self.is_taken = output::json_line(&json!({ "stream": stream, "text": String::from_utf8_lossy(text) }));
        }
    }

    fn write(is_taken: &mut bool, bytes: &[u8]) {
        let mut out = std::io::stdout().lock();
        *is_taken &= output::is_taken(out.write_all(bytes).and_then(|()| out.flush()));
    }

    fn finish(&mut self) {
        for error in [false, true] {
            let text = std::mem::take(&mut self.cut[usize::from(error)]);
            self.object(error, &text);
        }
        if let Some(escaper) = &mut self.escaper {
            Printer::write(&mut self.is_taken, &escaper.finish());
        }
    }
}

/// Print the events of a task, one JSON object a line
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task events -f k3f | jq -r 'select(.event == \"limit\")'
  brig task events --since 120 k3f

Each line has `v` (1), `seq`, `time`, `task` and `event`: state, output (with its `text`), limit, usage, egress, progress,
exec, left_out or ended.
An output event has `missing`, in bytes, if a power cut has shortened the log.")]
pub(super) struct EventsArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Print what comes, too, until the task has ended
    #[arg(short, long)]
    follow: bool,
    /// Leave out those with a lower number
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    since: u64,
}

pub(super) fn events(store: &Store, arguments: &EventsArguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let mut events = store.events(&id)?;
    while let Some(found) = events.available()? {
        let is_empty = found.is_empty();
        for (event, _) in found.into_iter().filter(|(event, _)| event.seq >= arguments.since) {
            if !output::json_line(&event) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if is_empty && !arguments.follow {
            break;
        }
        if is_empty {
            events.wait()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
