//! Turns: bounds the concurrent tasks of a store, first come first served, without a daemon.
//!
//! Each waiting task keeps its ticket, a numbered file, locked. Its turn comes when fewer than `most` locked tickets
//! have a lower number. A lock ends with its holder, so a crash gives the turn to the next. A crash changes nothing in
//! the watched directory, so waiting tasks also check at intervals.

use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, Attempt, Durability, Lock};
use crate::sandbox::{Control, Idle, Limits, Signals, counted};
use crate::task::store::Store;
use rustix::fs::inotify;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between checks for tickets of dead holders.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that must be available for one more task, unless its own limit is lower.
const MEMORY: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    _lock: Lock,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A remaining ticket is unlocked, and does not count.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
pub(crate) enum Waited {
    Turn(Turn),
    /// A user ended the task before its turn.
    Cancelled,
}

pub(crate) struct TurnRequest<'task> {
    pub id: &'task str,
    /// Concurrent tasks.
    pub most: u32,
    pub patience: Option<Duration>,
    pub memory: u64,
}

/// Waits for a turn, and until the machine has memory for one more task.
pub(crate) fn wait(
    store: &Store,
    request: &TurnRequest<'_>,
    control: &mut Control,
    signals: &Signals,
) -> Result<Waited> {
    let step = || format!("wait for the turn of the task `{}`", request.id);
    let directory = store.root().join("queue");
    files::create_directories(&directory, 0o700)?;
    let changes = watch(&directory)?;
    let (number, turn) = take_ticket(&directory, request.id)?;
    let end = request.patience.map(Limits::end_of);
    loop {
        let why = match why_not_yet(&directory, number, request)? {
            None => return Ok(Waited::Turn(turn)),
            Some(why) => why,
        };
        if end.is_some_and(|end| Instant::now() >= end) {
            return Err(Error::new(Kind::Busy, format!("it did not come in time: {why}"))
                .doing(step())
                .hint("wait longer: --queue-wait TIME, or allow more at once: --max-parallel N"));
        }
        if crate::sandbox::idle(control, signals, changes.as_fd(), LOOK)? == Idle::Cancelled {
            return Ok(Waited::Cancelled);
        }
        let mut space = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(&changes, &mut space);
        while reader.next().is_ok() {}
    }
}

fn watch(directory: &Path) -> Result<OwnedFd> {
    let step = || format!("watch `{}`", directory.display());
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let changes = inotify::init(flags).failing(Kind::Internal, step)?;
    inotify::add_watch(&changes, directory, inotify::WatchFlags::DELETE).failing(Kind::Store, step)?;
    Ok(changes)
}

/// Under a lock: a lower number is always the earlier one.
fn take_ticket(directory: &Path, id: &str) -> Result<(u64, Turn)> {
    let _drawing = Lock::wait(&directory.join(".lock"))?;
    let counter = directory.join(".next");
    let last = tickets(directory)?.last().map_or(0, |(number, _)| *number);
    let counted = files::read_bounded(&counter, 32).ok().and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
    let number = counted.unwrap_or(0).max(last) + 1;
    files::replace(&counter, number.to_string().as_bytes(), 0o600, Durability::Cached)?;
    let path = directory.join(format!("{number:020}-{id}"));
    let lock = Lock::wait(&path)?;
    Ok((number, Turn { path, _lock: lock }))
}

fn tickets(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let step = || format!("list `{}`", directory.display());
    let entries = std::fs::read_dir(directory).failing(Kind::Store, step)?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.split('-').next()?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

fn why_not_yet(directory: &Path, number: u64, request: &TurnRequest<'_>) -> Result<Option<String>> {
    let mut before = 0;
    for (_, path) in tickets(directory)?.into_iter().filter(|(other, _)| *other < number) {
        match Lock::attempt(&path)? {
            Attempt::Held => before += 1,
            // Remove a dead holder's ticket under the lock just taken.
            Attempt::Taken(_lock) => drop(std::fs::remove_file(&path)),
            Attempt::Missing => {}
        }
        if before >= request.most {
            let words = counted(before as u64, "task runs or waits", "tasks run or wait");
            return Ok(Some(format!("{words} before it")));
        }
    }
    Ok(no_memory(request.memory, before > 0))
}

/// Alone a task may try: no other task will free any.
fn no_memory(limit: u64, others: bool) -> Option<String> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = available.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    (others && available < limit.min(MEMORY)).then(|| format!("only {} MiB of memory are available", available >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_and_the_dead_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let request = |most| TurnRequest { id: "t", most, patience: None, memory: 0 };
        let mut turns: Vec<_> = (0..4).map(|_| take_ticket(directory.path(), "t").unwrap()).collect();
        let ready = |number, most| why_not_yet(directory.path(), number, &request(most)).unwrap().is_none();
        let numbers: Vec<_> = turns.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.iter().map(|&number| ready(number, 2)).collect::<Vec<_>>(), [true, true, false, false]);
        // One in the middle ends, then the first dies and leaves its ticket.
        drop(turns.remove(1));
        assert_eq!((ready(numbers[2], 2), ready(numbers[3], 2)), (true, false));
        let (_, first) = turns.remove(0);
        let path = first.path.clone();
        drop(first);
        std::fs::write(&path, "").unwrap();
        assert!(ready(numbers[3], 2) && !path.exists());
        let (last, _turn) = take_ticket(directory.path(), "t").unwrap();
        assert!(last > numbers[3]);
    }
}
