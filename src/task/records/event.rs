//! The file `events.ndjson`: a task's events, append-only, one [`Event`] a line, numbered without a gap.
//!
//! An output event has its stream and its range in the log; [`Reader`] adds the text. Output of one moment is merged,
//! so that a program that writes single bytes does not fill the disk.
//!
//! All output passes [`Writer::output`], other text of a sandbox [`Writer::put`]. `log` calls both, after the redactor.

use super::follow::{Follower, From};
use super::log_streams::Index;
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::sandbox::Stream;
use crate::task::store::json::now;
use crate::task::store::{EVENTS, LOG, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const VERSION: u32 = 1;
/// Bytes of output and progress events. Further ones are only counted; states and limits always come.
const MOST: u64 = 64 << 20;
/// One stream's pieces are merged up to this time and size.
const MERGED_TIME: Duration = Duration::from_millis(150);
const MERGED_BYTES: u64 = 64 << 10;
const LONGEST_TEXT: u64 = MERGED_BYTES * 2;

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The form's version.
    pub v: u32,
    /// Its number, from 0.
    pub seq: u64,
    /// RFC 3339.
    pub time: String,
    /// The task's id.
    pub task: String,
    /// `state`, `output`, `limit`, `usage`, `egress`, `progress`, `exec`, `job`, `health`, `left_out` or `ended`.
    pub event: String,
    /// Its kind's fields.
    #[serde(flatten)]
    pub data: Map<String, Value>,
}

#[derive(Debug)]
pub(crate) struct Writer {
    id: String,
    log: File,
    log_length: u64,
    streams: Index,
    events: File,
    events_length: u64,
    next: u64,
    left_out: u64,
    /// Lines that could not be written: the next write begins with them.
    kept: Vec<u8>,
    merged: Option<Merged>,
}

/// A piece of the log without its event.
#[derive(Debug)]
struct Merged {
    stream: Stream,
    offset: u64,
    length: u64,
    since: Instant,
}

impl Writer {
    pub(crate) fn create(directory: &Path, id: &str) -> Result<Writer> {
        let make = |name: &str| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(directory.join(name))
                .map_err(|cause| files::failed(cause, format!("make `{name}` of the task `{id}`")))
        };
        let (log, events) = (make(LOG)?, make(EVENTS)?);
        let length = |file: &File| file.metadata().map_or(0, |status| status.len());
        // An earlier step may have written a few lines.
        let next = match length(&events) {
            0 => 0,
            _ => {
                files::read_bounded(&directory.join(EVENTS), MOST)?.iter().filter(|&&byte| byte == b'\n').count() as u64
            }
        };
        Ok(Writer {
            id: id.to_owned(),
            log_length: length(&log),
            streams: Index::open(directory, length(&log))?,
            log,
            events_length: length(&events),
            events,
            next,
            left_out: 0,
            kept: Vec::new(),
            merged: None,
        })
    }

    pub(crate) fn output(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        self.streams.follow(stream, self.log_length)?;
        self.log.write_all(bytes).map_err(|cause| {
            // A part of the bytes would have no event.
            let _ = self.log.set_len(self.log_length);
            Error::os(Kind::Disk, cause).doing("write the log").hint("make room on the disk of the store")
        })?;
        let (offset, length) = (self.log_length, bytes.len() as u64);
        self.log_length += length;
        match &mut self.merged {
            Some(merged) if merged.stream == stream && merged.length < MERGED_BYTES => merged.length += length,
            _ => {
                self.flush()?;
                self.merged = Some(Merged { stream, offset, length, since: Instant::now() });
            }
        }
        self.tick()
    }

    pub(crate) fn tick(&mut self) -> Result<()> {
        if self.merged.as_ref().is_some_and(|merged| merged.since.elapsed() >= MERGED_TIME) {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<()> {
        let Some(Merged { stream, offset, length, .. }) = self.merged.take() else { return Ok(()) };
        let stream = if stream == Stream::Error { "stderr" } else { "stdout" };
        self.bounded("output", json!({ "stream": stream, "offset": offset, "length": length }))
    }

    /// The event counts for [`MOST`]. One that cannot be written is left out: the disk may have room again soon.
    pub(crate) fn bounded(&mut self, event: &str, data: Value) -> Result<()> {
        self.flush()?;
        if self.events_length < MOST && self.write_kept().is_ok() {
            let line = self.line(event, data)?;
            if self.append(&line).is_ok() {
                self.next += 1;
                return Ok(());
            }
        }
        self.left_out += 1;
        Ok(())
    }

    /// Writes merged output first. Keeps an event that cannot be written for the next call.
    pub(crate) fn put(&mut self, event: &str, data: Value) -> Result<()> {
        self.flush()?;
        let line = self.line(event, data)?;
        self.next += 1;
        self.kept.extend(line);
        // The next call, or `finish`, writes it.
        let _ = self.write_kept();
        Ok(())
    }

    pub(crate) fn write_kept(&mut self) -> Result<()> {
        let kept = std::mem::take(&mut self.kept);
        self.append(&kept).inspect_err(|_| self.kept = kept)
    }

    /// One write a line: a reader sees whole lines, and a crash tears only the last.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.events.write_all(bytes).map_err(|cause| {
            // A torn line would spoil the next one. A reader skips it if this fails too.
            let _ = self.events.set_len(self.events_length);
            files::failed(cause, "write an event".to_owned()).hint("make room on the disk of the store")
        })?;
        self.events_length += bytes.len() as u64;
        Ok(())
    }

    fn line(&self, event: &str, data: Value) -> Result<Vec<u8>> {
        let data = match data {
            Value::Object(map) => map,
            other => Map::from_iter([("data".to_owned(), other)]),
        };
        let line =
            Event { v: VERSION, seq: self.next, time: now(), task: self.id.clone(), event: event.to_owned(), data };
        let mut bytes = serde_json::to_vec(&line).map_err(|cause| Error::new(Kind::Record, cause.to_string()))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        match std::mem::take(&mut self.left_out) {
            0 => Ok(()),
            count => self.put("left_out", json!({ "count": count })),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The log has the output even if this fails.
        let _ = self.flush().and_then(|()| self.write_kept());
    }
}

/// Whether the command ran: that event precedes all its output.
pub(crate) fn tell_of_a_run(directory: &Path) -> bool {
    const BEGINNING: u64 = 64 << 10;
    let mut beginning = Vec::new();
    let read = File::open(directory.join(EVENTS)).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    read.is_ok() && String::from_utf8_lossy(&beginning).contains(r#""state":"running""#)
}

/// Reads a task's events with the output's text, also while it runs.
#[derive(Debug)]
pub struct Reader {
    follower: Follower,
    pending: Vec<u8>,
    log: std::path::PathBuf,
}

impl Store {
    /// A task's events from the first on.
    pub fn events(&self, id: &str) -> Result<Reader> {
        self.events_from(id, From::Start)
    }

    pub(crate) fn new_events(&self, id: &str) -> Result<Reader> {
        self.events_from(id, From::Now)
    }

    fn events_from(&self, id: &str, from: From) -> Result<Reader> {
        let follower = Follower::new(self, id, EVENTS, from)?;
        Ok(Reader { follower, pending: Vec::new(), log: self.task(id).join(LOG) })
    }
}

impl Reader {
    /// The next events, each with its line's length in bytes; `None` when the task has ended and all were read. Skips a
    /// line that a crash tore.
    pub fn available(&mut self) -> Result<Option<Vec<(Event, u64)>>> {
        let mut buffer = vec![0_u8; 64 << 10];
        let Some(bytes) = self.follower.available(&mut buffer)? else { return Ok(None) };
        self.pending.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            if let Ok(mut event) = serde_json::from_slice::<Event>(&line) {
                self.put_text_in(&mut event)?;
                events.push((event, line.len() as u64));
            }
        }
        Ok(Some(events))
    }

    /// Waits for more.
    pub fn wait(&self) -> Result<()> {
        self.follower.wait()
    }

    /// A power cut can shorten the log.
    fn put_text_in(&self, event: &mut Event) -> Result<()> {
        if event.event != "output" {
            return Ok(());
        }
        let number = |key: &str| event.data.get(key).and_then(Value::as_u64);
        let (Some(offset), Some(length)) = (number("offset"), number("length")) else { return Ok(()) };
        let step = || format!("read `{}`", self.log.display());
        let (mut bytes, wanted) = (Vec::new(), length.min(LONGEST_TEXT));
        let mut log = File::open(&self.log).failing(Kind::Store, step)?;
        log.seek(SeekFrom::Start(offset)).failing(Kind::Store, step)?;
        let count = log.take(wanted).read_to_end(&mut bytes).failing(Kind::Store, step)? as u64;
        event.data.insert("text".to_owned(), String::from_utf8_lossy(&bytes).into_owned().into());
        if count < wanted {
            event.data.insert("missing".to_owned(), (wanted - count).into());
        }
        Ok(())
    }
}

/// Returns the lines of a stream that are JSON objects: an agent's progress.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    const LONGEST: usize = 64 << 10;

    pub(crate) fn objects(&mut self, bytes: &[u8]) -> Vec<Value> {
        let mut found = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.begun.len() + piece.len() > Lines::LONGEST {
                self.too_long = true;
                self.begun.clear();
            }
            if !self.too_long {
                self.begun.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                let whole = !std::mem::take(&mut self.too_long);
                let parsed = serde_json::from_slice::<Value>(&line).ok().filter(|value| whole && value.is_object());
                found.extend(parsed);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_json_are_found_however_they_are_cut() {
        let text = b"{\"a\":1}\nwords\n[1]\n{\"b\":{\"c\":2}}\n{torn\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut found = lines.objects(&text[..cut]);
            found.extend(lines.objects(&text[cut..]));
            assert_eq!(found, [json!({"a": 1}), json!({"b": {"c": 2}})], "cut at {cut}");
        }
        let mut lines = Lines::default();
        let long = format!("{{\"a\":\"{}\"}}\n{{\"b\":1}}\n", "x".repeat(Lines::LONGEST));
        assert_eq!(lines.objects(long.as_bytes()), [json!({"b": 1})]);
    }

    fn events_of(directory: &Path) -> Vec<Event> {
        let text = std::fs::read_to_string(directory.join(EVENTS)).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "a torn line: {text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_disk_that_is_full_for_a_moment_leaves_whole_lines_and_counts_the_missing_ones() {
        use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
        use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
        use std::os::fd::AsRawFd;
        let Ok(options) = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) else { return }; // it needs root
        fsconfig_set_string(&options, "size", "64k").unwrap();
        fsconfig_create(&options).unwrap();
        let mount = fsmount(&options, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        let directory = std::path::PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        let mut writer = Writer::create(&directory, "t").unwrap();
        writer.put("state", json!({ "state": "running" })).unwrap();
        let ballast = directory.join("ballast");
        assert!(std::fs::write(&ballast, vec![0; 128 << 10]).is_err());
        for number in 0..100 {
            writer.bounded("usage", json!({ "number": number, "words": "x".repeat(100) })).unwrap();
        }
        writer.put("limit", json!({ "longer than a page": "x".repeat(5000) })).unwrap();
        let before = events_of(&directory);
        assert!(before.len() > 1 && before.len() < 100, "{}", before.len());
        std::fs::remove_file(&ballast).unwrap();
        writer.bounded("usage", json!({})).unwrap();
        writer.finish().unwrap();
        writer.put("ended", json!({})).unwrap();
        writer.write_kept().unwrap();
        let events = events_of(&directory);
        assert!(events.iter().enumerate().all(|(index, event)| event.seq == index as u64));
        let kinds: Vec<_> = events[before.len()..].iter().map(|event| event.event.as_str()).collect();
        assert_eq!(kinds, ["limit", "usage", "left_out", "ended"]);
        assert_eq!(events[before.len() + 2].data["count"], 100 - (before.len() - 1));
    }

    #[test]
    fn output_that_the_log_lacks_is_missing_in_its_event() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let folder = store.task("t");
        std::fs::create_dir_all(&folder).unwrap();
        let mut writer = Writer::create(&folder, "t").unwrap();
        writer.output(Stream::Output, b"kept and lost").unwrap();
        writer.put("state", json!({})).unwrap();
        writer.output(Stream::Output, b"all lost").unwrap();
        drop(writer);
        let log = OpenOptions::new().write(true).open(folder.join(LOG)).unwrap();
        log.set_len(4).unwrap();
        let follower = Follower::new(&store, "t", EVENTS, From::Start).unwrap();
        let mut reader = Reader { follower, pending: Vec::new(), log: folder.join(LOG) };
        let events = reader.available().unwrap().unwrap();
        let text = |index: usize| (events[index].0.data["text"].clone(), events[index].0.data["missing"].clone());
        assert_eq!(text(0), (json!("kept"), json!(9)));
        assert_eq!(text(2), (json!(""), json!(8)));
    }

    #[test]
    fn events_are_numbered_without_a_gap_and_output_is_in_its_order() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), "t").unwrap();
        writer.put("state", json!({ "state": "running" })).unwrap();
        for _ in 0..1000 {
            writer.output(Stream::Output, b"x").unwrap();
        }
        writer.output(Stream::Error, b"oh").unwrap();
        writer.put("ended", json!({})).unwrap();
        let events = events_of(directory.path());
        assert!(events.iter().enumerate().all(|(index, event)| event.seq == index as u64 && event.v == VERSION));
        let kinds: Vec<_> = events.iter().map(|event| event.event.as_str()).collect();
        assert!(
            kinds.len() < 20 && kinds[0] == "state" && kinds[kinds.len() - 2..] == ["output", "ended"],
            "{kinds:?}"
        );
        let sum: u64 = events.iter().filter_map(|event| event.data.get("length")?.as_u64()).sum();
        assert_eq!(sum, 1002);
    }
}
