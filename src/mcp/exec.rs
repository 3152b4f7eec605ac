//! One process in a sandbox, from its start to its result.

use super::running::Cancel;
use crate::error::{Kind, Result};
use crate::files::memory_of;
use crate::host::is_off;
use crate::process::Ended;
use crate::sandbox::{ExitCodes, Facts, LimitHit, Outcome, Row, Stopped, decide};
use crate::task::{Console, EventReader, ExecEnd, Execution, Live, Receipt, Store};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const MAX_HOSTS: usize = 20;
/// The time for a sandbox's end after its process was killed.
const A_MOMENT: Duration = Duration::from_millis(300);
/// The time for the gateway's account after the refused process's end.
const ACCOUNT: Duration = Duration::from_millis(250);
/// The status after SIGKILL.
const KILLED: u8 = 137;

#[derive(Debug)]
pub(super) struct Finished {
    pub outcome: Outcome,
    /// `None` if it did not end by itself.
    pub status: Option<u8>,
    /// Standard output and standard error, redacted.
    pub streams: [Excerpt; 2],
    pub elapsed: Duration,
    /// Reached limits, or the error.
    pub evidence: Vec<String>,
    pub refused: Vec<Row>,
}

pub(super) struct ExecContext<'call> {
    pub store: &'call Store,
    pub id: &'call str,
    pub live: &'call Live,
    pub exit_codes: &'call ExitCodes,
    pub has_gateway: bool,
}

/// `cancel` kills the process.
pub(super) fn run(
    context: &ExecContext<'_>,
    execution: Execution,
    input: Option<&str>,
    max_output: usize,
    cancel: &Cancel,
) -> Result<Finished> {
    let mut events = context.store.new_events(context.id)?;
    let began = Instant::now();
    let mut console = Collector::new(input, max_output, cancel)?;
    let mut started = context.live.exec(execution)?;
    if !is_off("mcp-redaction") {
        started = started.hide_secrets(context.live)?;
    }
    if input.is_none() {
        started.input = None;
    }
    let end = started.serve(&mut console);
    let elapsed = began.elapsed();
    let streams = console.streams;
    // The kernel may have killed the whole sandbox for lack of memory; its receipt has the reason.
    let has_ended = match &end {
        Err(error) => error.kind() == Kind::State,
        Ok(end) => *end == ExecEnd::Exited(KILLED),
    };
    let limit = if end.is_err() { Duration::from_secs(10) } else { A_MOMENT };
    if has_ended && let Some(receipt) = context.store.wait(context.id, Some(limit))? {
        let refused = receipt.refused_hosts();
        let outcome = receipt.outcome.clone();
        return Ok(Finished { outcome, status: None, streams, elapsed, evidence: evidence_of(&receipt), refused });
    }
    let end = end?;
    let mut seen = Observed::default();
    seen.read(&mut events)?;
    if context.has_gateway && end != ExecEnd::Exited(0) && seen.refused.is_empty() {
        std::thread::sleep(ACCOUNT);
        seen.read(&mut events)?;
    }
    let (status, stopped) = match end {
        ExecEnd::TimedOut => (None, Some(Stopped::Wall)),
        ExecEnd::Exited(status) => (Some(status), cancel.is_set().then_some(Stopped::Cancelled)),
    };
    let hits = std::mem::take(&mut seen.hits);
    let evidence = hits.iter().map(describe_hit).collect();
    let ended = status.map(Ended::Exited);
    let facts = Facts { ended, stopped, hits, start_failed: false, exit_codes: context.exit_codes.clone() };
    Ok(Finished { outcome: decide(&facts), status, streams, elapsed, evidence, refused: seen.refused })
}

pub(super) fn evidence_of(receipt: &Receipt) -> Vec<String> {
    let hits = receipt.limits_hit.iter().map(describe_hit);
    hits.chain(receipt.error.iter().map(|error| error.message.clone())).collect()
}

fn describe_hit(hit: &LimitHit) -> String {
    format!("{}: {}", hit.limit.word(), hit.evidence)
}

/// Each host once, at most [`MAX_HOSTS`].
pub(super) fn refused_rows(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut found: Vec<Row> = Vec::new();
    for row in rows.into_iter().filter(|row| !row.allowed) {
        match found.iter().position(|known| known.host == row.host && known.port == row.port) {
            Some(index) => found[index] = row,
            None if found.len() < MAX_HOSTS => found.push(row),
            None => {}
        }
    }
    found
}

#[derive(Default)]
struct Observed {
    hits: Vec<LimitHit>,
    refused: Vec<Row>,
}

impl Observed {
    fn read(&mut self, events: &mut EventReader) -> Result<()> {
        while let Some(new) = events.available()?.filter(|new| !new.is_empty()) {
            for (event, _) in new {
                let data = serde_json::Value::Object(event.data);
                match event.event.as_str() {
                    "limit" => self.hits.extend(serde_json::from_value::<LimitHit>(data)),
                    "egress" => {
                        let row = serde_json::from_value::<Row>(data).ok();
                        self.refused = refused_rows(std::mem::take(&mut self.refused).into_iter().chain(row));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Kills the process when the call is cancelled.
struct Collector<'call> {
    streams: [Excerpt; 2],
    input: Option<OwnedFd>,
    cancel: &'call Cancel,
}

impl Collector<'_> {
    fn new<'call>(input: Option<&str>, max_output: usize, cancel: &'call Cancel) -> Result<Collector<'call>> {
        let input = input.map(|text| memory_of("input", text.as_bytes())).transpose()?;
        Ok(Collector { streams: [Excerpt::new(max_output), Excerpt::new(max_output)], input, cancel })
    }
}

impl Console for Collector<'_> {
    fn output(&mut self, error: bool, bytes: &[u8]) {
        self.streams[usize::from(error)].push(bytes);
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    fn input_ended(&mut self) {
        self.input = None;
    }

    fn signals_ready(&self) -> BorrowedFd<'_> {
        self.cancel.as_fd()
    }

    fn signals(&mut self) -> (Vec<i32>, Option<(u16, u16)>) {
        self.cancel.take_wakeup();
        (vec![9], None)
    }
}

/// A stream's beginning and end, and how much is between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    tail: Vec<u8>,
    half: usize,
    total: u64,
}

impl Excerpt {
    pub(super) fn new(most: usize) -> Excerpt {
        Excerpt { half: (most / 2).max(1), ..Excerpt::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (to_head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(to_head);
        self.tail.extend_from_slice(&rest[rest.len().saturating_sub(2 * self.half)..]);
        // Twice the kept length, so that a byte moves once and not at each push.
        if self.tail.len() > 2 * self.half {
            self.tail.drain(..self.tail.len() - self.half);
        }
    }

    fn kept_tail(&self) -> &[u8] {
        &self.tail[self.tail.len().saturating_sub(self.half)..]
    }

    /// Bytes that are not in the text.
    pub(super) fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.kept_tail().len()) as u64
    }

    pub(super) fn text(&self) -> String {
        let tail = self.kept_tail();
        match self.left_out() {
            0 => String::from_utf8_lossy(&[&self.head, tail].concat()).into_owned(),
            count => {
                let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(tail));
                // A character may be cut in two.
                let (head, tail) = (head.trim_end_matches('\u{fffd}'), tail.trim_start_matches('\u{fffd}'));
                format!("{head}\n[… {count} bytes are left out here …]\n{tail}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_the_beginning_and_the_end() {
        let check = |pieces: &[&str], expected: &str, left_out: u64| {
            let mut excerpt = Excerpt::new(8);
            pieces.iter().for_each(|piece| excerpt.push(piece.as_bytes()));
            assert_eq!((excerpt.text().as_str(), excerpt.left_out()), (expected, left_out), "{pieces:?}");
        };
        check(&[], "", 0);
        check(&["abcdefgh"], "abcdefgh", 0);
        check(&["ab", "cdef", "gh"], "abcdefgh", 0);
        check(&["abcdefghi"], "abcd\n[… 1 bytes are left out here …]\nfghi", 1);
        check(&["a".repeat(100).as_str(), "xyz"], "aaaa\n[… 95 bytes are left out here …]\naxyz", 95);
        check(&["abcdef", "g", "h", "i", "j", "k", "l", "m", "n"], "abcd\n[… 6 bytes are left out here …]\nklmn", 6);
        check(&["abcüüüüü"], "abc\n[… 5 bytes are left out here …]\nüü", 5);
    }
}
