//! Refused requests for namespaces. A program with a built-in sandbox makes them, fails, and often exits with success.
//!
//! The command and each entered process have a filter with a listener (seccomp_unotify(2)). Every request gets EPERM,
//! as from the filter, and counts for its program. An agent cannot use up the supervisor's time: after [`MOST_ANSWERS`]
//! requests the listeners are closed, and the kernel refuses the rest (ENOSYS).
//!
//! A command that is root inside also asks for locks of open file descriptions (fcntl(2)). No cgroup counts their
//! memory and no process owns them. So a task may make [`MOST_LOCKS`] such calls, and each adds two locks at most.

use super::known;
use crate::container::{self, let_through, next_waiting, refuse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

/// Answers for one task. An answer takes some 30 microseconds.
const MOST_ANSWERS: u64 = 1024;
/// Calls of one task for locks of open file descriptions.
const MOST_LOCKS: u64 = 4096;
/// Programs with a separate count; the others share one.
const MOST_PROGRAMS: usize = 8;
const OTHERS: &str = "other programs";
/// Ancestors of a helper: one may be the program that uses it.
const MOST_ANCESTORS: usize = 8;
/// In characters: the sandbox chose the name.
const LONGEST_NAME: usize = 40;

/// A program whose requests for namespaces were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The file name of the program.
    pub program: String,
    /// Requests. Counting ends at 1,024 for a task.
    pub count: u64,
    /// The advice.
    pub hint: String,
}

impl Refused {
    /// One line for a user.
    pub fn words(&self) -> String {
        let Refused { program, count, hint } = self;
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        format!("{program} tried {times} to make another sandbox (namespaces) and was refused: {hint}")
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    listeners: Vec<OwnedFd>,
    answers: u64,
    locks: u64,
    programs: Vec<Refused>,
}

impl Refusals {
    pub(super) fn add(&mut self, listener: OwnedFd) {
        if !self.is_spent() {
            self.listeners.push(listener);
        }
    }

    fn is_spent(&self) -> bool {
        self.answers >= MOST_ANSWERS || self.locks >= MOST_LOCKS
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = (usize, PollFd<'_>)> {
        let wait = |listener| PollFd::from_borrowed_fd(OwnedFd::as_fd(listener), PollFlags::IN);
        self.listeners.iter().map(wait).enumerate()
    }

    /// `init` is the first process of the sandbox.
    pub(super) fn answer(&mut self, index: usize, init: i32) {
        let Some(listener) = self.listeners.get(index) else { return };
        let mut wait = [PollFd::new(listener, PollFlags::IN)];
        // The caller may have been killed meanwhile: a receive without a request would block.
        let ready = poll(&mut wait, Some(&Timespec::default())).map_or(PollFlags::empty(), |_| wait[0].revents());
        if !ready.contains(PollFlags::IN) {
            if !ready.is_empty() {
                self.listeners.remove(index); // no process has this filter any more
            }
            return;
        }
        let waiting = match next_waiting(listener.as_fd()) {
            Ok(waiting) => waiting,
            Err(Errno::NOENT | Errno::INTR) => return,
            Err(_) => {
                self.listeners.remove(index); // without a listener the kernel refuses
                return;
            }
        };
        if libc::c_long::from(waiting.number) == libc::SYS_fcntl {
            self.locks += 1;
            // It fails only if the caller has died.
            let _ = let_through(listener.as_fd(), waiting.id);
        } else {
            self.answers += 1;
            let caller = i32::try_from(waiting.pid).ok().and_then(|pid| find(pid, init));
            // A dead caller's number may belong to another process: refuse() fails then.
            if let (Ok(()), Some(caller)) = (refuse(listener.as_fd(), waiting.id, Errno::PERM), caller) {
                self.count(caller);
            }
        }
        if self.is_spent() {
            self.listeners.clear();
        }
    }

    fn count(&mut self, (program, hint): (String, String)) {
        let known = self.programs.iter().position(|each| each.program == program);
        let has_room = self.programs.len() < MOST_PROGRAMS;
        match known.or_else(|| if has_room { None } else { Some(self.programs.len() - 1) }) {
            Some(index) if known.is_none() && self.programs[index].program != OTHERS => {
                let last = &mut self.programs[index];
                (last.program, last.hint, last.count) = (OTHERS.to_owned(), known::ANY.to_owned(), last.count + 1);
            }
            Some(index) => self.programs[index].count += 1,
            None => self.programs.push(Refused { program, count: 1, hint }),
        }
    }

    pub(super) fn take(self) -> Vec<Refused> {
        self.programs
    }
}

/// Returns name and advice. For a helper, those of the program that uses it.
fn find(pid: i32, init: i32) -> Option<(String, String)> {
    let (names, mut parent) = container::called(pid)?;
    if let Some(known) = known::find(&names) {
        if !known.is_helper {
            return Some((known.program.to_owned(), known.hint.to_owned()));
        }
        // The supervisor is the parent of an entered process.
        let ends = [0, init, std::process::id() as i32];
        for _ in 0..MOST_ANCESTORS {
            let Some((names, next)) = (!ends.contains(&parent)).then(|| container::called(parent)).flatten() else {
                break;
            };
            if let Some(user) = known::find(&names).filter(|user| !user.is_helper) {
                return Some((user.program.to_owned(), user.hint.to_owned()));
            }
            parent = next;
        }
        return Some((known.program.to_owned(), known.hint.to_owned()));
    }
    let name = names.into_iter().next()?.chars().take(LONGEST_NAME).collect();
    Some((name, known::ANY.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_counted_apart_and_their_number_is_bounded() {
        let mut refusals = Refusals::default();
        for (number, times) in [(0, 3), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 2), (8, 1), (9, 1), (0, 1)]
        {
            (0..times).for_each(|_| refusals.count((format!("p{number}"), "hint".to_owned())));
        }
        let counted: Vec<_> = refusals.take().into_iter().map(|each| (each.program, each.count)).collect();
        assert_eq!(counted.len(), MOST_PROGRAMS);
        assert_eq!(counted[0], ("p0".to_owned(), 4));
        assert_eq!(counted[7], (OTHERS.to_owned(), 4));
    }

    #[test]
    fn words_name_program_count_and_what_to_do() {
        let mut refused = Refused { program: "codex".into(), count: 1, hint: "run it with `-x`".into() };
        assert_eq!(
            refused.words(),
            "codex tried once to make another sandbox (namespaces) and was refused: run it with `-x`"
        );
        refused.count = 3;
        assert!(refused.words().starts_with("codex tried 3 times "));
    }
}
