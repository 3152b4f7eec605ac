//! `features`, `spec` and `--version`.

use super::arguments::{Arguments, switch, usage, value};
use super::{Context, Verb, verb};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;

pub(super) const FEATURES: Verb = verb("features", "print what this runtime knows, as JSON", &[], features);

fn features(_: &Context, _: Arguments) -> Result<ExitCode> {
    output::json(&brig::container::features());
    Ok(ExitCode::SUCCESS)
}

pub(super) const SPEC: Verb = verb(
    "spec",
    "write a config.json to begin with",
    &[value("bundle", Some('b'), "directory of the bundle"), switch("rootless", None, "for an ordinary user")],
    spec,
);

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

/// The newest supported version of the specification.
const SPECIFICATION: &str = "1.3.0";

/// Prints the version as callers parse it. go-runc expects `runc version` on the first line of a program of that name;
/// Docker reads `version` and `commit:`.
pub(super) fn print_version(name: &str) -> ExitCode {
    output::lines(version_lines(name));
    ExitCode::SUCCESS
}

/// The first line begins with the program's name on this call.
pub(super) fn version_lines(name: &str) -> [String; 3] {
    let version = env!("CARGO_PKG_VERSION");
    let name = if matches!(name, "runc" | "crun") { name } else { "brig" };
    // Of rootfs/binary, else of build.rs.
    let commit = [option_env!("BRIG_COMMIT"), option_env!("BRIG_COMMIT_OF_CLONE")]
        .into_iter()
        .flatten()
        .find(|commit| !commit.is_empty())
        .unwrap_or(concat!("brig-", env!("CARGO_PKG_VERSION")));
    [format!("{name} version {version}"), format!("commit: {commit}"), format!("spec: {SPECIFICATION}")]
}
