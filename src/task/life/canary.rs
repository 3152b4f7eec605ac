//! A canary: a made-up secret for the command. The attempt fails if it appears in any output.
//!
//! The redactor finds the value, base64, hex and other encodings, in output, events, changed files, artifacts, the
//! result, and names in the gateway's account. It misses encrypted or compressed data, so also TLS and commits of git.

use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::sandbox::Ledger;
use crate::task::output::changes::store::Store as Copies;
use crate::task::output::changes::{Changes, Node};
use crate::task::output::handback::Until;
use crate::task::redact::Redactor;
use crate::task::secrets::{Exposure, Secret, Source};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

pub(crate) const NAME: &str = "CANARY";

/// Lower-case letters and digits only, so that it also fits into a host's name.
pub(crate) fn secrets() -> Result<Vec<Secret>> {
    let mut random = [0_u8; 20];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .failing(Kind::Internal, || "make a canary")?;
    let value: String =
        random.iter().map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte & 31)])).collect();
    let source = Source::Made(format!("canary{value}"));
    let secret = |exposure| Secret::new(NAME, source.clone(), exposure);
    Ok(vec![secret(Exposure::File)?, secret(Exposure::Environment)?])
}

pub(crate) struct Watch {
    redactor: Redactor,
    places: Vec<String>,
    unsearched: usize,
}

impl Watch {
    pub(crate) fn new(redactor: Redactor) -> Watch {
        Watch { redactor, places: Vec::new(), unsearched: 0 }
    }

    /// Notes the place if the canary has appeared since the last call.
    pub(crate) fn note_place(&mut self, place: impl Into<String>) {
        if self.redactor.take_seen(NAME) {
            self.places.push(place.into());
        }
    }

    /// Searches copies of changed files until `end`, and all their names and links.
    pub(crate) fn changes(&mut self, changes: &Changes, directory: &Path, end: Instant) -> Result<()> {
        let copies = Copies::open(directory)?;
        let mut read = HashSet::new();
        for entry in &changes.entries {
            let _ = self.redactor.bytes(entry.path.as_bytes());
            match &entry.now {
                Some(Node::File { .. }) => {
                    let failed = |cause| files::failed(cause, format!("look through `{}`", entry.path));
                    let file = copies.file(&entry.path).map_err(|errno| failed(errno.into()))?;
                    let status = file.metadata().map_err(failed)?;
                    // The names of a hard link are one file.
                    if read.insert((status.dev(), status.ino())) {
                        match self.redactor.finds_value(Until(file, end)) {
                            Err(cause) if cause.kind() == ErrorKind::TimedOut => self.unsearched += 1,
                            other => drop(other.map_err(failed)?),
                        }
                    }
                }
                Some(Node::Symlink { target }) => drop(self.redactor.bytes(&target.0)),
                _ => {}
            }
            let place = self.redactor.text(&format!("the changed file {}", entry.path));
            self.note_place(place);
        }
        Ok(())
    }

    /// Searches requested names and quotes in refusals.
    pub(crate) fn egress(&mut self, ledger: Option<&Ledger>) {
        if let Some(ledger) = ledger {
            let rows = ledger.rows.iter().flat_map(|row| [&row.host, &row.rule]);
            rows.chain(&ledger.faults).for_each(|text| drop(self.redactor.text(text)));
        }
        self.note_place("the network");
    }

    pub(crate) fn verdict(self) -> Option<Error> {
        if self.places.is_empty() {
            let words =
                format!("{} changed files were not searched for the canary: the time was over", self.unsearched);
            let error = Error::new(Kind::Policy, words).hint("run it again, and let the command write less");
            return (self.unsearched > 0).then_some(error);
        }
        const MOST: usize = 5;
        let mut places = self.places[..self.places.len().min(MOST)].join(", ");
        if self.places.len() > MOST {
            places += &format!(" and {} more", self.places.len() - MOST);
        }
        Some(Error::new(Kind::Policy, format!("the canary came out: in {places}")).hint(
            "the command reads secrets that it was not asked to use, and passes them on: do not trust what it did",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Row;

    #[test]
    fn a_canary_in_why_something_was_refused_is_seen() {
        for place in ["host", "rule", "fault", "nowhere"] {
            let redactor = Redactor::new();
            assert!(redactor.add(NAME, b"canary-of-a-mine"));
            let words = |here: &str| if here == place { "to /x/canary-of-a-mine" } else { "to /x" }.to_owned();
            let mut ledger = Ledger::default();
            ledger.rows.push(Row { host: words("host"), rule: words("rule"), ..Row::default() });
            ledger.faults.push(words("fault"));
            let mut watch = Watch::new(redactor);
            watch.egress(Some(&ledger));
            assert_eq!(watch.verdict().is_some(), place != "nowhere", "{place}");
        }
    }
}
