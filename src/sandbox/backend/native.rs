//! `native`: our own namespaces, filter and Landlock rules, as they were asked for.

use super::Isolates;
use crate::container;
use crate::error::Result;
use crate::sandbox::options::Options;
use crate::sandbox::report::{Degraded, Guarantee};
use crate::spec::Container;
use std::path::Path;

pub(super) struct Native;

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
