//! Who isolates: `native` (we), `oci:PATH` (another OCI runtime, in a cell of ours), `local` (nobody).
//!
//! In: the container as `profile` plans it, for the native one. Out: the container that is launched instead, its level of isolation, declared, and what
//! it cannot enforce. Everything else is the same for all: workspace, disk, cgroup, gateway, supervision, collection, redaction, teardown.

mod cell;
mod delegate;
mod local;

use super::options::Options;
use super::report::{Degraded, Guarantee};
use crate::container;
use crate::error::{Error, Kind, Result, Step as _};
use crate::spec::Container;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a sandbox asks of who isolates.
pub(crate) trait Isolates {
    /// The level of isolation that it gives here. Declared, never guessed.
    fn guarantee(&self) -> Guarantee;

    /// What was asked for, or holds by default, and it cannot enforce: names of `--allow-degraded`, each with the reason.
    fn lacks(&self, options: &Options) -> Vec<Degraded>;

    /// Says what it cannot be asked for at all, before anything is made.
    fn check(&self, options: &Options) -> Result<()>;

    /// The container that is launched for the one that was asked for. `stage` is the task's own directory on the host.
    fn shape(&self, asked: Container, options: &Options, stage: &Path) -> Result<Container>;

    /// What holds the command, for `--explain`: instead of the rows of these names.
    fn words(&self) -> Vec<(&'static str, String)>;
}

/// Brig's own namespaces, filter and Landlock rules, as they were requested.
struct Native;

impl Isolates for Native {
    fn guarantee(&self) -> Guarantee {
        match (container::privileged(), container::nested()) {
            (true, _) => Guarantee::Full,
            (_, true) => Guarantee::Nested,
            _ => Guarantee::Rootless,
        }
    }

    /// What this machine cannot give `container` says, limit by limit.
    fn lacks(&self, _options: &Options) -> Vec<Degraded> {
        Vec::new()
    }

    fn check(&self, _options: &Options) -> Result<()> {
        Ok(())
    }

    fn shape(&self, asked: Container, _options: &Options, _stage: &Path) -> Result<Container> {
        Ok(asked)
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A backend by its name: `native`, `oci:PATH`, `local`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Our own namespaces, filter, Landlock rules.
    #[default]
    Native,
    /// Another OCI runtime, by its path: the task's root and command are its bundle.
    Oci(PathBuf),
    /// None: the command runs straight on the host. For development only.
    Local,
}

impl Backend {
    /// Who does it.
    pub(crate) fn isolates(&self) -> Box<dyn Isolates + '_> {
        match self {
            Backend::Native => Box::new(Native),
            Backend::Oci(path) => Box::new(delegate::Delegate { runtime: path }),
            Backend::Local => Box::new(local::Local),
        }
    }

    /// The level of isolation that it gives here.
    pub(crate) fn guarantee(&self) -> Guarantee {
        self.isolates().guarantee()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Native => out.write_str("native"),
            Backend::Oci(path) => write!(out, "oci:{}", path.display()),
            Backend::Local => out.write_str("local"),
        }
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Backend> {
        match (text, text.strip_prefix("oci:")) {
            ("native", _) => Ok(Backend::Native),
            ("local", _) => Ok(Backend::Local),
            (_, Some(path)) if path.starts_with('/') => Ok(Backend::Oci(path.into())),
            _ => Err(Error::new(Kind::Usage, format!("there is no backend `{}`", text.escape_debug()))
                .hint("the backends are native, oci:/path/to/runtime, local")),
        }
    }
}

/// Refuses what the backend cannot enforce and the caller did not give up by name; returns what was given up.
pub(super) fn given_up(options: &Options) -> Result<Vec<Degraded>> {
    let lacks = options.backend.isolates().lacks(options);
    let refused: Vec<_> =
        lacks.iter().filter(|each| !options.may_degrade.contains(&each.name)).map(|each| each.name.as_str()).collect();
    let Some(first) = lacks.iter().find(|each| refused.contains(&each.name.as_str())) else { return Ok(lacks) };
    let quoted: Vec<_> = refused.iter().map(|name| format!("`{name}`")).collect();
    Err(Error::new(Kind::Backend, first.reason.clone()))
        .doing(|| format!("enforce {} with the backend `{}`", quoted.join(", "), options.backend))
        .hint(|| format!("use another backend, or go without: --allow-degraded {}", refused.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_by_one_of_three_words() {
        for text in ["native", "local", "oci:/usr/bin/runsc"] {
            assert_eq!(text.parse::<Backend>().unwrap().to_string(), text);
        }
        for text in ["", "docker", "oci:", "oci:runsc", "oci", "Native"] {
            assert!(text.parse::<Backend>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_backend_cannot_enforce_is_refused_by_name() {
        let check = |backend: &str, allowed: &[&str], refused: &[&str]| {
            let options = Options {
                backend: backend.parse().unwrap(),
                may_degrade: allowed.iter().map(|&name| name.to_owned()).collect(),
                ..Options::new(vec!["true".into()])
            };
            match given_up(&options) {
                Ok(_) => assert!(refused.is_empty(), "{backend} {allowed:?}"),
                Err(error) => {
                    let words = error.to_string();
                    assert!(!refused.is_empty(), "{words}");
                    assert!(refused.iter().all(|name| words.contains(&format!("`{name}`"))), "{words}");
                }
            }
        };
        check("native", &[], &[]);
        check("oci:/usr/bin/crun", &[], &["landlock"]);
        check("oci:/usr/bin/crun", &["landlock"], &[]);
        check("oci:/usr/bin/brig", &[], &[]);
        check("local", &[], &["isolation", "network", "disk", "inodes"]);
        check("local", &["isolation", "disk", "inodes"], &["network"]);
        check("local", &["isolation", "network", "disk", "inodes"], &[]);
    }
}
