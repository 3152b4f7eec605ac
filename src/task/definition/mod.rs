//! What a task is: the work, and what it may use.

pub(super) mod engine;
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
use crate::sandbox::{Backend, Caller, Limits, Options, Outcome};
use crate::task::git::{GitOptions, Remote};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::output::result::ResultOptions;
use crate::task::secrets::Secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Where the workspace comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceSource {
    /// An empty folder.
    Empty,
    /// A folder of the host, copy-on-write.
    Directory(PathBuf),
    /// A git repository, cloned in a separate sandbox.
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
    /// As it was given.
    pub path: PathBuf,
    /// SHA-256, in hexadecimal.
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
    /// On failure, or if the supervisor died.
    OnFailure,
}

/// What a task goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continued {
    /// The earlier task.
    pub from: String,
    /// Whether that task keeps its workspace, and this one gets a copy.
    pub is_fork: bool,
    /// The checkpoint that a fork copies, instead of the last state.
    pub checkpoint: Option<String>,
    /// What the first task cloned. A push goes to no other.
    pub repository: Option<FolderIdentity>,
    /// When the first task of the workspace began with the folder.
    pub started: Option<SystemTime>,
}

impl Keep {
    pub(crate) fn holds(self, outcome: &Outcome) -> bool {
        match self {
            Keep::No => false,
            Keep::Always => true,
            Keep::OnFailure => !outcome.is_success(),
        }
    }
}

impl WorkspaceSource {
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

    /// Whether nothing must be fetched before the sandbox begins.
    fn is_at_hand(&self) -> bool {
        !matches!(self, WorkspaceSource::Repository { .. })
    }
}

/// One piece of work.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Where the workspace comes from.
    pub workspace: WorkspaceSource,
    /// Path inside; `None` for a folder's own path if that is free, else `/workspace`.
    pub at: Option<PathBuf>,
    /// An image of the store as the root. Its config gives what the definition leaves out, such as the command.
    pub image: Option<ImageWish>,
    /// The sandbox without what only opening gives: workspace, its path and the image's root. A relative `directory`
    /// starts at the workspace.
    pub sandbox: Options,
    /// How to reach the repository, and where commits go.
    pub git: GitOptions,
    /// Secrets, without their values.
    pub secrets: Vec<Secret>,
    /// Whether output lines that are JSON objects are progress events.
    pub stream_json: bool,
    /// Receivers besides the record.
    pub events: Vec<Receiver>,
    /// Which files of the workspace come out.
    pub artifacts: ArtifactOptions,
    /// Where the result is, and its form.
    pub result: ResultOptions,
    /// Whether changes are kept, to be shown and applied.
    pub changes: bool,
    /// Whether changes include what git ignores.
    pub ignored: bool,
    /// Whether to plant a made-up secret, which fails the attempt if it shows up anywhere.
    pub canary: bool,
    /// The profile that was read.
    pub profile: Option<ProfileUsed>,
    /// Name and labels.
    pub naming: Naming,
    /// Whether the workspace outlives the task.
    pub keep: Keep,
    /// What limits are without a request. Hosted mode lowers them to its ceilings.
    pub(crate) default_limits: Limits,
    /// Whether a file of root's below `/etc/brig` describes it. Files there may be its secrets in hosted mode.
    pub(crate) is_operators: bool,
    /// Whether it reports to its service manager, even with a command.
    pub is_service: bool,
    /// The task whose workspace it continues.
    pub continued: Option<Continued>,
    /// How many tasks of the store may run at once for this one to begin.
    pub max_parallel: Option<u32>,
    /// The longest wait for its turn.
    pub queue_wait: Option<Duration>,
    /// The process whose end ends the task.
    pub end_with: Option<Caller>,
}

impl Definition {
    /// Whether the task must be known before its sandbox: a step may take long or use its directory.
    pub(crate) fn waits_before_its_sandbox(&self) -> bool {
        let is_queued = self.max_parallel.is_some();
        let has_place = self.keep != Keep::No || self.continued.is_some() || self.sandbox.backend == Backend::Local;
        // Other tasks find a volume's users by their records, and a first use may fill it.
        let has_volumes = !self.sandbox.volumes.is_empty() || self.sandbox.home.is_some();
        !self.workspace.is_at_hand() || is_queued || has_place || has_volumes
    }

    /// When the first task of its workspace began with the folder: an edit since then may not be in the workspace.
    pub(crate) fn started(&self) -> SystemTime {
        self.continued.as_ref().and_then(|continued| continued.started).unwrap_or_else(SystemTime::now)
    }

    /// Default limits in an empty workspace.
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
            default_limits: Limits::default(),
            is_operators: false,
            is_service: false,
            continued: None,
            max_parallel: None,
            queue_wait: None,
            end_with: None,
        }
    }
}

/// `[agent]` of a preset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTable {
    /// Display name.
    #[serde(default)]
    pub title: String,
    /// Looked up in the caller's PATH.
    pub program: String,
    /// Install command, for an error.
    #[serde(default)]
    pub install: String,
    /// Arguments before the caller's. `{url:KEY}` is the URL of a key.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// For a message: what switches off the program's own questions and sandbox.
    #[serde(default)]
    pub unattended: String,
    /// At least one of them must be set.
    #[serde(default)]
    pub keys: Vec<KeyTable>,
    /// Variables with the URLs of keys, in the same form.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Variables to pass on from the caller. They are not secrets.
    #[serde(default)]
    pub pass: Vec<String>,
    /// Files to create in the home if they are missing, with their content. `{folder}` is the agent's folder as a JSON
    /// string.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// `[[agent.keys]]`: a credential that the broker adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyTable {
    /// The caller's variable with the value.
    pub variable: String,
    /// The provider's URL, unless a variable of `base_url` is set.
    pub url: String,
    /// Variables with another URL. The first that is set counts.
    #[serde(default)]
    pub base_url: Vec<String>,
    /// As in `[secrets.NAME]`.
    #[serde(default)]
    pub header: Option<String>,
    /// The variable's value inside.
    #[serde(default)]
    pub placeholder: Option<String>,
    /// Used if no key of the preset is set.
    #[serde(default)]
    pub login: Option<LoginTable>,
}

/// `[agent.keys.login]`: the file with the program's own login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginTable {
    /// A path in the caller's home, such as `.codex/auth.json`.
    pub file: String,
    /// The variable that names the file's folder instead.
    #[serde(default)]
    pub folder: Option<String>,
    /// JSON pointer of the access token.
    pub token: String,
    /// JSON pointer of the token's end, in seconds or milliseconds since 1970. Default: the JWT's own claim.
    #[serde(default)]
    pub expires: Option<String>,
    /// Variables inside, with JSON pointers of their values, which are not secrets.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}
