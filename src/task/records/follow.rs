//! Reads a task's growing files until it has ended and all is read.

use crate::error::{Context, Error, Kind, Result};
use crate::task::store::{LOG, Status, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use std::cell::OnceCell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A file of a task that grows.
#[derive(Debug)]
pub struct Follower {
    store: Store,
    id: String,
    job: Option<String>,
    path: PathBuf,
    file: Option<File>,
    /// Made at the first wait: its close takes up to 20 ms (`synchronize_srcu`, fs/notify/mark.c).
    changes: OnceCell<OwnedFd>,
    /// Whether the task or the job has ended, and the file with it.
    has_ended: bool,
}

/// Where a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the first byte.
    Start,
    /// At this many lines before the end. A last line without its end is one.
    Last(u64),
    /// At the next byte.
    Now,
}

/// A killed supervisor sends no notice of the task's end.
const LOOK: Duration = Duration::from_millis(200);

impl Store {
    /// Opens the task's output so far.
    pub fn log(&self, id: &str) -> Result<std::fs::File> {
        let path = self.task(id).join(LOG);
        std::fs::File::open(&path).map_err(|cause| crate::files::failed(cause, format!("open the log of `{id}`")))
    }

    /// Follows a task's output.
    pub fn follow_log(&self, id: &str, from: From) -> Result<Follower> {
        Follower::new(self, id, LOG, from)
    }

    /// Follows a job's output.
    pub fn follow_job_log(&self, id: &str, job: &str, from: From) -> Result<Follower> {
        Follower::of_job(self, id, Some(&self.job(id, job)?.id), LOG, from)
    }
}

impl Follower {
    pub(crate) fn new(store: &Store, id: &str, name: &str, from: From) -> Result<Follower> {
        Follower::of_job(store, id, None, name, from)
    }

    pub(crate) fn of_job(store: &Store, id: &str, job: Option<&str>, name: &str, from: From) -> Result<Follower> {
        let directory = job.map_or_else(|| store.task(id), |job| store.job_folder(id, job));
        let step = || format!("follow `{name}` of the task `{id}`");
        rustix::fs::stat(&directory).failing(Kind::NotFound, step)?;
        let path = directory.join(name);
        let (store, id, job) = (store.clone(), id.to_owned(), job.map(str::to_owned));
        let mut follower = Follower { store, id, job, path, file: None, changes: OnceCell::new(), has_ended: false };
        follower.open()?;
        if let Some(file) = &mut follower.file {
            let start = match from {
                From::Start => SeekFrom::Start(0),
                From::Last(lines) => SeekFrom::Start(start_of_last(file, lines).failing(Kind::Store, step)?),
                From::Now => SeekFrom::End(0),
            };
            file.seek(start).failing(Kind::Store, step)?;
        }
        Ok(follower)
    }

    /// How many bytes of the file come before the next one.
    pub(crate) fn position(&self) -> Result<u64> {
        let Some(mut file) = self.file.as_ref() else { return Ok(0) };
        file.stream_position().failing(Kind::Store, || format!("read `{}`", self.path.display()))
    }

    fn open(&mut self) -> Result<()> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => {
                    return Err(Error::os(Kind::Store, cause).doing(format!("open `{}`", self.path.display())));
                }
            }
        }
        Ok(())
    }

    /// Readable when more may be available than after the first call.
    pub fn changes(&self) -> Result<BorrowedFd<'_>> {
        if let Some(changes) = self.changes.get() {
            return Ok(changes.as_fd());
        }
        let step = || format!("watch `{}`", self.path.display());
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags).failing(Kind::Internal, step)?;
        let wanted = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let directory = self.path.parent().unwrap_or(&self.path);
        inotify::add_watch(&changes, directory, wanted).failing(Kind::NotFound, step)?;
        Ok(self.changes.get_or_init(|| changes).as_fd())
    }

    /// The new bytes; `None` when all was read and the task has ended.
    pub fn available<'buffer>(&mut self, buffer: &'buffer mut [u8]) -> Result<Option<&'buffer [u8]>> {
        if let Some(changes) = self.changes.get() {
            let mut space = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(changes, &mut space);
            while reader.next().is_ok() {} // only their arrival matters
        }
        self.open()?;
        let count = match &mut self.file {
            Some(file) => file.read(buffer).failing(Kind::Store, || format!("read `{}`", self.path.display()))?,
            None => 0,
        };
        if count == 0 && self.has_ended {
            return Ok(None);
        }
        if count == 0 {
            // Check before the read: otherwise bytes written just before the end would be missed.
            self.has_ended = match &self.job {
                Some(job) => !self.store.job(&self.id, job)?.is_running(),
                None => self.store.status(&self.id)? != Status::Running,
            };
        }
        Ok(Some(&buffer[..count]))
    }

    /// Waits for more.
    pub fn wait(&self) -> Result<()> {
        self.wait_until(None)
    }

    /// Waits until `end` at the latest.
    pub(crate) fn wait_until(&self, end: Option<Instant>) -> Result<()> {
        let is_watched = self.changes.get().is_some();
        let changes = self.changes()?;
        // What came before the watch is available.
        if self.has_ended || !is_watched {
            return Ok(());
        }
        let limit = end.map_or(LOOK, |end| LOOK.min(end.saturating_duration_since(Instant::now())));
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&changes, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).failing(Kind::Internal, || "wait for more output"),
        }
    }
}

/// Where the last lines of a file begin, read from its end.
fn start_of_last(file: &File, lines: u64) -> std::io::Result<u64> {
    let mut chunk = [0; 64 << 10];
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let (mut at, mut left) = (end, lines);
    while at > 0 {
        let count = chunk.len().min(usize::try_from(at).unwrap_or(usize::MAX));
        at -= count as u64;
        file.read_exact_at(&mut chunk[..count], at)?;
        for place in (0..count).rev() {
            let next = at + place as u64 + 1;
            // The end of the last line begins no line.
            if chunk[place] == b'\n' && next < end {
                left -= 1;
                if left == 0 {
                    return Ok(next);
                }
            }
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        let tail = |text: &str, lines| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            text[start_of_last(file.as_file(), lines).unwrap() as usize..].to_owned()
        };
        for (text, lines, expected) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc", 1, "c"),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc\n", 3, "a\nb\nc\n"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("a\n\n\n", 2, "\n\n"),
            ("a\nb", 0, ""),
            ("a\nb\n", 0, ""),
            ("", 5, ""),
        ] {
            assert_eq!(tail(text, lines), expected, "{lines} of {text:?}");
        }
        let long = format!("x\n{}\n{}\n", "y".repeat(200_000), "z".repeat(70_000));
        assert_eq!(tail(&long, 2), long[2..]);
    }
}
