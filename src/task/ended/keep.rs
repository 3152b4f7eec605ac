//! Kept workspaces: continued in a new sandbox, forked, discarded.
//!
//! The kept file is the sandbox's disk: workspace, home, root changes. The host never mounts it; a new sandbox mounts
//! it with an empty `/tmp`. One task has it at a time; a fork gets a copy. Root changes belong to one image, by its
//! digest, or to one folder. The image stays in the store as long as the disk.

use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Durability};
use crate::sandbox::{Backend, CHECKPOINTS, Caller, Checkpoint, Options, checkpoint_path, checkpoints, pack_kept};
use crate::task::definition::image::{ImageWish, Opened};
use crate::task::definition::naming::Naming;
use crate::task::definition::network::Written;
use crate::task::definition::profile::read_profile;
use crate::task::definition::settings::{GivenFlags, REMOTE_FLAGS, set_each, set_flags};
use crate::task::definition::{Continued, Definition, Keep, WorkspaceSource};
use crate::task::git::{GitOptions, PushOptions};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::records::record::Record;
use crate::task::secrets::{Brokered, Exposure, Secret};
use crate::task::store::{KEPT_NOTE as NOTE, Status, Store, json};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub(crate) const IMAGE: &str = "workspace.img";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    schema: u32,
    pub base: Option<PathBuf>,
    pub commit: Option<String>,
    network: Written,
    git: Vec<(String, String)>,
    #[serde(default)]
    broker: Vec<Brokered>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    push: Option<KeptPush>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<KeptImage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rootfs: Option<FolderIdentity>,
    #[serde(default)]
    holds: bool,
    /// When the first task of the workspace began with the folder.
    #[serde(default)]
    started: Option<SystemTime>,
}

/// The push of a kept task, without secrets.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptPush {
    to: PushOptions,
    known_hosts: Option<PathBuf>,
    ca: Option<PathBuf>,
    addresses: Vec<IpAddr>,
    credential: bool,
    ssh_key: bool,
}

impl KeptPush {
    fn of(git: &GitOptions) -> Option<KeptPush> {
        Some(KeptPush {
            to: git.push.clone()?,
            known_hosts: git.known_hosts.clone(),
            ca: git.ca.clone(),
            addresses: git.addresses.clone(),
            credential: git.credential.is_some(),
            ssh_key: git.ssh_key.is_some(),
        })
    }

    /// The caller gives secrets again and may replace the rest.
    fn apply_to(self, given: GitOptions, git: &mut GitOptions) -> Result<()> {
        for (needs, source, flag) in
            [(self.credential, &given.credential, "--git-credential"), (self.ssh_key, &given.ssh_key, "--git-ssh-key")]
        {
            if needs && source.is_none() {
                return Err(Error::new(Kind::Usage, "its push needs a secret for git: values are in no record")
                    .hint(format!("give it again, as in `brig task run`: {flag} SOURCE")));
            }
        }
        git.push = Some(self.to);
        git.credential = given.credential;
        git.ssh_key = given.ssh_key;
        git.known_hosts = given.known_hosts.or(self.known_hosts);
        git.ca = given.ca.or(self.ca);
        git.addresses = if given.addresses.is_empty() { self.addresses } else { given.addresses };
        Ok(())
    }
}

/// A root's image, and what the caller replaced in its configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptImage {
    reference: String,
    digest: String,
    entrypoint: Option<String>,
    user: Option<String>,
    working_directory: Option<String>,
    stop_signal: Option<String>,
    /// How many last words of the command are the caller's; the image has the others.
    words: usize,
}

impl KeptImage {
    fn of(wish: &ImageWish, image: &Opened, words: usize) -> KeptImage {
        let ImageWish { reference, entrypoint, user, working_directory, stop_signal, .. } = wish.clone();
        let digest = image.used.digest.clone();
        KeptImage { reference, digest, entrypoint, user, working_directory, stop_signal, words }
    }

    fn wish(self) -> ImageWish {
        ImageWish {
            reference: self.reference,
            digest: Some(self.digest),
            entrypoint: self.entrypoint,
            user: self.user,
            working_directory: self.working_directory,
            stop_signal: self.stop_signal,
        }
    }
}

pub(crate) fn check(definition: &Definition) -> Result<()> {
    if !definition.changes && (definition.git.push.is_some() || definition.keep != Keep::No) {
        let words = "nothing of the workspace is to be left, and yet it is to be kept or pushed";
        return Err(Error::new(Kind::Usage, words).hint("leave out `--no-changes`, or --keep and --push-branch"));
    }
    Ok(())
}

/// Refuses to keep files in memory whose owners this process is not.
pub(crate) fn check_owners(definition: &Definition, options: &Options) -> Result<()> {
    let is_own = !options.root_inside && options.backend == Backend::Native;
    if definition.keep == Keep::No || crate::sandbox::on_disk() || is_own {
        return Ok(());
    }
    let words = "an ordinary user keeps the files of one user in the native sandbox only";
    Err(Error::new(Kind::LimitUnenforceable, words)
        .hint("run it as root, or take its changes with `brig task diff` and `apply`"))
}

/// Saves the files in memory, in place of an earlier sandbox's.
pub(crate) fn save(scratch: BorrowedFd<'_>, directory: &Path) -> Result<()> {
    let pack = |file: &mut File| pack_kept(scratch, BufWriter::new(file)).map_err(std::io::Error::other);
    files::replace_by(&directory.join(IMAGE), 0o600, Durability::Cached, pack).doing(|| "keep the files of the sandbox")
}

/// Notes what workspace and root begin with before the sandbox starts, so that a crash keeps them too.
pub(crate) fn note(
    store: &Store,
    id: &str,
    base: (Option<PathBuf>, Option<String>),
    definition: &Definition,
    image: Option<&Opened>,
) -> Result<()> {
    let kept = match (&definition.image, image) {
        (Some(wish), Some(image)) => {
            for (name, file) in [(id.to_owned(), IMAGE), (format!("{id}-{CHECKPOINTS}"), CHECKPOINTS)] {
                image.hold(store, &name, &Path::new("tasks").join(id).join(file))?;
            }
            Some(KeptImage::of(wish, image, definition.sandbox.command.len()))
        }
        _ => None,
    };
    let note = Note {
        schema: 1,
        base: base.0,
        commit: base.1,
        network: Written::of(&definition.sandbox.network),
        git: definition.git.settings.clone(),
        broker: definition.secrets.iter().filter_map(Secret::brokered).collect(),
        push: KeptPush::of(&definition.git),
        image: kept,
        rootfs: definition.sandbox.rootfs.as_deref().and_then(FolderIdentity::of),
        holds: definition.sandbox.holds,
        started: Some(definition.started()),
    };
    json::write(&store.task(id).join(NOTE), &note)
}

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
    note_of(store, id).map_err(|error| if error.kind() == Kind::NotFound { nothing() } else { error })
}

/// Another task may have the disk.
fn note_of(store: &Store, id: &str) -> Result<Note> {
    let bytes = files::read_bounded(&store.task(id).join(NOTE), 1 << 20)?;
    serde_json::from_slice(&bytes)
        .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{NOTE}` of `{id}`")))
}

/// The note and file of a checkpoint, or of the last state.
pub(crate) fn origin(store: &Store, id: &str, checkpoint: Option<&str>) -> Result<(Note, PathBuf)> {
    let Some(name) = checkpoint else { return Ok((read_note(store, id)?, store.task(id).join(IMAGE))) };
    let path = checkpoint_path(&store.task(id), name)?;
    if !path.exists() {
        let known: Vec<_> = store.checkpoints(id)?.into_iter().map(|each| each.name).collect();
        let hint = match known.is_empty() {
            true => "it has none: brig task checkpoint ID makes one of a running task".to_owned(),
            false => format!("it has: {}", known.join(", ")),
        };
        return Err(Error::new(Kind::NotFound, format!("the task `{id}` has no checkpoint `{name}`")).hint(hint));
    }
    Ok((note_of(store, id)?, path))
}

pub(crate) fn has_state(store: &Store, id: &str) -> bool {
    [IMAGE, CHECKPOINTS].iter().any(|name| store.task(id).join(name).exists())
}

/// The checkout that a task with a disk or checkpoints needs.
pub(super) fn needed_base(store: &Store, id: &str) -> Option<PathBuf> {
    has_state(store, id).then(|| note_of(store, id).ok()?.base)?
}

/// The last task that continued the workspace.
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

/// The new task must have its note already.
pub(crate) fn take_over(store: &Store, from: &str, id: &str) -> Result<()> {
    std::fs::rename(store.task(from).join(IMAGE), store.task(id).join(IMAGE))
        .map_err(|cause| files::failed(cause, format!("take over the workspace of `{from}`")))
}

/// A continued task's changes.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// Default: the same.
    pub command: Option<Vec<OsString>>,
    /// Variables; no record has values.
    pub environment: Vec<(OsString, OsString)>,
    /// Secrets; no record has values.
    pub secrets: Vec<Secret>,
    /// Flags of other limits.
    pub limits: GivenFlags,
    /// The way to its push's remote.
    pub git: GitOptions,
    /// The process whose end ends the new task.
    pub end_with: Option<Caller>,
}

impl Changed {
    /// Sorts flags into variables, secrets, limits, and the way to a push's remote.
    pub fn new(command: Option<Vec<OsString>>, flags: GivenFlags) -> Result<Changed> {
        let mut given = Definition::new(Vec::new());
        set_each(&flags, &mut given)?;
        let is_else = |flag: &str| ["--env", "--secret", "--end-with"].contains(&flag) || REMOTE_FLAGS.contains(&flag);
        let limits = flags.into_iter().filter(|(flag, _)| !is_else(flag)).collect();
        let Definition { git, secrets, sandbox, end_with, .. } = given;
        Ok(Changed { command, environment: sandbox.environment, secrets, limits, git, end_with })
    }

    /// Takes what is not given again from the task's profile, if unchanged.
    fn with_profile(mut self, record: &Record) -> Result<Changed> {
        let Some(again) = unchanged_profile(record) else { return Ok(self) };
        self.git.credential = self.git.credential.or(again.git.credential);
        self.git.ssh_key = self.git.ssh_key.or(again.git.ssh_key);
        let given = |name: &OsString| self.environment.iter().any(|(each, _)| each == name);
        let variables: Vec<_> = again.sandbox.environment.into_iter().filter(|(name, _)| !given(name)).collect();
        self.environment.extend(variables);
        let secrets = again.secrets.into_iter().filter(|each| self.secrets.iter().all(|one| one.name != each.name));
        let secrets: Vec<_> = secrets.collect();
        self.secrets.extend(secrets);
        Ok(self)
    }
}

pub(super) fn unchanged_profile(record: &Record) -> Option<Definition> {
    let used = record.profile.as_ref()?;
    let mut again = Definition::new(Vec::new());
    // Ignore a missing or changed profile: the caller must give missing values.
    read_profile(&used.path, &mut again).ok()?;
    again.profile.as_ref().is_some_and(|now| now.sha256 == used.sha256).then_some(again)
}

impl Store {
    /// The definition of a task that continues `id`: the same profile, with other limits where the machine's rules
    /// allow them.
    ///
    /// A fork gets a copy of the last state, or of a checkpoint, which a running task may have too.
    pub fn continued(&self, id: &str, changed: Changed, fork: Option<Fork>) -> Result<Definition> {
        let step = || format!("go on from the task `{id}`");
        let is_fork = fork.is_some();
        let Fork { checkpoint, keeps_name } = fork.unwrap_or_default();
        if checkpoint.is_none() && self.status(id)? == Status::Running {
            let hint = "end it first: brig task stop ID; or fork it from a checkpoint: brig task checkpoint ID";
            return Err(Error::new(Kind::State, "it is running").doing(step()).hint(hint));
        }
        let (note, _) = origin(self, id, checkpoint.as_deref()).doing(step)?;
        let record = self.record(id)?;
        let changed = changed.with_profile(&record)?;
        let is_same_command = changed.command.is_none();
        let mut definition = Definition::new(command(&record, &note, changed.command).doing(step)?);
        let is_set = |name: &str| changed.environment.iter().any(|(each, _)| each.to_string_lossy() == name);
        let secret = |name: &str| changed.secrets.iter().find(|each| each.name == name);
        let is_passed = |name: &str| secret(name).is_some_and(|each| each.exposure == Exposure::Environment);
        if let Some(name) = record.environment_names.iter().find(|name| !is_set(name) && !is_passed(name)) {
            return Err(Error::new(
                Kind::Usage,
                format!("its variable `{name}` has no value: values are in no record"),
            )
            .doing(step())
            .hint(format!("give it again: -e {name}=VALUE")));
        }
        if let Some(missing) =
            record.secrets.iter().filter(|old| !old.is_made()).find(|old| {
                secret(&old.name).is_none() && !(old.exposure == Exposure::Environment && is_set(&old.name))
            })
        {
            let name = &missing.name;
            let again = match missing.exposure {
                Exposure::Environment => format!("give it again, from a variable of that name: -e {name}"),
                Exposure::File | Exposure::Broker => {
                    format!("give it again, as in `brig task run`: --secret {name}=SOURCE")
                }
            };
            return Err(Error::new(Kind::Usage, format!("its secret `{name}` has no value: values are in no record"))
                .doing(step())
                .hint(again));
        }
        definition.sandbox.environment = changed.environment;
        // A secret at the broker stays there.
        definition.secrets = changed.secrets.into_iter().map(|secret| secret.kept_as(&note.broker)).collect();
        definition.sandbox.network = note.network.network().doing(step)?;
        definition.git.settings = note.git;
        // Forks would push different commits to one branch.
        if let Some(push) = note.push.filter(|_| !is_fork) {
            push.apply_to(changed.git, &mut definition.git).doing(step)?;
        }
        definition.sandbox.limits = record.limits.clone();
        set_flags(&changed.limits, &mut definition)?;
        definition.workspace = record.workspace;
        // Old records have no path; every workspace was at this one.
        definition.at = Some(record.at.unwrap_or_else(|| crate::sandbox::WORKSPACE.into()));
        definition.sandbox.directory = record.directory;
        definition.image = note.image.map(KeptImage::wish);
        if let (Some(folder), Some(identity)) = (&record.rootfs, note.rootfs)
            && FolderIdentity::of(folder) != Some(identity)
        {
            let words = format!("`{}` is another folder than the root that it changed", folder.display());
            return Err(Error::new(Kind::State, words).doing(step()).hint("move that folder back to this path"));
        }
        definition.sandbox.rootfs = record.rootfs;
        definition.sandbox.root_inside = record.root_inside;
        definition.sandbox.mounts = record.mounts;
        definition.sandbox.volumes = record.volumes;
        definition.sandbox.home = record.home;
        // With another command it does not hold.
        definition.sandbox.holds = note.holds && is_same_command;
        let limits = &mut definition.sandbox.limits;
        if definition.sandbox.holds && limits.idle == record.limits.wall {
            limits.idle = limits.wall;
        }
        definition.sandbox.hidden.flags = record.hide;
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
        // A fork runs beside others and takes only the labels.
        let name = record.name.filter(|_| !is_fork || keeps_name);
        definition.naming = Naming { name, is_optional: true, replaces: false, labels: record.labels };
        definition.stream_json = record.stream_json;
        definition.keep = Keep::Always;
        definition.end_with = changed.end_with;
        let is_cloned = matches!(definition.workspace, WorkspaceSource::Repository { .. });
        let repository = record.folder.filter(|_| is_cloned);
        // No user edits a checkout of the store.
        let started = note.started.filter(|_| !is_cloned);
        definition.continued = Some(Continued { from: id.to_owned(), is_fork, checkpoint, repository, started });
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

/// What a fork begins with.
#[derive(Clone, Debug, Default)]
pub struct Fork {
    /// The checkpoint. Default: the last state of an ended task.
    pub checkpoint: Option<String>,
    /// Whether it takes the name too, to replace the task.
    pub keeps_name: bool,
}

impl Store {
    /// A task's checkpoints, oldest first.
    pub fn checkpoints(&self, id: &str) -> Result<Vec<Checkpoint>> {
        checkpoints(&self.task(id)).doing(|| format!("list the checkpoints of the task `{id}`"))
    }
}

pub(crate) fn discard(store: &Store, id: &str) -> Result<bool> {
    let checkpoints = store.task(id).join(CHECKPOINTS);
    let mut found = checkpoints.exists();
    if found {
        files::remove_directory(&checkpoints)
            .map_err(|cause| files::failed(cause, format!("remove the checkpoints of `{id}`")))?;
    }
    for name in [IMAGE, NOTE] {
        match std::fs::remove_file(store.task(id).join(name)) {
            Ok(()) => found = true,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(files::failed(cause, format!("remove the workspace of `{id}`"))),
        }
    }
    Ok(found)
}

/// The image adds its own words before the caller's.
fn command(record: &Record, note: &Note, changed: Option<Vec<OsString>>) -> Result<Vec<OsString>> {
    if let Some(command) = changed {
        return Ok(command);
    }
    let own = note.image.as_ref().map_or(record.command.len(), |image| image.words);
    let before = record.command.len().saturating_sub(own);
    if record.command.iter().any(|word| word.contains('\u{fffd}')) {
        return Err(
            Error::new(Kind::Usage, "its command has bytes that no record can hold").hint("give it again after `--`")
        );
    }
    Ok(record.command[before..].iter().map(OsString::from).collect())
}

pub(crate) fn workspace(note: &Note, source: &WorkspaceSource) -> Result<crate::sandbox::Workspace> {
    match (&note.base, source) {
        (None, WorkspaceSource::Empty) => Ok(crate::sandbox::Workspace::Empty),
        (Some(base), WorkspaceSource::Directory(_) | WorkspaceSource::Repository { .. }) => {
            Ok(crate::sandbox::Workspace::Directory(base.clone()))
        }
        _ => Err(Error::new(Kind::Record, "the note about the kept workspace is of another task")),
    }
}
