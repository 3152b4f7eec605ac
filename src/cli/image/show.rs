//! Progress of image verbs: bars on a terminal, plain lines elsewhere.

use super::Common;
use crate::cli::output;
use brig::image::{Digest, Event};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::io::IsTerminal;
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
