//! What a task is: the work, and what it may use.

pub(super) mod agent;
pub(super) mod engine;
pub(super) mod explain;
pub(super) mod exposure;
pub(super) mod hidden;
pub(super) mod hosted;
pub(super) mod image;
pub(super) mod layout;
pub(super) mod mounts;
pub(super) mod naming;
pub(super) mod narrow;
pub(super) mod network;
pub(super) mod plan;
pub(super) mod profile;
pub(super) mod receiver;
pub(super) mod settings;
pub(super) mod user_file;

use self::image::ImageWish;
use self::naming::Naming;
use self::receiver::Receiver;
use crate::sandbox::{Backend, Caller, Options, Outcome};
use crate::task::git::{GitOptions, Remote};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::output::result::ResultOptions;
use crate::task::secrets::Secret;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Where the workspace comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceSource {
    /// An empty folder.
    Empty,
    /// A folder of the host, copy-on-write.
    Directory(PathBuf),
    /// A git repository, cloned in a sandbox of its own.
    Repository {
        /// A path, or a `file://`, `https://` or `ssh://` URL.
        url: String,
        /// Branch, tag or commit; `HEAD` if missing.
        reference: Option<String>,
    },
}

/// A profile as records have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileUsed {
    /// Its path as it was given.
    pub path: PathBuf,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Whether a workspace outlives its attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Never.
    #[default]
    No,
    /// Always.
    Always,
    /// When the task did not succeed, or its supervisor died.
    OnFailure,
}

/// What a task goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continued {
    /// The task that it comes from.
    pub from: String,
    /// Whether that one keeps its workspace, and this one gets a copy.
    pub is_fork: bool,
    /// The checkpoint of that task that a fork copies, instead of the last state.
    pub checkpoint: Option<String>,
    /// The repository that the first task cloned. A push goes to no other.
    pub repository: Option<FolderIdentity>,
}

impl Keep {
    /// Whether an attempt that ended so keeps its workspace.
    pub(crate) fn holds(self, outcome: &Outcome) -> bool {
        match self {
            Keep::No => false,
            Keep::Always => true,
            Keep::OnFailure => !outcome.is_success(),
        }
    }
}

impl WorkspaceSource {
    /// The folder of the host that it names, or that has the repository.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match self {
            WorkspaceSource::Empty => None,
            WorkspaceSource::Directory(path) => Some(path.clone()),
            WorkspaceSource::Repository { url, .. } => match Remote::parse(url) {
                Ok(Remote::Local(path)) => crate::task::git::local_path(&path).ok(),
                _ => None,
            },
        }
    }

    /// Whether it is there already, so that nothing has to be fetched before the sandbox begins.
    pub(crate) fn is_at_hand(&self) -> bool {
        !matches!(self, WorkspaceSource::Repository { .. })
    }
}

/// One piece of work.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Where the workspace comes from.
    pub workspace: WorkspaceSource,
    /// The path of the workspace inside; `None` for a folder's own path where that is free, else `/workspace`.
    pub at: Option<PathBuf>,
    /// An image of the store as the root, whose config says what the definition leaves out; a command is then not needed.
    pub image: Option<ImageWish>,
    /// The sandbox, without what only opening gives it: workspace, path of the workspace and root of the image. A relative `directory` starts
    /// at the workspace.
    pub sandbox: Options,
    /// How its repository is reached, and where its commits go.
    pub git: GitOptions,
    /// Secrets, without their values.
    pub secrets: Vec<Secret>,
    /// Whether lines of its output that are JSON objects are events of its progress.
    pub stream_json: bool,
    /// Where its events go, besides its record.
    pub events: Vec<Receiver>,
    /// Which files of its workspace come out.
    pub artifacts: ArtifactOptions,
    /// Where it leaves its result, and what that must look like.
    pub result: ResultOptions,
    /// Whether what it changed is kept, so that it can be shown and applied.
    pub changes: bool,
    /// Whether what git ignores is among that.
    pub ignored: bool,
    /// Whether a made-up secret is planted, which fails the attempt if it shows up anywhere.
    pub canary: bool,
    /// The profile that was read.
    pub profile: Option<ProfileUsed>,
    /// Its name and its labels.
    pub naming: Naming,
    /// Whether its workspace outlives it.
    pub keep: Keep,
    /// Whether it reports to the service manager that runs it, also if it has a command.
    pub is_service: bool,
    /// The task whose workspace it goes on from.
    pub continued: Option<Continued>,
    /// How many tasks of the store may run at once for this one to begin.
    pub max_parallel: Option<u32>,
    /// How long it may wait for its turn.
    pub queue_wait: Option<Duration>,
    /// The process whose end ends it.
    pub end_with: Option<Caller>,
}

impl Definition {
    /// Whether something may take long, or is put into its directory, before its sandbox begins: then it must be known before.
    pub(crate) fn waits_before_its_sandbox(&self) -> bool {
        let is_queued = self.max_parallel.is_some();
        let has_place = self.keep != Keep::No || self.continued.is_some() || self.sandbox.backend == Backend::Local;
        // Other tasks find the users of a volume by their records, and a first use may fill it.
        let has_volumes = !self.sandbox.volumes.is_empty() || self.sandbox.home.is_some();
        !self.workspace.is_at_hand() || is_queued || has_place || has_volumes
    }

    /// A task with the default limits in an empty workspace.
    pub fn new(command: Vec<OsString>) -> Definition {
        Definition {
            workspace: WorkspaceSource::Empty,
            at: None,
            image: None,
            sandbox: Options::new(command),
            git: GitOptions::default(),
            secrets: Vec::new(),
            stream_json: false,
            events: Vec::new(),
            artifacts: ArtifactOptions::default(),
            result: ResultOptions::default(),
            changes: true,
            ignored: false,
            canary: false,
            profile: None,
            naming: Naming::default(),
            keep: Keep::No,
            is_service: false,
            continued: None,
            max_parallel: None,
            queue_wait: None,
            end_with: None,
        }
    }
}
