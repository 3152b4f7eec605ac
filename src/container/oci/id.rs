//! A container's name, checked before it becomes a directory.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::fmt;

/// NAME_MAX.
const LONGEST: usize = 255;

/// A valid name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(String);

impl ContainerId {
    /// Letters, digits, `_+.-`; not `.` or `..`. As in runc.
    pub fn new(id: &str) -> Result<ContainerId> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-".contains(&byte);
        if weaken::is_off("container-id") {
            return Ok(ContainerId(id.to_owned()));
        }
        if id.is_empty() || id == "." || id == ".." || id.len() > LONGEST || !id.bytes().all(valid) {
            return Err(Error::new(Kind::Usage, format!("invalid container ID format: `{}`", id.escape_debug()))
                .hint("use letters, digits, `_`, `+`, `.` and `-`"));
        }
        Ok(ContainerId(id.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_lead_out_of_the_directory_is_refused() {
        let long = "x".repeat(1025);
        for bad in ["", ".", "..", "../x", "a/b", "/a", "a\0", "a\n", "a b", "é", long.as_str()] {
            assert!(ContainerId::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "web-1", "a_b+c.d", "..a", "0"] {
            assert_eq!(ContainerId::new(good).unwrap().as_str(), good);
        }
    }
}
