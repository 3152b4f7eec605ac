//! What a container is to be, as plain data that every other part reads.
//!
//! Not here: how it is done. Planning from it is pure; only `container` and below carry it out.

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

/// A sandbox's container: every namespace its own, one command under a reaper.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    /// Name of the machine inside.
    pub hostname: String,
    /// What it sees.
    pub file_system: root::FileSystem,
    /// What runs in it.
    pub command: process::Command,
    /// Its network.
    pub network: network::Network,
    /// The second fence around files.
    pub landlock: landlock::Landlock,
    /// Limits that the kernel counts; `None` where the caller accepted to go without a cgroup.
    pub resources: Option<resources::Resources>,
    /// Limits that are left out of `resources` when the machine cannot enforce them, by the names of the command line.
    pub may_degrade: Vec<String>,
    /// What its first command is held by.
    pub confinement: Confinement,
}

/// How a sandbox's processes are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// A user without power, under the filter of system calls and Landlock.
    #[default]
    Agent,
    /// A cell: its user 0 has all the power that a user namespace gives and no filter, because the command is another OCI runtime, which makes
    /// the sandbox itself. The namespaces, the ids, the root and the limits around it are those of every sandbox.
    Cell {
        /// The words before those of a command that is to enter the runtime's container, the last of which is its name.
        exec: Vec<OsString>,
        /// Where the container's command began.
        directory: PathBuf,
        /// The container's `process` of the config.json, as JSON: what a command that enters is like, but for its words.
        process: String,
        /// The program in the container that works on its files.
        files: PathBuf,
    },
    /// Nothing: the host's root, user and network. Mounts and processes are its own, so that both end with it.
    Nothing,
}
