//! The name and the labels of a task.

use crate::error::{Error, Kind, Result};
use crate::task::store::names::checked_name;
use std::collections::BTreeMap;

const MOST: usize = 64;
const MOST_BYTES: usize = 4096;
const LONGEST_KEY: usize = 63;
const LONGEST_VALUE: usize = 255;

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// How a task is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Its name.
    pub name: Option<String>,
    /// Whether the task begins unnamed if another running task has the name.
    pub is_optional: bool,
    /// Whether the task that has the name is ended and removed first.
    pub replaces: bool,
    /// Its labels.
    pub labels: Labels,
}

impl Naming {
    pub(crate) fn set_name(&mut self, text: &str) -> Result<()> {
        self.name = Some(checked_name(text)?);
        Ok(())
    }

    pub(crate) fn add_pair(&mut self, text: &str) -> Result<()> {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is not a label", text.escape_debug()))
                .hint("give it like `--label team=search`")
        })?;
        self.add(key, value)
    }

    pub(crate) fn add(&mut self, key: &str, value: &str) -> Result<()> {
        checked_key(key)?;
        if value.len() > LONGEST_VALUE || value.chars().any(char::is_control) {
            return Err(Error::new(
                Kind::Usage,
                format!("the value of the label `{key}` is too long or not plain text"),
            )
            .hint(format!("use at most {LONGEST_VALUE} bytes without control characters")));
        }
        self.labels.insert(key.to_owned(), value.to_owned());
        let bytes: usize = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        if self.labels.len() > MOST || bytes > MOST_BYTES {
            return Err(Error::new(Kind::Usage, "the task has too many labels")
                .hint(format!("give at most {MOST} labels with {MOST_BYTES} bytes in all")));
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.replaces && self.name.is_none() {
            return Err(Error::new(Kind::Usage, "--replace is about a name, and the task has none")
                .hint("give one with --name, or leave --replace out"));
        }
        Ok(())
    }
}

/// 1 to 63 of the characters `A-Z a-z 0-9 _ . / -`, first a letter or a digit.
pub(crate) fn checked_key(key: &str) -> Result<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
    let begins_well = key.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins_well && key.len() <= LONGEST_KEY && key.bytes().all(is_plain) {
        return Ok(key);
    }
    let hint = format!("use at most {LONGEST_KEY} of A-Z a-z 0-9 _ . / - and begin with a letter or a digit");
    Err(Error::new(Kind::Usage, format!("`{}` is not the key of a label", key.escape_debug())).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_plain_keys_and_bounds() {
        let mut naming = Naming::default();
        for pair in ["team=search", "example.com/run=7", "empty=", "eq=a=b", "team=later"] {
            naming.add_pair(pair).unwrap();
        }
        assert_eq!(naming.labels["team"], "later");
        assert_eq!((naming.labels["eq"].as_str(), naming.labels["empty"].as_str()), ("a=b", ""));
        for pair in ["", "x", "=x", "-x=1", "a b=1", "a\u{1b}=1", "a=\u{1b}[2J", "a=b\nc"] {
            assert_eq!(naming.add_pair(pair).unwrap_err().kind(), Kind::Usage, "{pair:?}");
        }
        assert!(naming.add("k", &"x".repeat(LONGEST_VALUE + 1)).is_err());
        let fill = |length: usize| {
            let mut naming = Naming::default();
            (0..=MOST).map(|index| naming.add(&format!("k{index}"), &"x".repeat(length))).position(|done| done.is_err())
        };
        assert_eq!(fill(1), Some(MOST), "one more than the most");
        assert!(fill(200).is_some_and(|index| index < 21), "too many bytes");
    }
}
