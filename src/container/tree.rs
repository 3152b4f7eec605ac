//! A process and its descendants, without a cgroup.

use crate::files::fields_of;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// To stop the tree, and then to kill it: the supervisor's watch waits meanwhile.
const LONGEST: Duration = Duration::from_secs(1);
/// Empty readings that end the search, and the time between them: a list of children that is read while some end omits
/// others (proc(5)).
const QUIET: u32 = 4;
const PAUSE: Duration = Duration::from_millis(1);

/// Of all its threads (proc_pid_task_children, proc(5)).
pub(super) fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("children")));
    lists.flatten().flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}

pub(super) fn descendants(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        all.extend(children(parent));
        next += 1;
    }
    all
}

/// Kills a process, not yet reaped, and its tree, connected since it adopts orphans (`PR_SET_CHILD_SUBREAPER`). A stop
/// comes first, so that none forks; the process dies last. After the time limit the rest ends with the sandbox.
pub(super) fn end(root: i32) {
    signal_all(root, Signal::STOP, BTreeSet::new());
    // Its stopped parent reaps none of them, so their pids are not reused.
    signal_all(root, Signal::KILL, BTreeSet::from([root]));
    if let Some(process) = hold(root) {
        send(&process, Signal::KILL);
    }
}

/// Leaves out `reached`; ends when several readings found nothing new.
fn signal_all(root: i32, kind: Signal, mut reached: BTreeSet<i32>) {
    let end = Instant::now() + LONGEST;
    if reached.insert(root)
        && let Some(process) = hold(root)
    {
        send(&process, kind);
    }
    let (mut quiet, mut ended) = (0, BTreeSet::new());
    while quiet < QUIET && Instant::now() < end {
        if signal_new(root, kind, &mut reached, &mut ended) {
            quiet = 0;
        } else {
            quiet += 1;
            std::thread::sleep(PAUSE);
        }
    }
}

/// Adds new descendants to `reached`, and returns whether there were any. Each is signalled when seen, the youngest
/// first: one that forks and exits at once lives a few hundred microseconds. Zombies, thousands after such forks, go to
/// `ended` and are not read again.
fn signal_new(root: i32, kind: Signal, reached: &mut BTreeSet<i32>, ended: &mut BTreeSet<i32>) -> bool {
    let mut found = false;
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        next += 1;
        for pid in children(parent).into_iter().rev().filter(|pid| !ended.contains(pid)).collect::<Vec<_>>() {
            // Opened before its parent is read: the signal goes to the process whose parent is in the tree.
            let process = if reached.contains(&pid) { None } else { hold(pid) };
            match Stat::of(pid) {
                Some(stat) if stat.is_over() => _ = ended.insert(pid),
                Some(stat) if tree.contains(&stat.parent) => {
                    tree.push(pid);
                    if let Some(process) = process {
                        send(&process, kind);
                        found |= reached.insert(pid);
                    }
                }
                // It or its parent has ended: an orphan is below the process that adopts it.
                _ => found = true,
            }
        }
    }
    found
}

/// Fields 3, 4, 22 and 52 of `/proc/PID/stat` (proc_pid_stat(5)).
pub(super) struct Stat {
    state: u8,
    pub parent: i32,
    /// In clock ticks after the boot.
    pub started: u64,
    /// The wait status of a zombie.
    pub exit_code: i32,
}

impl Stat {
    pub fn of(pid: i32) -> Option<Stat> {
        // One read returns it whole; the longest name with the longest numbers is shorter.
        let mut text = [0; 1024];
        let file =
            rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let length = rustix::io::read(file, &mut text).ok()?;
        let mut fields = fields_of(&text[..length])?;
        let state = *fields.next()?.as_bytes().first()?;
        let (parent, started) = (fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?);
        Some(Stat { state, parent, started, exit_code: fields.nth(29)?.parse().ok()? })
    }

    /// A zombie has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Names from the executable, if readable, and from comm; and the parent.
pub(crate) fn called(pid: i32) -> Option<(Vec<String>, i32)> {
    let program = rustix::fs::readlink(format!("/proc/{pid}/exe"), Vec::new()).ok();
    let program = program.and_then(|path| {
        let path = path.to_string_lossy();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
    });
    let word = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let word = String::from_utf8_lossy(&word).trim_end_matches('\n').to_owned();
    Some((program.into_iter().chain([word]).collect(), Stat::of(pid)?.parent))
}

fn hold(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn send(process: &OwnedFd, signal: Signal) {
    // One that cannot be signalled ends with the sandbox.
    let _ = pidfd_send_signal(process, signal);
}
