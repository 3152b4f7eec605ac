//! Paths of names that an agent chose, and their text form.
//!
//! A name may contain newlines, terminal sequences, or invalid UTF-8. [`escape`] writes it as plain text without loss,
//! for JSON and all messages.

use crate::task::redact::display::is_deceptive;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// PATH_MAX without its NUL.
const LONGEST: usize = 4095;
/// NAME_MAX.
const LONGEST_NAME: usize = 255;

/// Text only after escaping: the target of a symbolic link.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

/// Relative to a tree's root, without an empty component, `.`, `..` or NUL. The type is the proof.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TreePath(Box<[u8]>);

impl TreePath {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Result<TreePath, &'static str> {
        let bytes: Vec<u8> = bytes.into();
        if bytes.len() > LONGEST {
            return Err("the path is longer than 4095 bytes");
        }
        if bytes.contains(&0) {
            return Err("the path has a NUL byte");
        }
        if bytes.first() == Some(&b'/') {
            return Err("the path is absolute");
        }
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" => return Err("the path has an empty component"),
                b"." | b".." => return Err("the path has a component `.` or `..`"),
                name if name.len() > LONGEST_NAME => return Err("the path has a component longer than 255 bytes"),
                _ => {}
            }
        }
        Ok(TreePath(bytes.into_boxed_slice()))
    }

    /// `None` is the root of the tree.
    pub(crate) fn join(directory: Option<&TreePath>, name: &[u8]) -> Result<TreePath, &'static str> {
        let mut bytes = directory.map(|above| above.0.to_vec()).unwrap_or_default();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        TreePath::new(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Outermost first; at least one.
    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    pub(crate) fn parent(&self) -> Option<TreePath> {
        let cut = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(TreePath(self.0[..cut].into()))
    }

    pub(crate) fn name(&self) -> &[u8] {
        let start = self.0.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        &self.0[start..]
    }

    /// Names that other file systems take for `.git` count too: vfat and a case-insensitive ext4 open `.git` under
    /// each.
    pub(crate) fn is_in_git(&self) -> bool {
        self.names().any(|name| name.eq_ignore_ascii_case(b".git") || name.eq_ignore_ascii_case(b"git~1"))
    }
}

/// Not a control character, not invisible, and without effect on the text's direction.
fn is_plain(character: char) -> bool {
    !character.is_control() && character != '\\' && !is_deceptive(character)
}

/// A character that is not printable becomes `\xNN`, a backslash `\\`.
pub(crate) fn escape(bytes: &[u8]) -> String {
    use fmt::Write;
    let mut text = String::with_capacity(bytes.len());
    let hexadecimal = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                plain if is_plain(plain) => text.push(plain),
                other => hexadecimal(&mut text, other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        hexadecimal(&mut text, chunk.invalid());
    }
    text
}

/// In a record: escaped, and as JSON.
pub(crate) fn written(bytes: &[u8]) -> u64 {
    json_length(&escape(bytes))
}

/// JSON escapes quotes and backslashes again.
pub(crate) fn json_length(text: &str) -> u64 {
    let more = text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    (text.len() + more + 2) as u64
}

/// Reverses [`escape`]; `None` for any other text.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                bytes.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push(u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(bytes)
}

impl fmt::Display for TreePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&escape(&self.0))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{self}`")
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`", escape(&self.0))
    }
}

impl Serialize for TreePath {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for TreePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TreePath, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = unescape(&text).ok_or_else(|| de::Error::custom(format!("the path `{text}` has a bad escape")))?;
        TreePath::new(bytes).map_err(|why| de::Error::custom(format!("`{text}`: {why}")))
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&escape(&self.0))
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Raw, D::Error> {
        let text = String::deserialize(from)?;
        match unescape(&text) {
            Some(bytes) if !bytes.contains(&0) => Ok(Raw(bytes)),
            _ => Err(de::Error::custom(format!("the name `{text}` has a bad escape"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_string_survives_its_text(bytes: Vec<u8>) {
            let text = escape(&bytes);
            prop_assert_eq!(serde_json::to_string(&text).unwrap().len() as u64, written(&bytes));
            prop_assert_eq!(unescape(&text), Some(bytes));
            prop_assert!(text.chars().all(|each| !each.is_control()));
        }
    }

    #[test]
    fn a_name_cannot_speak_to_the_terminal() {
        assert_eq!(escape(b"a\x1b[2Jb\nc\\d\xff"), "a\\x1b[2Jb\\x0ac\\\\d\\xff");
        assert_eq!(escape("né\u{202e}".as_bytes()), "né\\xe2\\x80\\xae");
        for hidden in ['\u{ad}', '\u{61c}', '\u{200b}', '\u{2066}', '\u{fe0f}', '\u{feff}', '\u{e0041}'] {
            let text = escape(format!("a{hidden}b").as_bytes());
            assert!(text.is_ascii() && text.starts_with("a\\x"), "{text}");
        }
    }

    #[test]
    fn only_paths_that_stay_in_the_tree_are_paths() {
        let check = |bytes: &[u8], why: &str| assert_eq!(TreePath::new(bytes).unwrap_err(), why);
        check(b"/etc/passwd", "the path is absolute");
        check(b"a/../b", "the path has a component `.` or `..`");
        check(b"./a", "the path has a component `.` or `..`");
        check(b"a//b", "the path has an empty component");
        check(b"a/", "the path has an empty component");
        check(b"", "the path has an empty component");
        check(b"a\0b", "the path has a NUL byte");
        check(&[b'a'; 256], "the path has a component longer than 255 bytes");
        assert!(serde_json::from_str::<TreePath>("\"a/\\\\x2e\\\\x2e/b\"").is_err(), "an escape hides no dots");
        let path = TreePath::new(*b"a/b/c").unwrap();
        assert_eq!((path.parent().unwrap().as_bytes(), path.name()), (&b"a/b"[..], &b"c"[..]));
    }

    #[test]
    fn a_git_directory_is_known_in_every_spelling() {
        let check = |path: &str, is: bool| assert_eq!(TreePath::new(path).unwrap().is_in_git(), is, "{path}");
        check(".git", true);
        check("a/.GIT/hooks/x", true);
        check("vendor/x/.git", true);
        check("GIT~1/config", true);
        check(".gitignore", false);
        check("git/x", false);
    }
}
