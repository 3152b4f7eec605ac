//! The stream of each byte of a task's log: the file `output.streams` beside the log.
//!
//! It has the lengths of the log's runs, alternately standard output and standard error, as LEB128. The last run has no
//! length: it ends with the log. Each run has at least one byte, so `output_bytes`, the log's limit, bounds this file
//! too. A log of one stream costs no write.
//!
//! A length is written before the next run's first byte: a reader that reads the log before this file knows every
//! byte's stream.

use super::follow::{Follower, From};
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::sandbox::Stream;
use crate::task::store::Store;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NAME: &str = "output.streams";

#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    /// `None` before the log's first byte, and always for an older version's log.
    file: Option<File>,
    /// The current run, and its start in the log.
    stream: Stream,
    begin: u64,
}

impl Index {
    pub(crate) fn open(directory: &Path, length: u64) -> Result<Index> {
        let path = directory.join(NAME);
        let mut index = Index { path, file: None, stream: Stream::Output, begin: 0 };
        if length > 0
            && let Some(mut runs) = Runs::open(&index.path)?
        {
            while let Some(end) = runs.end()? {
                runs.turn(end);
            }
            (index.stream, index.begin) = (runs.stream, runs.begin);
            index.file = Some(index.append()?);
        }
        Ok(index)
    }

    fn append(&self) -> Result<File> {
        let made = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        made.map_err(|cause| files::failed(cause, format!("make `{}`", self.path.display())))
    }

    pub(crate) fn follow(&mut self, stream: Stream, offset: u64) -> Result<()> {
        if self.file.is_none() && offset == 0 {
            self.file = Some(self.append()?);
        }
        if self.stream == stream {
            return Ok(());
        }
        if let Some(file) = &mut self.file {
            let (bytes, count) = encode(offset - self.begin);
            file.write_all(&bytes[..count]).map_err(|cause| files::failed(cause, format!("write `{NAME}`")))?;
        }
        (self.stream, self.begin) = (stream, offset);
        Ok(())
    }
}

fn encode(mut number: u64) -> ([u8; 10], usize) {
    let mut bytes = [0; 10];
    let mut count = 0;
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes[count] = if number == 0 { low } else { low | 0x80 };
        count += 1;
        if number == 0 {
            return (bytes, count);
        }
    }
}

/// Reads the runs in order, also while the log grows.
#[derive(Debug)]
struct Runs {
    file: BufReader<File>,
    stream: Stream,
    begin: u64,
    end: Option<u64>,
    /// An incomplete length.
    partial: (u64, u32),
}

impl Runs {
    fn open(path: &Path) -> Result<Option<Runs>> {
        match File::open(path) {
            Ok(file) => Ok(Some(Runs {
                file: BufReader::new(file),
                stream: Stream::Output,
                begin: 0,
                end: None,
                partial: (0, 0),
            })),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(files::failed(cause, format!("open `{}`", path.display()))),
        }
    }

    /// `None` for the last run.
    fn end(&mut self) -> Result<Option<u64>> {
        let step = || format!("read `{NAME}`");
        let mut byte = [0];
        while self.end.is_none() && self.file.read(&mut byte).failing(Kind::Store, step)? == 1 {
            let (number, shift) = self.partial;
            let number = number | u64::from(byte[0] & 0x7f) << shift;
            self.partial = (number, shift + 7);
            if byte[0] & 0x80 == 0 {
                self.partial = (0, 0);
                self.end = self.begin.checked_add(number);
            }
            if self.partial.1 >= 64 || (byte[0] & 0x80 == 0 && self.end.is_none()) {
                self.partial = (0, 0);
                return Err(Error::new(Kind::Record, format!("`{NAME}`: a length is too large")));
            }
        }
        Ok(self.end)
    }

    fn turn(&mut self, end: u64) {
        self.stream = if self.stream == Stream::Output { Stream::Error } else { Stream::Output };
        (self.begin, self.end) = (end, None);
    }
}

/// Reads a log with every byte's stream, also while the task runs.
#[derive(Debug)]
pub struct StreamReader {
    follower: Follower,
    id: String,
    path: PathBuf,
    runs: Option<Runs>,
    offset: u64,
}

impl Store {
    /// A task's log with every byte's stream.
    pub fn log_by_stream(&self, id: &str, from: From) -> Result<StreamReader> {
        self.reader_by_stream(id, self.follow_log(id, from)?, self.task(id))
    }

    /// A job's log with every byte's stream.
    pub fn job_log_by_stream(&self, id: &str, job: &str, from: From) -> Result<StreamReader> {
        let folder = self.job_folder(id, &self.job(id, job)?.id);
        self.reader_by_stream(id, self.follow_job_log(id, job, from)?, folder)
    }

    fn reader_by_stream(&self, id: &str, follower: Follower, directory: PathBuf) -> Result<StreamReader> {
        let path = directory.join(NAME);
        let offset = follower.position()?;
        Ok(StreamReader { follower, id: id.to_owned(), path, runs: None, offset })
    }
}

impl StreamReader {
    /// Passes new bytes to `each`; the flag marks standard error. Returns their number, or `None` when all was read and
    /// the task has ended.
    pub fn available(&mut self, buffer: &mut [u8], mut each: impl FnMut(bool, &[u8])) -> Result<Option<usize>> {
        let Some(mut bytes) = self.follower.available(buffer)? else { return Ok(None) };
        let count = bytes.len();
        if count > 0 && self.runs.is_none() {
            self.runs = Runs::open(&self.path)?;
        }
        while !bytes.is_empty() {
            let runs = self.runs.as_mut().ok_or_else(|| without_index(&self.id))?;
            let end = runs.end()?;
            let here = end.map_or(bytes.len(), |end| bytes.len().min(end.saturating_sub(self.offset) as usize));
            let (piece, rest) = bytes.split_at(here);
            if !piece.is_empty() {
                each(runs.stream == Stream::Error, piece);
            }
            self.offset += here as u64;
            bytes = rest;
            if let Some(end) = end.filter(|&end| end <= self.offset) {
                runs.turn(end);
            }
        }
        Ok(Some(count))
    }

    /// Waits for more.
    pub fn wait(&self) -> Result<()> {
        self.follower.wait()
    }
}

fn without_index(id: &str) -> Error {
    let what = format!("the log of the task `{id}` is of an older version, which did not keep the streams apart");
    let hint = "its events name the stream: brig task events ID | jq -r 'select(.stream == \"stderr\") | .text'";
    Error::new(Kind::State, what).hint(hint.replace(" ID ", &format!(" {id} ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::records::event::Writer;

    fn runs(directory: &Path) -> Vec<(Stream, u64)> {
        let mut runs = Runs::open(&directory.join(NAME)).unwrap().unwrap();
        let mut all = Vec::new();
        while let Some(end) = runs.end().unwrap() {
            all.push((runs.stream, end - runs.begin));
            runs.turn(end);
        }
        all
    }

    #[test]
    fn each_run_of_a_stream_has_its_length_and_a_writer_that_goes_on_adds_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let write = |all: &[(Stream, usize)]| {
            let mut writer = Writer::create(directory.path(), "t").unwrap();
            for &(stream, length) in all {
                writer.output(stream, &vec![b'x'; length]).unwrap();
            }
        };
        write(&[]);
        assert!(!directory.path().join(NAME).exists(), "a task without output costs no file");
        write(&[(Stream::Error, 1), (Stream::Error, 200), (Stream::Output, 70_000)]);
        assert_eq!(runs(directory.path()), [(Stream::Output, 0), (Stream::Error, 201)]);
        write(&[(Stream::Output, 5), (Stream::Error, 1), (Stream::Output, 1)]);
        let expected = [(Stream::Output, 0), (Stream::Error, 201), (Stream::Output, 70_005), (Stream::Error, 1)];
        assert_eq!(runs(directory.path()), expected);
    }

    #[test]
    fn an_index_is_no_longer_than_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), "t").unwrap();
        for index in 0..2000 {
            writer.output(if index % 2 == 0 { Stream::Output } else { Stream::Error }, b"x").unwrap();
        }
        assert!(std::fs::metadata(directory.path().join(NAME)).unwrap().len() <= 2000);
        assert_eq!(runs(directory.path()).len(), 1999);
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 127, 128, 300, 1 << 32, u64::MAX] {
            let directory = tempfile::tempdir().unwrap();
            let (bytes, count) = encode(number);
            std::fs::write(directory.path().join(NAME), &bytes[..count]).unwrap();
            assert_eq!(runs(directory.path()), [(Stream::Output, number)]);
        }
    }

    #[test]
    fn an_index_that_makes_no_sense_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for bytes in [&[0xff; 20][..], &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1][..]] {
            std::fs::write(directory.path().join(NAME), bytes).unwrap();
            let mut runs = Runs::open(&directory.path().join(NAME)).unwrap().unwrap();
            let mut all = std::iter::from_fn(|| runs.end().map(|end| end.map(|end| runs.turn(end))).transpose());
            assert!(all.any(|each| each.is_err()), "{bytes:?}");
        }
    }
}
