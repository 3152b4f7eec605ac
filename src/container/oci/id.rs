//! Words of a command line: a container's name, checked before it becomes a directory, and ids of users and groups.

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

/// `UID[:GID]` in digits only: an invalid number must not become 0 (CVE-2026-30892).
///
/// # Errors
/// [`Kind::Usage`] for anything else.
pub fn parse_user(word: &str) -> Result<(u32, Option<u32>)> {
    match word.split_once(':') {
        Some((uid, gid)) => Ok((parse_id(uid)?, Some(parse_id(gid)?))),
        None => Ok((parse_id(word)?, None)),
    }
}

/// One id in digits only.
///
/// # Errors
/// [`Kind::Usage`] for anything else, and for ids above 2147483647.
pub fn parse_id(word: &str) -> Result<u32> {
    if weaken::is_off("user-number") {
        let digits = word.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        return Ok(digits.parse::<u64>().unwrap_or(0) as u32); // the result of C's strtoul and a cast
    }
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    // The largest value means "no user" in system calls, and above i32 callers disagree about the sign.
    let number = word.parse().ok().filter(|number| digits && *number <= i32::MAX as u32);
    number.ok_or_else(|| Error::new(Kind::Usage, format!("`{}` is not a user or group id", word.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn every_id_is_read_as_itself() {
        for id in 0..70_000 {
            assert_eq!(parse_user(&id.to_string()).unwrap(), (id, None));
            assert_eq!(parse_user(&format!("{id}:{id}")).unwrap(), (id, Some(id)));
        }
    }

    #[test]
    fn what_is_not_all_digits_is_refused() {
        for wrong in [
            "",
            "1:",
            ":1",
            " 1",
            "1 ",
            "1x",
            "x",
            "-1",
            "+1",
            "0x1",
            "1:2:3",
            "4294967296",
            "4294967295",
            "2147483648",
            "١",
        ] {
            assert!(parse_user(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn a_word_is_the_number_it_prints_as_or_an_error(word in "\\PC{0,12}") {
            if let Ok((uid, None)) = parse_user(&word) {
                prop_assert!(word.trim_start_matches('0') == uid.to_string().trim_start_matches('0'));
            }
        }
    }
}
