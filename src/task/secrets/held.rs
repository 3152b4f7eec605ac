//! The secrets of an attempt with their values.

use super::source::Version;
use super::{Exposure, Secret, vault};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::process::Aside;
use crate::sandbox::{Broker, Hidden, Renewal, SECRETS};
use crate::task::redact::{Redactor, SHORTEST};
use crate::task::store::{Status, Store};
use rustix::fs::{AtFlags, Mode, OFlags, fchown, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A secret in a receipt, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretUse {
    /// Its name.
    pub name: String,
    /// `env`, `file`, `cmd`, `oauth`, `login` or `made`.
    pub source: String,
    /// How the command got it.
    pub exposure: Exposure,
    /// Whether its value is redacted; a variable below six bytes is not.
    pub redacted: bool,
    /// How often a new value replaced it.
    pub replaced: u32,
    /// Whether it was revoked during the run.
    pub revoked: bool,
}

impl SecretUse {
    /// brig generated it: a caller cannot give it again, and need not.
    pub(crate) fn is_made(&self) -> bool {
        self.source == "made"
    }
}

pub(crate) struct TaskSecrets {
    each: Vec<One>,
    redactor: Redactor,
    requests: Option<PathBuf>,
    broker: Option<Broker>,
    /// The process that renews tokens, and the time of the last check.
    renewing: Option<Aside>,
    looked: Option<Instant>,
}

struct One {
    secret: Secret,
    value: Vec<u8>,
    version: Option<Version>,
    told: SecretUse,
}

/// Revocation requests in the task's directory.
const REQUESTS: &str = "revoke";

impl TaskSecrets {
    /// Reads every value before anything is made: one that cannot be read or hidden refuses the task.
    pub(crate) fn read(secrets: &[Secret]) -> Result<TaskSecrets> {
        super::check(secrets)?;
        let redactor = Redactor::new();
        let mut each = Vec::new();
        for secret in secrets {
            let step = || format!("read the secret `{}`", secret.name);
            let version = secret.source.version();
            let is_brokered = secret.exposure == Exposure::Broker;
            // Not the broker's values: the sandbox's first process is a copy of this one.
            let value = if is_brokered { Vec::new() } else { secret.source.read().doing(step)? };
            if secret.exposure == Exposure::Environment && value.contains(&0) {
                return Err(Error::new(Kind::Secret, "a variable cannot hold a NUL byte")
                    .doing(step())
                    .hint("expose it as a file"));
            }
            let redacted = is_brokered || redactor.add(&secret.name, &value);
            // Variables given by `-e` may hold any value; a secret must be redactable.
            if !redacted && secret.exposure == Exposure::File {
                return Err(Error::new(
                    Kind::Secret,
                    format!("it is shorter than {SHORTEST} bytes, and could not be told from any other text"),
                )
                .doing(step())
                .hint("use a longer one, or pass it on as a variable: -e NAME"));
            }
            let told = SecretUse {
                name: secret.name.clone(),
                source: secret.source.word().to_owned(),
                exposure: secret.exposure,
                redacted,
                replaced: 0,
                revoked: false,
            };
            each.push(One { secret: secret.clone(), value, version, told });
        }
        let broker = vault::open(secrets)?;
        Ok(TaskSecrets { each, redactor, requests: None, broker, renewing: None, looked: None })
    }

    pub(crate) fn broker(&self) -> Option<Broker> {
        self.broker.clone()
    }

    /// Adds the broker's values to the redactor, once the sandbox's first process, a copy of this one, exists.
    pub(crate) fn unlock(&mut self) -> Result<()> {
        let Some(broker) = &self.broker else { return Ok(()) };
        for value in vault::values(broker)? {
            self.redactor.add(&value.name, &value.value);
            let brokered = |one: &&mut One| one.secret.exposure == Exposure::Broker && one.secret.name == value.name;
            if let Some(one) = self.each.iter_mut().find(brokered) {
                one.value = value.value;
            }
        }
        Ok(())
    }

    pub(crate) fn none() -> TaskSecrets {
        TaskSecrets {
            each: Vec::new(),
            redactor: Redactor::new(),
            requests: None,
            broker: None,
            renewing: None,
            looked: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub(crate) fn files(&self) -> Vec<(String, Hidden)> {
        let files = self.each.iter().filter(|one| one.secret.exposure == Exposure::File);
        files.map(|one| (one.secret.name.clone(), Hidden(one.value.clone()))).collect()
    }

    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        let variables = self.each.iter().filter(|one| one.secret.exposure == Exposure::Environment);
        let values = variables.map(|one| (OsString::from(&one.secret.name), OsString::from_vec(one.value.clone())));
        let brokered = self.each.iter().filter(|one| one.secret.exposure == Exposure::Broker);
        let words = brokered.map(|one| (OsString::from(&one.secret.name), OsString::from(one.secret.placeholder())));
        values.chain(words).collect()
    }

    /// The hidden values, for the task's own user.
    pub(crate) fn values(&self) -> Vec<(String, Vec<u8>)> {
        let hidden = self.each.iter().filter(|one| one.told.redacted);
        hidden.map(|one| (one.secret.name.clone(), one.value.clone())).collect()
    }

    pub(crate) fn listen(&mut self, task: &Path) {
        self.requests = Some(task.join(REQUESTS));
    }

    pub(crate) fn told(&self) -> Vec<SecretUse> {
        self.each.iter().map(|one| one.told.clone()).collect()
    }

    /// Another process renews expiring tokens in their files: the supervisor does not wait for a server.
    fn renew(&mut self) -> Result<()> {
        const PAUSE: Duration = Duration::from_secs(5);
        if let Some(process) = &self.renewing {
            if process.is_over() {
                self.renewing = None;
            }
            return Ok(());
        }
        if self.looked.is_some_and(|last| last.elapsed() < PAUSE) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let due =
            |one: &&One| one.secret.exposure == Exposure::Broker && !one.told.revoked && one.secret.source.is_due();
        let sources: Vec<_> = self.each.iter().filter(due).map(|one| one.secret.source.clone()).collect();
        if !sources.is_empty() {
            self.renewing = Some(Aside::begin(|| sources.iter().try_for_each(|source| source.read().map(drop)))?);
        }
        Ok(())
    }

    /// Follows replaced files and carries out revocations, a few times a second. `directory` has the secret files, once
    /// it exists. Returns updates for the gateway.
    pub(crate) fn tick(&mut self, directory: Option<BorrowedFd<'_>>) -> Result<Vec<Renewal>> {
        let mut renewals = Vec::new();
        let is_reached = |exposure| match exposure {
            Exposure::File => directory.is_some(),
            Exposure::Broker => true,
            Exposure::Environment => false,
        };
        if let Some(requests) = self.requests.as_ref().filter(|_| !self.each.is_empty())
            && let Ok(entries) = std::fs::read_dir(requests)
        {
            for entry in entries.flatten() {
                let name = entry.file_name();
                let wanted = |one: &&mut One| name == one.secret.name.as_str() && is_reached(one.secret.exposure);
                if let Some(one) = self.each.iter_mut().find(wanted) {
                    match directory.filter(|_| one.secret.exposure == Exposure::File) {
                        Some(directory) => one.take_back(directory)?,
                        None => renewals.push(Renewal::Revoked(one.secret.name.clone())),
                    }
                    one.told.revoked = true;
                }
                // The removal of the request is the answer.
                std::fs::remove_file(entry.path()).failing(Kind::Store, || "answer a request to take back a secret")?;
            }
        }
        self.renew()?;
        for one in self.each.iter_mut().filter(|one| is_reached(one.secret.exposure) && !one.told.revoked) {
            let version = one.secret.source.version();
            if version.is_none() || version == one.version {
                continue; // not a file, or one in replacement
            }
            if one.secret.exposure == Exposure::Broker {
                let value = one.secret.source.at_hand().and_then(|bytes| vault::value(&one.secret, bytes));
                let Ok(value) = value else { continue };
                one.version = version;
                if value.value != one.value && self.redactor.add(&value.name, &value.value) {
                    one.value.clone_from(&value.value);
                    one.told.replaced += 1;
                    renewals.push(Renewal::Replaced(value));
                }
                continue;
            }
            let (Ok(value), Some(directory)) = (one.secret.source.at_hand(), directory) else { continue };
            one.version = version;
            if value == one.value || !self.redactor.add(&one.secret.name, &value) {
                continue; // never pass on a value that cannot be hidden
            }
            one.value = value;
            one.replace(directory)?;
        }
        Ok(renewals)
    }
}

impl One {
    fn take_back(&mut self, directory: BorrowedFd<'_>) -> Result<()> {
        match unlinkat(directory, self.secret.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                return Err(errno).failing(Kind::Secret, || format!("take back the secret `{}`", self.secret.name));
            }
        }
        Ok(())
    }

    /// A reader sees the old value or the whole new one.
    fn replace(&mut self, directory: BorrowedFd<'_>) -> Result<()> {
        let step = || format!("replace the secret `{}`", self.secret.name);
        let new = format!(".new-{}", self.secret.name);
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = openat(directory, new.as_str(), flags, Mode::from_raw_mode(0o400)).failing(Kind::Secret, step)?;
        // The directory's owner is the command's user, as this process sees it.
        let owner = fstat(directory).failing(Kind::Secret, step)?;
        fchown(&made, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)))
            .failing(Kind::Secret, step)?;
        std::fs::File::from(made).write_all(&self.value).failing(Kind::Secret, step)?;
        renameat(directory, new.as_str(), directory, self.secret.name.as_str()).failing(Kind::Secret, step)?;
        self.told.replaced += 1;
        Ok(())
    }
}

/// Revokes a running task's secret: its file is gone when this returns.
pub fn revoke(store: &Store, id: &str, name: &str) -> Result<()> {
    const LONGEST: Duration = Duration::from_secs(10);
    let step = || format!("take back the secret `{name}` of `{id}`");
    let refuse = |kind, why: String, hint: &str| Err(Error::new(kind, why).doing(step()).hint(hint));
    let record = store.record(id)?;
    let Some(secret) = record.secrets.iter().find(|each| each.name == name) else {
        let names: Vec<_> = record.secrets.iter().map(|each| each.name.as_str()).collect();
        let all = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return refuse(Kind::NotFound, format!("the task has no such secret; it has: {all}"), "give one of its names");
    };
    if secret.exposure == Exposure::Environment {
        return refuse(
            Kind::State,
            "it is a variable of the command, and what is in a process's memory cannot be taken back".to_owned(),
            "end the task, and expose the secret as a file next time: --secret",
        );
    }
    if store.status(id)? != Status::Running {
        return refuse(Kind::State, "the task has ended, and its secrets with it".to_owned(), "nothing is left to do");
    }
    let requests = store.task(id).join(REQUESTS);
    crate::files::create_directories(&requests, 0o700)?;
    let request = requests.join(name);
    std::fs::write(&request, b"").map_err(|cause| crate::files::failed(cause, step()))?;
    let end = Instant::now() + LONGEST;
    while request.exists() {
        if store.status(id)? != Status::Running {
            // Without an answer the request is useless.
            let _ = std::fs::remove_file(&request);
            return Ok(()); // its files ended with the task
        }
        if Instant::now() > end {
            return refuse(
                Kind::State,
                format!("its supervisor has not answered; the file may still be in {SECRETS}"),
                "end the task",
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
