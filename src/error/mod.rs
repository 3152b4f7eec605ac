//! One error for the whole crate. Each level on the way up adds a step: verb and object in backticks, no full stop.
//!
//! Out: `start `web-1`: create the namespaces: Operation not permitted (os error 1)`. Only the last function that
//! handles an error prints it.

mod kind;
pub(crate) mod wire;
mod words;

pub use kind::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;
pub(crate) use words::words;

/// A result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was attempted, on which object, the cause, and one action that helps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Inner {
    kind: Kind,
    /// Innermost first.
    steps: Vec<String>,
    errno: Option<i32>,
    /// For a system error: the text of strerror(3).
    cause: String,
    hint: Option<String>,
}

impl Error {
    /// An error with a cause of brig's own.
    pub fn new(kind: Kind, cause: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, steps: Vec::new(), errno: None, cause: cause.into(), hint: None }))
    }

    /// An error with the text of strerror(3), on which callers such as Docker match.
    pub fn os(kind: Kind, cause: impl Into<std::io::Error>) -> Error {
        let cause = cause.into();
        let errno = cause.raw_os_error();
        Error(Box::new(Inner { kind, steps: Vec::new(), errno, cause: cause.to_string(), hint: None }))
    }

    /// Adds a step: verb and object.
    #[must_use]
    pub fn doing(mut self, step: impl Into<String>) -> Error {
        self.0.steps.push(step.into());
        self
    }

    /// Adds one action that helps. The innermost hint is the most specific and stays.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        if self.0.hint.is_none() {
            self.0.hint = Some(hint.into());
        }
        self
    }

    /// Replaces the hint.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Replaces the kind.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Error {
        self.0.kind = kind;
        self
    }

    /// The kind, for branching.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The error number of a failed system call.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// The hint.
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The text with the system's cause as Go prints it: in lower case, without the number. Engines match on
    /// `permission denied` and the like; Docker chooses the exit status 126 or 127 by them.
    pub fn engine_text(&self) -> String {
        let text = self.to_string();
        let Some(number) = self.0.errno else { return text };
        let Some(cause) = self.0.cause.strip_suffix(&format!(" (os error {number})")) else { return text };
        let steps = &text[..text.len() - self.0.cause.len()];
        format!("{steps}{}", cause.to_lowercase())
    }

    /// See [`Kind::retryable`].
    pub fn retryable(&self) -> bool {
        self.0.kind.retryable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in self.0.steps.iter().rev() {
            write!(out, "{step}: ")?;
        }
        out.write_str(&self.0.cause)
    }
}

impl std::error::Error for Error {}

/// Turns a system error into an [`Error`].
pub trait Context<T> {
    /// Adds a kind and a step.
    fn failing<S: Into<String>>(self, kind: Kind, step: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Context<T> for std::result::Result<T, E> {
    fn failing<S: Into<String>>(self, kind: Kind, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| Error::os(kind, cause).doing(step()))
    }
}

/// Adds a step or a hint to a result.
pub trait Step<T> {
    /// See [`Error::doing`].
    fn doing<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T>;
    /// See [`Error::hint`].
    fn hint<S: Into<String>>(self, hint: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Step<T> for Result<T> {
    fn doing<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.doing(step()))
    }

    fn hint<S: Into<String>>(self, hint: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.hint(hint()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn steps_print_outermost_first_and_the_cause_last() {
        let error = Error::os(Kind::UserNamespace, Errno::PERM)
            .doing("create the container's namespaces")
            .doing("start `web-1`");
        assert_eq!(
            error.to_string(),
            "start `web-1`: create the container's namespaces: Operation not permitted (os error 1)"
        );
    }

    #[test]
    fn engine_text_has_the_cause_in_lower_case() {
        let error = Error::os(Kind::Mount, Errno::NOTDIR).doing("Mount `/A`");
        assert_eq!(error.engine_text(), "Mount `/A`: not a directory");
        assert_eq!(Error::new(Kind::Mount, "Our words").engine_text(), "Our words");
    }

    #[test]
    fn innermost_hint_stays() {
        let error = Error::new(Kind::Usage, "no").hint("near").hint("far");
        assert_eq!(error.advice(), Some("near"));
    }
}
