//! Ids of users and groups on a command line.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;

/// `UID[:GID]` in digits only: an invalid number must not become 0 (CVE-2026-30892).
///
/// # Errors
/// [`Kind::Usage`] for anything else.
pub fn user(word: &str) -> Result<(u32, Option<u32>)> {
    match word.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, Some(number(gid)?))),
        None => Ok((number(word)?, None)),
    }
}

/// One id in digits only.
///
/// # Errors
/// [`Kind::Usage`] for anything else, and for ids above 2147483647.
pub fn number(word: &str) -> Result<u32> {
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
    use super::user;
    use proptest::prelude::*;

    #[test]
    fn every_id_is_read_as_itself() {
        for id in 0..70_000 {
            assert_eq!(user(&id.to_string()).unwrap(), (id, None));
            assert_eq!(user(&format!("{id}:{id}")).unwrap(), (id, Some(id)));
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
            assert!(user(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn a_word_is_the_number_it_prints_as_or_an_error(word in "\\PC{0,12}") {
            if let Ok((uid, None)) = user(&word) {
                prop_assert!(word.trim_start_matches('0') == uid.to_string().trim_start_matches('0'));
            }
        }
    }
}
