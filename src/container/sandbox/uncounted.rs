//! Kernel memory that no cgroup counts: the kernel's unread answers in netlink sockets, and record locks. Linux
//! reverted 0f12156dff28 ("memcg: enable accounting for file lock caches").

use super::Running;
use crate::error::Result;
use crate::sys::weaken;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};

const PROTECTION: &str = "uncounted-memory";
const LOCK_SLAB: &str = "/sys/kernel/slab/file_lock_cache/total_objects";
/// This number takes 10 MB. Databases have some hundred.
const MOST_LOCKS: u64 = 50_000;
/// 15 pages of /proc/locks.
const LOCKS_SEEN: usize = 1000;

/// Kept open from one reading to the next.
#[derive(Debug, Default)]
pub(crate) struct Queues(Option<File>);

impl Queues {
    /// Stops above `most`. A sandbox that has just ended has no bytes.
    ///
    /// In the host's network namespace (`is_shared`) only sockets that processes have open count, not one in transit
    /// through an AF_UNIX socket.
    pub(crate) fn bytes(&mut self, running: &Running, most: u64, is_shared: bool) -> Result<u64> {
        if self.0.is_none() && !weaken::is_off(PROTECTION) {
            self.0 = File::open(format!("/proc/{}/net/netlink", running.pid())).ok();
        }
        let Some(file) = self.0.as_mut() else { return Ok(0) };
        if file.rewind().is_err() {
            return Ok(0);
        }
        if !is_shared {
            return Ok(queued(file, most));
        }
        let waiting: HashMap<u64, u64> = queues(file).filter(|(_, bytes)| *bytes > 0).collect();
        // Owners take longer to find, and do not matter for few bytes.
        if waiting.values().sum::<u64>() <= most {
            return Ok(0);
        }
        Ok(owned(waiting, &running.processes()?))
    }
}

impl Running {
    /// The machine's locks, if there are too many and most are record locks of this sandbox. Only root can read it.
    ///
    /// Each page of /proc/locks blocks all changes of locks and waits for every processor: only a part is read, after
    /// the slab has grown.
    pub(crate) fn too_many_locks(&self) -> Result<Option<u64>> {
        let total = std::fs::read_to_string(LOCK_SLAB).unwrap_or_default();
        let total = total.split(' ').next().and_then(|word| word.trim().parse().ok()).unwrap_or(0);
        if total <= MOST_LOCKS || weaken::is_off(PROTECTION) {
            return Ok(None);
        }
        let Ok(file) = File::open("/proc/locks") else { return Ok(None) };
        let processes = self.processes()?;
        let (ours, all) = locks(file, |pid| processes.contains(&pid));
        Ok((ours * 2 > all).then_some(total))
    }
}

/// Inode and bytes of each receive queue in /proc/net/netlink.
fn queues(file: impl Read) -> impl Iterator<Item = (u64, u64)> {
    let lines = BufReader::new(file).lines().map_while(std::result::Result::ok);
    lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(4);
        let bytes = words.next()?.parse().ok()?;
        Some((words.nth(4)?.parse().ok()?, bytes))
    })
}

/// Stops above `most`.
fn queued(file: impl Read, most: u64) -> u64 {
    let mut sum = 0_u64;
    for (_, bytes) in queues(file) {
        sum = sum.saturating_add(bytes);
        if sum > most {
            break;
        }
    }
    sum
}

/// Only sockets that the processes have open.
fn owned(mut waiting: HashMap<u64, u64>, processes: &[i32]) -> u64 {
    let mut sum = 0_u64;
    for pid in processes {
        // A process that has just ended has none.
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for link in entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()) {
            let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            // Removed: a socket of several processes counts once.
            sum = sum.saturating_add(inode.and_then(|inode: u64| waiting.remove(&inode)).unwrap_or(0));
        }
    }
    sum
}

/// The sandbox's record locks, and the lines read, at most [`LOCKS_SEEN`]. A processor's newest come first.
fn locks(file: impl Read, is_ours: impl Fn(i32) -> bool) -> (usize, usize) {
    let (mut ours, mut all) = (0, 0);
    for line in BufReader::new(file).lines().map_while(std::result::Result::ok).take(LOCKS_SEEN) {
        let mut words = line.split_ascii_whitespace().skip(1).filter(|word| *word != "->");
        let is_posix = words.next() == Some("POSIX");
        all += 1;
        ours += usize::from(is_posix && words.nth(2).and_then(|pid| pid.parse().ok()).is_some_and(&is_ours));
    }
    (ours, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_of_the_process_that_has_it_open_and_counts_once() {
        use std::os::fd::AsFd;
        let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let _copy = socket.try_clone().unwrap();
        let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let of_other = rustix::fs::fstat(other.as_fd()).unwrap().st_ino;
        let own = std::process::id() as i32;
        assert_eq!(owned(HashMap::from([(inode, 700), (1, 5)]), &[own]), 700);
        assert_eq!(owned(HashMap::from([(inode, 700), (of_other, 5)]), &[own, own]), 705);
        assert_eq!(owned(HashMap::from([(inode, 700)]), &[i32::MAX]), 0);
    }

    #[test]
    fn queues_are_summed_and_record_locks_are_counted_by_process() {
        let text = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                    000000003be8d6a5 0   1217       00000550 700      0        0     2        0        15219   \n\
                    00000000d1a2c4f0 0   0          00000000 50       0        0     2        0        8       \n";
        assert_eq!(queued(text.as_bytes(), 1000), 750);
        assert_eq!(queued(text.as_bytes(), 600), 700);
        assert_eq!(queues(text.as_bytes()).collect::<Vec<_>>(), [(15219, 700), (8, 50)]);
        let text = "1: POSIX  ADVISORY  WRITE 7 fe:00:2 0 EOF\n1: -> POSIX  ADVISORY  WRITE 7 fe:00:2 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 7 fe:00:3 0 EOF\n3: OFDLCK ADVISORY  WRITE -1 fe:00:4 0 EOF\n\
                    4: POSIX  ADVISORY  READ 8 fe:00:5 0 1\n";
        assert_eq!(locks(text.as_bytes(), |pid| pid == 7), (2, 5));
        assert_eq!(locks(text.as_bytes(), |_| true), (3, 5));
    }
}
