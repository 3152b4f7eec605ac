//! Where the workspace and its repository appear in the sandbox. Reads the host; makes nothing.

use super::exposure;
use super::image::Opened;
use super::{Definition, WorkspaceSource};
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Backend, WORKSPACE, conflict};
use crate::task::output::{handback, worktree};
use crate::task::store::Store;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub at: PathBuf,
    /// Repository of a git worktree, read-only at its own path.
    pub repository: Option<PathBuf>,
    pub notes: Vec<String>,
}

impl Layout {
    /// As the definition requires, or a folder at its own path if nothing of the sandbox is there.
    pub(crate) fn of(definition: &Definition, image: Option<&Opened>, store: &Store) -> Result<Layout> {
        let refused =
            |path: &Path| conflict(path, definition.sandbox.rootfs.as_deref(), image.map(|image| &image.root));
        let mut layout = Layout { at: WORKSPACE.into(), repository: None, notes: Vec::new() };
        // A path that cannot be resolved gets a better error when it is used.
        let folder = match &definition.workspace {
            WorkspaceSource::Directory(path) if definition.sandbox.backend != Backend::Local => {
                std::fs::canonicalize(path).ok()
            }
            _ => None,
        };
        match (&definition.at, &folder) {
            (Some(at), _) => {
                layout.at = at.components().collect();
                if let Some(why) = refused(&layout.at) {
                    return Err(Error::new(Kind::Usage, why)
                        .doing(format!("show the workspace at `{}`", at.display()))
                        .hint("name another place: --at /src"));
                }
            }
            (None, Some(folder)) => match refused(folder) {
                None => layout.at.clone_from(folder),
                Some(why) => {
                    layout.notes.push(format!("the folder is at `{WORKSPACE}`, not at `{}`: {why}", folder.display()));
                }
            },
            (None, None) => {}
        }
        layout.notes.extend(folder.as_deref().and_then(note_of_folder_below));
        if let Some((folder, repository)) = folder.and_then(|folder| worktree::repository(&folder)) {
            let why = refused(&repository).or_else(|| {
                let collides = |other: &Path| repository.starts_with(other) || other.starts_with(&repository);
                (collides(&folder) || collides(&layout.at)).then(|| "the worktree is in it".to_owned())
            });
            match why {
                Some(why) => {
                    let words = format!("the repository `{}` of the worktree is not shown", repository.display());
                    layout.notes.push(format!("{words}: {why}"));
                }
                None => {
                    exposure::check(&repository, &repository, store)?;
                    let main = repository.parent().filter(|_| repository.ends_with(".git")).unwrap_or(&repository);
                    layout.notes.push(format!(
                        "the repository of the worktree is read-only, so a commit fails in it: for commits use --repo {} --ref BRANCH",
                        main.display()
                    ));
                    layout.repository = Some(repository);
                }
            }
        }
        Ok(layout)
    }
}

fn note_of_folder_below(folder: &Path) -> Option<String> {
    let above = worktree::above(handback::open_tree(folder).ok()?.as_fd(), folder)?;
    let top = folder.ancestors().nth(above.folders.len())?;
    let start = folder.strip_prefix(top).ok()?;
    Some(format!(
        "the folder is a part of the repository `{}`, which is not shown: git does not work inside. What the repository ignores is left out of \
         the changes. For commits use --dir {} --workdir {}",
        top.display(),
        top.display(),
        start.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_below_tmp_is_at_workspace_and_the_note_names_the_reason() {
        let home = tempfile::tempdir_in("/tmp").unwrap();
        let store = Store::at(home.path().join("store"));
        let mut definition = Definition::new(vec!["true".into()]);
        definition.workspace = WorkspaceSource::Directory(home.path().to_owned());
        let layout = Layout::of(&definition, None, &store).unwrap();
        assert_eq!(layout.at, Path::new(WORKSPACE));
        assert!(layout.notes[0].contains("its own `/tmp`"), "{:?}", layout.notes);
        definition.at = Some("/src/".into());
        let layout = Layout::of(&definition, None, &store).unwrap();
        assert_eq!((layout.at.to_str(), layout.notes.len()), (Some("/src"), 0));
        definition.at = Some("/etc/x".into());
        let error = Layout::of(&definition, None, &store).unwrap_err();
        assert!(error.to_string().contains("`/etc/x`") && error.kind() == Kind::Usage, "{error}");
    }
}
