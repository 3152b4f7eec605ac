//! Advice for a command that is missing in its sandbox but exists on the host.

use crate::error::{Error, Kind};
use crate::spec::process::places;
use crate::task::definition::Definition;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Not in hosted mode: a caller could test any path.
pub(crate) fn explain(error: Error, definition: &Definition) -> Error {
    let program = definition.sandbox.command.first().filter(|_| error.kind() == Kind::CommandNotFound);
    let path = std::env::var_os("PATH");
    match program.and_then(|program| on_host(program, path.as_deref())) {
        Some(place) => {
            let words = advice(&place, definition.sandbox.rootfs.is_some() || definition.image.is_some());
            error.with_hint(words)
        }
        None => error,
    }
}

fn on_host(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let is_program = |place: &PathBuf| {
        let may = rustix::fs::accessat(CWD, place, Access::EXEC_OK, AtFlags::empty()); // as the real user
        place.is_absolute() && place.is_file() && may.is_ok()
    };
    places(program, path).into_iter().map(PathBuf::from).find(is_program)
}

fn advice(place: &Path, has_own_root: bool) -> String {
    let real = std::fs::canonicalize(place).ok().filter(|real| real != place);
    let leads = real.map_or_else(String::new, |real| format!(" (a link to `{}`)", real.display()));
    let root = match has_own_root {
        true => "its root file system does not have it, or lacks its interpreter or libraries: install it there",
        false => {
            "the sandbox shows only `/usr` and the libraries of the host: install it below `/usr`, use a root with it (--rootfs DIR, --image REF)"
        }
    };
    format!(
        "the host has `{}`{leads}; {root}, or copy it into the folder of --dir and run it as `./NAME`",
        place.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_of_the_host_is_found_as_the_caller_would_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("tool");
        std::fs::write(&tool, "").unwrap();
        let path = folder.path().as_os_str();
        assert_eq!(on_host(OsStr::new("tool"), Some(path)), None, "nothing that can be executed");
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(on_host(OsStr::new("tool"), Some(path)), Some(tool.clone()));
        assert_eq!(on_host(tool.as_os_str(), None), Some(tool.clone()));
        for missing in ["other", "./tool", ""] {
            assert_eq!(on_host(OsStr::new(missing), Some(path)), None, "{missing}");
        }
        std::os::unix::fs::symlink(&tool, folder.path().join("link")).unwrap();
        let words = advice(&folder.path().join("link"), false);
        assert!(words.contains(&format!("a link to `{}`", tool.canonicalize().unwrap().display())), "{words}");
        assert!(words.contains("--rootfs"), "{words}");
    }
}
