//! The store of tasks: a directory for each task, and a lock file for each running one.
//!
//! ```text
//! <store>/tasks/<id>/   record.json events.ndjson output.log control.sock receipt.json changes/
//!                       (health.json kept.json workspace.img)
//! <store>/live/<id>     locked by the supervisor; a free one means that the supervisor died
//! <store>/names/        a file for each name, with the id of the task that took it last
//! <store>/queue/        a locked ticket for each task that has or awaits its turn
//! <store>/index         a row for each ended task, made again when missing
//! <store>/templates/    formatted empty disk images, and what the default root begins with
//! <store>/volumes/      a directory for each volume
//! <store>/bases/        checkouts of repositories, one for each commit
//! <store>/mirrors/      bare mirrors of remote repositories
//! ```

pub(super) mod json;
pub(super) mod names;

use crate::error::{Error, Kind, Result, Step, words};
use crate::files::{self, Attempt, Lock};
use crate::sandbox::{DiskFile, HostPaths, Workshop};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A concurrent reaper may remove a new task's lock. Two losses in a row are improbable.
const TRIES: u32 = 100;

pub(crate) const OF_ROOT: &str = "/var/lib/brig";

pub(crate) const KEPT_NOTE: &str = "kept.json";
/// The prefix of a task's name during its removal.
pub(crate) const REMOVED: &str = ".removed-";

/// The health of a running task with a health check.
pub(crate) const HEALTH: &str = "health.json";
pub(crate) const LOG: &str = "output.log";
pub(crate) const EVENTS: &str = "events.ndjson";

/// The tasks of one user on one machine.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

fn path_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Store {
    /// A relative `root` becomes absolute: a supervisor in the background has another current directory. Makes nothing.
    pub fn at(root: PathBuf) -> Store {
        // Fails only for an empty path or without a current directory; then each use of the path fails.
        Store { root: std::path::absolute(&root).unwrap_or(root) }
    }

    /// `$BRIG_STORE`; else `/var/lib/brig` for the machine's root, `$XDG_DATA_HOME/brig` or `~/.local/share/brig`.
    pub fn default_path() -> Result<PathBuf> {
        if let Some(path) = Store::of_environment() {
            return Ok(path);
        }
        if geteuid().is_root() {
            return Ok(OF_ROOT.into());
        }
        path_of("XDG_DATA_HOME")
            .or_else(|| path_of("HOME").map(|home| home.join(".local/share")))
            .map(|data| data.join("brig"))
            .ok_or_else(|| {
                Error::new(Kind::Store, "neither HOME nor XDG_DATA_HOME is set").hint("name a store: --store DIR")
            })
    }

    /// `$BRIG_STORE`. An empty variable names no store.
    pub(crate) fn of_environment() -> Option<PathBuf> {
        path_of("BRIG_STORE")
    }

    /// The store's own directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn task(&self, id: &str) -> PathBuf {
        self.root.join("tasks").join(id)
    }

    pub(crate) fn tasks(&self) -> PathBuf {
        self.root.join("tasks")
    }

    pub(crate) fn live(&self) -> PathBuf {
        self.root.join("live")
    }

    pub(crate) fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }

    pub(crate) fn workshop(&self) -> Workshop {
        Workshop { templates: self.templates(), live: self.live() }
    }

    /// The stage is mounted over the directory of the locks, which always exists, in the sandbox's namespace only.
    pub(crate) fn host_paths(&self, id: &str) -> HostPaths {
        HostPaths {
            id: id.to_owned(),
            stage: self.live(),
            workshop: self.workshop(),
            id_ranges: self.id_ranges(),
            disk: DiskFile::Unnamed,
        }
    }

    pub(crate) fn bases(&self) -> PathBuf {
        self.root.join("bases")
    }

    pub(crate) fn mirrors(&self) -> PathBuf {
        self.root.join("mirrors")
    }

    pub(crate) fn unfinished_base(&self, id: &str) -> PathBuf {
        self.bases().join(format!(".new-{id}"))
    }

    /// One directory for the whole machine: only root takes ranges.
    pub(crate) fn id_ranges(&self) -> PathBuf {
        PathBuf::from("/run/brig")
    }

    /// Takes a new task's lock. It gets its name only when held, so that a starting task does not look lost.
    pub(crate) fn begin(&self, id: &str) -> Result<Alive> {
        self.take_name(id).hint(|| "name a store that you can write: --store DIR")
    }

    pub(crate) fn make(&self, id: &str) -> Result<PathBuf> {
        let directory = self.task(id);
        let made = match std::fs::create_dir(&directory) {
            // The maker of a disk may have made the directory of the locks first.
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                files::create_directories(&self.tasks(), 0o700)?;
                std::fs::create_dir(&directory)
            }
            other => other,
        };
        made.map_err(|cause| files::failed(cause, format!("make the task `{id}`")))?;
        Ok(directory)
    }

    fn take_name(&self, id: &str) -> Result<Alive> {
        let live = self.live();
        let path = live.join(id);
        let unnamed = live.join(format!(".{id}"));
        // A concurrent reaper may remove the unnamed file as a dead one: try again.
        for _ in 0..TRIES {
            let lock = match Lock::wait(&unnamed) {
                Err(error) if error.kind() == Kind::NotFound => {
                    files::create_directories(&self.tasks(), 0o700)?;
                    files::create_directories(&live, 0o700)?;
                    continue;
                }
                other => other?,
            };
            match std::fs::rename(&unnamed, &path) {
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(|cause| files::failed(cause, format!("name the lock `{}`", path.display())))?,
            }
            return Ok(Alive { path, _lock: lock });
        }
        Err(Error::new(Kind::Store, "its lock is removed again and again").doing(format!("make the task `{id}`")))
    }

    pub(crate) fn ids(&self) -> Result<Vec<String>> {
        let mut ids = self.names()?;
        ids.retain(|name| !name.starts_with('.'));
        sort_by_age(&mut ids);
        Ok(ids)
    }

    /// With unfinished and half-removed tasks, which have a dot.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        names_in(&self.tasks()).hint(|| "name a store that you can read: --store DIR")
    }

    pub(crate) fn hidden(&self, id: &str) -> PathBuf {
        self.tasks().join(format!("{REMOVED}{id}"))
    }

    /// The task with the id `word`, the name `word`, or an id that begins with `word`, in this order; `@` is the
    /// newest.
    pub fn find(&self, word: &str) -> Result<String> {
        if word == NEWEST {
            let newest = self.ids()?.pop();
            return newest.ok_or_else(|| {
                Error::new(Kind::NotFound, "no task yet").hint("run one: `brig task run --dir . -- COMMAND`")
            });
        }
        if !(is_id(word) && self.task(word).exists())
            && let Some(id) = self.named(word)
        {
            return Ok(id);
        }
        let mut matching = self.ids()?.into_iter().filter(|id| id.starts_with(word) && !word.is_empty());
        match (matching.next(), matching.next()) {
            (Some(id), None) => Ok(id),
            (Some(id), Some(_)) if id == word => Ok(id),
            (Some(first), Some(second)) => {
                Err(Error::new(Kind::NotFound, format!("`{word}` begins more than one task: `{first}`, `{second}`"))
                    .hint("give more of the id"))
            }
            (None, _) => Err(Error::new(Kind::NotFound, format!("unknown task `{word}`")).hint("see `brig task ls`")),
        }
    }
}

impl Store {
    /// The tasks of these words, each once.
    pub fn find_all(&self, words: &[String]) -> Result<Vec<String>> {
        let mut found = Vec::with_capacity(words.len());
        for word in words {
            let id = self.find(word)?;
            if !found.contains(&id) {
                found.push(id);
            }
        }
        Ok(found)
    }
}

words! {
    /// The status of a task.
    pub enum Status {
        /// Its supervisor lives.
        Running = "running",
        /// It has a receipt.
        Ended = "ended",
        /// Its supervisor died without a receipt.
        Lost = "lost",
    }
}

impl Store {
    /// The status of a task.
    pub fn status(&self, id: &str) -> Result<Status> {
        let path = self.task(id).join("receipt.json");
        // A power cut leaves an empty file of a receipt that was not written out.
        let has_receipt = || path.metadata().is_ok_and(|status| status.len() > 0);
        if has_receipt() {
            return Ok(Status::Ended);
        }
        match Lock::attempt(&self.live().join(id))? {
            Attempt::Held => Ok(Status::Running),
            // It may have ended since the check for its receipt.
            Attempt::Taken(_) | Attempt::Missing if has_receipt() => Ok(Status::Ended),
            Attempt::Taken(_) | Attempt::Missing => Ok(Status::Lost),
        }
    }
}

const NEWEST: &str = "@";

/// The held lock of a running task. Its drop marks the task's end.
#[derive(Debug)]
pub(crate) struct Alive {
    path: PathBuf,
    _lock: Lock,
}

impl Alive {
    /// Ends like a dead supervisor: the next command removes the remains.
    pub(crate) fn leave(self) {
        drop(self.stays());
    }

    /// Its name stays after the end.
    pub(crate) fn stays(mut self) -> Alive {
        self.path = PathBuf::new();
        self
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // A remaining name looks like a dead task; the next command removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn names_in(directory: &Path) -> Result<Vec<String>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(cause) => Err(files::failed(cause, format!("list `{}`", directory.display()))),
    }
}

/// Whether a file or directory of an unfinished step is a moment old: a living process may make a younger one.
pub(crate) fn is_left(path: &Path) -> bool {
    const JUST_MADE: Duration = Duration::from_secs(60);
    let made = std::fs::metadata(path).and_then(|status| status.modified()).ok();
    made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age > JUST_MADE)
}

pub(crate) fn is_id(word: &str) -> bool {
    matches!(word.len(), 11 | 12) && word.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// Random letters at the beginning of an id.
const RANDOM: usize = 4;

pub(crate) fn sort_by_age(ids: &mut [String]) {
    ids.sort_unstable_by(|one, other| {
        let key = |id: &str| (id.get(RANDOM..).unwrap_or_default().to_owned(), id.to_owned());
        key(one).cmp(&key(other))
    });
}

/// Four random letters, then the time since 1970 in 1/1296 s (two base-36 digits below the second). The first two or
/// three letters identify a task.
pub(crate) fn new_id() -> Result<String> {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    const PARTS: u128 = 36 * 36;
    let mut random = [0_u8; RANDOM];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::os(Kind::Internal, errno).doing("make an id"))?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut time = Vec::new();
    let mut rest = since.as_nanos() * PARTS / 1_000_000_000;
    while rest > 0 {
        time.push(DIGITS[(rest % 36) as usize]);
        rest /= 36;
    }
    let start = random.iter().map(|byte| b'a' + byte % 26);
    Ok(start.chain(time.into_iter().rev()).map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_found_by_the_beginning_of_its_id_and_only_if_that_is_clear() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("new"));
        assert_eq!(store.find("a").unwrap_err().kind(), Kind::NotFound);
        for id in ["abc", "abd", "x"] {
            drop(store.begin(id).unwrap());
            store.make(id).unwrap();
        }
        assert_eq!(store.find("abc").unwrap(), "abc");
        assert_eq!(store.find("x").unwrap(), "x");
        assert!(store.find("ab").unwrap_err().to_string().contains("more than one"));
        assert!(store.find("").is_err());
        assert_eq!(store.find("@").unwrap(), "x", "the newest");
        let words = ["x", "abc", "@", "x"].map(str::to_owned);
        assert_eq!(store.find_all(&words).unwrap(), ["x", "abc"]);
        assert_eq!(std::fs::read_dir(store.live()).unwrap().count(), 0);
    }

    #[test]
    fn ids_differ_and_sort_by_age() {
        let ids: std::collections::HashSet<_> = (0..50).map(|_| new_id().unwrap()).collect();
        assert!(ids.len() > 45 && ids.iter().all(|id| is_id(id)));
        assert!(ids.iter().all(|id| id.bytes().take(RANDOM).all(|byte| byte.is_ascii_lowercase())), "{ids:?}");
        let mut made = Vec::new();
        for _ in 0..5 {
            made.push(new_id().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut by_age = made.clone();
        by_age.sort_unstable();
        sort_by_age(&mut by_age);
        assert_eq!(by_age, made);
    }
}
