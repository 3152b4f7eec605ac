//! The login file of an agent's own program as a key's source: read outside, never shown inside.

use super::{AgentTable, Caller, wrong};
use crate::error::{Kind, Result, Step};
use crate::host::is_off;
use crate::task::definition::{Definition, WorkspaceSource, hosted};
use crate::task::definition::{KeyTable, LoginTable};
use crate::task::secrets::{LoginFile, expired_for};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The login file of an agent's own program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLogin {
    /// The file.
    pub path: PathBuf,
    /// How long its token is valid, if it ends.
    pub remaining: Option<Duration>,
}

/// A login that replaces a key of the preset.
#[derive(Debug)]
pub(super) struct Login {
    pub variable: String,
    pub file: LoginFile,
    /// Seconds since 1970.
    end: Option<u64>,
    /// Variables inside that are not secrets.
    pub variables: Vec<(String, String)>,
}

impl Login {
    /// Finds the first login file with a token. Hosted mode uses none: the file is the operator's.
    pub(super) fn find(table: &AgentTable, caller: &Caller<'_>) -> Result<Option<Login>> {
        if hosted::rules()?.is_some() {
            return Ok(None);
        }
        for (key, login) in table.keys.iter().filter_map(|key| Some((key, key.login.as_ref()?))) {
            let Some(path) = path(login, caller) else { continue };
            let (token, expires) = (login.token.clone(), login.expires.clone());
            let file = LoginFile { path, token, expires, program: table.program.clone() };
            let texts: Vec<_> = login.variables.values().map(String::as_str).collect();
            let facts = file.facts(&texts).doing(|| format!("use the login of `{}`", table.program))?;
            if facts.has_token {
                let text =
                    |(name, pointer): (&String, &String)| Some((name.clone(), facts.texts.get(pointer)?.clone()));
                let variables = login.variables.iter().filter_map(text).collect();
                return Ok(Some(Login { variable: key.variable.clone(), file, end: facts.end, variables }));
            }
        }
        Ok(None)
    }

    pub(super) fn check(&self) -> Result<()> {
        self.end.and_then(expired_for).map_or(Ok(()), |time| Err(self.file.expired(time)))
    }

    pub(super) fn describe(&self) -> AgentLogin {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let remaining = self.end.map(|end| Duration::from_secs(end.saturating_sub(now.as_secs())));
        AgentLogin { path: self.file.path.clone(), remaining }
    }
}

fn path(login: &LoginTable, caller: &Caller<'_>) -> Option<PathBuf> {
    let folder = |name: &str| (caller.variable)(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = match login.folder.as_deref().and_then(folder) {
        Some(folder) => folder.join(Path::new(&login.file).file_name()?),
        None => folder("HOME")?.join(&login.file),
    };
    std::fs::canonicalize(path).ok()
}

pub(super) fn names(keys: &[KeyTable]) -> String {
    let mut names: Vec<_> =
        keys.iter().filter_map(|key| key.login.as_ref()).map(|login| format!("`~/{}`", login.file)).collect();
    names.dedup();
    names.join(", ")
}

/// The login files of these programs that exist.
pub(super) fn files<'all>(tables: impl IntoIterator<Item = &'all AgentTable>, caller: &Caller<'_>) -> Vec<PathBuf> {
    let logins = tables.into_iter().flat_map(|table| &table.keys).filter_map(|key| key.login.as_ref());
    logins.filter_map(|login| path(login, caller)).collect()
}

/// Hides login files from the workspace; refuses a mount or a root with one.
pub(super) fn hide(files: Vec<PathBuf>, definition: &mut Definition) -> Result<()> {
    if is_off("agent-login") {
        return Ok(());
    }
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    for file in files {
        let sandbox = &mut definition.sandbox;
        let mut shown = sandbox.mounts.iter().map(|mount| &mount.source).chain(&sandbox.rootfs);
        if let Some(path) = shown.find(|path| file.starts_with(real(path))) {
            let words = format!("`{}` would show the login `{}`", path.display(), file.display());
            return Err(wrong(words, "show a smaller folder, without that file").of_kind(Kind::Secret));
        }
        if let WorkspaceSource::Directory(folder) = &definition.workspace
            && let Ok(within) = file.strip_prefix(real(folder))
        {
            sandbox.hidden.flags.push(pattern(within));
        }
    }
    Ok(())
}

/// The pattern of gitignore(5) for one path.
fn pattern(path: &Path) -> String {
    let mut pattern = String::from("/");
    for letter in path.to_string_lossy().chars() {
        if "\\*?[]! #".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::HiddenMatcher;

    #[test]
    fn the_pattern_of_a_file_hides_that_file_alone() {
        for name in [".codex/auth.json", "a b/[x]*?/#!\\.json", "!x", "#x", "x "] {
            let matcher = HiddenMatcher::new(&["!*".into(), pattern(Path::new(name))], &[]).unwrap();
            assert!(matcher.hides(Path::new(name), false), "{name}");
            assert!(!matcher.hides(Path::new("other"), false), "{name}");
        }
    }
}
