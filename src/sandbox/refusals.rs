//! Requests for namespaces that the filter refuses: a program with a sandbox of its own makes them, gets nowhere, and often ends with success.
//!
//! In: the listeners of the filters (seccomp_unotify(2)), one for the command and one for each process that entered. Out: for each program how often,
//! with what switches its own sandbox off. Every request is refused with EPERM, the number that the filter would return; nothing is ever let through.
//! An agent cannot use up the supervisor's time: after [`MOST_ANSWERS`] requests the listeners are closed, and the kernel refuses the rest (ENOSYS).

use super::known;
use crate::container::{self, next_waiting, refuse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

/// Requests that are answered for one task. An answer takes some 30 microseconds.
const MOST_ANSWERS: u64 = 1024;
/// Programs with a count of their own; the others share one.
const MOST_PROGRAMS: usize = 8;
const OTHERS: &str = "other programs";
/// Ancestors of a helper in which the program that uses it is looked for.
const MOST_ANCESTORS: usize = 8;
/// Characters of a name: the sandbox chose it.
const LONGEST_NAME: usize = 40;

/// A program that wanted namespaces and was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The file name of the program.
    pub program: String,
    /// How often. Counting ends at 1,024 for a task.
    pub count: u64,
    /// What to do about it.
    pub hint: String,
}

impl Refused {
    /// One line for a person.
    pub fn words(&self) -> String {
        let Refused { program, count, hint } = self;
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        format!("{program} tried {times} to make a sandbox of its own (namespaces) and was refused: {hint}")
    }
}

/// The listeners, and what came by them.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    listeners: Vec<OwnedFd>,
    answers: u64,
    programs: Vec<Refused>,
}

impl Refusals {
    /// Answers what comes by this listener from now on.
    pub(super) fn add(&mut self, listener: OwnedFd) {
        if self.answers < MOST_ANSWERS {
            self.listeners.push(listener);
        }
    }

    /// The listeners, for poll(2), each with its index for [`Refusals::answer`].
    pub(super) fn waits(&self) -> impl Iterator<Item = (usize, PollFd<'_>)> {
        let wait = |listener| PollFd::from_borrowed_fd(OwnedFd::as_fd(listener), PollFlags::IN);
        self.listeners.iter().map(wait).enumerate()
    }

    /// Refuses one request, and counts it. `init` is the first process of the sandbox.
    pub(super) fn answer(&mut self, index: usize, init: i32) {
        let Some(listener) = self.listeners.get(index) else { return };
        let mut wait = [PollFd::new(listener, PollFlags::IN)];
        // The caller may have been killed meanwhile; to receive without a request would block.
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
        self.answers += 1;
        let caller = i32::try_from(waiting.pid).ok().and_then(|pid| find(pid, init));
        // A caller that has died did not keep its number for the look at it.
        if let (Ok(()), Some(caller)) = (refuse(listener.as_fd(), waiting.id, Errno::PERM), caller) {
            self.count(caller);
        }
        if self.answers >= MOST_ANSWERS {
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

    /// What was counted.
    pub(super) fn take(self) -> Vec<Refused> {
        self.programs
    }
}

/// The program of a process and the hint for it. For a helper that makes sandboxes for others it is the program that uses the helper.
fn find(pid: i32, init: i32) -> Option<(String, String)> {
    let (names, mut parent) = container::called(pid)?;
    if let Some(known) = known::find(&names) {
        if !known.is_helper {
            return Some((known.program.to_owned(), known.hint.to_owned()));
        }
        // The supervisor is the parent of a process that entered.
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
            "codex tried once to make a sandbox of its own (namespaces) and was refused: run it with `-x`"
        );
        refused.count = 3;
        assert!(refused.words().starts_with("codex tried 3 times "));
    }
}
