//! The recipe of the command's own process: the last privileges go, then another program takes over.

use super::identity;
use super::message::{Channel, Tag};
use super::plan::{Command, Stdio, Terminal, Vectors};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::clone::{cloexec_from, exit};
use crate::sys::exec::{execve, restore_sigpipe};
use crate::sys::weaken;
use crate::{landlock, mounts, seccomp};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::fs::{FileType, Gid, OFlags, Uid, fchown, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Becomes the command, or says why not.
pub(super) fn run(command: &Command, stdio: &Stdio, parent: &Channel) -> ! {
    let Err(error) = recipe(command, stdio) else { exit(1) };
    parent.fail(&error);
    exit(1)
}

fn recipe(command: &Command, stdio: &Stdio) -> Result<std::convert::Infallible> {
    identity::die_with_parent()?; // pid 1's end is ours anyway; this one comes sooner
    setsid().failing(Kind::Identity, || "make a session of our own")?;
    connect(stdio)?;
    limit(command)?;
    identity::become_user(command.uid, command.gid)?;
    identity::be_undumpable()?; // until execve: we still hold copies of the parent's memory
    identity::drop_capabilities()?;
    identity::gain_nothing()?;
    rustix::process::chdir(&command.directory)
        .failing(Kind::Spec, || format!("enter the working directory `{}`", command.directory.display()))?;
    let _ = landlock::restrict(&command.landlock)?;
    reset_signals()?;
    // Mark, don't close: the channel must still carry a failure of execve. A directory left open here would be a way out of
    // the container (CVE-2024-21626).
    if !weaken::is_off("descriptors") {
        cloexec_from(3).failing(Kind::Identity, || "close the descriptors of the parent")?;
    }
    let _ = seccomp::install(command.seccomp)?; // our profile asks for no listener
    Err(execute(&command.vectors))
}

/// Tries each place of PATH like execvp(3): the first that exists decides, and one without the right to execute is remembered.
fn execute(vectors: &Vectors) -> Error {
    let mut refusal = Errno::NOENT;
    for path in &vectors.candidates {
        match execve(path, &vectors.arguments, &vectors.environment) {
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => refusal = Errno::ACCESS,
            errno => {
                refusal = errno;
                break;
            }
        }
    }
    let (kind, hint) = match refusal {
        Errno::NOENT => (Kind::CommandNotFound, "name a program that the sandbox has, or give its absolute path"),
        Errno::NOEXEC => (Kind::CommandNotExecutable, "begin a script with `#!` and its interpreter"),
        Errno::ACCESS => (Kind::CommandNotExecutable, "give a file that is executable (`chmod +x`), not a directory"),
        _ => (Kind::CommandNotExecutable, "check that the file is a program for this machine"),
    };
    Error::os(kind, refusal).doing(format!("execute `{}`", vectors.name)).hint(hint)
}

fn connect(stdio: &Stdio) -> Result<()> {
    let step = || "connect the standard streams";
    let Stdio::Descriptors { input, output, error } = stdio else {
        return Err(Error::new(Kind::Internal, "a terminal was never opened"));
    };
    rustix::stdio::dup2_stdin(input).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stdout(output).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stderr(error).failing(Kind::Identity, step)?;
    if rustix::termios::isatty(input) {
        rustix::process::ioctl_tiocsctty(input).failing(Kind::Identity, || "take the terminal as our own")?;
    }
    Ok(())
}

/// Opens a terminal in the container's own devpts, hands its master to the parent and returns the other side as standard streams. The
/// slave is opened through the master, not by a path that the image could have replaced (CVE-2025-52565).
pub(super) fn open_console(root: BorrowedFd<'_>, size: Terminal, parent: &Channel) -> Result<Stdio> {
    let step = || "open a terminal of the container";
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = mounts::resolve::open_as(root, Path::new("/dev/pts/ptmx"), flags)?;
    unlockpt(&master).failing(Kind::Identity, step)?;
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).failing(Kind::Identity, step)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .failing(Kind::Identity, step)?;
    parent.hand(Tag::Console, master.as_fd())?;
    let copy = || slave.try_clone().failing(Kind::Identity, step);
    Ok(Stdio::Descriptors { input: copy()?, output: copy()?, error: slave })
}

/// Gives pipes and terminals of ours to the container's user: who opens `/dev/stderr` opens the pipe anew, and that is for its owner.
/// Anything else that a caller gave us stays whose it is.
pub(super) fn hand_over(stdio: &Stdio, user: mounts::Ids) -> Result<()> {
    let Stdio::Descriptors { input, output, error } = stdio else { return Ok(()) };
    let step = || "give the standard streams to the container's user";
    for stream in [input, output, error] {
        let kind = FileType::from_raw_mode(fstat(stream).failing(Kind::Identity, step)?.st_mode);
        if kind == FileType::Fifo || rustix::termios::isatty(stream) {
            fchown(stream, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
                .failing(Kind::Identity, step)?;
        }
    }
    Ok(())
}

fn limit(command: &Command) -> Result<()> {
    use crate::spec::process::Rlimit as Name;
    command.rlimits.iter().try_for_each(|&(name, value)| {
        let resource = match name {
            Name::OpenFiles => Resource::Nofile,
            Name::Core => Resource::Core,
            Name::Processes => Resource::Nproc,
            Name::RealtimePriority => Resource::Rtprio,
            Name::Nice => Resource::Nice,
        };
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
            .failing(Kind::LimitUnenforceable, || format!("set the limit {name:?} to {value}"))
    })
}

/// The command starts with every signal unblocked and at its default, whatever the caller had.
fn reset_signals() -> Result<()> {
    restore_sigpipe();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).failing(Kind::Identity, || "unblock the signals")
}
