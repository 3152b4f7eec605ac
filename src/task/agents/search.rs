//! Finds programs on the caller's PATH. Skips folders in the workspace: a link in a hostile repository could lead to
//! any file of the caller.

use crate::host::is_off;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Finds an installed program on this process's PATH.
pub fn installed(program: &str) -> Option<PathBuf> {
    SearchPath::new(std::env::var_os("PATH"), None).find(program)
}

#[derive(Clone, Debug)]
pub(super) struct SearchPath {
    folders: Vec<PathBuf>,
    skipped: Vec<PathBuf>,
}

impl SearchPath {
    /// Skips relative folders and those of the workspace.
    pub(super) fn new(path: Option<OsString>, workspace: Option<&Path>) -> SearchPath {
        let is_foreign = |folder: &PathBuf| {
            let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            let in_workspace = |workspace: &Path| folder.starts_with(workspace) || real.starts_with(workspace);
            !folder.is_absolute() || workspace.is_some_and(in_workspace) && !is_off("agent-path")
        };
        let all = std::env::split_paths(&path.unwrap_or_default()).collect::<Vec<_>>();
        let (skipped, folders) = all.into_iter().partition(is_foreign);
        SearchPath { folders, skipped }
    }

    pub(super) fn find_skipped(&self, program: &str) -> Option<PathBuf> {
        self.skipped.iter().map(|folder| folder.join(program)).find(is_program)
    }

    /// The path keeps its links.
    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(program)).find(is_program)
    }
}

fn is_program(path: &PathBuf) -> bool {
    path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn tool(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_folder_of_the_workspace_and_a_relative_one_are_not_searched() {
        let lab = tempfile::tempdir().unwrap();
        let lab = std::fs::canonicalize(lab.path()).unwrap();
        let (work, other) = (lab.join("work"), lab.join("other"));
        tool(&work.join("bin/agent"));
        tool(&other.join("agent"));
        symlink(work.join("bin"), lab.join("link")).unwrap();
        let path = |folders: &[PathBuf]| std::env::join_paths(folders).ok();
        let find = |folders: &[PathBuf]| SearchPath::new(path(folders), Some(&work)).find("agent");
        assert_eq!(find(&[work.join("bin"), other.clone()]), Some(other.join("agent")));
        assert_eq!(find(&[lab.join("link"), "bin".into(), ".".into()]), None);
        let search = SearchPath::new(path(&[work.join("bin")]), Some(&work));
        assert_eq!(search.find_skipped("agent"), Some(work.join("bin/agent")));
    }
}
