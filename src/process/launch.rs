//! The command's process drops the last privileges and executes the program.

use super::message::{Channel, Tag};
use super::plan::{Command, Errand, Gate, SHOW, Stdio, Terminal, Vectors};
use super::procfs::Procfs;
use super::{directory, identity, lookup, reaper};
use crate::error::{Context, Error, Kind, Result};
use crate::spec::process::not_executed;
use crate::spec::root::Ids;
use crate::spec::state::State;
use crate::sys::clone::{close_from, exit};
use crate::sys::exec::execve;
use crate::sys::signal::restore_signal;
use crate::{hooks, landlock, mounts, seccomp, sys};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchown, fstat, fstatfs, openat2};
use rustix::io::{Errno, FdFlags};
use rustix::process::{setrlimit, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Documentation/filesystems/devpts.rst; linux/magic.h.
const DEVPTS_SUPER_MAGIC: rustix::fs::FsWord = 0x1cd1;

pub(super) fn run(mut command: Command, stdio: &Stdio, pid_1: Option<reaper::Gate>, parent: &Channel) -> ! {
    let Err(error) = recipe(&mut command, stdio, pid_1, parent);
    parent.fail(&error);
    if let Some(gate) = command.gate {
        gate.report(&error); // `start`, which opened the gate, reads it there
    }
    exit(1)
}

fn recipe(
    command: &mut Command,
    stdio: &Stdio,
    pid_1: Option<reaper::Gate>,
    parent: &Channel,
) -> Result<std::convert::Infallible> {
    if command.outlives_parent && !sys::weaken::is_off("hidden-caller") {
        sys::environment::wipe(); // others may see it while it waits for `start`
    }
    if !command.outlives_parent {
        identity::die_with_parent()?; // sooner than by the end of pid 1
    }
    new_session()?;
    connect(stdio, command.controlling_terminal)?;
    limit(command, parent)?;
    command.attributes.apply()?;
    let identity = &command.identity;
    identity::set_umask(identity);
    command.attributes.label(Procfs::open)?;
    // From here on an open descriptor could be a way to escape (CVE-2024-21626).
    close(command, pid_1.as_ref(), parent)?;
    give_streams(command);
    reset_signals()?;
    if command.gate.is_some() {
        sys::signal::exit_on_termination().failing(Kind::Identity, || "end when asked to")?;
    }
    // As few system calls as possible from here: a filter may refuse any.
    let mut listener = None;
    let (filters_before, filters_after) = match (command.seccomp.is_empty(), identity.no_new_privileges) {
        (true, _) => (false, false),
        (false, gains_nothing) => (!gains_nothing, gains_nothing),
    };
    // Without no_new_privs both need CAP_SYS_ADMIN, which is dropped next, and the filter may refuse Landlock's calls.
    // An engine's rules imply no_new_privs.
    let restricts_before = !identity.no_new_privileges && !command.outlives_parent;
    if let Some(rules) = command.landlock.as_ref().filter(|_| restricts_before) {
        let _ = landlock::restrict(rules, false)?;
    }
    if filters_before {
        listener = filter(command, parent)?;
    }
    let entered = directory::enter(&command.directory);
    identity::bound_capabilities(&identity.capabilities)?;
    identity::become_user(identity, filters_before.then_some(&*command.seccomp))?;
    identity::be_undumpable()?; // until execve: it has copies of the parent's memory
    identity::take_capabilities(&identity.capabilities)?;
    if identity.no_new_privileges {
        identity::gain_nothing()?;
    }
    directory::verify(&command.directory, entered)?;
    if let Some(rules) = command.landlock.as_ref().filter(|_| !restricts_before) {
        let _ = landlock::restrict(rules, true)?;
    }
    if command.outlives_parent {
        lookup::find(&mut command.vectors)?;
        if command.home_is_missing {
            lookup::add_home(&mut command.vectors, identity.uid);
        }
        identity::outlive_parent()?;
    }
    if let Some(gate) = pid_1 {
        gate.pass(); // pid 1 has dropped its privileges by now
    }
    // The parent fetches a listener before the gate. Any other filter comes after it, with only execve to follow.
    let filters_early = !command.outlives_parent || command.seccomp.listens();
    if filters_after && filters_early {
        listener = filter(command, parent)?;
    }
    let mut filters_late = filters_after && !filters_early;
    if let Some(gate) = &command.gate {
        parent.send_tag(Tag::Ready)?;
        gate.wait(|| {
            // Filter first: a process that enters before `start` may trace this one, and must not gain what the filter
            // refuses.
            if std::mem::take(&mut filters_late) {
                seccomp::install(&command.seccomp)?;
            }
            identity::be_dumpable()
        })?;
    }
    if filters_late {
        seccomp::install(&command.seccomp)?;
    }
    if !command.hooks.is_empty() {
        let state = State { pid: std::process::id() as i32, ..command.state.clone() };
        hooks::run_inside("startContainer", &command.hooks, &state, command.vectors.environment.strings())?;
    }
    if let Some(errand) = command.errand {
        run_errand(errand)?;
    }
    if let Some(handed) = &command.handed {
        rustix::io::fcntl_setfd(handed, FdFlags::empty()).failing(Kind::Identity, || "keep a descriptor open")?;
    }
    let failed = execute(&command.vectors);
    drop(listener);
    Err(failed)
}

/// An agent's filter allows to send its listener to the supervisor. It is then closed here: its owner could allow its
/// own calls.
///
/// The parent fetches any other listener by its number, since the filter may refuse to send it. execve closes it, after
/// the parent's answer. An ordinary user's parent can fetch it only from a dumpable process.
fn filter(command: &Command, parent: &Channel) -> Result<Option<OwnedFd>> {
    let program = &*command.seccomp;
    let shows = program.listens() && command.shows_listener;
    if shows {
        identity::be_dumpable()?;
    }
    let listener = seccomp::install(program)?;
    if program.reports() {
        return listener.map_or(Ok(None), |listener| parent.hand(Tag::Refusals, listener.as_fd()).map(|()| None));
    }
    if let Some(listener) = &listener {
        parent.listening(listener.as_raw_fd())?;
        parent.wait_for_word()?;
    }
    if shows {
        identity::be_undumpable()?;
    }
    Ok(listener)
}

/// Keeps the command's descriptors and the channel for errors, which execve closes.
fn close(command: &Command, pid_1: Option<&reaper::Gate>, parent: &Channel) -> Result<()> {
    if sys::weaken::is_off("descriptors") {
        return Ok(());
    }
    let mut kept = command.kept_descriptors();
    kept.extend(pid_1.map(AsFd::as_fd));
    kept.push(parent.as_fd());
    close_from(3 + command.preserved, &kept).failing(Kind::Identity, || "close the descriptors of the parent")
}

/// For an engine's container the parent sets them all if one is above the hard limit.
fn limit(command: &Command, parent: &Channel) -> Result<()> {
    for (resource, limit) in &command.rlimits {
        match setrlimit(*resource, *limit) {
            Ok(()) => {}
            Err(Errno::PERM) if command.outlives_parent => {
                parent.send_tag(Tag::Limits)?;
                return parent.wait_for_go();
            }
            Err(errno) => {
                return Err(errno).failing(Kind::LimitUnenforceable, || format!("error setting rlimit {resource:?}"));
            }
        }
    }
    Ok(())
}

impl Command {
    /// Beside the standard streams.
    pub(super) fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let gate = self.gate.iter().flat_map(|gate| [gate.fifo.as_fd(), gate.report.as_fd()]);
        gate.chain(self.handed.as_ref().map(AsFd::as_fd)).collect()
    }
}

impl Gate {
    /// Before that `exec` may ask for a dumpable process (`show`).
    fn wait(&self, mut show: impl FnMut() -> Result<()>) -> Result<()> {
        loop {
            let mut word = [0_u8; 1];
            match rustix::io::read(&self.fifo, &mut word) {
                Err(Errno::INTR) => {}
                Ok(1) if word == [SHOW] => show()?,
                other => return other.failing(Kind::State, || "wait to be started").map(|_| ()),
            }
        }
    }
}

/// The command then cannot write to the caller's terminal (CVE-2017-5226). A session leader stays.
fn new_session() -> Result<()> {
    if sys::weaken::is_off("new-session") {
        return Ok(());
    }
    match setsid() {
        Ok(_) => Ok(()),
        Err(Errno::PERM) if rustix::process::getsid(None) == Ok(rustix::process::getpid()) => Ok(()),
        Err(errno) => Err(errno).failing(Kind::Identity, || "make a session of our own"),
    }
}

/// The command's user can then open its pipes and its terminal by name. Other files, and a terminal that the command
/// inherits, are the caller's (CVE-2026-88265). The descriptors work after an error too.
pub(super) fn give_streams(command: &Command) {
    if !command.outlives_parent {
        return;
    }
    let uid = command.identity.uid;
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        let Ok(status) = rustix::fs::fstat(stream) else { continue };
        let kind = rustix::fs::FileType::from_raw_mode(status.st_mode);
        let ours = match rustix::termios::isatty(stream) {
            true => command.controlling_terminal,
            false => kind == rustix::fs::FileType::Fifo,
        };
        if status.st_uid != uid && (ours || sys::weaken::is_off("stream-check")) {
            let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None);
        }
    }
}

/// Replaces the caller's null device by the container's: root inside could change the host's mode and owner by its
/// descriptor. The caller has entered the container's root; a device with another number is refused (CVE-2025-31133).
pub(super) fn use_own_null_device() -> Result<()> {
    let is_null = |descriptor: BorrowedFd<'_>| {
        fstat(descriptor).is_ok_and(|status| {
            FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice
                && status.st_rdev == rustix::fs::makedev(1, 3)
        })
    };
    let inherited = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()].map(is_null);
    if inherited == [false; 3] || sys::weaken::is_off("null-stream") {
        return Ok(());
    }
    let step = || "open the container's `/dev/null` as a standard stream";
    // Non-blocking, in case it is a FIFO.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).failing(Kind::Identity, step)?;
    if !is_null(null.as_fd()) && !sys::weaken::is_off("null-device") {
        return Err(Error::new(Kind::Identity, "it is not the null device").doing(step()));
    }
    rustix::fs::fcntl_setfl(&null, OFlags::empty()).failing(Kind::Identity, step)?;
    let replace = [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr];
    for (dup2, _) in replace.iter().zip(inherited).filter(|(_, is_null)| *is_null) {
        dup2(&null).failing(Kind::Identity, step)?;
    }
    Ok(())
}

/// The process stays undumpable, since its executable and memory are the host's.
fn run_errand(errand: Errand) -> Result<()> {
    // The closed channel reports success, as execve does.
    close_from(3, &[]).failing(Kind::Identity, || "close the descriptors of the parent")?;
    exit(errand())
}

/// As execvp(3): the first file that exists decides; EACCES is remembered.
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
    not_executed(&vectors.name, refusal)
}

fn connect(stdio: &Stdio, is_controlling: bool) -> Result<()> {
    put(stdio)?;
    let Stdio::Descriptors { input, .. } = stdio else { return Ok(()) };
    if is_controlling && rustix::termios::isatty(input) {
        rustix::process::ioctl_tiocsctty(input).failing(Kind::Identity, || "take the terminal as our own")?;
    }
    Ok(())
}

pub(super) fn put(stdio: &Stdio) -> Result<()> {
    let step = || "connect the standard streams";
    let (input, output, error) = match stdio {
        Stdio::Descriptors { input, output, error } => (input, output, error),
        Stdio::Inherited => return Ok(()),
        Stdio::Terminal(_) => return Err(Error::new(Kind::Internal, "a terminal was never opened")),
    };
    rustix::stdio::dup2_stdin(input).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stdout(output).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stderr(error).failing(Kind::Identity, step)
}

/// Sends the terminal's master to the parent. The master opens the slave, not a path that the image could replace
/// (CVE-2025-52565).
pub(super) fn open_console(root: BorrowedFd<'_>, size: Terminal, parent: &Channel) -> Result<Stdio> {
    let (stdio, master) = make_console(root, size)?;
    parent.hand(Tag::Console, master.as_fd())?;
    Ok(stdio)
}

/// The multiplexer of the container's devpts. Another file system there could answer the ioctls of a terminal, and the
/// number that one of them returns becomes our descriptor.
fn open_multiplexer(root: BorrowedFd<'_>) -> Result<OwnedFd> {
    let step = || "open a terminal of the container";
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    if sys::weaken::is_off("console-devpts") {
        return mounts::resolve::open_as(root, Path::new("/dev/pts/ptmx"), flags);
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devpts = mounts::resolve::open_as(root, Path::new("/dev/pts"), directory)?;
    let is_devpts = fstatfs(&devpts).failing(Kind::Mount, step)?.f_type == DEVPTS_SUPER_MAGIC;
    // A mount over the file itself gives EXDEV.
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(&devpts, "ptmx", flags, Mode::empty(), within) {
        Ok(master) if is_devpts => Ok(master),
        Ok(_) | Err(Errno::XDEV) => {
            Err(Error::new(Kind::Mount, "`/dev/pts/ptmx` of the container is not that of a devpts")
                .doing(step())
                .hint("mount a devpts at `/dev/pts`, and nothing over its files"))
        }
        Err(errno) => Err(errno).failing(Kind::Mount, step),
    }
}

/// In the container's devpts. Also returns the master.
pub(super) fn make_console(root: BorrowedFd<'_>, size: Terminal) -> Result<(Stdio, OwnedFd)> {
    let step = || "open a terminal of the container";
    let master = open_multiplexer(root)?;
    unlockpt(&master).failing(Kind::Identity, step)?;
    let Terminal { rows, columns, passes_newlines } = size;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).failing(Kind::Identity, step)?;
    if passes_newlines {
        let mut settings = tcgetattr(&master).failing(Kind::Identity, step)?;
        settings.output_modes -= OutputModes::ONLCR;
        tcsetattr(&master, OptionalActions::Now, &settings).failing(Kind::Identity, step)?;
    }
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .failing(Kind::Identity, step)?;
    let copy = || slave.try_clone().failing(Kind::Identity, step);
    Ok((Stdio::Descriptors { input: copy()?, output: copy()?, error: slave }, master))
}

/// Opening `/dev/stderr` opens our pipe or terminal again, so the container's user must own it. The caller's other
/// files keep their owner.
pub(super) fn hand_over(stdio: &Stdio, user: Ids) -> Result<()> {
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

pub(super) fn reset_signals() -> Result<()> {
    const LAST: i32 = 64; // signal(7)
    (1..=LAST).for_each(restore_signal);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).failing(Kind::Identity, || "unblock the signals")
}
