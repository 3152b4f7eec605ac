//! After an interruption a blob continues by Range on a new connection.

use super::client::TRIES;
use super::pace::Pace;
use super::{Extent, Registry};
use crate::error::{Error, Kind};
use crate::image::manifest::Descriptor;
use std::io::Read;
use std::time::{Duration, Instant};

pub(super) struct ResumingReader<'a> {
    registry: &'a Registry<'a>,
    descriptor: Descriptor,
    position: u64,
    /// `None`: the blob's.
    end: Option<u64>,
    body: Option<Box<dyn Read + Send>>,
    /// Connections since the last byte.
    fruitless: u32,
    /// A connection for each byte would restart the pace of one connection.
    pace: Pace,
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
            pace: Pace::long(),
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
        let began = Instant::now();
        let count = self.read_next(buffer)?;
        self.pace.check(began.elapsed(), count).map_err(|error| self.give_up(error))?;
        Ok(count)
    }
}

impl ResumingReader<'_> {
    fn read_next(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Digest;
    use crate::image::registry::RegistryOptions;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn a_connection_for_each_byte_is_slow_too() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = server.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in server.incoming() {
                let mut client = client.unwrap();
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(b"HTTP/1.1 206 Partial Content\r\ncontent-length: 100\r\n\r\nx");
            }
        });
        let scratch = tempfile::tempdir().unwrap();
        let auth_file = scratch.path().join("auth.json");
        std::fs::write(&auth_file, "{}").unwrap();
        let options = RegistryOptions { plain_http: true, auth_file: Some(auth_file), ..RegistryOptions::default() };
        let reference = format!("{host}/team/tool:1").parse().unwrap();
        let registry = Registry::open(&reference, "pull", &[], &options, &|_| {}).unwrap();
        let media_type = "application/octet-stream".to_owned();
        let descriptor =
            Descriptor { media_type, digest: Digest::of(b""), size: 20, urls: Vec::new(), data: None, toc: None };
        let mut reader = ResumingReader::new(&registry, &descriptor, Extent::From(0));
        reader.pace.stretch = Duration::from_secs(1);
        let mut bytes = Vec::new();
        let error = reader.read_to_end(&mut bytes).unwrap_err();
        assert!(error.to_string().contains("bytes a second") && bytes.len() < 20, "{error} {}", bytes.len());
        // No read goes on after it.
        assert!(reader.read(&mut [0]).is_err());
    }
}
