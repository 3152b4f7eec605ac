//! The record of a task. The status is derived, never stored: a receipt means ended, a held lock running, neither lost.

use crate::error::{Error, Kind, Result};
use crate::sandbox::{ExitCodes, Guarantee, Limits, Mount, Volume};
use crate::task::definition::image::{ImageUsed, Opened};
use crate::task::definition::layout::Layout;
use crate::task::definition::naming::Labels;
use crate::task::definition::{Continued, Definition, ProfileUsed, WorkspaceSource};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::output::result::ResultOptions;
use crate::task::secrets::{SecretUse, TaskSecrets};
use crate::task::store::Store;
use crate::task::store::json::{now, read, write};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The version of the receipt's form.
pub(crate) const SCHEMA: u32 = 1;
/// The version of the record's form. `migrate` upgrades older ones; newer ones are refused.
const RECORD: u32 = 3;
/// Written before anything else of the task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The form's version.
    pub schema: u32,
    /// The task's id.
    pub id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Start, RFC 3339.
    pub created: String,
    /// The command; invalid UTF-8 is replaced.
    pub command: Vec<String>,
    /// Names of the set variables, never their values.
    pub environment_names: Vec<String>,
    /// The secrets, without values.
    #[serde(default)]
    pub secrets: Vec<SecretUse>,
    /// The workspace's source.
    pub workspace: WorkspaceSource,
    /// The workspace's path inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<PathBuf>,
    /// The start folder inside, if not the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The root file system, if not the host's folders.
    pub rootfs: Option<std::path::PathBuf>,
    /// Shown files and folders of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Volumes, without the home.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The volume that is the home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The patterns of `--hide`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<String>,
    /// The root's image, with its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUsed>,
    /// Whether its command is root inside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub root_inside: bool,
    /// Its limits.
    pub limits: Limits,
    /// The supervisor's process id.
    pub supervisor: u32,
    /// Protections and limits that may be missing.
    pub may_degrade: Vec<String>,
    /// The backend.
    #[serde(default = "native")]
    pub backend: String,
    /// The isolation in force once the sandbox runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guarantee>,
    /// The meaning of its exit codes.
    pub exit_codes: ExitCodes,
    /// Whether it has a terminal, which makes standard output and standard error one stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// Whether its output's JSON lines are progress events.
    pub stream_json: bool,
    /// Its artifacts' patterns.
    #[serde(default)]
    pub artifacts: ArtifactOptions,
    /// Path and schema of its result.
    #[serde(default)]
    pub result: ResultOptions,
    /// Whether its changes are kept.
    #[serde(default = "yes")]
    pub changes: bool,
    /// Whether the changes include ignored files.
    #[serde(default)]
    pub ignored: bool,
    /// The host's folder or repository, by device and inode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderIdentity>,
    /// Whether a canary secret was planted.
    #[serde(default)]
    pub canary: bool,
    /// The profile.
    #[serde(default)]
    pub profile: Option<ProfileUsed>,
    /// The task whose workspace it continues.
    pub continued_from: Option<String>,
    /// That task's checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// For records from before the choice.
fn native() -> String {
    crate::sandbox::Backend::Native.to_string()
}

/// For records from before the choice.
fn yes() -> bool {
    true
}

impl Record {
    pub(crate) fn new(
        id: &str,
        definition: &Definition,
        layout: &Layout,
        image: Option<&Opened>,
        held: &TaskSecrets,
    ) -> Record {
        // The caller may have written a secret's value into the command.
        let text = |word: &std::ffi::OsString| held.redactor().text(&word.to_string_lossy());
        Record {
            schema: RECORD,
            id: id.to_owned(),
            name: definition.naming.name.clone(),
            labels: definition
                .naming
                .labels
                .iter()
                .map(|(key, value)| (key.clone(), held.redactor().text(value)))
                .collect(),
            created: now(),
            command: image.map_or(&definition.sandbox.command, |image| &image.command).iter().map(text).collect(),
            environment_names: definition.sandbox.environment.iter().map(|(name, _)| text(name)).collect(),
            secrets: held.told(),
            workspace: definition.workspace.clone(),
            at: Some(layout.at.clone()),
            directory: definition.sandbox.directory.clone(),
            rootfs: definition.sandbox.rootfs.clone(),
            mounts: definition.sandbox.mounts.clone(),
            volumes: definition.sandbox.volumes.clone(),
            home: definition.sandbox.home.clone(),
            hide: definition.sandbox.hidden.flags.clone(),
            image: image.map(|image| image.used.clone()),
            root_inside: definition.sandbox.root_inside || image.is_some_and(|image| image.asks_root),
            limits: definition.sandbox.limits.clone(),
            supervisor: std::process::id(),
            may_degrade: definition.sandbox.may_degrade.clone(),
            backend: definition.sandbox.backend.to_string(),
            guarantee: Some(definition.sandbox.backend.guarantee()),
            exit_codes: definition.sandbox.exit_codes.clone(),
            terminal: definition.sandbox.terminal,
            stream_json: definition.stream_json,
            artifacts: definition.artifacts.clone(),
            result: definition.result.clone(),
            changes: definition.changes,
            ignored: definition.ignored,
            folder: match &definition.continued {
                Some(Continued { repository: Some(identity), .. }) => Some(*identity),
                _ => definition.workspace.folder().and_then(|path| FolderIdentity::of(&path)),
            },
            canary: definition.canary,
            profile: definition.profile.clone(),
            continued_from: definition.continued.as_ref().map(|continued| continued.from.clone()),
            checkpoint: definition.continued.as_ref().and_then(|continued| continued.checkpoint.clone()),
        }
    }

    pub(crate) fn first_state(&self) -> Value {
        let mut data = json!({ "state": "preparing" });
        if let Some(name) = &self.name {
            data["name"] = json!(name);
        }
        if !self.labels.is_empty() {
            data["labels"] = json!(self.labels);
        }
        data
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        write(&directory.join("record.json"), self)
    }
}

impl Store {
    /// The record of a task.
    pub fn record(&self, id: &str) -> Result<Record> {
        let path = self.task(id).join("record.json");
        let found: Map<String, Value> = read(&path)?;
        let schema = found.get("schema").and_then(Value::as_u64).unwrap_or_default();
        if schema > u64::from(RECORD) {
            return Err(Error::new(Kind::Record, format!("the record of `{id}` has the newer form {schema}"))
                .hint("use the version of brig that wrote it"));
        }
        let migrated = migrate(found, schema);
        serde_json::from_value(Value::Object(migrated))
            .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(format!("read `{}`", path.display())))
    }
}

/// One version at a time. Missing values were the defaults of their time.
fn migrate(mut record: Map<String, Value>, schema: u64) -> Map<String, Value> {
    if schema < 2 {
        // 1 had no settings except the limits.
        for (key, value) in [
            ("may_degrade", json!([])),
            ("needs_input_codes", json!([3])),
            ("stream_json", json!(false)),
            ("continued_from", Value::Null),
        ] {
            record.entry(key).or_insert(value);
        }
    }
    if schema < 3 {
        // 2 had one list of exit codes, and 2 meant retryable.
        let needs_input = record.remove("needs_input_codes").unwrap_or_else(|| json!([3]));
        let codes = json!({ "succeeded": [], "retryable": [2], "needs_input": needs_input });
        record.entry("exit_codes").or_insert(codes);
        record.insert("schema".to_owned(), json!(3));
    }
    record
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::task::store::json::LONGEST;

    pub(crate) const FIRST: &str = r#"{"schema":1,"id":"t0","created":"2026-11-01T00:00:00.000000Z","command":["true"],"environment_names":["A"],
        "workspace":"empty","rootfs":null,"limits":{"cpus":2.0,"cpu_time":14400.0,"memory":4294967296,"swap":0,"pids":1024,"disk":null,
        "inodes":1000000,"open_files":8192,"wall":7200.0,"idle":1800.0,"output_bytes":268435456,"io_bps":null,"io_iops":null},"supervisor":1}"#;

    #[test]
    fn what_an_agent_can_put_into_a_receipt_is_half_of_what_is_read() {
        // Runnable files, skipped files, files with secrets: three lists, each with the same bound.
        let lists = 3 * (crate::task::output::handback::LISTED_BYTES + (64 << 10));
        // Two accounts of 512 lines, each with a name of at most 253 bytes and a rule.
        let accounts = 2 * 512 * 1024;
        let most = crate::task::output::result::LONGEST_WRITTEN
            + crate::task::output::artifact::MOST_WRITTEN
            + lists
            + accounts;
        assert!(most < LONGEST / 2, "{most} bytes");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long");
        let long = "x".repeat(LONGEST as usize);
        assert_eq!(write(&path, &long).unwrap_err().kind(), Kind::Record);
        assert!(!path.exists());
        write(&path, &long[..LONGEST as usize - 2].to_owned()).unwrap();
        assert!(read::<String>(&path).is_ok());
    }

    #[test]
    fn a_record_of_every_version_is_read_and_a_newer_one_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_path_buf());
        drop(store.begin("t0").unwrap());
        store.make("t0").unwrap();
        let path = store.task("t0").join("record.json");
        std::fs::write(&path, FIRST).unwrap();
        let record = store.record("t0").unwrap();
        let then = ExitCodes { succeeded: Vec::new(), retryable: vec![2], needs_input: vec![3] };
        assert_eq!((record.schema, &record.exit_codes), (RECORD, &then));
        assert_eq!(record.limits, Limits::default());
        record.write(&store.task("t0")).unwrap();
        assert_eq!(store.record("t0").unwrap().command, ["true"]);
        let second =
            r#""schema":2,"may_degrade":["swap"],"needs_input_codes":[9],"stream_json":true,"continued_from":null"#;
        std::fs::write(&path, FIRST.replacen("\"schema\":1", second, 1)).unwrap();
        let record = store.record("t0").unwrap();
        assert_eq!((record.exit_codes.needs_input.as_slice(), record.may_degrade.len()), (&[9_u8][..], 1));
        std::fs::write(&path, FIRST.replacen("\"schema\":1", "\"schema\":4", 1)).unwrap();
        let error = store.record("t0").unwrap_err();
        assert!(error.kind() == Kind::Record && error.to_string().contains("newer form 4"), "{error}");
        std::fs::write(&path, &FIRST[..100]).unwrap();
        assert_eq!(store.record("t0").unwrap_err().kind(), Kind::Record);
    }
}
