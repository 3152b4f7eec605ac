//! Git, safely: a repository is hostile input, and after the run so is the workspace's `.git`. git never runs on the host over either.
//!
//! In: where a repository is ([`Remote`]). Out: a checkout that no agent writes ([`base()`]), and later the agent's commits, as a bundle and on a
//! branch of the remote ([`bundle()`], [`push()`]).
//! Order: the remote is fetched into a bare mirror of the store (`mirror`), which a second task only brings up to date; a base is checked out
//! of the mirror or a local repository once for each commit (`base`); the agent's head is read as text (`head`), its commits are taken by their
//! id into a new object store and checked (`bundle`), and pushed from another one (`push`).
//! Each of these runs in a courier: a sandbox of its own that sees only what it needs, with a network to the one host or none, and with hooks,
//! filters and unusual protocols off (`courier`). Submodules and LFS only if asked for (`submodule`, `elsewhere`).

mod base;
mod blobs;
mod budget;
mod bundle;
mod captured;
mod courier;
mod elsewhere;
mod growth;
mod head;
mod mirror;
mod push;
mod reach;
mod remote;
mod shell;
mod submodule;
mod unused;

pub(super) use base::{Base, base};
pub(super) use blobs::{ObjectStore, read_blobs};
pub(super) use budget::Budget;
pub(super) use bundle::{DIRECTORY as COMMITS, Work, bundle};
pub use elsewhere::Elsewhere;
pub(super) use head::{Head, head};
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
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// How a repository is reached, and who the agent is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitOptions {
    /// `user:password` or a token, for https.
    pub credential: Option<Source>,
    /// A private key, for ssh.
    pub ssh_key: Option<Source>,
    /// Which host has which key, for ssh; the caller's own `~/.ssh/known_hosts` if missing.
    pub known_hosts: Option<PathBuf>,
    /// The authorities whose certificates are good, for https, in PEM form; the host's own if missing.
    pub ca: Option<PathBuf>,
    /// Addresses of the remote's host that are not of the public internet, and yet are meant.
    pub addresses: Vec<IpAddr>,
    /// How many commits of history are fetched; all if missing.
    pub depth: Option<NonZeroU32>,
    /// Which contents of older commits are left out (git-rev-list(1), `--filter`): `blob:none` or `blob:limit=SIZE`.
    pub filter: Option<String>,
    /// Whether submodules are fetched too.
    pub submodules: bool,
    /// Whether the contents of large files are fetched, which git-lfs(1) keeps elsewhere.
    pub lfs: bool,
    /// Where submodules and those contents may come from besides the repository's own host.
    pub elsewhere: Vec<Elsewhere>,
    /// Settings of git in the sandbox, such as `user.name`.
    pub settings: Vec<(String, String)>,
    /// Where commits are pushed to.
    pub push: Option<PushOptions>,
}

/// Where commits are pushed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOptions {
    /// The branch.
    pub branch: String,
    /// Whether that may be the remote's default branch.
    pub default_branch: bool,
}

impl GitOptions {
    /// Says the first thing that is wrong, before anything is made.
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
            return Err(Error::new(Kind::Usage, format!("`{}` is no filter here", filter.escape_debug()))
                .hint("give `blob:none`, or `blob:limit=SIZE` such as `blob:limit=100k`"));
        }
        for (key, value) in &self.settings {
            let letters = |byte: u8| byte.is_ascii_alphanumeric() || b".-_/".contains(&byte);
            if !key.contains('.') || key.starts_with(['.', '-']) || !key.bytes().all(letters) || value.contains('\0') {
                return Err(Error::new(Kind::Profile, format!("`{}` is no setting of git", key.escape_debug()))
                    .hint("give it like `user.name`"));
            }
        }
        Ok(())
    }

    /// How much of a history is had, as a part of a name: nothing for all of it.
    fn portion(&self) -> String {
        let depth = self.depth.map(|depth| format!("-{depth}")).unwrap_or_default();
        let filter = self.filter.as_deref().map(|filter| format!("-{}", filter.replace([':', '='], "-")));
        depth + &filter.unwrap_or_default()
    }

    /// What a checkout was made of, as a part of its name. What came from a place that one task has named is for those that name it too.
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

    /// The settings as variables of a command's environment, where they count more than any file (git-config(1), `GIT_CONFIG_COUNT`).
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

/// Contents may be left out, never trees: without them nothing can be checked out or compared.
fn is_filter(filter: &str) -> bool {
    let size = |text: &str| {
        let digits = text.strip_suffix(['k', 'm', 'g']).unwrap_or(text);
        !digits.is_empty() && digits.len() < 12 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    filter == "blob:none" || filter.strip_prefix("blob:limit=").is_some_and(size)
}

/// Whether it can be the name of a branch.
pub(super) fn is_branch(name: &str) -> bool {
    check_branch(name).is_ok()
}

/// Whether git takes it as the name of a branch (git-check-ref-format(1)).
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
    Err(Error::new(Kind::Usage, format!("`{}` is no name of a branch", name.escape_debug()))
        .hint("give it like `agent/fix-login`, without `refs/heads/`"))
}

impl GitOptions {
    /// The same, with files as they are held open. In hosted mode no file of the caller's is opened by its name.
    pub(super) fn pinned(&self, pinned: &Pinned, is_hosted: bool) -> GitOptions {
        let open = |path: &Option<PathBuf>| path.as_ref().map(|path| pinned.path(path));
        // The caller chooses HOME. Without a held file no host's key is known.
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

/// What every courier of a task shares.
pub(super) struct GitJob<'run> {
    /// Where tasks, mirrors and bases are kept.
    pub store: &'run Store,
    /// The task's id.
    pub id: &'run str,
    /// Limits that may be missing.
    pub may_degrade: &'run [String],
    /// Paths of the host that are held open from their check on.
    pub pinned: &'run Pinned,
    /// How the remote is reached.
    pub options: &'run GitOptions,
    /// Who resolves the remote's name; the host's own servers if missing.
    pub resolver: Option<SocketAddr>,
    /// What couriers reached of the network, for the receipt.
    pub account: &'run RefCell<Option<Ledger>>,
    /// What hides the credentials in what git says.
    pub redactor: &'run Redactor,
    /// Takes a line about how far git has come, now and then.
    pub progress: &'run dyn Fn(&str),
    /// What couriers may still use, and whether a signal ended one.
    pub budget: &'run Budget,
    /// The socket by which a user ends the task; closed before the task is known.
    pub control: &'run RefCell<Option<Control>>,
}

impl GitJob<'_> {
    /// Whether a user asks for the end of the task, which is noted: a courier that is killed while it starts reports a failed start.
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
        for name in ["main", "agent/fix-1", "ä", "a.b", "a@b"] {
            check_branch(name).unwrap();
        }
        for name in ["", "-x", "a b", "a..b", "a:b", "refs/heads/x", "x.lock", "HEAD", "a\nb", "+x", "x/", ".x", "a/.b"]
            .iter()
            .filter(|name| **name != "+x")
        {
            assert!(check_branch(name).is_err(), "{name}");
        }
    }
}
