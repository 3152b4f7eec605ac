//! `features`.

use super::arguments::{Arguments, End};
use super::{Context, Verb};
use crate::cli::output;
use brig::error::Result;
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
fn features(_: &Context, _: Arguments) -> Result<ExitCode> {
    output::json(&brig::container::features());
    Ok(ExitCode::SUCCESS)
}
