//! Turns a definition into the options of its sandbox, checked. Makes nothing.

use super::image::{self, Opened};
use super::layout::Layout;
use super::{Definition, WorkspaceSource, hidden, mounts};
use crate::error::{Result, Step};
use crate::files::Pinned;
use crate::sandbox::{self, NetworkMode, Options, Workspace};
use crate::task::git::{self, Remote};
use crate::task::store::Store;

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

/// What would be in force for a task, as rows of a name and a value. Runs nothing.
pub fn explain(store: &Store, definition: &Definition) -> Result<Vec<(String, String)>> {
    let admitted = super::hosted::admit(store, definition)?;
    let declared = admitted.as_ref().and_then(|admitted| admitted.declared);
    let definition = admitted.as_ref().map_or(definition, |admitted| &admitted.definition);
    let image = image::open(store, definition)?;
    check_git(definition)?;
    definition.naming.check()?;
    let mut pinned = admitted.as_ref().map_or_else(Pinned::default, |admitted| admitted.pinned.clone());
    mounts::hold(definition, store, &mut pinned)?;
    let layout = Layout::of(definition, image.as_ref(), store)?;
    let workspace = checked_workspace(definition)?;
    let mut options = options(definition, &layout, image.as_ref(), workspace)?;
    options.pinned = pinned;
    hidden::complete(definition, &mut options)?;
    let exposed = hidden::note(definition, &options);
    let mut rows = sandbox::explain(&options)?;
    rows.extend(
        layout.repository.iter().map(|path| ("repository".to_owned(), format!("{}, read-only", path.display()))),
    );
    rows.extend(layout.notes.iter().chain(&exposed).map(|note| ("note".to_owned(), note.clone())));
    for secret in &definition.secrets {
        rows.extend(
            secret
                .credentials
                .iter()
                .map(|each| ("broker".to_owned(), format!("{} to {}:{}", secret.name, each.host(), each.port()))),
        );
    }
    if let (Some(declared), Some(row)) = (declared, rows.iter_mut().find(|(name, _)| name == "guarantee")) {
        row.1 = declared.word().to_owned();
    }
    rows.extend(definition.naming.name.iter().map(|name| ("name".to_owned(), name.clone())));
    rows.extend(definition.naming.labels.iter().map(|(key, value)| ("label".to_owned(), format!("{key}={value}"))));
    if let Some(image) = &image {
        let digest = &image.used.digest;
        let copying = image.copying(&definition.sandbox.limits)?.map_or(String::new(), |words| format!("; {words}"));
        rows.insert(2, ("image".to_owned(), format!("{} ({digest}){copying}", image.used.reference)));
    }
    if let WorkspaceSource::Repository { url, reference } = &definition.workspace {
        let reference = reference.as_deref().unwrap_or("HEAD");
        if let Some(row) = rows.iter_mut().find(|(name, _)| name == "workspace") {
            row.1 = format!("{url} at {reference} (cloned in a sandbox, copy-on-write)");
        }
    }
    Ok(rows)
}
