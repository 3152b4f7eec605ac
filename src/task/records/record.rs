//! What is known of a task from its beginning on, and its status, which is derived and never stored: a receipt means ended, a held lock
//! running, neither lost.

use crate::error::{Error, Kind, Result};
use crate::sandbox::{ExitCodes, Guarantee, Limits};
use crate::task::definition::image::{ImageUsed, Opened};
use crate::task::definition::layout::Layout;
use crate::task::definition::{Definition, ProfileUsed, WorkspaceSource};
use crate::task::output::artifact::ArtifactOptions;
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::output::result::ResultOptions;
use crate::task::secrets::{Held, SecretUse};
use crate::task::store::Store;
use crate::task::store::json::{now, read, write};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The version of the receipt's form.
pub(crate) const SCHEMA: u32 = 1;
/// The version of the record's form. Older ones are migrated when they are read (`migrate`), newer ones refused.
const RECORD: u32 = 3;
/// The beginning of a task, written before anything of it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of the form.
    pub schema: u32,
    /// The task's id.
    pub id: String,
    /// When it began, RFC 3339.
    pub created: String,
    /// The command, with what is not UTF-8 replaced.
    pub command: Vec<String>,
    /// Names of the variables that were set; never their values.
    pub environment_names: Vec<String>,
    /// The secrets, without their values.
    #[serde(default)]
    pub secrets: Vec<SecretUse>,
    /// Where the workspace came from.
    pub workspace: WorkspaceSource,
    /// The path of the workspace inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<PathBuf>,
    /// Where the command starts inside, if not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The root file system, if not the host's own folders.
    pub rootfs: Option<std::path::PathBuf>,
    /// The image that is the root, with what it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUsed>,
    /// What it may use.
    pub limits: Limits,
    /// The supervisor's process id.
    pub supervisor: u32,
    /// Protections and limits that may be missing, by name.
    pub may_degrade: Vec<String>,
    /// Who isolates it.
    #[serde(default = "native")]
    pub backend: String,
    /// What isolation is in force once its sandbox runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guarantee>,
    /// What its exit codes mean.
    pub exit_codes: ExitCodes,
    /// Whether it has a terminal: then standard output and standard error are one stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// Whether lines of its output that are JSON objects are events of its progress.
    pub stream_json: bool,
    /// Which files of its workspace come out.
    #[serde(default)]
    pub artifacts: ArtifactOptions,
    /// Where it leaves its result, and what that must look like.
    #[serde(default)]
    pub result: ResultOptions,
    /// Whether what it changed is kept.
    #[serde(default = "yes")]
    pub changes: bool,
    /// Whether what git ignores is among that.
    #[serde(default)]
    pub ignored: bool,
    /// The folder or repository of the host that it worked on, whatever its path names later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderIdentity>,
    /// Whether a made-up secret was planted.
    #[serde(default)]
    pub canary: bool,
    /// The profile that was read.
    #[serde(default)]
    pub profile: Option<ProfileUsed>,
    /// The task whose workspace it goes on from.
    pub continued_from: Option<String>,
}

/// Who isolated before there was a choice.
fn native() -> String {
    crate::sandbox::Backend::Native.to_string()
}

/// What every record said before there was a choice.
fn yes() -> bool {
    true
}

impl Record {
    pub(crate) fn new(
        id: &str,
        definition: &Definition,
        layout: &Layout,
        image: Option<&Opened>,
        held: &Held,
    ) -> Record {
        // A value that the caller wrote into the command all the same is hidden at least here.
        let text = |word: &std::ffi::OsString| held.redactor().text(&word.to_string_lossy());
        Record {
            schema: RECORD,
            id: id.to_owned(),
            created: now(),
            command: image.map_or(&definition.sandbox.command, |image| &image.command).iter().map(text).collect(),
            environment_names: definition.sandbox.environment.iter().map(|(name, _)| text(name)).collect(),
            secrets: held.told(),
            workspace: definition.workspace.clone(),
            at: Some(layout.at.clone()),
            directory: definition.sandbox.directory.clone(),
            rootfs: definition.sandbox.rootfs.clone(),
            image: image.map(|image| image.used.clone()),
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
            folder: definition.workspace.folder().and_then(|path| FolderIdentity::of(&path)),
            canary: definition.canary,
            profile: definition.profile.clone(),
            continued_from: definition.continued.as_ref().map(|continued| continued.from.clone()),
        }
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        write(&directory.join("record.json"), self)
    }
}

impl Store {
    /// What was recorded at the task's beginning.
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

/// Takes a record of an older form to the newest, one version at a time. What an older one did not say was the default then.
fn migrate(mut record: Map<String, Value>, schema: u64) -> Map<String, Value> {
    if schema < 2 {
        // 1 had no settings but the limits.
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
        // 2 knew one list of exit codes, and that 2 may be tried again.
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

    /// As the first version wrote it.
    pub(crate) const FIRST: &str = r#"{"schema":1,"id":"t0","created":"2026-11-01T00:00:00.000000Z","command":["true"],"environment_names":["A"],
        "workspace":"empty","rootfs":null,"limits":{"cpus":2.0,"cpu_time":14400.0,"memory":4294967296,"swap":0,"pids":1024,"disk":null,
        "inodes":1000000,"open_files":8192,"wall":7200.0,"idle":1800.0,"output_bytes":268435456,"io_bps":null,"io_iops":null},"supervisor":1}"#;

    #[test]
    fn what_an_agent_can_put_into_a_receipt_is_half_of_what_is_read() {
        // What could run later, what is not taken, what holds a secret: three lists, each with the same reason a line.
        let lists = 3 * (crate::task::output::handback::LISTED_BYTES + (64 << 10));
        // Two accounts of 512 lines, a name of at most 253 bytes and a rule in each.
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
