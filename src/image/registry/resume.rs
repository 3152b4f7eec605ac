//! After an interruption a blob continues by Range on a new connection.

use super::client::TRIES;
use super::{Extent, Registry};
use crate::error::{Error, Kind};
use crate::image::manifest::Descriptor;
use std::io::Read;
use std::time::Duration;

pub(super) struct ResumingReader<'a> {
    registry: &'a Registry<'a>,
    descriptor: Descriptor,
    position: u64,
    /// `None`: the blob's.
    end: Option<u64>,
    body: Option<Box<dyn Read + Send>>,
    /// Connections since the last byte.
    fruitless: u32,
    /// No read tries again after it.
    failed: Option<Error>,
}

impl<'a> ResumingReader<'a> {
    pub(super) fn new(registry: &'a Registry<'a>, descriptor: &Descriptor, extent: Extent) -> ResumingReader<'a> {
        let (position, end) = match extent {
            Extent::From(from) => (from, None),
            Extent::Range(range) => (range.start, Some(range.end)),
        };
        ResumingReader {
            registry,
            descriptor: descriptor.clone(),
            position,
            end,
            body: None,
            fruitless: 0,
            failed: None,
        }
    }

    fn again(&mut self, error: Error) -> std::io::Result<()> {
        self.body = None;
        self.fruitless += 1;
        if self.fruitless >= TRIES || !error.retryable() {
            return Err(self.give_up(error.hint("try again: what is there already is kept")));
        }
        self.registry.note(&format!("{error}; going on at byte {}", self.position));
        std::thread::sleep(Duration::from_millis(100 << self.fruitless));
        Ok(())
    }

    fn give_up(&mut self, error: Error) -> std::io::Error {
        self.failed = Some(error.clone());
        std::io::Error::other(error)
    }
}

impl Read for ResumingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(error) = &self.failed {
            return Err(std::io::Error::other(error.clone()));
        }
        while self.position < self.end.unwrap_or(self.descriptor.size) {
            let extent = self.end.map_or(Extent::From(self.position), |end| Extent::Range(self.position..end));
            let body = match self.body.as_mut() {
                Some(body) => body,
                None => match self.registry.blob(&self.descriptor, extent) {
                    Ok(body) => self.body.insert(body),
                    // The client has retried already.
                    Err(error) => return Err(self.give_up(error)),
                },
            };
            match body.read(buffer) {
                Ok(0) => self.again(Error::new(Kind::Registry, "the connection was closed in the middle of a blob"))?,
                Ok(count) => {
                    self.fruitless = 0;
                    self.position += count as u64;
                    return Ok(count);
                }
                Err(cause) => match cause.downcast::<Error>() {
                    // A slow registry is not faster on another connection.
                    Ok(error) => return Err(self.give_up(error)),
                    Err(cause) => self.again(super::client::unreachable(cause))?,
                },
            }
        }
        Ok(0)
    }
}
