//! `pause` and `resume`.

use super::arguments::{Arguments, End};
use super::{Context, Verb};
use brig::error::Result;
use std::process::ExitCode;

pub(super) const PAUSE: Verb = Verb {
    name: "pause",
    about: "stop all processes of a container",
    flags: &[],
    end: End::Never,
    run: pause,
    enters: false,
    failure: 1,
};
pub(super) const RESUME: Verb = Verb {
    name: "resume",
    about: "let them go on",
    flags: &[],
    end: End::Never,
    run: resume,
    enters: false,
    failure: 1,
};

fn pause(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    context.containers.pause(&context.id(&arguments)?)?;
    Ok(ExitCode::SUCCESS)
}

fn resume(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    context.containers.resume(&context.id(&arguments)?)?;
    Ok(ExitCode::SUCCESS)
}
