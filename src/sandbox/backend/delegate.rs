//! `oci:PATH`: another OCI runtime makes the sandbox from brig's bundle, in a cell.
//!
//! The runtime never runs on the host. It is the command of a brig sandbox (the cell), as root of the cell's user
//! namespace. It lacks capabilities on the host, and sees only the host's `/usr`, read-only. It is in the task's
//! cgroup, disk and network namespace, so brig enforces the limits and runs the gateway. The kernel ends the runtime
//! and its containers with the cell. Only the confinement of the command is the runtime's.

use super::Isolates;
use super::cell;
use crate::container;
use crate::error::{Error, Kind, Result, Step as _};
use crate::sandbox::network::NetworkMode;
use crate::sandbox::options::Options;
use crate::sandbox::report::{Degraded, Guarantee};
use crate::sandbox::system;
use crate::spec::Container;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(super) struct Delegate<'name> {
    pub runtime: &'name Path,
}

/// A runtime's row, by the prefix of its file name.
struct RuntimeKind {
    name: &'static str,
    /// Options before the verb, besides `--root`.
    words: &'static [&'static str],
    /// Options for no network, and for any other, if the runtime has a network stack.
    network: Option<[&'static str; 2]>,
    /// Whether `run` passes signals on to the container, as runc's does.
    passes_signals: bool,
    /// Whether it enforces the rules of the bundle's annotation.
    landlock: bool,
    holds: &'static str,
}

/// Any other runtime gets a bundle and no flags.
const RUNTIME_KINDS: [RuntimeKind; 4] = [
    // gVisor: a kernel in user space. The cell's cgroup bounds it, so it needs none.
    RuntimeKind {
        name: "runsc",
        words: &["--ignore-cgroups"],
        network: Some(["--network=none", "--network=host"]),
        passes_signals: false,
        landlock: false,
        holds: "a separate kernel (gVisor)",
    },
    RuntimeKind {
        name: "crun",
        words: &["--cgroup-manager=disabled"],
        network: None,
        passes_signals: true,
        landlock: false,
        holds: "the filter of the bundle",
    },
    RuntimeKind {
        name: "brig",
        words: &["--cgroup-manager=disabled"],
        network: None,
        passes_signals: true,
        landlock: true,
        holds: "the filter of the bundle",
    },
    RuntimeKind {
        name: "",
        words: &[],
        network: None,
        passes_signals: true,
        landlock: false,
        holds: "the filter of the bundle, if it knows filters",
    },
];

impl Delegate<'_> {
    fn kind(&self) -> &'static RuntimeKind {
        let name = self.runtime.file_name().unwrap_or_default().to_string_lossy().into_owned();
        RUNTIME_KINDS.iter().find(|kind| name.starts_with(kind.name)).unwrap_or(&RUNTIME_KINDS[RUNTIME_KINDS.len() - 1])
    }

    /// Returns the canonical path of a program.
    fn real_path(&self) -> Result<PathBuf> {
        let step = || format!("use the runtime `{}`", self.runtime.display());
        let path = std::fs::canonicalize(self.runtime).map_err(|cause| Error::os(Kind::Backend, cause));
        path.and_then(|path| {
            let mode = std::fs::metadata(&path).map(|status| (status.is_file(), status.permissions().mode()));
            match mode.map_err(|cause| Error::os(Kind::Backend, cause))? {
                (true, mode) if mode & 0o111 != 0 => Ok(path),
                _ => Err(Error::new(Kind::Backend, "it is not a program")),
            }
        })
        .doing(step)
        .hint(|| "name an OCI runtime by its absolute path, like oci:/usr/bin/runsc")
    }

    fn words(&self, at: &Path, options: &Options) -> Vec<OsString> {
        let kind = self.kind();
        let mut words: Vec<OsString> = vec![at.into(), "--root".into(), cell::STATE.into()];
        words.extend(kind.words.iter().map(OsString::from));
        words.extend(kind.network.map(|[none, other]| match options.network.mode {
            NetworkMode::None => none.into(),
            _ => other.into(), // the cell's network: the gateway's sockets, or devices
        }));
        words
    }
}

impl Isolates for Delegate<'_> {
    /// The runtime lacks some kernel interfaces; its own additional isolation is unknown. An operator may declare it in
    /// the machine's rules.
    fn guarantee(&self) -> Guarantee {
        Guarantee::Nested
    }

    fn lacks(&self, _options: &Options) -> Vec<Degraded> {
        let reason = || format!("`{}` knows no Landlock rules", self.runtime.display());
        let missing = !self.kind().landlock;
        missing.then(|| Degraded { name: "landlock".to_owned(), reason: reason() }).into_iter().collect()
    }

    fn check(&self, _options: &Options) -> Result<()> {
        let step = || format!("use the runtime `{}`", self.runtime.display());
        let refuse = |why: &str, hint: &'static str| Err(Error::new(Kind::Backend, why).doing(step()).hint(hint));
        if !container::privileged() {
            return refuse(
                "its cell needs an id range, which only the machine's root can give",
                "run brig as root, or use the backend native",
            );
        }
        // runc 1.1 requires its cgroup mount with any options, and a cell has none.
        if self.runtime.file_name().is_some_and(|name| name.to_string_lossy().starts_with("runc")) {
            return refuse(
                "runc does not run without its control groups, and a cell has none",
                "use crun, runsc, or the backend native",
            );
        }
        self.real_path().map(|_| ())
    }

    fn shape(&self, asked: Container, options: &Options, _stage: &Path) -> Result<Container> {
        let path = self.real_path()?;
        let system = system::find_folders();
        let is_shown = system.folders.iter().any(|folder| path.starts_with(folder));
        let at = if is_shown { path.clone() } else { cell::RUNTIME.into() };
        let own = (!is_shown).then_some(path);
        let tool = cell::Tool { words: self.words(&at, options), passes_signals: self.kind().passes_signals };
        cell::around(asked, &system, own, options.terminal, &tool)
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let kind = self.kind();
        vec![
            ("seccomp", kind.holds.to_owned()),
            ("landlock", if kind.landlock { "rules in the bundle".to_owned() } else { "none".to_owned() }),
            (
                "user",
                "in the runtime's container: no capabilities, no_new_privs; the runtime: root of a cell".to_owned(),
            ),
        ]
    }
}
