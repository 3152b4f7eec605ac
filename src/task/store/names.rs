//! Names of tasks: the file `<store>/names/NAME` has the id of the task that took the name last.
//!
//! A running task owns its name. After its end the name leads to it until another task takes it. Every change is made
//! under the folder's lock.

use super::{Status, Store};
use crate::error::{Error, Kind, Result};
use crate::files::{self, Durability, Lock};
use std::path::PathBuf;

const LONGEST: usize = 63;
/// Longer than any id.
const LONGEST_ID: u64 = 64;
/// No name begins with a dot.
const LOCK: &str = ".lock";

/// Accepts 1 to 63 of the characters `A-Z a-z 0-9 _ . -`, the first a letter or a digit.
pub(crate) fn checked_name(text: &str) -> Result<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins_well && text.len() <= LONGEST && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    let hint = format!("use at most {LONGEST} of A-Z a-z 0-9 _ . - and begin with a letter or a digit");
    Err(Error::new(Kind::Usage, format!("`{}` is not a name", text.escape_debug())).hint(hint))
}

impl Store {
    fn names_folder(&self) -> PathBuf {
        self.root().join("names")
    }

    /// The task that took the name last, if its directory exists or it runs.
    pub(crate) fn named(&self, name: &str) -> Option<String> {
        checked_name(name).ok()?;
        let bytes = files::read_bounded(&self.names_folder().join(name), LONGEST_ID).ok()?;
        let id = String::from_utf8(bytes).ok().filter(|id| super::is_id(id))?;
        (self.task(&id).exists() || self.live().join(&id).exists()).then_some(id)
    }

    /// The caller holds the lock of `id`. Fails while another task with the name runs.
    pub(crate) fn claim_name(&self, name: &str, id: &str) -> Result<()> {
        let _lock = self.lock_names()?;
        if let Some(holder) = self.named(name)
            && self.status(&holder)? == Status::Running
        {
            return Err(Error::new(Kind::State, format!("the name `{name}` is in use by the running task `{holder}`"))
                .hint(format!("end it first (`brig task stop {name}`), or give --replace")));
        }
        files::replace(&self.names_folder().join(name), id.as_bytes(), 0o600, Durability::Cached)
    }

    /// Forgets a name if it leads to the task `id`.
    pub(crate) fn release_name(&self, name: &str, id: &str) -> Result<()> {
        let _lock = self.lock_names()?;
        let path = self.names_folder().join(name);
        match files::read_bounded(&path, LONGEST_ID) {
            Ok(holder) if holder == id.as_bytes() => {
                std::fs::remove_file(path).map_err(|cause| files::failed(cause, format!("release the name `{name}`")))
            }
            _ => Ok(()),
        }
    }

    fn lock_names(&self) -> Result<Lock> {
        files::create_directories(&self.names_folder(), 0o700)?;
        Lock::wait(&self.names_folder().join(LOCK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_closed_alphabet() {
        for name in ["a", "7", "worker-1", "A.b_c", &"x".repeat(LONGEST)] {
            assert_eq!(checked_name(name).unwrap(), name);
        }
        for name in ["", ".", "..", "-a", "_a", "a/b", "../a", "a b", "a:b", "@", "ä", "a\n", &"x".repeat(LONGEST + 1)]
        {
            assert_eq!(checked_name(name).unwrap_err().kind(), Kind::Usage, "{name:?}");
        }
    }

    #[test]
    fn a_name_belongs_to_one_running_task_and_is_free_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("new"));
        let (first, second) = ("aaaatttttttt", "bbbbtttttttt");
        let alive = store.begin(first).unwrap();
        store.make(first).unwrap();
        store.claim_name("nightly", first).unwrap();
        let other = store.begin(second).unwrap();
        let error = store.claim_name("nightly", second).unwrap_err();
        assert!(error.to_string().contains("`nightly` is in use by the running task `aaaatttttttt`"), "{error}");
        assert_eq!(store.find("nightly").unwrap(), first);
        drop(alive);
        assert_eq!(store.find("nightly").unwrap(), first, "an ended task keeps the name until another takes it");
        store.make(second).unwrap();
        store.claim_name("nightly", second).unwrap();
        assert_eq!(store.find("nightly").unwrap(), second);
        store.release_name("nightly", first).unwrap();
        assert_eq!(store.find("nightly").unwrap(), second, "another task's name is not released");
        store.release_name("nightly", second).unwrap();
        assert_eq!(store.find("nightly").unwrap_err().kind(), Kind::NotFound);
        drop(other);
    }

    #[test]
    fn an_id_precedes_a_name_and_a_name_precedes_the_beginning_of_an_id() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("new"));
        let ids = ["aaaatttttttt", "bbbbtttttttt"];
        for id in ids {
            drop(store.begin(id).unwrap());
            store.make(id).unwrap();
        }
        store.claim_name("aaaa", ids[1]).unwrap();
        store.claim_name(ids[0], ids[1]).unwrap();
        assert_eq!(store.find("aaaa").unwrap(), ids[1]);
        assert_eq!(store.find(ids[0]).unwrap(), ids[0]);
        std::fs::write(store.root().join("names/odd"), "../../etc").unwrap();
        assert!(store.find("odd").is_err());
    }
}
