//! Finds the agent's installed program on the caller's PATH and shows it inside, read-only, with what it needs to run.
//!
//! A folder of the PATH in the workspace is skipped: a link in a hostile repository could lead to any file of the
//! caller. With an image or another root the program is that root's.

use super::runtime::Runtime;
use super::{AgentTable, Caller, wrong};
use crate::error::{Kind, Result};
use crate::host::is_off;
use crate::sandbox::Backend;
use crate::task::definition::{Definition, WorkspaceSource};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// PATH inside, after the folders of the program.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The folders in which the caller's programs are looked up.
#[derive(Clone, Debug)]
pub(super) struct SearchPath {
    folders: Vec<PathBuf>,
    /// Folders of the PATH that were skipped.
    skipped: Vec<PathBuf>,
}

impl SearchPath {
    /// The caller's PATH, without relative folders and without those of the workspace.
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

    /// The program's path, with the links on its way.
    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(program)).find(is_program)
    }
}

fn is_program(path: &PathBuf) -> bool {
    path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Shows the program in the sandbox of the definition; returns its path inside.
pub(super) fn show(table: &AgentTable, caller: &Caller<'_>, definition: &mut Definition) -> Result<PathBuf> {
    let sandbox = &definition.sandbox;
    if definition.image.is_some() || sandbox.rootfs.is_some() || sandbox.backend == Backend::Local {
        return Ok(PathBuf::from(&table.program));
    }
    let workspace = match &definition.workspace {
        WorkspaceSource::Directory(folder) => std::fs::canonicalize(folder).ok(),
        _ => None,
    };
    if table.program.contains('/') {
        // A path of the sandbox, such as one in the workspace.
        return Ok(PathBuf::from(&table.program));
    }
    let search = SearchPath::new((caller.variable)("PATH"), workspace.as_deref());
    let found = search.find(&table.program).ok_or_else(|| missing(table, &search))?;
    let mut runtime = Runtime::new(&search, (caller.variable)("HOME").map(PathBuf::from));
    let command = runtime.add_program(&found)?;
    runtime.show(definition, SEARCH_PATH);
    Ok(command)
}

fn missing(table: &AgentTable, search: &SearchPath) -> crate::error::Error {
    let in_workspace = search.skipped.iter().map(|folder| folder.join(&table.program)).find(is_program);
    let why = match in_workspace {
        Some(path) => format!(
            "the PATH has `{}` only at `{}`: a program of the workspace itself is not shown",
            table.program,
            path.display()
        ),
        None => format!("the PATH has no program `{}`", table.program),
    };
    let hint = match table.install.as_str() {
        "" => "install it, or use a root with it: --image REF".to_owned(),
        install => format!("install it ({install}), or use a root with it: --image REF"),
    };
    wrong(why, hint).of_kind(Kind::CommandNotFound)
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
        let table = AgentTable { program: "agent".into(), ..AgentTable::default() };
        let error = missing(&table, &SearchPath::new(path(&[work.join("bin")]), Some(&work)));
        assert!(error.to_string().contains("a program of the workspace"), "{error}");
    }
}
