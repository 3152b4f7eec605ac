//! Forwards events to a file, a Unix socket or an HTTP endpoint. Each receiver has a process: a slow or dead one costs
//! the task nothing.
//!
//! The task's event file is the queue: on disk, bounded, with the delivered part in a file beside it. Delivery is at
//! least once: after a crash the last batch may come twice, with the same numbers. A slow receiver misses the oldest
//! events ([`MOST_BEHIND`]).

use super::event::{Event, VERSION};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Pinned};
use crate::sandbox::in_background;
use crate::task::definition::receiver::Receiver;
use crate::task::store::json::{self, now};
use crate::task::store::{EVENTS, Status, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the event file.
const MOST_BEHIND: u64 = 32 << 20;
/// Bytes of one delivery.
const BATCH: usize = 256 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The limit of one attempt.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long delivery goes on after the task's end.
const AFTER_END: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Delivered {
    schema: u32,
    receiver: String,
    /// Bytes of the event file.
    bytes: u64,
    seq: Option<u64>,
    passed_over: u64,
    error: Option<String>,
}

/// Starts a process for each receiver. A file must open at once; a socket or a URL may begin to listen later.
pub(crate) fn start(store: &Store, id: &str, receivers: &[Receiver], pinned: &Pinned) -> Result<()> {
    let mut held = Vec::new();
    for receiver in receivers {
        let opened = match receiver {
            Receiver::File(path) => {
                let step = || format!("send events to `{}`", receiver.name());
                let opened = match pinned.append(path).doing(step) {
                    Ok(None) => open(path).map(|_| None).map_err(|cause| files::failed(cause, step())),
                    held => held,
                };
                opened.hint(|| "name a file that can be written, not a link, in a folder that exists")?
            }
            _ => None,
        };
        held.push(opened);
    }
    for (index, (receiver, held)) in receivers.iter().zip(&held).enumerate() {
        let kept: Vec<_> = held.iter().map(AsFd::as_fd).chain(pinned.descriptors()).collect();
        in_background(&kept, |starter| {
            starter.began("");
            forward(store, id, index, (receiver, held.as_ref(), pinned))
        })
        .doing(|| format!("send events to `{}`", receiver.name()))?;
    }
    Ok(())
}

fn forward(
    store: &Store,
    id: &str,
    index: usize,
    (receiver, held, pinned): (&Receiver, Option<&File>, &Pinned),
) -> Result<()> {
    let path = store.task(id).join(format!("delivered-{index}.json"));
    let mut delivered = Delivered { schema: 1, receiver: receiver.name(), ..Delivered::default() };
    let mut sender = Sender { receiver, held, pinned, stream: None };
    let mut reader = store.events(id)?;
    let mut ended: Option<Instant> = None;
    let mut is_over = false;
    while !is_over {
        let mut batch = Vec::new();
        let (mut bytes, mut last) = (0, None);
        while batch.len() < BATCH {
            match reader.available()? {
                None => {
                    is_over = true;
                    break;
                }
                Some(events) if events.is_empty() && batch.is_empty() => reader.wait()?,
                Some(events) if events.is_empty() => break,
                Some(events) => {
                    for (event, length) in events {
                        bytes += length;
                        last = Some(event.seq);
                        serde_json::to_writer(&mut batch, &event)
                            .map_err(|cause| Error::new(Kind::Record, cause.to_string()))?;
                        batch.push(b'\n');
                    }
                }
            }
        }
        if batch.is_empty() {
            continue;
        }
        let mut pause = FIRST_PAUSE;
        while let Err(error) = sender.send(id, &batch) {
            if ended.is_none() && store.status(id)? != Status::Running {
                ended = Some(Instant::now());
            }
            let Ok(events) = std::fs::metadata(store.task(id).join(EVENTS)) else {
                return Ok(()); // the task was removed
            };
            let behind = events.len().saturating_sub(delivered.bytes);
            if behind > MOST_BEHIND + batch.len() as u64 {
                delivered.passed_over += bytes;
                batch = passed_over(id, last, delivered.passed_over);
                bytes = 0;
            }
            delivered.error = Some(error.to_string());
            json::write(&path, &delivered)?;
            if ended.is_some_and(|since| since.elapsed() >= AFTER_END) || !error.retryable() {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        delivered = Delivered { bytes: delivered.bytes + bytes, seq: last, error: None, ..delivered };
        json::write(&path, &delivered)?;
    }
    Ok(())
}

fn passed_over(id: &str, seq: Option<u64>, bytes: u64) -> Vec<u8> {
    let data = Map::from_iter([("passed_over_bytes".to_owned(), json!(bytes))]);
    let event = Event {
        v: VERSION,
        seq: seq.unwrap_or_default(),
        time: now(),
        task: id.to_owned(),
        event: "left_out".to_owned(),
        data,
    };
    let mut line = serde_json::to_vec(&event).unwrap_or_default();
    line.push(b'\n');
    line
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

struct Sender<'to> {
    receiver: &'to Receiver,
    held: Option<&'to File>,
    pinned: &'to Pinned,
    stream: Option<UnixStream>,
}

impl Sender<'_> {
    fn send(&mut self, id: &str, batch: &[u8]) -> Result<()> {
        let name = self.receiver.name();
        let step = || format!("send events to `{name}`");
        match self.receiver {
            Receiver::File(path) => {
                let written = match self.held {
                    Some(mut file) => file.write_all(batch),
                    None => open(path).and_then(|mut file| file.write_all(batch)),
                };
                // The cause may be removed later: try again.
                written.map_err(|cause| files::failed(cause, step()).of_kind(Kind::Lost))
            }
            Receiver::Socket(path) => {
                if self.stream.is_none() {
                    let stream = UnixStream::connect(self.pinned.path(path)).failing(Kind::Lost, step)?;
                    stream.set_write_timeout(Some(PATIENCE)).failing(Kind::Internal, step)?;
                    self.stream = Some(stream);
                }
                let written = self.stream.as_mut().map_or(Ok(()), |stream| stream.write_all(batch));
                if written.is_err() {
                    self.stream = None; // a part of a line may be sent: the next connection begins with a whole line
                }
                written.failing(Kind::Lost, step)
            }
            Receiver::Http(url) => {
                let agent: ureq::Agent = ureq::Agent::config_builder()
                    .proxy(crate::host::proxy())
                    .timeout_global(Some(PATIENCE))
                    .http_status_as_error(false)
                    .max_redirects(0)
                    .build()
                    .into();
                let sent = agent
                    .post(url)
                    .header("content-type", "application/x-ndjson")
                    .header("brig-task", id)
                    .send(batch)
                    .map_err(|cause| Error::new(Kind::Lost, cause.to_string()).doing(step()))?;
                let status = sent.status().as_u16();
                match status {
                    200..=299 => Ok(()),
                    // A server's or a network's fault is temporary; a refusal is final.
                    408 | 425 | 429 | 500..=599 => {
                        Err(Error::new(Kind::Lost, format!("it answers {status}")).doing(step()))
                    }
                    _ => Err(Error::new(Kind::Usage, format!("it refuses with {status}")).doing(step())),
                }
            }
        }
    }
}
