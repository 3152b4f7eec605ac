//! One error type for the whole crate: what we were doing, on which object, the cause, and what to do.
//!
//! In: a cause from the system or a sentence of our own, with a [`Kind`]. Words are added on the way up with
//! [`Error::doing`] (verb and object in backticks, no full stop); the hint is one action.
//! Out: `start `web-1`: create the namespaces: Operation not permitted (os error 1)`.
//! Not here: logging. An error is printed where it ends, never where it passes.

mod kind;
pub(crate) mod wire;

pub use kind::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, on what, why, and what to do about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Inner {
    kind: Kind,
    /// What was being done, innermost first (each level on the way up pushes one).
    steps: Vec<String>,
    /// The system's own error number, where it was a system call that failed.
    errno: Option<i32>,
    /// The cause in words; for a system error its strerror text.
    cause: String,
    hint: Option<String>,
}

impl Error {
    /// An error of our own, in words.
    pub fn new(kind: Kind, cause: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, steps: Vec::new(), errno: None, cause: cause.into(), hint: None }))
    }

    /// An error of the system. The text is strerror's: callers such as Docker match on it.
    pub fn os(kind: Kind, cause: impl Into<std::io::Error>) -> Error {
        let cause = cause.into();
        let errno = cause.raw_os_error();
        Error(Box::new(Inner { kind, steps: Vec::new(), errno, cause: cause.to_string(), hint: None }))
    }

    /// Adds what was being done when this happened: verb and object.
    #[must_use]
    pub fn doing(mut self, step: impl Into<String>) -> Error {
        self.0.steps.push(step.into());
        self
    }

    /// Adds what to do about it, one action. The innermost hint, which knows most, stays.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        if self.0.hint.is_none() {
            self.0.hint = Some(hint.into());
        }
        self
    }

    /// Replaces what to do about it, where the caller knows more than the place that failed.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Says which kind it is, where the caller knows better than the place that failed.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Error {
        self.0.kind = kind;
        self
    }

    /// The kind, for branching and for the exit status.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The system's error number, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// What to do about it.
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The same words with the system's cause as Go programs print it: in small letters, without its number. Engines match on `permission denied`,
    /// `not a directory` and the like, and Docker tells 126 and 127 apart by them.
    pub fn engine_text(&self) -> String {
        let text = self.to_string();
        let Some(number) = self.0.errno else { return text };
        let Some(cause) = self.0.cause.strip_suffix(&format!(" (os error {number})")) else { return text };
        let steps = &text[..text.len() - self.0.cause.len()];
        format!("{steps}{}", cause.to_lowercase())
    }

    /// Whether trying again later may help without anyone changing anything.
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

/// Adds words to the results of system calls and of our own functions alike.
pub trait Context<T> {
    /// Turns a failure into one of `kind` that says what was being done.
    fn failing<S: Into<String>>(self, kind: Kind, step: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Context<T> for std::result::Result<T, E> {
    fn failing<S: Into<String>>(self, kind: Kind, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| Error::os(kind, cause).doing(step()))
    }
}

/// Adds a step to a result that carries our error already.
pub trait Step<T> {
    /// Says what was being done, one level further out.
    fn doing<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T>;
    /// Says what to do about it, unless something deeper said it already.
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
    fn words_are_printed_outermost_first_and_the_cause_last() {
        let error = Error::os(Kind::UserNamespace, Errno::PERM)
            .doing("create the container's namespaces")
            .doing("start `web-1`");
        assert_eq!(
            error.to_string(),
            "start `web-1`: create the container's namespaces: Operation not permitted (os error 1)"
        );
    }

    #[test]
    fn engines_read_the_cause_in_small_letters() {
        let error = Error::os(Kind::Mount, Errno::NOTDIR).doing("Mount `/A`");
        assert_eq!(error.engine_text(), "Mount `/A`: not a directory");
        assert_eq!(Error::new(Kind::Mount, "Our words").engine_text(), "Our words");
    }

    #[test]
    fn the_innermost_hint_stays() {
        let error = Error::new(Kind::Usage, "no").hint("near").hint("far");
        assert_eq!(error.advice(), Some("near"));
    }
}
