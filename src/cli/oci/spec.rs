//! `spec`: writes a first config.json.

use super::arguments::{Arguments, End, switch, usage, value};
use super::{Context, Verb};
use brig::error::{Error, Kind, Result};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;

pub(super) const SPEC: Verb = Verb {
    name: "spec",
    about: "write a config.json to begin with",
    flags: &[value("bundle", Some('b'), "directory of the bundle"), switch("rootless", None, "for an ordinary user")],
    end: End::Never,
    run: spec,
    enters: false,
    failure: 1,
};

fn spec(_: &Context, arguments: Arguments) -> Result<ExitCode> {
    if !arguments.positional.is_empty() {
        return Err(usage(format!("requires exactly 0 arguments, {} given", arguments.positional.len())));
    }
    let path = arguments.path("bundle")?.unwrap_or_default().join("config.json");
    let text =
        serde_json::to_string_pretty(&brig::container::template(arguments.is_on("rootless"))).unwrap_or_default();
    let opened = OpenOptions::new().write(true).create_new(true).open(&path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|cause| match cause.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(Kind::Exists, "File config.json exists. Remove it first"),
        _ => Error::os(Kind::Usage, cause).doing(format!("write `{}`", path.display())),
    })?;
    Ok(ExitCode::SUCCESS)
}
