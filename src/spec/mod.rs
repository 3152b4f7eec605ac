//! The description of a container, as plain data. Planning from it is pure; only `container` and below carry it out.

use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) mod config;
pub(crate) mod devices;
pub(crate) mod landlock;
pub(crate) mod network;
#[cfg(test)]
mod oracle;
pub(crate) mod process;
pub(crate) mod protections;
pub(crate) mod resources;
pub(crate) mod root;
pub(crate) mod seccomp;
pub(crate) mod state;

/// Bytes, with `K M G T` as powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, parse_size::Error> {
    parse_size::Config::new().with_binary().parse_size(text)
}

/// Separate namespaces, and one command under a reaper.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub hostname: String,
    pub file_system: root::FileSystem,
    pub command: process::Command,
    pub network: network::Network,
    /// Restricts file access a second time.
    pub landlock: landlock::Landlock,
    /// `None` if the caller accepted to run without a cgroup.
    pub resources: Option<resources::Resources>,
    /// Names of limits, as on the command line, that may be missing from `resources` if the machine cannot enforce
    /// them.
    pub may_degrade: Vec<String>,
    pub confinement: Confinement,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// A user without privileges, under the system call filter and Landlock.
    #[default]
    Agent,
    /// User 0 of the sandbox's user namespace, with Docker's capabilities in it. Set-uid programs work. The filter also
    /// allows chroot(2), and Landlock writing in the whole root.
    Root,
    /// The same, with host folders that it writes. It may not set the set-user-ID and set-group-ID bits: other users of
    /// the host could run such a file with its owner's rights.
    Sharing,
    /// A cell: the command is another OCI runtime, which makes the sandbox. So user 0 has all power of a user namespace
    /// and no filter. Namespaces, ids, root and limits around it are those of every sandbox.
    Cell {
        /// Words before the command of a process that enters the runtime's container. The last is the container's name.
        exec: Vec<OsString>,
        /// The first directory of the container's command.
        directory: PathBuf,
        /// `process` of the container's config.json, as JSON: the properties of a command that enters, without its
        /// words.
        process: String,
        /// The program in the container that works on its files.
        files: PathBuf,
    },
    /// The host's root, user and network. Mounts and processes are separate, so that both end with it.
    Nothing,
}
