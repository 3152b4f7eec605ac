//! Folders that an agent must not see: its user's own files look like its own there.

use super::hosted::real as existing;
use crate::error::{Context, Error, Kind, Result};
use crate::task::store::Store;
use std::path::Path;

/// System folders. From root they would give the agent root's own files, such as the passwords in `/etc`.
const SYSTEM: [&str; 11] =
    ["/", "/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var", "/var/lib"];

/// The kernel's file systems: links below /proc lead anywhere.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// See hier(7).
const HOMES: &str = "/home";
const ROOTS_HOME: &str = "/root";

/// Whether a folder is an account's home or contains the caller's, with keys, tokens and histories.
fn is_home(real: &Path) -> bool {
    let is_usual = real == Path::new(ROOTS_HOME) || real.parent() == Some(Path::new(HOMES)) || real == Path::new(HOMES);
    let own = || std::env::var_os("HOME").and_then(|home| std::fs::canonicalize(home).ok());
    is_usual || own().is_some_and(|home| home.starts_with(real))
}

/// Refuses system folders, homes, and folders in or around the store, which has every task's output. `open` is where
/// the folder is held open.
pub(crate) fn check(folder: &Path, open: &Path, store: &Store) -> Result<()> {
    check_path(open, || format!("use the workspace `{}`", folder.display()), store)
}

/// `step` is the attempt that an error names.
pub(crate) fn check_path(path: &Path, step: impl Fn() -> String + Copy, store: &Store) -> Result<()> {
    let real = std::fs::canonicalize(path).failing(Kind::Workspace, step)?;
    let refuse = |reason: &str| {
        Err(Error::new(Kind::Workspace, reason)
            .doing(step())
            .hint("name the folder of the project itself: what is in it, the agent can read"))
    };
    if SYSTEM.iter().any(|each| real == Path::new(each)) || KERNEL.iter().any(|each| real.starts_with(each)) {
        return refuse("it is a folder of the system, with all that is secret there");
    }
    if is_home(&real) {
        return refuse("it is a home folder, with the keys and tokens of an account");
    }
    // brig makes a missing store before it mounts the folder.
    let store = existing(store.root()).map_or_else(|| store.root().to_owned(), |(real, missing)| real.join(missing));
    if store.starts_with(&real) || real.starts_with(&store) {
        return refuse("the store of brig is there, with the output of every task");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_system_and_around_the_store_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::at(home.path().join(".local/share/brig"));
        std::fs::create_dir_all(store.root()).unwrap();
        std::fs::create_dir_all(home.path().join("project")).unwrap();
        std::os::unix::fs::symlink("/etc", home.path().join("link")).unwrap();
        let check = |path: &Path, refused: Option<&str>| {
            let found = check(path, path, &store).err().map(|error| error.to_string());
            let fits = match refused {
                None => found.is_none(),
                Some(words) => found.as_ref().is_some_and(|text| text.contains(words)),
            };
            assert!(fits, "{}: {found:?}", path.display());
        };
        for path in ["/", "/etc", "/etc/", "/etc/../etc", "/proc/self/fd", "/sys", "/dev/shm", "/usr"] {
            check(Path::new(path), Some("folder of the system"));
        }
        check(&home.path().join("link"), Some("folder of the system"));
        for path in ["/root", "/root/.", "/home", "/home/."] {
            check(Path::new(path), Some("home folder"));
        }
        for (path, expected) in
            [("/root", true), ("/home/user", true), ("/home/user/project", false), ("/root/project", false)]
        {
            assert_eq!(is_home(Path::new(path)), expected, "{path}");
        }
        check(home.path(), Some("store of brig"));
        check(store.root(), Some("store of brig"));
        std::fs::create_dir(store.root().join("tasks")).unwrap();
        check(&store.root().join("tasks"), Some("store of brig"));
        check(&home.path().join("project"), None);
        check(&home.path().join("missing"), Some("No such file"));
    }

    #[test]
    fn folder_in_which_the_store_is_made_is_refused() {
        let lab = tempfile::tempdir().unwrap();
        let (folder, other, link) = (lab.path().join("folder"), lab.path().join("other"), lab.path().join("link"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        for root in [folder.join("store"), folder.join("new/store"), link.join("store")] {
            let store = Store::at(root);
            let error = check(&folder, &folder, &store).unwrap_err().to_string();
            assert!(error.contains("store of brig"), "{error}");
            check(&other, &other, &store).unwrap();
        }
    }
}
