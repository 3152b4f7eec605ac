//! `oci:PATH`: another OCI runtime makes the sandbox, from a bundle of ours, in a cell of ours.
//!
//! The runtime never runs on the host: it is the first command of a sandbox of brig's (the cell), as root of that sandbox's user namespace, without
//! a capability on the host, with nothing of the host in sight but `/usr` read-only, in the task's cgroup, on the task's disk, in the task's network
//! namespace. So the limits, the outcome's evidence, the gateway, the collection of the work and the end of everything are ours, whatever it does; the
//! kernel ends it and its containers with the cell, and its own state was in the cell's memory. What is its alone is what holds the command inside.

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
    /// Its path on the host.
    pub runtime: &'name Path,
}

/// What is known of a runtime by the beginning of its file's name.
struct RuntimeKind {
    name: &'static str,
    /// Words before its verb, besides `--root`.
    words: &'static [&'static str],
    /// The same by the network: none, and any other. For one with a network stack of its own.
    network: Option<[&'static str; 2]>,
    /// Whether its `run` passes signals on to the container, as the command line of runc has it.
    passes_signals: bool,
    /// Whether it puts the Landlock rules of the bundle's annotation in force.
    landlock: bool,
    /// What holds the command.
    holds: &'static str,
}

/// Any other gets a bundle and no flags.
const RUNTIME_KINDS: [RuntimeKind; 4] = [
    // gVisor. Its own sandbox is another kernel in user space; the cell's groups hold it, so it needs none.
    RuntimeKind {
        name: "runsc",
        words: &["--ignore-cgroups"],
        network: Some(["--network=none", "--network=host"]),
        passes_signals: false,
        landlock: false,
        holds: "a kernel of its own (gVisor)",
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

    /// Where it really is; it must be a program.
    fn real_path(&self) -> Result<PathBuf> {
        let step = || format!("use the runtime `{}`", self.runtime.display());
        let path = std::fs::canonicalize(self.runtime).map_err(|cause| Error::os(Kind::Backend, cause));
        path.and_then(|path| {
            let mode = std::fs::metadata(&path).map(|status| (status.is_file(), status.permissions().mode()));
            match mode.map_err(|cause| Error::os(Kind::Backend, cause))? {
                (true, mode) if mode & 0o111 != 0 => Ok(path),
                _ => Err(Error::new(Kind::Backend, "it is no program")),
            }
        })
        .doing(step)
        .hint(|| "name an OCI runtime by its absolute path, like oci:/usr/bin/runsc")
    }

    /// The runtime's words before its verb.
    fn words(&self, at: &Path, options: &Options) -> Vec<OsString> {
        let kind = self.kind();
        let mut words: Vec<OsString> = vec![at.into(), "--root".into(), cell::STATE.into()];
        words.extend(kind.words.iter().map(OsString::from));
        words.extend(kind.network.map(|[none, other]| match options.network.mode {
            NetworkMode::None => none.into(),
            _ => other.into(), // what the cell's has: the gateway's sockets, or devices
        }));
        words
    }
}

impl Isolates for Delegate<'_> {
    /// The sandbox is inside of another that lacks a part of the tools; what the runtime gives beyond that nobody here can tell. An operator who
    /// knows says it in the machine's rules.
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
                "its cell has ids of its own, which only the machine's root can give",
                "run brig as root, or use the backend native",
            );
        }
        // runc 1.1 looks for the mount of its groups whatever it is told, and a cell shows none: the task's groups are ours.
        if self.runtime.file_name().is_some_and(|name| name.to_string_lossy().starts_with("runc")) {
            return refuse(
                "runc does not run without control groups of its own, and a cell has none",
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
