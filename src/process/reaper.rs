//! Pid 1 reaps, forwards signals to the command, and ends with it; the kernel then ends the other processes
//! (pid_namespaces(7)). As a copy of the parent it gives up descriptors, all capabilities but CAP_KILL, and being
//! dumpable.

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

/// Of pid 1, if it can differ from the command's: neither the machine's root, which built the sandbox, nor a user of
/// the sandbox's files.
pub(crate) const USER: u32 = 65_533;

pub(super) fn run(command: i32, settled: Result<()>, parent: &Channel) -> ! {
    if let Err(error) = settled {
        parent.fail(&error);
        exit(1)
    }
    environment::wipe(); // the caller's variables may be secrets for the broker
    exit(serve(command, parent))
}

/// Where the command waits until pid 1 has dropped its privileges.
pub(super) struct Gate(OwnedFd);

/// Dropped unopened, as at the end of pid 1, it ends the process that waits.
pub(super) struct Latch(OwnedFd);

/// The process that waits must not keep the latch.
pub(super) fn gate() -> Result<(Gate, Latch), Errno> {
    pipe_with(PipeFlags::CLOEXEC).map(|(gate, latch)| (Gate(gate), Latch(latch)))
}

impl Gate {
    pub(super) fn pass(self) {
        loop {
            if weaken::is_off("gate") {
                return;
            }
            match rustix::io::read(&self.0, &mut [0_u8; 1]) {
                Ok(1) => return,
                Err(Errno::INTR) => {}
                _ => exit(1), // pid 1 has reported the error
            }
        }
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn drop_privileges(user: Option<u32>, latch: Latch, parent: &Channel) -> Result<()> {
    if weaken::is_off("swift-pid-1") {
        std::thread::sleep(std::time::Duration::from_millis(500)); // a test looks at the waiting process here
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)
        .failing(Kind::Identity, || "block the signals of pid 1")?;
    close_from(0, &[parent.as_fd(), latch.0.as_fd()])
        .failing(Kind::Identity, || "close the descriptors of the parent")?;
    if let Some(user) = user {
        identity::become_user(&Identity::powerless(user, user), None)?;
    }
    identity::be_undumpable()?; // the change of user makes it dumpable again
    identity::keep_capabilities(&[Capability::CAP_KILL])?;
    identity::gain_nothing()?;
    identity::die_with_supervisor(parent)?;
    parent.send_tag(Tag::Ready)?; // other processes may enter: no host path is reachable, and all restrictions hold
    match rustix::io::write(&latch.0, b"G") {
        // The command has failed. It sends its own error before it ends.
        Err(Errno::PIPE) => Ok(()),
        other => other.failing(Kind::Identity, || "let the command begin").map(drop),
    }
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
            // To the command's process group, as from a terminal.
            Ok(signal) => {
                if kill(Pid::from_raw(-command), signal).is_err() {
                    // It does not lead a group yet. A lost signal would let a stop wait for the whole grace.
                    let _ = kill(Pid::from_raw(command), signal);
                }
            }
        }
    }
}
