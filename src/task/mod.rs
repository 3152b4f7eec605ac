//! A task: one piece of work for an agent, run in a sandbox and recorded. Only what the definition allows comes out.
//!
//! An attempt (`pipeline`) prepares, starts, runs, collects, tears down, records. Teardown and record always happen.
//! Never: a git command on the host over a tree that an agent could write.

mod agents;
mod definition;
mod ended;
mod git;
mod library;
mod life;
mod output;
mod records;
mod redact;
mod secrets;
mod store;
mod volumes;

pub use crate::sandbox::Checkpoint;
pub use agents::{
    Agent, AgentFacts, AgentHome, AgentKey, AgentLogin, Caller, KeyPlace, PresetSummary, ProjectFile, installed, learn,
    prepare_home, presets, project, trust, untrust,
};
pub use definition::engine::secret_opener;
pub(crate) use definition::hosted::rules as machine_rules;
pub use definition::hosted::{
    check_number, check_registry, check_variable, hosted_rule_of_flag, open_store, refuse_host_path,
};
pub use definition::image::{ImageUsed, ImageWish};
pub use definition::naming::{Labels, Naming};
pub use definition::plan::explain;
pub use definition::profile::read_profile;
pub(crate) use definition::profile::read_worker;
pub use definition::receiver::Receiver;
pub use definition::settings::values::{degradable, variable};
pub use definition::settings::{GivenFlags, HostedRule, REMOTE_FLAGS, Setting, ValueKind, set_flags, settings};
pub(crate) use definition::user_file::config_home;
pub use definition::{Continued, Definition, Keep, ProfileUsed, WorkspaceSource};
pub use ended::apply::{
    AppliedPaths, ApplyOptions, ChangedPath, PatchNotes, PatchOptions, apply, changed_paths, patch, secrets_in,
};
pub use ended::export::{Exported, export_bundle};
pub use ended::filter::Filter;
pub use ended::index::Summary;
pub use ended::keep::{Changed, Fork};
pub use ended::prune::{PruneOptions, Pruned};
pub use ended::push::{Pushed, push_commits};
pub use ended::reconcile::{Leak, leaks, reap};
pub use git::{Elsewhere, GitOptions, Push, PushOptions, PushState, absolute_repository};
pub(crate) use library::call_program;
pub use library::{Options, Output, Sandbox, Task};
pub use life::Watcher;
pub(crate) use life::hiding::Hiding;
pub use life::live::{Executed, Execution, Live};
pub use life::pipeline::run;
pub use life::pipeline::run_detached;
pub use life::processes::TaskProcess;
pub use life::pump::{Console, ExecEnd, Left};
pub use output::artifact::{Artifact, ArtifactOptions, Artifacts, RefusedArtifact, RefusedBecause};
pub use output::changes::Selection;
pub use output::handback::{ChangeSet, NotTaken, RunnableFile};
pub use output::result::{ResultOptions, TaskResult};
pub use output::schema::Schema;
pub(crate) use records::event::Reader as EventReader;
pub use records::event::{Event, Reader};
pub use records::follow::{Follower, From};
pub use records::job::{JobRecord, JobState};
pub use records::log_streams::StreamReader;
pub use records::receipt::{Parent, Receipt, Versions};
pub use records::record::Record;
pub use redact::Redactor;
pub use redact::display::{is_deceptive, reorders_text};
pub use secrets::{Exposure, LoginFile, Secret, SecretUse, Source, revoke};
pub(crate) use store::names::checked_name;
pub(crate) use store::names_in;
pub use store::{Status, Store};
pub use volumes::{VolumeRecord, VolumeRow, VolumeSize, VolumeUser, add_fill};
