//! What stays as pid 1 of the container: it reaps, passes signals on to the command, and ends when the command ends, which makes the
//! kernel end everything else (pid_namespaces(7)).
//!
//! It is a copy of the parent that never executes anything, so it gives up all that it does not need: descriptors, capabilities but CAP_KILL, and
//! the right to be looked into.

use super::identity::{self, Identity};
use super::message::{Channel, Ended, Tag};
use crate::error::{Context, Kind, Result};
use crate::sys::clone::{close_from, exit};
use crate::sys::{environment, weaken};
use caps::Capability;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitOptions, wait};
use std::os::fd::{AsFd, OwnedFd};

/// Who pid 1 is where it can be somebody else than the command: neither the machine's root, as which it built the sandbox, nor any user of
/// the sandbox's files.
pub(crate) const USER: u32 = 65_533;

/// Serves as pid 1, if it has `settled`, until the command with this pid has ended. Never returns.
pub(super) fn run(command: i32, settled: Result<()>, parent: &Channel) -> ! {
    if let Err(error) = settled {
        parent.fail(&error);
        exit(1)
    }
    environment::wipe(); // the caller's variables, among them what is a secret for the broker
    exit(serve(command, parent))
}

/// Where the command's process waits until pid 1 has given up what it does not need.
pub(super) struct Gate(OwnedFd);

/// What opens the gate. Dropped unopened, as by the end of pid 1, it ends the process that waits.
pub(super) struct Latch(OwnedFd);

/// Makes a gate. The process that waits must not keep the latch.
pub(super) fn gate() -> Result<(Gate, Latch), Errno> {
    pipe_with(PipeFlags::CLOEXEC).map(|(gate, latch)| (Gate(gate), Latch(latch)))
}

impl Gate {
    /// Waits until the latch is opened.
    pub(super) fn pass(self) {
        loop {
            if weaken::is_off("gate") {
                return;
            }
            match rustix::io::read(&self.0, &mut [0_u8; 1]) {
                Ok(1) => return,
                Err(Errno::INTR) => {}
                _ => exit(1), // pid 1 has reported why
            }
        }
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives up what pid 1 does not need, then lets the command begin.
pub(super) fn settle(user: Option<u32>, latch: Latch, parent: &Channel) -> Result<()> {
    if weaken::is_off("swift-pid-1") {
        std::thread::sleep(std::time::Duration::from_millis(500)); // so that a test sees which process waits
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)
        .failing(Kind::Identity, || "block the signals of pid 1")?;
    close_from(0, &[parent.as_fd(), latch.0.as_fd()])
        .failing(Kind::Identity, || "close the descriptors of the parent")?;
    if let Some(user) = user {
        identity::become_user(&Identity::powerless(user, user), None)?;
    }
    identity::be_undumpable()?; // a change of user makes us dumpable again
    identity::keep_capabilities(&[Capability::CAP_KILL])?;
    identity::gain_nothing()?;
    identity::die_with_supervisor(parent)?;
    parent.say(Tag::Ready)?; // from here on others may enter: no host path can be named, and all that holds for us holds for them
    rustix::io::write(&latch.0, b"G").failing(Kind::Identity, || "let the command begin").map(drop)
}

fn serve(command: i32, parent: &Channel) -> i32 {
    let all = SigSet::all();
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_pid() == command {
                let ended = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Ended::Exited(code as u8),
                    (_, Some(signal)) => Ended::Signaled(signal),
                    _ => continue,
                };
                parent.ended(ended);
                return 0;
            }
        }
        match all.wait() {
            Ok(Signal::SIGCHLD) | Err(_) => {}
            // The command leads its own session and process group: all of the group are told, as a terminal would.
            Ok(signal) => {
                let _ = kill(Pid::from_raw(-command), signal);
            }
        }
    }
}
