//! Host paths in hosted mode: each is in one of the operator's folders, and is held open from its check on.

use super::{PATH, Rules, refuse, rules};
use crate::error::{Error, Kind, Result, Step};
use crate::files::Pinned;
use crate::host::is_off;
use crate::sandbox::MountMode;
use crate::task::definition::receiver::Receiver;
use crate::task::definition::{Definition, WorkspaceSource};
use crate::task::git::{Remote, Scheme, own_known_hosts};
use crate::task::secrets::Source;
use std::path::{Component, Path, PathBuf};

/// Profiles and the operator's other files.
const OF_OPERATOR: &str = "/etc/brig";

const SECRET: &str = "file of a secret";
/// Paths of files. Their kind is not looked up for a caller that may not see them.
const FILES: [&str; 6] = [SECRET, "schema", "profile", "file for events", "socket for events", "file about a remote"];

/// Paths that brig creates if they are missing.
const MADE: [&str; 2] = ["folder for artifacts", "file for events"];

impl Rules {
    pub(super) fn pin(&self, definition: &Definition) -> Result<Pinned> {
        let mut pinned = Pinned::default();
        for (what, path) in host_paths(definition)? {
            // The written path counts too: a relative one starts at the folder that the caller names.
            let is_operators = definition.is_operators && what == SECRET && path.starts_with(OF_OPERATOR);
            match real(&path).filter(|(real, rest)| real.starts_with(OF_OPERATOR) && rest.as_os_str().is_empty()) {
                Some((real, rest)) if is_operators => pinned.hold(&path, (Path::new(OF_OPERATOR), &real), rest)?,
                _ => self.hold(what, &path, &mut pinned)?,
            }
        }
        Ok(pinned)
    }

    fn hold(&self, what: &str, path: &Path, pinned: &mut Pinned) -> Result<()> {
        let found = real(path).and_then(|(real, rest)| Some((self.folder_of(&real)?, real, rest)));
        let Some((folder, real, rest)) = found else {
            let words = format!("the {what} `{}` is below no folder that is allowed", path.display());
            let folder = path.parent().filter(|_| FILES.contains(&what)).unwrap_or(path).display();
            let add = format!("let the operator add \"{folder}\" to `folders` in {PATH}, which every task may read");
            return Err(Error::new(Kind::Policy, format!("hosted mode: {words}"))
                .hint(format!("use a folder of the list, or {add}")));
        };
        if !rest.as_os_str().is_empty() && !MADE.contains(&what) {
            return Err(Error::new(Kind::NotFound, format!("the {what} `{}` is not there", path.display()))
                .hint("name one that exists"));
        }
        pinned.hold(path, (&folder, &real), rest).doing(|| format!("use the {what}"))
    }

    pub(super) fn folder_of(&self, real: &Path) -> Option<PathBuf> {
        containing(&self.folders, real)
    }

    pub(super) fn check_mounts(&self, definition: &Definition, pinned: &Pinned) -> Result<()> {
        let writable = definition.sandbox.mounts.iter().filter(|mount| mount.mode == MountMode::Writable);
        for source in writable.map(|mount| &mount.source) {
            let real = std::fs::canonicalize(pinned.path(source)).ok();
            let is_allowed = real.is_some_and(|real| containing(&self.writable_folders, &real).is_some());
            if !is_allowed && !is_off("writable-folders") {
                let words = format!("the task would write to `{}` of the host", source.display());
                let key = format!("writable_folders = [\"{}\"]", source.display());
                return refuse(&words, "mount it as `ro` or `cow`", &key);
            }
        }
        Ok(())
    }
}

/// `real` has no links.
fn containing(folders: &[PathBuf], real: &Path) -> Option<PathBuf> {
    let mut folders = folders.iter().filter_map(|folder| std::fs::canonicalize(folder).ok());
    folders.find(|folder| real.starts_with(folder))
}

/// The existing part, without links, and the missing rest.
pub(in crate::task::definition) fn real(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut known = path;
    loop {
        match std::fs::canonicalize(known) {
            Ok(real) => {
                let rest = path.strip_prefix(known).ok()?;
                // `..` behind a missing name could lead anywhere.
                let climbs = rest.components().any(|part| part == Component::ParentDir);
                return (!climbs).then(|| (real, rest.to_owned()));
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                // A dangling link is in the way.
                if known.symlink_metadata().is_ok() {
                    return None;
                }
                known = known.parent()?;
            }
            Err(_) => return None,
        }
    }
}

/// For a path that is opened at once.
pub(in crate::task) fn pin_now(what: &str, path: &Path) -> Result<Pinned> {
    let mut pinned = Pinned::default();
    if let Some(rules) = rules()? {
        rules.hold(what, path, &mut pinned)?;
    }
    Ok(pinned)
}

pub(in crate::task) struct PinnedProfile {
    pub pinned: Pinned,
    /// Whether errors may show its text. They never may in hosted mode, nor to a caller that cannot read it without the
    /// program's rights.
    pub may_show: bool,
    /// Whether it is below `/etc/brig`, in hosted mode.
    pub is_operators: bool,
}

pub(in crate::task) fn pin_profile(path: &Path) -> Result<PinnedProfile> {
    let Some(rules) = rules()? else {
        let may_show = rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok();
        return Ok(PinnedProfile { pinned: Pinned::default(), may_show, is_operators: false });
    };
    let mut pinned = Pinned::default();
    let operators = real(path).filter(|(real, _)| real.starts_with(OF_OPERATOR));
    let is_operators = operators.is_some();
    match operators {
        Some((real, rest)) => pinned.hold(path, (Path::new(OF_OPERATOR), &real), rest)?,
        None => rules.hold("profile", path, &mut pinned).map_err(|error| error.of_kind(Kind::Policy))?,
    }
    Ok(PinnedProfile { pinned, may_show: false, is_operators })
}

fn host_paths(definition: &Definition) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut paths = Vec::new();
    let mut needs_known_hosts = false;
    match &definition.workspace {
        WorkspaceSource::Directory(path) => {
            paths.push(("folder", path.clone()));
            let real =
                std::fs::canonicalize(path).ok().and_then(|real| crate::task::output::worktree::repository(&real));
            paths.extend(real.map(|(_, repository)| ("repository of the worktree", repository)));
        }
        WorkspaceSource::Repository { url, .. } => match Remote::parse(url)? {
            Remote::Local(path) => paths.push(("repository", path)),
            Remote::Far(far) => needs_known_hosts = far.scheme == Scheme::Ssh,
        },
        WorkspaceSource::Empty => {}
    }
    paths.extend(definition.sandbox.mounts.iter().map(|mount| ("source of a mount", mount.source.clone())));
    paths.extend(definition.sandbox.rootfs.iter().map(|path| ("root file system", path.clone())));
    paths.extend(definition.artifacts.directory.iter().map(|path| ("folder for artifacts", path.clone())));
    paths.extend(definition.result.schema.iter().map(|path| ("schema", path.clone())));
    paths.extend(definition.events.iter().filter_map(|receiver| match receiver {
        Receiver::File(path) => Some(("file for events", path.clone())),
        Receiver::Socket(path) => Some(("socket for events", path.clone())),
        Receiver::Http(_) => None,
    }));
    paths.extend(super::sources(definition).filter_map(|(_, source)| match source {
        Source::File(path) | Source::OAuth(path) => Some((SECRET, path.clone())),
        Source::Login(login) => Some((SECRET, login.path.clone())),
        Source::Environment(_) | Source::Command(_) | Source::Made(_) => None,
    }));
    // The token's file is replaced, and its lock is beside it.
    paths.extend(super::sources(definition).filter_map(|(_, source)| match source {
        Source::OAuth(path) => Some(("folder of a token", path.parent()?.to_owned())),
        _ => None,
    }));
    let git = &definition.git;
    paths.extend(git.elsewhere.iter().filter_map(|place| Some(("folder of submodules", place.folder()?.to_owned()))));
    let known_hosts = git.known_hosts.clone().or_else(|| own_known_hosts().filter(|_| needs_known_hosts));
    paths.extend(git.ca.iter().chain(&known_hosts).map(|path| ("file about a remote", path.clone())));
    Ok(paths)
}
