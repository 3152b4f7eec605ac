//! The file of a worker: a profile with a few keys more.

use super::{LABEL, login};
use crate::error::{Error, Kind, Result, Step, words};
use crate::sandbox::{Limits, Outcome};
use crate::task::{Definition, Receipt, checked_name, names_in, read_worker, set_flags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const OWN: [&str; 3] = ["command", "restart", "logins"];
const ENDING: &str = ".toml";
const MOST: usize = 1024;
/// Differs from the `none` of a file, which is a request in hosted mode.
const UNSET: Duration = Limits::NO_TIME_LIMIT.saturating_add(Duration::from_secs(1));

words! {
    /// When systemd starts a worker again.
    #[derive(Default)]
    pub enum Restart {
        /// When it did not end as meant.
        #[default]
        OnFailure = "on-failure",
        /// Unless a person stopped it.
        Always = "always",
        /// Never.
        No = "no",
    }
}

impl FromStr for Restart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Restart> {
        Restart::of_word(text).ok_or_else(|| {
            Error::new(Kind::Profile, format!("`restart` is `{}`", text.escape_debug()))
                .hint("use on-failure, always or no")
        })
    }
}

/// The folder of the workers' files.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// A worker, as its file describes it.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The worker's and its file's name.
    pub name: String,
    /// What it runs.
    pub definition: Definition,
    /// When it is started again.
    pub restart: Restart,
}

impl Folder {
    /// The machine's folder.
    pub const DEFAULT: &str = "/etc/brig/workers";

    /// The folder at a path.
    pub fn new(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// Whether the units read it.
    pub(super) fn is_default(&self) -> bool {
        self.0 == Path::new(Folder::DEFAULT)
    }

    /// Sorted; a missing folder has none.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let listed = names_in(&self.0)?.into_iter().filter(|name| !name.starts_with('.'));
        let mut names: Vec<String> = listed.filter_map(|name| Some(name.strip_suffix(ENDING)?.to_owned())).collect();
        if names.len() > MOST {
            return Err(Error::new(Kind::Profile, format!("`{}` has more than {MOST} workers", self.0.display())));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads one worker's file.
    pub fn read(&self, name: &str) -> Result<Worker> {
        let name = checked_name(name)?;
        let path = self.0.join(format!("{name}{ENDING}"));
        if !path.exists() {
            return Err(Error::new(Kind::NotFound, format!("the worker `{name}` has no file `{}`", path.display()))
                .hint("see `brig worker ls`, and docs/howto/workers.md for the file"));
        }
        read(&path, name)
            .doing(|| format!("read the worker `{}`", path.display()))
            .hint(|| "see docs/howto/workers.md and docs/profile.md for every key and its form")
    }

    /// Reads all files, or refuses all: a change of units is made whole or not at all.
    pub fn read_all(&self) -> Result<Vec<Worker>> {
        // A mistyped path would stop every worker.
        if !self.0.is_dir() {
            let words = format!("the folder `{}` with the files of workers is missing", self.0.display());
            return Err(Error::new(Kind::NotFound, words).hint("make it, or name another one: --workers DIR"));
        }
        self.names()?.iter().map(|name| self.read(name)).collect()
    }
}

fn read(path: &Path, name: String) -> Result<Worker> {
    let mut definition = Definition::new(Vec::new());
    let limits = &mut definition.sandbox.limits;
    (limits.wall, limits.cpu_time, limits.idle) = (UNSET, UNSET, UNSET);
    read_worker(path, &OWN, definition, |definition, own| complete(name, definition, own))
}

fn complete(name: String, mut definition: Definition, mut own: BTreeMap<String, toml::Value>) -> Result<Worker> {
    // A worker lives for months, unless its file sets a limit.
    let (limits, defaults) = (&mut definition.sandbox.limits, &mut definition.default_limits);
    for (limit, default) in [
        (&mut limits.wall, &mut defaults.wall),
        (&mut limits.cpu_time, &mut defaults.cpu_time),
        (&mut limits.idle, &mut defaults.idle),
    ] {
        if *limit == UNSET {
            (*limit, *default) = (Limits::NO_TIME_LIMIT, Limits::NO_TIME_LIMIT);
        }
    }
    let mut list = |key: &str| -> Result<Option<Vec<String>>> {
        let wrong = || Error::new(Kind::Profile, format!("`{key}` is not a list of texts"));
        let Some(value) = own.remove(key) else { return Ok(None) };
        let toml::Value::Array(values) = value else { return Err(wrong()) };
        values.iter().map(|value| value.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_>>().map(Some)
    };
    let command = list("command")?;
    login::check(&definition, &list("logins")?.unwrap_or_default())?;
    let restart = match own.remove("restart") {
        None => Restart::default(),
        Some(toml::Value::String(word)) => word.parse()?,
        Some(_) => {
            return Err(Error::new(Kind::Profile, "`restart` is not a text").hint("use on-failure, always or no"));
        }
    };
    if let Some(other) = definition.naming.name.as_ref().filter(|other| **other != name) {
        return Err(Error::new(
            Kind::Profile,
            format!("its `name` is `{other}`, and a worker has the name of its file"),
        )
        .hint(format!("call the file {other}{ENDING}, or leave `name` out")));
    }
    definition.naming.name = Some(name.clone());
    definition.naming.labels.insert(LABEL.to_owned(), name.clone());
    definition.is_service = true;
    match command {
        Some(words) if words.is_empty() => {
            return Err(Error::new(Kind::Profile, "`command` is empty")
                .hint("leave it out for a sandbox that waits for `brig task exec`"));
        }
        Some(words) => definition.sandbox.command = words.into_iter().map(OsString::from).collect(),
        None => set_flags(&vec![("--hold", vec!["true".into()])], &mut definition)?,
    }
    Ok(Worker { name, definition, restart })
}

/// Not started again.
const NEVER: u8 = 78;
/// Started again although nothing failed.
const AGAIN: u8 = 75;

impl Worker {
    /// The exit status by which the unit starts the worker again or not (RestartPreventExitStatus=).
    pub fn exit_status(&self, receipt: &Receipt) -> u8 {
        match (self.restart, &receipt.outcome) {
            // A worker with a command ends as `cancelled` when it is stopped.
            (_, Outcome::Stopped | Outcome::Cancelled) => 0,
            (Restart::Always, outcome) if outcome.is_success() => AGAIN,
            (_, outcome) if outcome.is_success() => 0,
            (Restart::No, _) => NEVER,
            _ if matches!(receipt.exit_status, 0 | NEVER) => 1,
            _ => receipt.exit_status,
        }
    }

    /// The exit status after an error without a receipt.
    pub fn exit_status_of(&self, error: &Error) -> u8 {
        if self.restart == Restart::No { NEVER } else { error.kind().exit_status() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, text: &str) -> Result<Worker> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        Folder::new(folder.path().to_owned()).read(name)
    }

    #[test]
    fn file_of_a_worker_is_a_profile_with_a_command() {
        let text = "command = [\"sleep\", \"1\"]\nrestart = \"always\"\n[limits]\nmemory = \"1G\"\n[health]\ncommand = \"true\"\n";
        let worker = worker("a", text).unwrap();
        let Definition { sandbox, naming, is_service, .. } = &worker.definition;
        assert_eq!((&sandbox.command[..], sandbox.holds), (&["sleep".into(), "1".into()][..], false));
        assert_eq!((sandbox.limits.memory, sandbox.limits.wall), (1 << 30, Limits::NO_TIME_LIMIT));
        assert_eq!(sandbox.health.command.as_deref(), Some("true"));
        assert_eq!((naming.name.as_deref(), naming.labels[LABEL].as_str(), *is_service), (Some("a"), "a", true));
        assert_eq!(worker.restart, Restart::Always);
    }

    #[test]
    fn limits_that_the_file_does_not_set_are_defaults() {
        let definition = |text: &str| worker("a", &format!("command = [\"true\"]\n{text}")).unwrap().definition;
        let unset = definition("");
        assert_eq!(
            (unset.sandbox.limits.idle, unset.default_limits.idle),
            (Limits::NO_TIME_LIMIT, Limits::NO_TIME_LIMIT)
        );
        let set = definition("[limits]\nidle = \"none\"\n");
        assert_eq!((set.sandbox.limits.idle, set.default_limits.idle), (Limits::NO_TIME_LIMIT, Limits::default().idle));
        assert_eq!(set.default_limits.wall, Limits::NO_TIME_LIMIT);
    }

    #[test]
    fn wrong_file_is_refused_with_its_key() {
        for (text, words) in [
            ("bogus = 1", "unknown field `bogus`"),
            ("restart = \"sometimes\"", "`restart` is `sometimes`"),
            ("command = \"sleep 1\"", "`command` is not a list of texts"),
            ("command = []", "`command` is empty"),
            ("command = [\"x\"]\nname = \"b\"", "its `name` is `b`"),
            ("command = [\"x\"]\n[health]\ninterval = \"0s\"", "read `health.interval`: the time is 0"),
            ("command = [\"x\"]\n[health]\nretries = 3", "unknown field `retries`, expected one of `command`, "),
        ] {
            let error = worker("a", text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("a.toml"), "{text}: {error}");
        }
        assert!(Folder::new("/nowhere".into()).names().unwrap().is_empty());
        assert_eq!(Folder::new("/nowhere".into()).read_all().unwrap_err().kind(), Kind::NotFound);
        assert_eq!(Folder::new("/nowhere".into()).read("../a").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn file_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, "command = [\"true\"]").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = Folder::new(folder.path().to_owned()).read("a").unwrap_err().to_string();
        assert!(error.contains("others may write it"), "{error}");
    }
}
