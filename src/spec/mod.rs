//! The description of a container, as plain data for every other part.
//!
//! Not here: how it is done. Planning from it is pure; only `container` and below carry it out.

use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) mod config;
pub(crate) mod devices;
pub(crate) mod hidden;
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

/// A sandbox's container: separate namespaces, and one command under a reaper.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// Host name inside.
    pub hostname: String,
    /// Its file system.
    pub file_system: root::FileSystem,
    /// Its command.
    pub command: process::Command,
    /// Its network.
    pub network: network::Network,
    /// The second restriction of file access.
    pub landlock: landlock::Landlock,
    /// Limits that the kernel counts; `None` if the caller accepted to run without a cgroup.
    pub resources: Option<resources::Resources>,
    /// Limits that may be missing from `resources` if the machine cannot enforce them, by their names on the command
    /// line.
    pub may_degrade: Vec<String>,
    /// The confinement of its first command.
    pub confinement: Confinement,
}

/// The confinement of a sandbox's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// A user without privileges, under the system call filter and Landlock.
    #[default]
    Agent,
    /// User 0 of the sandbox's user namespace, with Docker's capabilities in it. Set-uid programs work. The filter allows
    /// chroot(2) besides, and Landlock writing in the whole root.
    Root,
    /// The same, with host folders that it writes. It may not set the set-user-ID and set-group-ID bits: other users of
    /// the host could run such a file with its owner's rights.
    Sharing,
    /// A cell: its user 0 has all power of a user namespace and no filter, because the command is another OCI runtime.
    /// That runtime makes the sandbox. The namespaces, ids, root and limits around it are those of every sandbox.
    Cell {
        /// The words before the command of a process that enters the runtime's container; the last is its name.
        exec: Vec<OsString>,
        /// The first directory of the container's command.
        directory: PathBuf,
        /// The container's `process` of the config.json, as JSON: the properties of a command that enters, without its
        /// words.
        process: String,
        /// The program in the container that works on its files.
        files: PathBuf,
    },
    /// No confinement: the host's root, user and network. Mounts and processes are separate, so that both end with it.
    Nothing,
}
