//! What is printed: errors in three lines on stderr, tables and `--json` from the same rows on stdout.

use brig::error::Error;

/// The three lines of an error: what failed, what to do, where to read more.
pub(super) fn error(error: &Error) {
    eprintln!("error: {error}");
    if let Some(hint) = error.advice() {
        eprintln!("hint:  {hint}");
    }
    let code = error.kind().code();
    eprintln!("code:  {code}   (docs/errors.md#{})", code.to_lowercase());
}
