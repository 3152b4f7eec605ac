//! The process that a sandbox ends with: the program that drives it.

use crate::error::{Context, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A process of the host, by its pidfd: its number may belong to another process later.
#[derive(Clone, Debug)]
pub struct Caller(Arc<OwnedFd>);

impl Caller {
    pub(crate) fn parse(text: &str) -> Result<Caller> {
        let hint = "give the number of a running process, like `--end-with $$`";
        let pid = text.parse().ok().filter(|number| *number > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is not the number of a process", text.escape_debug())).hint(hint)
        })?;
        let step = || format!("watch the process {text}");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).failing(Kind::Usage, step);
        Ok(Caller(Arc::new(pidfd.map_err(|error| error.hint(hint))?)))
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut wait = [PollFd::new(self, PollFlags::IN)];
        matches!(poll(&mut wait, Some(&Timespec::default())), Ok(1..))
    }
}

/// Readable when the process has ended.
impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_process_is_seen_and_other_words_are_refused() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let caller = Caller::parse(&child.id().to_string()).unwrap();
        assert!(!caller.has_ended());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(caller.has_ended());
        for wrong in ["", "0", "-1", "cat", "2147483647", &child.id().to_string()] {
            assert_eq!(Caller::parse(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }
}
