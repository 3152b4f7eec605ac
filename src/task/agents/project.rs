//! The project's file `.brig.toml`: a profile in the workspace's folder. It narrows a task. More needs the caller's
//! trust in its digest, as with direnv: an edit, also by an agent, ends the trust.

use super::wrong;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Durability};
use crate::host::is_off;
use crate::task::definition::hosted::pin_now;
use crate::task::definition::narrow::narrow;
use crate::task::definition::profile::take_text;
use crate::task::definition::user_file::{config_folder, open_own};
use crate::task::definition::{Definition, WorkspaceSource};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

const NAME: &str = ".brig.toml";
const LONGEST: u64 = 64 << 10;

/// The project's file of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether all of it is in force.
    pub is_trusted: bool,
    /// Its keys that are not in force.
    pub ignored: Vec<String>,
}

/// A link is refused: it could lead to any file of the caller. In hosted mode the folder must be an allowed one: errors
/// show the file's text.
fn read(folder: &Path) -> Result<Option<(PathBuf, String)>> {
    let path = folder.join(NAME);
    let pinned = pin_now("folder", folder)?;
    let bytes = match files::read_plain(&pinned.path(folder).join(NAME), LONGEST) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other
            .map_err(|cause| files::failed(cause, format!("read `{}`", path.display())).of_kind(Kind::Profile))
            .hint(|| "let it be a regular file of at most 64K")?,
    };
    let text = String::from_utf8(bytes).map_err(|cause| Error::new(Kind::Profile, cause.to_string()))?;
    Ok(Some((path, text)))
}

/// Each folder has a file with the trusted digest.
fn record(path: &Path) -> Result<PathBuf> {
    let name = files::digest(path.as_os_str().as_encoded_bytes());
    Ok(config_folder()?.join("trusted").join(name))
}

fn is_trusted(path: &Path, text: &str) -> bool {
    let kept = record(path).and_then(|record| {
        let mut kept = String::new();
        let mut file = open_own(&record)?.take(LONGEST);
        file.read_to_string(&mut kept).failing(Kind::Profile, || "read a trusted digest".to_owned()).map(|_| kept)
    });
    // The digest is of the path too: a copied record does not hold for another folder.
    kept.is_ok_and(|kept| kept == content(path, text)) || is_off("agent-project")
}

fn content(path: &Path, text: &str) -> String {
    format!("{} {}\n", files::digest(text.as_bytes()), path.display().to_string().escape_debug())
}

/// Sets the project's file over the preset and below the flags.
pub fn project(definition: &mut Definition) -> Result<Option<ProjectFile>> {
    let WorkspaceSource::Directory(folder) = &definition.workspace else { return Ok(None) };
    let Ok(folder) = std::fs::canonicalize(folder) else { return Ok(None) };
    let Some((path, text)) = read(&folder)? else { return Ok(None) };
    let step = || format!("read the project's `{}`", path.display());
    let is_trusted = is_trusted(&path, &text);
    let ignored = if is_trusted {
        let preset = definition.profile.clone();
        take_text(&text, &path, definition, false).doing(step)?;
        definition.profile = preset;
        Vec::new()
    } else {
        narrow(&text, &path, definition).map_err(|error| error.of_kind(Kind::Profile)).doing(step)?
    };
    Ok(Some(ProjectFile { path, is_trusted, ignored }))
}

/// Trusts a folder's file as it is; returns its path and text.
pub fn trust(folder: &Path) -> Result<(PathBuf, String)> {
    let real = std::fs::canonicalize(folder).failing(Kind::NotFound, || format!("find `{}`", folder.display()))?;
    let Some((path, text)) = read(&real)? else {
        return Err(Error::new(Kind::NotFound, format!("`{}` has no file `{NAME}`", real.display()))
            .hint("name the folder of a project with one"));
    };
    // The person cannot mean what does not parse.
    take_text(&text, &path, &mut Definition::new(Vec::new()), false)?;
    let record = record(&path)?;
    files::create_directories(record.parent().unwrap_or(Path::new("/")), 0o700)?;
    files::replace(&record, content(&path, &text).as_bytes(), 0o600, Durability::Cached)?;
    Ok((path, text))
}

/// Ends the trust in a folder's file; `false` if there was none.
pub fn untrust(folder: &Path) -> Result<bool> {
    let real = std::fs::canonicalize(folder).failing(Kind::NotFound, || format!("find `{}`", folder.display()))?;
    let record = record(&real.join(NAME))?;
    match std::fs::remove_file(&record) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true).map_err(|cause| files::failed(cause, format!("remove `{}`", record.display()))),
    }
}

/// Writes rules into the project's file. They need the caller's trust: the agent chose the hosts. Writes only a missing
/// file, or a trusted one without `[network]`: brig does not rewrite a person's words.
pub fn learn(definition: &Definition, rules: &[String]) -> Result<PathBuf> {
    let WorkspaceSource::Directory(folder) = &definition.workspace else {
        return Err(wrong("the task works on no folder", "use --dir").of_kind(Kind::Usage));
    };
    let folder = std::fs::canonicalize(folder).failing(Kind::NotFound, || format!("find `{}`", folder.display()))?;
    let (path, text) = read(&folder)?.unwrap_or_else(|| (folder.join(NAME), String::new()));
    let has_network = toml::from_str::<toml::Table>(&text).map_or(true, |table| table.contains_key("network"));
    if !text.is_empty() && (has_network || !is_trusted(&path, &text)) {
        let why = if has_network { "it has a table `[network]`" } else { "it is not trusted" };
        return Err(wrong(format!("`{}` is not written: {why}", path.display()), "add the rules by hand"));
    }
    let rules: BTreeSet<_> = rules.iter().map(|rule| format!("    \"{}\",\n", rule.escape_default())).collect();
    let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
    let rules: String = rules.into_iter().collect();
    let text = format!("{text}{gap}[network]\nmode = \"egress\"\nallow = [\n{rules}]\n");
    files::replace(&path, text.as_bytes(), 0o644, Durability::Cached)?;
    Ok(path)
}
