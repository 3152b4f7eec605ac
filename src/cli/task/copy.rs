//! `brig task cp`: files into and out of a running sandbox.

use brig::error::{Context, Error, Kind, Result};
use brig::task::{Live, Store};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Copy a file or folder into or out of a running task
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task cp k3f:result.json .                    into this folder
  brig task cp k3f:/workspace/reports ./copy        under another name
  brig task cp k3f:/workspace - | tar t             as a tar stream
  brig task cp fix.patch k3f:/tmp/
  brig task cp --exclude node_modules --exclude '*.log' . k3f:/tmp/copy

A relative path in the sandbox is meant from the workspace, and so is one below /workspace.
What is copied in belongs to the sandbox's user; owners and set-id bits do not travel.
Links are copied as links, and none leads out of the sandbox or of the target.
Holes stay holes. What is copied out has at most as many bytes as the task's disk limit.")]
pub(super) struct Arguments {
    /// A path of the host, or ID:PATH
    from: String,
    /// A path of the host, ID:PATH, or - for a tar stream on standard output
    to: String,
    /// Leave out what matches this pattern of gitignore(5), below the copied folder (repeat)
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.to != "-" {
        brig::task::refuse_host_path(
            "`cp` would open a path of the host",
            "copy out with `cp ID:PATH -`, a tar stream",
        )?;
    }
    match (inside(&arguments.from), inside(&arguments.to)) {
        (Some((id, path)), None) => {
            let id = store.find(id)?;
            out(&store.reach(&id)?, &real(store, &id, path)?, &arguments.to, &arguments.exclude)?;
        }
        (None, Some((id, path))) => {
            let id = store.find(id)?;
            into(&store.reach(&id)?, Path::new(&arguments.from), &real(store, &id, path)?, &arguments.exclude)?;
        }
        _ => {
            return Err(Error::new(Kind::Usage, "one of the two must be in a task, and only one")
                .hint("name it like `ID:PATH`; a file of yours with a colon like `./a:b`"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `ID:PATH`: before the colon no slash.
fn inside(word: &str) -> Option<(&str, &Path)> {
    let (id, path) = word.split_once(':')?;
    (!id.contains('/') && !id.is_empty()).then_some((id, Path::new(path)))
}

/// A path of the task's sandbox. The workspace itself is named, not the link to it, which would be copied as a link.
fn real(store: &Store, id: &str, path: &Path) -> Result<PathBuf> {
    const LINK: &str = "/workspace";
    let at = store.record(id)?.at.unwrap_or_else(|| LINK.into());
    // Components: `join` of an empty rest would end with a slash.
    Ok(at.join(path.strip_prefix(LINK).unwrap_or(path)).components().collect())
}

fn out(live: &Live, path: &Path, to: &str, exclude: &[String]) -> Result<()> {
    let name = name(path)?;
    if to == "-" {
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            return Err(Error::new(Kind::Usage, "an archive is not for a terminal").hint("pipe it: `… - | tar x`"));
        }
        return live.pack(path, &name, exclude, &mut std::io::stdout().lock());
    }
    let (folder, name) = target(Path::new(to), name, Path::new(to).is_dir())?;
    if !folder.is_dir() {
        return Err(Error::new(Kind::NotFound, "there is no such folder").doing(format!("open `{}`", folder.display())));
    }
    live.copy_out(path, &folder, &name, exclude)
}

fn into(live: &Live, from: &Path, to: &Path, exclude: &[String]) -> Result<()> {
    let real = std::fs::canonicalize(from).failing(Kind::NotFound, || format!("read `{}`", from.display()))?;
    let is_folder = live.look(to).is_ok_and(|entry| entry.kind == "directory");
    let (folder, name) = target(to, name(&real)?, is_folder)?;
    live.copy_in(&real, &folder, &name, exclude)
}

/// Into a folder under the name that it has, else under this very name.
fn target(to: &Path, name: PathBuf, is_folder: bool) -> Result<(PathBuf, PathBuf)> {
    if is_folder {
        return Ok((to.to_owned(), name));
    }
    let folder = to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder.to_owned(), self::name(to)?))
}

fn name(path: &Path) -> Result<PathBuf> {
    path.file_name().map(PathBuf::from).ok_or_else(|| {
        Error::new(Kind::Usage, format!("`{}` has no name", path.display())).hint("name a file or folder in it")
    })
}
