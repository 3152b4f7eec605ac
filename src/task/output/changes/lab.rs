//! Trees on disk, and an agent's work through a real overlay in a separate mount namespace.

use super::{Changes, Form, Limits, Workspace, collect};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const ORDINARY_USER: u32 = 65534;

/// `result` is a copy of the merged view, `out` the collection.
pub(super) struct Lab {
    directory: tempfile::TempDir,
    pub(super) form: Form,
}

impl Lab {
    /// `None`, with a message, where this form cannot run.
    pub(super) fn new(form: Form) -> Option<Lab> {
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab { directory, form };
        for name in ["base", "upper", "work", "merged", "result"] {
            fs::create_dir(lab.at(name)).unwrap();
        }
        fs::set_permissions(lab.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let can = form == Form::Plain || (form == Form::User || is_root()) && lab.attempt("true").is_ok();
        if !can {
            let why =
                if form == Form::Trusted { "needs root" } else { "needs unprivileged user namespaces with overlayfs" };
            crate::files::skip(&format!("real overlay {form:?}: {why}"));
            return None;
        }
        Some(lab)
    }

    pub(super) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn open(&self, name: &str) -> OwnedFd {
        File::open(self.at(name)).unwrap().into()
    }

    pub(super) fn shell(&self, directory: &str, script: &str) {
        let output = Command::new("sh").args(["-euc", script]).current_dir(self.at(directory)).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(super) fn agent(&self, script: &str) {
        self.attempt(script).unwrap_or_else(|error| panic!("{script}: {error}"));
    }

    fn attempt(&self, script: &str) -> Result<(), String> {
        if self.form == Form::Plain {
            self.shell("upper", script);
            return Ok(());
        }
        let options = if self.form == Form::User { "userxattr" } else { "redirect_dir=off,metacopy=off" };
        // The comparison with the applied tree finds an incomplete copy.
        let whole = format!(
            "umask 022; mount -t overlay brig -o lowerdir=base,upperdir=upper,workdir=work,{options} merged; \
             (cd merged; {script}); cp -a merged/. result/ || true"
        );
        let mut command = match (self.form, is_root()) {
            (Form::User, true) => {
                self.shell(".", &format!("chown -hR {ORDINARY_USER}:{ORDINARY_USER} ."));
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm"]);
                command
            }
            (Form::User, false) => {
                let mut command = Command::new("unshare");
                command.arg("-Urm");
                command
            }
            _ => {
                let mut command = Command::new("unshare");
                command.arg("-m");
                command
            }
        };
        let output = command.args(["sh", "-euc", &whole]).current_dir(self.directory.path()).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    pub(super) fn collect_with(&self, limits: &Limits) -> crate::error::Result<Changes> {
        let (upper, base) = (self.open("upper"), self.open("base"));
        let lower = (self.form != Form::Plain).then_some(base.as_fd());
        let (above, worktree) = crate::task::output::handback::repository_of((&base, &self.at("base")));
        let (above, worktree) = (above.as_ref(), worktree.as_ref());
        let workspace =
            Workspace { upper: upper.as_fd(), lower, above, worktree, hidden: None, form: self.form, started: None };
        collect(workspace, &self.at("out"), limits)
    }

    pub(super) fn collect(&self) -> Changes {
        let changes = self.collect_with(&Limits::default()).unwrap();
        assert_eq!(Changes::load(&self.at("out/changes.json")).unwrap(), changes);
        changes
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Without write permission an ordinary user could not remove the lab's directories.
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.directory.path()).output();
    }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(super) fn give_to_user(path: &Path) {
    if is_root() {
        chown(path, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
    }
}

/// Lines such as `added a/b file 0644`.
pub(super) fn listing(changes: &Changes) -> Vec<String> {
    let describe = |entry: &super::Entry| {
        let what = match &entry.now {
            Some(super::Node::Directory { mode }) => format!(" directory {mode:04o}"),
            Some(super::Node::File { mode, size, .. }) => format!(" file {mode:04o} {size}"),
            Some(super::Node::Symlink { target }) => format!(" symlink {}", super::escape(&target.0)),
            None => String::new(),
        };
        format!("{:?} {}{what}", entry.change(), entry.path).to_lowercase()
    };
    changes.entries.iter().map(describe).collect()
}

pub(super) fn picture(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut picture = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            let what = if status.is_dir() {
                left.push(path.clone());
                format!("directory {:04o}", status.mode() & 0o777)
            } else if status.is_symlink() {
                format!("symlink {:?}", fs::read_link(&path).unwrap())
            } else if status.is_file() {
                format!("file {:04o} {:?}", status.mode() & 0o777, super::escape(&fs::read(&path).unwrap()))
            } else {
                "other".to_owned()
            };
            picture.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), what);
        }
    }
    picture
}
