//! Workspaces kept after their attempt: continued in a new sandbox, forked, discarded.
//!
//! The kept file is the sandbox's own disk; the host never mounts it. A new sandbox mounts it with an empty home and
//! `/tmp`. One task has it at a time; a fork gets a copy. The limits are those of the first task, or lower.

use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{LimitName, Limits};
use crate::task::definition::naming::Naming;
use crate::task::definition::network::Written;
use crate::task::definition::profile::read_profile;
use crate::task::definition::settings::{GivenFlags, set_flags};
use crate::task::definition::{Continued, Definition, Keep, WorkspaceSource};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::records::record::Record;
use crate::task::secrets::{Brokered, Secret};
use crate::task::store::{Status, Store, json};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;

/// The disk of a task whose workspace may be kept.
pub(crate) const IMAGE: &str = "workspace.img";
const NOTE: &str = "kept.json";

/// The data for showing a kept workspace again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    schema: u32,
    /// The base of the workspace.
    pub base: Option<PathBuf>,
    /// Its commit.
    pub commit: Option<String>,
    /// Its network.
    network: Written,
    /// Its git settings.
    git: Vec<(String, String)>,
    /// The uses of its secrets at the broker.
    #[serde(default)]
    broker: Vec<Brokered>,
}

/// Refuses to keep a workspace that could not be continued.
pub(crate) fn check(definition: &Definition) -> Result<()> {
    if !definition.changes && (definition.git.push.is_some() || definition.keep != Keep::No) {
        let words = "nothing of the workspace is to be left, and yet it is to be kept or pushed";
        return Err(Error::new(Kind::Usage, words).hint("leave out `--no-changes`, or --keep and --push-branch"));
    }
    if definition.keep == Keep::No {
        return Ok(());
    }
    let words = if definition.image.is_some() {
        "the workspace of a task with an image cannot be kept"
    } else if !crate::sandbox::on_disk() {
        "an ordinary user's workspace is in memory, and cannot be kept"
    } else {
        return Ok(());
    };
    let hint = match definition.image {
        Some(_) => "leave --keep out, and take its changes with `brig task diff` and `apply`",
        None => "run it as root, or take its changes with `brig task diff` and `apply`",
    };
    Err(Error::new(Kind::LimitUnenforceable, words).hint(hint))
}

/// Records the base of a workspace before the sandbox begins, so that a crash keeps the workspace too.
pub(crate) fn note(
    store: &Store,
    id: &str,
    base: Option<PathBuf>,
    commit: Option<String>,
    definition: &Definition,
) -> Result<()> {
    let broker = definition.secrets.iter().filter_map(Secret::brokered).collect();
    let (network, git) = (Written::of(&definition.sandbox.network), definition.git.settings.clone());
    json::write(&store.task(id).join(NOTE), &Note { schema: 1, base, commit, network, git, broker })
}

/// The note about a task's kept workspace.
pub(crate) fn read_note(store: &Store, id: &str) -> Result<Note> {
    let nothing = || {
        let error = Error::new(Kind::State, format!("nothing was kept of the task `{id}`"));
        let error = match holder(store, id) {
            Some(holder) => error.hint(format!("the task `{holder}` went on from it and has its workspace: name that")),
            None => error,
        };
        error.hint("run a task with --keep or --keep-on-failure to go on from its workspace")
    };
    if !store.task(id).join(IMAGE).exists() {
        return Err(nothing());
    }
    let bytes = files::read_bounded(&store.task(id).join(NOTE), 1 << 20).map_err(|_| nothing())?;
    serde_json::from_slice(&bytes)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{NOTE}` of `{id}`")))
}

/// The task that continued the workspace of `id`, if any.
fn holder(store: &Store, id: &str) -> Option<String> {
    let ids = store.ids().ok()?;
    let mut holder = id.to_owned();
    // Ids are in order of their start, so one pass finds the last of a chain.
    for next in ids {
        let went_on = store.record(&next).is_ok_and(|record| record.continued_from.as_ref() == Some(&holder));
        if went_on && !store.task(&holder).join(IMAGE).exists() {
            holder = next;
        }
    }
    (holder != id && store.task(&holder).join(IMAGE).exists()).then_some(holder)
}

/// Moves the disk of one task to another, which has its note already.
pub(crate) fn take_over(store: &Store, from: &str, id: &str) -> Result<()> {
    std::fs::rename(store.task(from).join(IMAGE), store.task(id).join(IMAGE))
        .map_err(|cause| files::failed(cause, format!("take over the workspace of `{from}`")))
}

/// Changes of a continued task.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// The command. Default: the same.
    pub command: Option<Vec<OsString>>,
    /// The variables, whose values are not recorded.
    pub environment: Vec<(OsString, OsString)>,
    /// The secrets, whose values are not recorded.
    pub secrets: Vec<Secret>,
    /// Flags of lower limits.
    pub limits: GivenFlags,
}

impl Changed {
    /// The changes that flags ask for: variables, secrets and limits.
    pub fn new(command: Option<Vec<OsString>>, flags: GivenFlags) -> Result<Changed> {
        let mut given = Definition::new(Vec::new());
        set_flags(&flags, &mut given)?;
        let limits = flags.into_iter().filter(|(flag, _)| !["--env", "--secret"].contains(flag)).collect();
        Ok(Changed { command, environment: given.sandbox.environment, secrets: given.secrets, limits })
    }

    /// Takes the variables and secrets that are not given again from the task's profile, if that is still the same.
    fn with_profile(mut self, record: &Record) -> Result<Changed> {
        let Some(used) = &record.profile else { return Ok(self) };
        let mut again = Definition::new(Vec::new());
        let is_read = read_profile(&used.path, &mut again).is_ok();
        // A missing or changed profile is ignored: the caller must give missing values.
        if !is_read || again.profile.as_ref().is_none_or(|now| now.sha256 != used.sha256) {
            return Ok(self);
        }
        let given = |name: &OsString| self.environment.iter().any(|(each, _)| each == name);
        let variables: Vec<_> = again.sandbox.environment.into_iter().filter(|(name, _)| !given(name)).collect();
        self.environment.extend(variables);
        let secrets = again.secrets.into_iter().filter(|each| self.secrets.iter().all(|one| one.name != each.name));
        let secrets: Vec<_> = secrets.collect();
        self.secrets.extend(secrets);
        Ok(self)
    }
}

impl Store {
    /// The definition of a task that continues `id`: the same profile, or a stricter one.
    pub fn continued(&self, id: &str, changed: Changed, is_fork: bool) -> Result<Definition> {
        let step = || format!("go on from the task `{id}`");
        if self.status(id)? == Status::Running {
            return Err(Error::new(Kind::State, "it is running").doing(step()).hint("end it first: brig task stop ID"));
        }
        let note = read_note(self, id).doing(step)?;
        let record = self.record(id)?;
        let changed = changed.with_profile(&record)?;
        let mut definition = Definition::new(command(&record, changed.command).doing(step)?);
        let given = |name: &String| changed.environment.iter().any(|(each, _)| each.to_string_lossy() == name.as_str());
        if let Some(name) = record.environment_names.iter().find(|name| !given(name)) {
            return Err(Error::new(
                Kind::Usage,
                format!("its variable `{name}` has no value: values are in no record"),
            )
            .doing(step())
            .hint(format!("give it again: -e {name}=VALUE")));
        }
        if let Some(secret) = record
            .secrets
            .iter()
            .filter(|old| !old.is_made())
            .find(|old| changed.secrets.iter().all(|new| new.name != old.name))
        {
            let name = &secret.name;
            return Err(Error::new(Kind::Usage, format!("its secret `{name}` has no value: values are in no record"))
                .doing(step())
                .hint(format!("give it again, as in `brig task run`: --secret {name}=SOURCE")));
        }
        definition.sandbox.environment = changed.environment;
        // A secret at the broker stays there.
        definition.secrets = changed.secrets.into_iter().map(|secret| secret.kept_as(&note.broker)).collect();
        definition.sandbox.network = note.network.network().doing(step)?;
        definition.git.settings = note.git;
        definition.sandbox.limits = record.limits.clone();
        set_flags(&changed.limits, &mut definition)?;
        if let Some(name) = raised(&definition.sandbox.limits, &record.limits) {
            return Err(Error::new(Kind::Usage, format!("`{}` would be more than it was", name.word()))
                .doing(step())
                .hint("limits can only be lowered; begin a new task for more"));
        }
        definition.workspace = record.workspace;
        // Before the choice, every workspace was there.
        definition.at = Some(record.at.unwrap_or_else(|| crate::sandbox::WORKSPACE.into()));
        definition.sandbox.directory = record.directory;
        definition.sandbox.rootfs = record.rootfs;
        definition.sandbox.root_inside = record.root_inside;
        definition.sandbox.mounts = record.mounts;
        definition.sandbox.may_degrade = record.may_degrade;
        definition.sandbox.backend = record.backend.parse().doing(step)?;
        definition.sandbox.exit_codes = record.exit_codes;
        // The caller's folder was for the first task alone.
        definition.artifacts = ArtifactOptions { directory: None, ..record.artifacts };
        definition.result = record.result;
        definition.changes = record.changes;
        definition.ignored = record.ignored;
        definition.canary = record.canary;
        definition.profile = record.profile;
        // A fork runs beside others: it has the labels alone.
        let name = record.name.filter(|_| !is_fork);
        definition.naming = Naming { name, is_optional: true, replaces: false, labels: record.labels };
        definition.stream_json = record.stream_json;
        definition.keep = Keep::Always;
        definition.continued = Some(Continued { from: id.to_owned(), is_fork });
        Ok(definition)
    }

    /// Discards a kept workspace. `false` if there was none.
    pub fn discard(&self, id: &str) -> Result<bool> {
        if self.status(id)? == Status::Running {
            return Err(
                Error::new(Kind::State, format!("the task `{id}` is running")).hint("end it first: brig task stop ID")
            );
        }
        discard(self, id)
    }
}

/// Removes the disk and its note.
pub(crate) fn discard(store: &Store, id: &str) -> Result<bool> {
    let mut found = false;
    for name in [IMAGE, NOTE] {
        match std::fs::remove_file(store.task(id).join(name)) {
            Ok(()) => found = true,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(files::failed(cause, format!("remove the workspace of `{id}`"))),
        }
    }
    Ok(found)
}

fn command(record: &Record, changed: Option<Vec<OsString>>) -> Result<Vec<OsString>> {
    if let Some(command) = changed {
        return Ok(command);
    }
    if record.command.iter().any(|word| word.contains('\u{fffd}')) {
        return Err(
            Error::new(Kind::Usage, "its command has bytes that no record can hold").hint("give it again after `--`")
        );
    }
    Ok(record.command.iter().map(OsString::from).collect())
}

/// A limit above the old one. The disk's size cannot change.
fn raised(new: &Limits, old: &Limits) -> Option<LimitName> {
    let looser = |new: Option<u64>, old: Option<u64>| new.unwrap_or(u64::MAX) > old.unwrap_or(u64::MAX);
    LimitName::ALL.into_iter().find(|name| match name {
        LimitName::Cpus => new.cpus > old.cpus,
        LimitName::CpuTime => new.cpu_time > old.cpu_time,
        LimitName::Memory => new.memory > old.memory,
        LimitName::Swap => new.swap > old.swap,
        LimitName::Pids => new.pids > old.pids,
        LimitName::Disk => new.disk != old.disk,
        LimitName::Inodes => new.inodes != old.inodes,
        LimitName::OpenFiles => new.open_files > old.open_files,
        LimitName::Wall => new.wall > old.wall,
        LimitName::Idle => new.idle > old.idle,
        LimitName::OutputBytes => new.output_bytes > old.output_bytes,
        LimitName::IoBps => looser(new.io_bps, old.io_bps),
        LimitName::IoIops => looser(new.io_iops, old.io_iops),
    })
}

/// The workspace's tree in the note.
pub(crate) fn workspace(note: &Note, source: &WorkspaceSource) -> Result<crate::sandbox::Workspace> {
    match (&note.base, source) {
        (None, WorkspaceSource::Empty) => Ok(crate::sandbox::Workspace::Empty),
        (Some(base), WorkspaceSource::Directory(_) | WorkspaceSource::Repository { .. }) => {
            Ok(crate::sandbox::Workspace::Directory(base.clone()))
        }
        _ => Err(Error::new(Kind::Record, "the note about the kept workspace is of another task")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_go_down_and_never_up() {
        let old = Limits { io_bps: Some(100), ..Limits::default() };
        let check = |name: LimitName, text: &str, expected: Option<LimitName>| {
            let mut new = old.clone();
            new.set(name, text).unwrap();
            assert_eq!(raised(&new, &old), expected, "{name:?} {text}");
        };
        check(LimitName::Memory, "1G", None);
        check(LimitName::Memory, "5G", Some(LimitName::Memory));
        check(LimitName::Wall, "1h", None);
        check(LimitName::Wall, "3h", Some(LimitName::Wall));
        check(LimitName::IoBps, "8k", Some(LimitName::IoBps));
        check(LimitName::IoIops, "10", None);
        check(LimitName::Disk, "1G", Some(LimitName::Disk));
        check(LimitName::Pids, "2000", Some(LimitName::Pids));
    }
}
