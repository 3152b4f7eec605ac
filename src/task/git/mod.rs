//! Git for tasks. A repository is hostile input, and after the run so is the workspace's `.git`: git never runs on the
//! host over either. Each step runs in a courier: a separate sandbox that sees only its inputs, with a network to one
//! host or none.
//!
//! 1. `mirror` fetches the remote into a bare mirror of the store.
//! 2. `base` checks out a commit once, from the mirror or a local repository. No agent writes the checkout.
//! 3. `head` reads the agent's head as text.
//! 4. `bundle` copies the agent's commits by id into a new object store and checks them. `push` pushes from another
//!    one.

mod base;
mod budget;
mod bundle;
mod captured;
mod courier;
mod elsewhere;
mod head;
mod mirror;
mod push;
mod reach;
mod remote;
mod shell;
mod submodule;
mod tree;
mod unused;

pub(super) use base::{Base, base, identity};
pub(super) use budget::Budget;
pub(super) use bundle::{DIRECTORY as COMMITS, Work, bundle};
pub(super) use bundle::{ObjectStore, read_blobs};
pub use elsewhere::Elsewhere;
pub(super) use head::{Head, branch_at, head, head_since};
pub(super) use push::push;
pub use push::{Push, PushState};
pub(super) use reach::own_known_hosts;
pub use remote::absolute_repository;
pub(super) use remote::{Remote, Scheme, local_path};
pub(super) use unused::remove_unused;

use crate::error::{Error, Kind, Result};
use crate::files::Pinned;
use crate::sandbox::{Control, Ledger};
use crate::task::redact::Redactor;
use crate::task::secrets::Source;
use crate::task::store::Store;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Access to a repository, and the agent's identity in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitOptions {
    /// `user:password` or a token, for https.
    pub credential: Option<Source>,
    /// A private key, for ssh.
    pub ssh_key: Option<Source>,
    /// Host keys for ssh. Default: the caller's `~/.ssh/known_hosts`.
    pub known_hosts: Option<PathBuf>,
    /// Authorities for https, in PEM form. Default: the host's.
    pub ca: Option<PathBuf>,
    /// Allowed addresses of the remote's host outside of the public internet.
    pub addresses: Vec<IpAddr>,
    /// Commits of history to fetch. Default: all.
    pub depth: Option<NonZeroU32>,
    /// For contents of older commits (git-rev-list(1), `--filter`): `blob:none` or `blob:limit=SIZE`.
    pub filter: Option<String>,
    /// Whether to fetch submodules too.
    pub submodules: bool,
    /// Whether to fetch large files (git-lfs(1)).
    pub lfs: bool,
    /// Further locations of submodules and large files.
    pub elsewhere: Vec<Elsewhere>,
    /// Settings of git in the sandbox, such as `user.name`.
    pub settings: Vec<(String, String)>,
    /// The target of the commits.
    pub push: Option<PushOptions>,
}

/// The target of the commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushOptions {
    /// The branch.
    pub branch: String,
    /// Whether it may be the remote's default branch.
    pub default_branch: bool,
}

impl GitOptions {
    pub(super) fn check(&self, remote: Option<&Remote>) -> Result<()> {
        if let Some(push) = &self.push {
            if remote.is_none() {
                return Err(Error::new(
                    Kind::Usage,
                    "only commits of a clone are pushed: the workspace is not from --repo",
                )
                .hint(
                    "give --repo; commits that are made in --dir come out afterwards: brig task export ID --bundle",
                ));
            }
            check_branch(&push.branch)?;
        }
        if let Some(Remote::Far(far)) = remote {
            reach::check(self, far).map_err(|error| error.doing(format!("reach the repository `{}`", far.url)))?;
        }
        if let Some(filter) = &self.filter
            && !is_filter(filter)
        {
            return Err(Error::new(Kind::Usage, format!("`{}` is not an allowed filter", filter.escape_debug()))
                .hint("give `blob:none`, or `blob:limit=SIZE` such as `blob:limit=100k`"));
        }
        for (key, value) in &self.settings {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || b".-_/".contains(&byte);
            if !key.contains('.') || key.starts_with(['.', '-']) || !key.bytes().all(letters) || value.contains('\0') {
                return Err(Error::new(Kind::Profile, format!("`{}` is not a git setting", key.escape_debug()))
                    .hint("give it like `user.name`"));
            }
        }
        Ok(())
    }

    /// For a name; empty for all of the history.
    fn portion(&self) -> String {
        let depth = self.depth.map(|depth| format!("-{depth}")).unwrap_or_default();
        let filter = self.filter.as_deref().map(|filter| format!("-{}", filter.replace([':', '='], "-")));
        depth + &filter.unwrap_or_default()
    }

    /// For a checkout's name. Tasks share a checkout only if they name the same locations.
    fn of_base(&self) -> String {
        let portion = self.portion() + if self.lfs { "-lfs" } else { "" };
        if !self.submodules {
            return portion;
        }
        let mut places: Vec<_> = self.elsewhere.iter().map(|place| format!("{place:?}")).collect();
        places.sort();
        let places = if places.is_empty() { String::new() } else { crate::files::digest(places.concat().as_bytes()) };
        let short: String = places.chars().take(16).collect();
        format!("{portion}-submodules{short}")
    }

    /// Variables override every file (git-config(1), `GIT_CONFIG_COUNT`).
    pub(super) fn variables(&self) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
        let mut variables = Vec::new();
        if !self.settings.is_empty() {
            variables.push(("GIT_CONFIG_COUNT".into(), self.settings.len().to_string().into()));
        }
        for (index, (key, value)) in self.settings.iter().enumerate() {
            variables.push((format!("GIT_CONFIG_KEY_{index}").into(), key.into()));
            variables.push((format!("GIT_CONFIG_VALUE_{index}").into(), value.into()));
        }
        variables
    }
}

/// A filter may leave out contents, never trees: a checkout and a comparison need them.
fn is_filter(filter: &str) -> bool {
    let size = |text: &str| {
        let digits = text.strip_suffix(['k', 'm', 'g']).unwrap_or(text);
        !digits.is_empty() && digits.len() < 12 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    filter == "blob:none" || filter.strip_prefix("blob:limit=").is_some_and(size)
}

pub(super) fn is_branch(name: &str) -> bool {
    check_branch(name).is_ok()
}

/// As git does (git-check-ref-format(1)).
fn check_branch(name: &str) -> Result<()> {
    let wrong = name.is_empty()
        || name.starts_with(['-', '/'])
        || name.ends_with(['/', '.'])
        || name.ends_with(".lock")
        || name == "@"
        || name == "HEAD"
        || ["..", "//", "@{", "/.", ".lock/"].iter().any(|bad| name.contains(bad))
        || name.starts_with('.')
        || name.starts_with("refs/")
        || name.chars().any(|letter| letter.is_control() || " ~^:?*[\\".contains(letter));
    if !wrong {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("`{}` is not a branch name", name.escape_debug()))
        .hint("give it like `agent/fix-login`, without `refs/heads/`"))
}

impl GitOptions {
    /// In hosted mode brig opens no file of the caller's by name.
    pub(super) fn pinned(&self, pinned: &Pinned, is_hosted: bool) -> GitOptions {
        let open = |path: &Option<PathBuf>| path.as_ref().map(|path| pinned.path(path));
        // The caller chooses HOME. Without a pinned file no host key is known.
        let own =
            || own_known_hosts().filter(|own| pinned.has(own)).map_or("/dev/null".into(), |own| pinned.path(&own));
        let source = |source: &Option<Source>| source.as_ref().map(|source| source.pinned(pinned));
        GitOptions {
            known_hosts: open(&self.known_hosts).or_else(|| is_hosted.then(own)),
            ca: open(&self.ca),
            credential: source(&self.credential),
            ssh_key: source(&self.ssh_key),
            ..self.clone()
        }
    }
}

/// For all couriers of a task.
pub(super) struct GitJob<'run> {
    pub store: &'run Store,
    pub id: &'run str,
    /// Limits that may be missing.
    pub may_degrade: &'run [String],
    pub pinned: &'run Pinned,
    pub options: &'run GitOptions,
    /// Resolves the remote's name. Default: the host's servers.
    pub resolver: Option<SocketAddr>,
    /// The couriers' network, for the receipt.
    pub account: &'run RefCell<Option<Ledger>>,
    pub redactor: &'run Redactor,
    pub progress: &'run dyn Fn(&str),
    pub budget: &'run Budget,
    /// The socket for ending the task; closed before the task is known.
    pub control: &'run RefCell<Option<Control>>,
}

impl GitJob<'_> {
    /// Notes a user's request to end the task: a courier killed at its start reports a failed start.
    fn is_asked_to_end(&self) -> bool {
        let is_asked = self.control.borrow_mut().as_mut().is_some_and(Control::is_asked_to_end);
        if is_asked {
            self.budget.cancel();
        }
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_leaves_contents_out_and_never_trees() {
        for (filter, good) in [
            ("blob:none", true),
            ("blob:limit=100k", true),
            ("blob:limit=", false),
            ("tree:0", false),
            ("sparse:oid=x", false),
            ("blob:limit=1 -x", false),
        ] {
            assert_eq!(is_filter(filter), good, "{filter}");
        }
    }

    #[test]
    fn a_branch_is_what_git_takes_for_one() {
        for name in ["main", "agent/fix-1", "ä", "a.b", "a@b", "+x"] {
            check_branch(name).unwrap();
        }
        for name in ["", "-x", "a b", "a..b", "a:b", "refs/heads/x", "x.lock", "HEAD", "a\nb", "x/", ".x", "a/.b"] {
            assert!(check_branch(name).is_err(), "{name}");
        }
    }
}
