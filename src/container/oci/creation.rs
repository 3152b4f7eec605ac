//! The caller's options for `create`, and what it passes on.

use crate::egress::Broker;
use crate::error::{Context, Error, Kind, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Makes a broker of annotations' names and texts. The caller gives it: sources of secrets are above this module.
#[derive(Clone, Copy, Debug)]
pub struct SecretOpener(pub(crate) fn(&[(String, String)]) -> Result<Broker>);

/// The options of `create` besides config.json.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// The bundle's directory, absolute.
    pub bundle: PathBuf,
    /// The configuration, if not `config.json` of the bundle.
    pub config: Option<PathBuf>,
    /// A unix socket for the terminal's master.
    pub console_socket: Option<PathBuf>,
    /// A unix socket for the first process's pidfd.
    pub pidfd_socket: Option<PathBuf>,
    /// A file for the first process's pid.
    pub pid_file: Option<PathBuf>,
    /// Descriptors from 3 on that are passed on.
    pub preserve_fds: u32,
    /// Moves the root over the old one instead of pivoting, for hosts on a ramdisk.
    pub no_pivot: bool,
    /// Keeps the caller's session keyring.
    pub no_new_keyring: bool,
    /// systemd makes the cgroup.
    pub systemd_cgroup: bool,
    /// Makes no cgroup: the container stays in the caller's.
    pub no_cgroup: bool,
    /// Whether the caller ends while the container runs.
    pub detached: bool,
    /// Opens the secrets of annotations, which are refused otherwise.
    pub secrets: Option<SecretOpener>,
    /// Key and value, beside the configuration's.
    pub annotations: Vec<(String, String)>,
}

/// By the names of runc and CRIU; empty for a stream that is not a pipe.
pub(super) fn streams() -> Vec<String> {
    let name = |descriptor: std::os::fd::BorrowedFd<'_>| {
        let status = rustix::fs::fstat(descriptor).ok()?;
        let is_pipe = rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Fifo;
        is_pipe.then(|| format!("pipe:[{}]", status.st_ino))
    };
    use rustix::stdio::{stderr, stdin, stdout};
    [stdin(), stdout(), stderr()].map(|descriptor| name(descriptor).unwrap_or_default()).to_vec()
}

/// Refuses a terminal without a server, and a socket without a terminal.
pub(super) fn check_terminal(terminal: bool, detached: bool, console_socket: Option<&Path>) -> Result<()> {
    let refuse = |words: &str| Err(Error::new(Kind::Usage, words));
    match (terminal && detached, console_socket.is_some()) {
        (true, false) => refuse("cannot allocate tty if runc will detach without setting console socket"),
        (false, true) => refuse("cannot use console socket if runc will not detach or allocate tty"),
        _ => Ok(()),
    }
}

pub(super) fn check_preserved(count: u32) -> Result<()> {
    for number in 3..count.saturating_add(3) {
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .failing(Kind::Usage, || format!("unable to stat preserved-fd {number} (of {count})"))?;
    }
    Ok(())
}

/// From a service manager (sd_listen_fds(3)); they precede those of `--preserve-fds`. Variables that an ancestor left
/// name another process: the descriptors from 3 on are not sockets then.
pub(super) fn listeners() -> u32 {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(std::process::id())).unwrap_or(0)
}

pub(super) fn preserve_listeners(environment: &mut Vec<(OsString, OsString)>) {
    if listeners() > 0 {
        environment.retain(|(name, _)| name != "LISTEN_FDS" && name != "LISTEN_PID");
        environment.push(("LISTEN_FDS".into(), listeners().to_string().into()));
        environment.push(("LISTEN_PID".into(), "1".into()));
    }
}
