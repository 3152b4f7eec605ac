//! `--version`: the lines that callers parse. If our program is called runc, go-runc needs `runc version` at the start
//! of the first; Docker searches for `version` and `commit:`.

use crate::cli::output;
use std::process::ExitCode;

/// The newest supported version of the specification.
const SPECIFICATION: &str = "1.3.0";

pub(super) fn print(name: &str) -> ExitCode {
    output::lines(lines(name));
    ExitCode::SUCCESS
}

/// The first line starts with our name, or with that of the runtime that we replace.
pub(super) fn lines(name: &str) -> [String; 3] {
    let version = env!("CARGO_PKG_VERSION");
    let name = if matches!(name, "runc" | "crun") { name } else { "brig" };
    [format!("{name} version {version}"), format!("commit: brig-{version}"), format!("spec: {SPECIFICATION}")]
}
