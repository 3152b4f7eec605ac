//! Output of image verbs: bars on a terminal, plain lines elsewhere, tables and JSON from the same rows.

use super::Common;
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::image::{Digest, Event};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;

/// Shows progress on stderr.
pub(super) enum Progress {
    Bars(MultiProgress, Mutex<HashMap<Digest, ProgressBar>>),
    Lines,
    Nothing,
}

impl Progress {
    pub(super) fn new(common: &Common) -> Progress {
        if common.quiet {
            Progress::Nothing
        } else if std::io::stderr().is_terminal() {
            Progress::Bars(MultiProgress::new(), Mutex::default())
        } else {
            Progress::Lines
        }
    }

    pub(super) fn event(&self, event: Event<'_>) {
        match self {
            Progress::Nothing => {}
            Progress::Lines => match event {
                Event::There { digest, .. } => tell!("{}: there already", digest.short()),
                Event::Begin { digest, size } => tell!("{}: {}", digest.short(), bytes(size)),
                Event::Done { digest, reused } => tell!("{}: {}", digest.short(), done(reused)),
                Event::Note(text) => tell!("{}", output::escaped(text)),
                Event::Advance { .. } => {}
            },
            Progress::Bars(all, bars) => {
                let Ok(mut bars) = bars.lock() else { return };
                match event {
                    Event::Begin { digest, size } => {
                        let style = "{prefix} {bar:30} {bytes:>10} of {total_bytes} {binary_bytes_per_sec:>12} {msg}";
                        let style =
                            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
                        let bar =
                            all.add(ProgressBar::new(size)).with_style(style).with_prefix(digest.short().to_owned());
                        bars.insert(digest.clone(), bar);
                    }
                    Event::Advance { digest, bytes } => {
                        if let Some(bar) = bars.get(digest) {
                            bar.inc(bytes);
                        }
                    }
                    Event::Done { digest, reused } => {
                        if let Some(bar) = bars.remove(digest) {
                            bar.finish_with_message(done(reused));
                        }
                    }
                    // Nothing reads a terminal that cannot be written.
                    Event::There { digest, .. } => drop(all.println(format!("{} there already", digest.short()))),
                    Event::Note(text) => drop(all.println(output::escaped(text))),
                }
            }
        }
    }
}

fn done(reused: u64) -> String {
    if reused > 0 { format!("done, {} of it from the store", bytes(reused)) } else { "done".to_owned() }
}

/// Prints rows as JSON.
pub(super) fn json<T: Serialize>(rows: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(rows).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    print(&output::safe_json(&text))
}

/// Prints one line of data, escaped: names and labels of an image may come from anywhere.
pub(super) fn line(text: &str) -> Result<()> {
    print(&output::escaped(text))
}

fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        // The reader has enough, as in `brig image ls | head -1`.
        Err(cause) if cause.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|cause| Error::os(Kind::Disk, cause).doing("print")),
    }
}

/// Prints a table with columns as wide as needed.
pub(super) fn table(rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// A number of bytes, readable.
pub(super) fn bytes(number: u64) -> String {
    indicatif::HumanBytes(number).to_string()
}

/// The age of a time, readable.
pub(super) fn age(seconds_since_1970: u64) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let ago = std::time::Duration::from_secs(now.saturating_sub(seconds_since_1970));
    format!("{} ago", indicatif::HumanDuration(ago))
}
