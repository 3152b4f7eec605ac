//! `features`, and the two verbs that we have not: `checkpoint` and `restore`, which say so in the way that callers ask.

use super::arguments::{Arguments, End, value};
use super::{Context, Verb};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use std::process::ExitCode;

pub(super) const FEATURES: Verb = Verb {
    name: "features",
    about: "print what this runtime knows, as JSON",
    flags: &[],
    end: End::Never,
    run: features,
    enters: false,
    failure: 1,
};
pub(super) const CHECKPOINT: Verb = Verb {
    name: "checkpoint",
    about: "not supported",
    flags: &[value("image-path", None, "")],
    end: End::After(0),
    run: unsupported,
    enters: false,
    failure: 1,
};
pub(super) const RESTORE: Verb = Verb { name: "restore", about: "not supported", ..CHECKPOINT };

fn features(_: &Context, _: Arguments) -> Result<ExitCode> {
    output::json(&brig::container::features());
    Ok(ExitCode::SUCCESS)
}

fn unsupported(_: &Context, _: Arguments) -> Result<ExitCode> {
    Err(Error::new(Kind::Usage, "checkpoint and restore are not supported by this runtime"))
}
