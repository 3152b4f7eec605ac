//! Turns a definition into the options of its sandbox, checked. Makes nothing.

use super::image::Opened;
use super::layout::Layout;
use super::{Definition, WorkspaceSource};
use crate::error::{Result, Step};
use crate::sandbox::{NetworkMode, Options, Workspace};
use crate::task::git::{self, Remote};

/// A repository is only checked: it comes later.
pub(crate) fn checked_workspace(definition: &Definition) -> Result<Workspace> {
    match &definition.workspace {
        WorkspaceSource::Empty => Ok(Workspace::Empty),
        WorkspaceSource::Directory(path) => Ok(Workspace::Directory(path.clone())),
        WorkspaceSource::Repository { url, .. } => match Remote::parse(url)? {
            Remote::Local(path) => git::local_path(&path).map(|_| Workspace::Empty),
            Remote::Far(_) => Ok(Workspace::Empty),
        },
    }
}

/// A task that continues a workspace reaches the remote only for a push.
pub(crate) fn check_git(definition: &Definition) -> Result<()> {
    let reaches = definition.continued.is_none() || definition.git.push.is_some();
    let remote = if reaches { remote(definition)? } else { None };
    definition.git.check(remote.as_ref())
}

pub(crate) fn remote(definition: &Definition) -> Result<Option<Remote>> {
    match &definition.workspace {
        WorkspaceSource::Repository { url, .. } => Remote::parse(url).map(Some),
        _ => Ok(None),
    }
}

pub(crate) fn options(
    definition: &Definition,
    layout: &Layout,
    image: Option<&Opened>,
    workspace: Workspace,
) -> Result<Options> {
    let mut options = definition.sandbox.clone();
    for secret in &definition.secrets {
        options.network.admit(&secret.credentials).doing(|| format!("use the secret `{}`", secret.name))?;
    }
    if options.network.mode == NetworkMode::Egress && options.network.policy.ech.is_none() {
        options.network.policy.ech = Some(super::hosted::ech()?);
    }
    options.environment.splice(0..0, definition.git.variables());
    options.workspace = workspace;
    options.at.clone_from(&layout.at);
    options.directory = options.directory.map(|directory| layout.at.join(directory));
    options.shown = layout.repository.iter().map(|path| (path.clone(), path.clone())).collect();
    if let Some(image) = image {
        options.command.clone_from(&image.command);
        options.image = Some(image.root.clone());
        if image.asks_root {
            super::hosted::check_root_inside()?;
        }
        options.root_inside |= image.asks_root;
    }
    Ok(options)
}
