//! The backends of isolation: `native` (brig), `oci:PATH` (another OCI runtime in a cell), `local` (none).
//!
//! A backend turns the container that `profile` plans into the one to launch, and declares its isolation and its gaps.

mod cell;
mod delegate;
mod local;

use super::options::{Backend, Options};
use super::report::{Degraded, Guarantee};
use crate::container;
use crate::error::{Error, Kind, Result, Step as _};
use crate::spec::Container;
use std::path::Path;

pub(crate) trait Isolates {
    /// The level of isolation is declared, never guessed.
    fn guarantee(&self) -> Guarantee;

    /// Protections that it cannot enforce: names of `--allow-degraded`, with reasons.
    fn lacks(&self, options: &Options) -> Vec<Degraded>;

    /// Refuses options that it cannot support, before anything is made.
    fn check(&self, options: &Options) -> Result<()>;

    /// `stage` is the task's own directory on the host.
    fn shape(&self, asked: Container, options: &Options, stage: &Path) -> Result<Container>;

    /// Rows for `--explain`, in place of those of these names.
    fn words(&self) -> Vec<(&'static str, String)>;
}

struct Native;

impl Isolates for Native {
    fn guarantee(&self) -> Guarantee {
        match (container::privileged(), container::nested()) {
            (true, _) => Guarantee::Full,
            (_, true) => Guarantee::Nested,
            _ => Guarantee::Rootless,
        }
    }

    /// `container` reports what this machine cannot enforce, limit by limit.
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

impl Backend {
    pub(crate) fn isolates(&self) -> Box<dyn Isolates + '_> {
        match self {
            Backend::Native => Box::new(Native),
            Backend::Oci(path) => Box::new(delegate::Delegate { runtime: path }),
            Backend::Local => Box::new(local::Local),
        }
    }

    pub(crate) fn guarantee(&self) -> Guarantee {
        self.isolates().guarantee()
    }
}

/// Refuses missing protections that the caller does not allow by name.
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
