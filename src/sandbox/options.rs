//! What a caller asks of a sandbox, checked as a whole before anything is made.

use super::backend::Backend;
use super::image::ImageRoot;
use super::limits::Limits;
use super::location::WORKSPACE;
use super::network::Network;
use super::outcome::ExitCodes;
use crate::egress::Broker;
use crate::error::{Context, Error, Kind, Result};
use crate::files::Pinned;
use crate::spec::root::Hidden;
use rustix::fs::{Access, AtFlags, CWD, FileType};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
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
    /// What it works on.
    pub workspace: Workspace,
    /// The path of that inside; `/workspace` is a link to it.
    pub at: PathBuf,
    /// Where the command starts, if not there.
    pub directory: Option<PathBuf>,
    /// Host paths shown read-only, with their place inside.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Host folders that the command may write itself, with their place inside: a courier's mirror, never an agent's.
    pub(crate) lent: Vec<(PathBuf, PathBuf)>,
    /// Paths of the host that are held open from their check on.
    pub(crate) pinned: Pinned,
    /// Files that only the command's user can read, below `/run/secrets`: names and contents.
    pub(crate) secrets: Vec<(String, Hidden)>,
    /// Secrets that the gateway adds to requests.
    pub(crate) broker: Option<Broker>,
    /// What of the network it has.
    pub network: Network,
    /// What it may use.
    pub limits: Limits,
    /// Protections and limits that may be missing on this machine, by name.
    pub may_degrade: Vec<String>,
    /// How long a command that was asked to stop may take before it is killed.
    pub grace: Duration,
    /// Whether the command gets a terminal of its own.
    pub terminal: bool,
    /// Whether there is no command: the sandbox stays for those who enter it, until it is ended.
    pub holds: bool,
    /// What its exit codes mean.
    pub exit_codes: ExitCodes,
    /// Who isolates it.
    pub backend: Backend,
}

impl Options {
    /// Options with the defaults, for a command in an empty workspace.
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
            lent: Vec::new(),
            pinned: Pinned::default(),
            secrets: Vec::new(),
            broker: None,
            network: Network::default(),
            limits: Limits::default(),
            may_degrade: Vec::new(),
            grace: Duration::from_secs(10),
            terminal: false,
            holds: false,
            exit_codes: ExitCodes::default(),
            backend: Backend::Native,
        }
    }

    /// Says the first thing that is wrong, before anything is made.
    pub(crate) fn check(&self) -> Result<()> {
        match self.command.first() {
            None => {
                return Err(
                    Error::new(Kind::Usage, "no command is given").hint("put it after `--`, like `-- make test`")
                );
            }
            Some(program) if program.is_empty() => {
                return Err(
                    Error::new(Kind::CommandNotFound, "the command is an empty word").hint("name a program after `--`")
                );
            }
            Some(_) => {}
        }
        if let Workspace::Directory(path) = &self.workspace {
            directory(path, Kind::Workspace, "workspace").map_err(|error| error.doing("use a workspace"))?;
        }
        if let Some(path) = &self.rootfs {
            directory(path, Kind::NotFound, "root file system")
                .map_err(|error| error.doing("use a root file system"))?;
        }
        if let Some(image) = &self.image {
            image.check()?;
        }
        self.network.check()?;
        self.backend.isolates().check(self)?;
        let _ = super::backend::given_up(self)?;
        let limits = &self.limits;
        descriptors(limits.open_files)?;
        if limits.disk.is_some_and(|disk| !super::profile::on_disk() && disk > limits.memory) {
            return Err(Error::new(
                Kind::Profile,
                "`disk` is larger than `memory`, but without root privilege files are kept in memory",
            )
            .hint("raise --memory, or lower --disk"));
        }
        Ok(())
    }
}

/// Nobody in a user namespace of their own may raise the limit of setrlimit(2) that we run under.
fn descriptors(asked: u64) -> Result<()> {
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    match ours.filter(|&ours| asked > ours) {
        None => Ok(()),
        Some(ours) => Err(Error::new(
            Kind::LimitUnenforceable,
            format!("`open_files` is {asked}, but no more than {ours} open files may be had here"),
        )
        .hint(format!("give --open-files {ours}, or raise it first: ulimit -Hn {asked}"))),
    }
}

/// A path that must be a directory which we can read.
fn directory(path: &Path, kind: Kind, what: &str) -> Result<()> {
    let step = || format!("open `{}`", path.display());
    let status = rustix::fs::stat(path).failing(kind, step).map_err(|error| error.hint("name a folder that exists"))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(Error::new(kind, format!("it is no folder, and a {what} must be one"))
            .doing(step())
            .hint("name the folder that holds it"));
    }
    rustix::fs::accessat(CWD, path, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .failing(kind, step)
        .map_err(|error| error.hint("give yourself the right to read it, or name another one"))
}
