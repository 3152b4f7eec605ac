//! A task: one piece of work for an agent, run in a sandbox, recorded, and handed back as exactly what was allowed out.
//!
//! In: a [`Definition`]. Out: a [`Receipt`], a log, the changes of the workspace.
//! Order of one attempt (`pipeline`): prepare, start, run, collect, tear down, record. Teardown and record always happen.
//! Here too: the store's tasks (`store`), what is left of one whose supervisor died (`reconcile`).
//! Never: a git command on the host over a tree that an agent could write.

mod apply;
mod artifact;
mod background;
mod canary;
mod changes;
mod definition;
mod display;
mod event;
mod explain;
mod export;
mod exposure;
mod folder_snapshot;
mod follow;
mod forward;
mod git;
mod handback;
mod hiding;
mod hosted;
mod image;
mod index;
mod keep;
mod layout;
mod library;
mod live;
mod log;
mod log_streams;
mod missing;
mod network;
mod options;
mod pipeline;
mod plan;
mod processes;
mod prune;
mod pump;
mod queue;
mod receipt;
mod reconcile;
mod record;
mod redact;
mod result;
mod schema;
mod secrets;
mod store;
mod tree;
mod watcher;
mod worktree;

pub use apply::{
    AppliedPaths, ApplyOptions, ChangedPath, PatchNotes, PatchOptions, apply, changed_paths, patch, secrets_in,
};
pub use artifact::{Artifact, ArtifactOptions, Artifacts, RefusedArtifact, RefusedBecause};
pub use background::run_detached;
pub use changes::Selection;
pub use definition::{Definition, ProfileUsed, WorkspaceSource};
pub use display::{is_deceptive, reorders_text};
pub use event::{Event, Reader};
pub use explain::explain;
pub use export::{Exported, export_bundle};
pub use follow::{Follower, From};
pub use forward::Receiver;
pub use git::{Elsewhere, GitOptions, Push, PushOptions, PushState, absolute_repository};
pub use handback::{Handback, NotTaken, RunnableFile};
pub(crate) use hosted::rules as machine_rules;
pub use hosted::{HostedRule, check_registry, hosted_rule_of_flag, hosted_rule_of_key, open_store, refuse_host_path};
pub use image::{ImageUsed, ImageWish};
pub use keep::{Changed, Continued, Keep};
pub use library::{Options, Output, Sandbox, Task};
pub use live::{Executed, Execution, Live};
pub use log_streams::StreamReader;
pub use network::{resolver, size};
pub use options::{Variable, degradable, given_variable, read_profile, variable};
pub use pipeline::run;
pub use processes::TaskProcess;
pub use prune::{PruneOptions, Pruned};
pub use pump::{Console, Left};
pub use receipt::{Receipt, Versions};
pub use reconcile::{Leak, leaks, reap};
pub use record::{Record, Status, Summary};
pub use redact::Redactor;
pub use result::{ResultOptions, TaskResult};
pub use schema::Schema;
pub use secrets::{Exposure, Secret, SecretUse, Source, revoke};
pub use store::Store;
pub use watcher::Watcher;
