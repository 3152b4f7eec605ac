//! `--version`: the lines that callers read. go-runc wants the first to begin with `runc version` when we are called so; Docker looks for
//! `version` and `commit:`.

use crate::cli::output;
use std::process::ExitCode;

/// The newest version of the specification that is carried out.
const SPECIFICATION: &str = "1.3.0";

pub(super) fn print(name: &str) -> ExitCode {
    output::lines(lines(name));
    ExitCode::SUCCESS
}

/// The first line begins with our name, or with that of the runtime whose place we take.
pub(super) fn lines(name: &str) -> [String; 3] {
    let version = env!("CARGO_PKG_VERSION");
    let name = if matches!(name, "runc" | "crun") { name } else { "brig" };
    [format!("{name} version {version}"), format!("commit: brig-{version}"), format!("spec: {SPECIFICATION}")]
}
