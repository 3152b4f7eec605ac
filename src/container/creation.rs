//! How a caller wants a container created.

use std::path::PathBuf;

/// How a container is to be created, besides what its config.json says.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// The bundle's directory, absolute.
    pub bundle: PathBuf,
    /// The configuration, if not `config.json` of the bundle.
    pub config: Option<PathBuf>,
    /// A unix socket that gets the terminal's master.
    pub console_socket: Option<PathBuf>,
    /// A unix socket that gets the first process's pidfd.
    pub pidfd_socket: Option<PathBuf>,
    /// A file for the first process's pid.
    pub pid_file: Option<PathBuf>,
    /// How many descriptors from 3 on are handed through.
    pub preserve_fds: u32,
    /// Moves the root over the old one instead of pivoting, for hosts on a ramdisk.
    pub no_pivot: bool,
    /// Keeps the caller's session keyring.
    pub no_new_keyring: bool,
    /// systemd makes the cgroup.
    pub systemd_cgroup: bool,
    /// Makes no cgroup: the container stays in the caller's.
    pub no_cgroup: bool,
    /// Whether the caller goes away while the container runs.
    pub detached: bool,
    /// Annotations beside those of the configuration: key and value.
    pub annotations: Vec<(String, String)>,
}

/// The standard streams of this process that are pipes, as runc and CRIU name them; an empty name for any other.
pub(super) fn streams() -> Vec<String> {
    let name = |descriptor: std::os::fd::BorrowedFd<'_>| {
        let status = rustix::fs::fstat(descriptor).ok()?;
        let is_pipe = rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Fifo;
        is_pipe.then(|| format!("pipe:[{}]", status.st_ino))
    };
    use rustix::stdio::{stderr, stdin, stdout};
    [stdin(), stdout(), stderr()].map(|descriptor| name(descriptor).unwrap_or_default()).to_vec()
}
