//! The options of a sandbox, as plain data.

use super::health::HealthCheck;
use super::image::ImageRoot;
use super::limits::Limits;
use super::location::WORKSPACE;
use super::mount::Mount;
use super::network::Network;
use super::outcome::ExitCodes;
use super::volume::Volume;
use crate::egress::Broker;
use crate::error::{Error, Kind, Result};
use crate::files::Pinned;
use crate::spec::root::Hidden;
use crate::spec::root::HiddenFiles;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The one tree that the command works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workspace {
    /// A new, empty folder.
    Empty,
    /// A folder of the host, shown copy-on-write: it is never written.
    Directory(PathBuf),
}

/// Everything that a caller can ask for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Variables added to the empty environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The root file system; `None` for the host's own system folders, read-only.
    pub rootfs: Option<PathBuf>,
    /// The image whose layers are the root, instead of both.
    pub image: Option<ImageRoot>,
    /// What the command works on.
    pub workspace: Workspace,
    /// The workspace's path inside; `/workspace` is a link to it.
    pub at: PathBuf,
    /// Where the command starts, if not in the workspace.
    pub directory: Option<PathBuf>,
    /// Host paths shown read-only, with their place inside.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Files of the workspace's folder that are not shown.
    pub(crate) hidden: HiddenFiles,
    /// Files and folders of the host.
    pub mounts: Vec<Mount>,
    /// Volumes of the store, without the home.
    pub volumes: Vec<Volume>,
    /// The volume that is the command's home.
    pub home: Option<String>,
    /// Host folders that the command may write, with their place inside: a courier's mirror, never an agent's.
    pub(crate) lent: Vec<(PathBuf, PathBuf)>,
    /// Paths of the host, held open from their check on.
    pub(crate) pinned: Pinned,
    /// Files below `/run/secrets`: names and contents. Only the command's user can read them.
    pub(crate) secrets: Vec<(String, Hidden)>,
    pub(crate) broker: Option<Broker>,
    /// The network.
    pub network: Network,
    /// The limits.
    pub limits: Limits,
    /// Protections and limits that may be missing on this machine, by name.
    pub may_degrade: Vec<String>,
    /// The time between the request to stop and the kill.
    pub grace: Duration,
    /// Whether the command is user 0 of the sandbox's user namespace, which owns nothing on the host.
    pub root_inside: bool,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// Whether the sandbox has no command, and stays for processes that enter it, until it is ended.
    pub holds: bool,
    /// The health check.
    pub health: HealthCheck,
    /// The meaning of the command's exit codes.
    pub exit_codes: ExitCodes,
    /// The backend of the isolation.
    pub backend: Backend,
}

impl Options {
    /// The defaults, for a command in an empty workspace.
    pub fn new(command: Vec<OsString>) -> Options {
        Options {
            command,
            environment: Vec::new(),
            rootfs: None,
            image: None,
            workspace: Workspace::Empty,
            at: WORKSPACE.into(),
            directory: None,
            shown: Vec::new(),
            hidden: HiddenFiles::default(),
            mounts: Vec::new(),
            volumes: Vec::new(),
            home: None,
            lent: Vec::new(),
            pinned: Pinned::default(),
            secrets: Vec::new(),
            broker: None,
            network: Network::default(),
            limits: Limits::default(),
            may_degrade: Vec::new(),
            grace: Duration::from_secs(10),
            root_inside: false,
            terminal: false,
            holds: false,
            health: HealthCheck::default(),
            exit_codes: ExitCodes::default(),
            backend: Backend::Native,
        }
    }
}

/// A backend by its name: `native`, `oci:PATH`, `local`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Brig's own namespaces, filter and Landlock rules.
    #[default]
    Native,
    /// Another OCI runtime, by its path; the task is its bundle.
    Oci(PathBuf),
    /// None: the command runs on the host. For development only.
    Local,
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Native => out.write_str("native"),
            Backend::Oci(path) => write!(out, "oci:{}", path.display()),
            Backend::Local => out.write_str("local"),
        }
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Backend> {
        match (text, text.strip_prefix("oci:")) {
            ("native", _) => Ok(Backend::Native),
            ("local", _) => Ok(Backend::Local),
            (_, Some(path)) if path.starts_with('/') => Ok(Backend::Oci(path.into())),
            _ => Err(Error::new(Kind::Usage, format!("unknown backend `{}`", text.escape_debug()))
                .hint("the backends are native, oci:/path/to/runtime, local")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_by_one_of_three_words() {
        for text in ["native", "local", "oci:/usr/bin/runsc"] {
            assert_eq!(text.parse::<Backend>().unwrap().to_string(), text);
        }
        for text in ["", "docker", "oci:", "oci:runsc", "oci", "Native"] {
            assert!(text.parse::<Backend>().is_err(), "{text}");
        }
    }
}
