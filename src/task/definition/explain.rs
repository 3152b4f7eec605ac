//! `--explain`: what would be in force for a task. Runs nothing.

use super::image;
use super::layout::Layout;
use super::plan::{check_git, checked_workspace, options};
use super::{Definition, WorkspaceSource, hidden, mounts};
use crate::error::Result;
use crate::files::Pinned;
use crate::sandbox;
use crate::task::store::Store;

/// Rows of a name and a value.
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
