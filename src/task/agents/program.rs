//! Shows the agent's installed program inside, read-only, with its runtime. An image or another root has its own.

use super::runtime::Runtime;
use super::search::SearchPath;
use super::{AgentTable, Caller, wrong};
use crate::error::{Error, Kind, Result};
use crate::sandbox::Backend;
use crate::task::definition::{Definition, WorkspaceSource};
use std::path::PathBuf;

/// PATH inside, after the program's folders.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Returns the program's path inside.
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

fn missing(table: &AgentTable, search: &SearchPath) -> Error {
    let why = match search.find_skipped(&table.program) {
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
