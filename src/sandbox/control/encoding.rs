//! Words and variables in messages: text, or an array of bytes for what is not UTF-8.

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Bytes(Vec<u8>),
}

impl Word {
    fn new(word: &OsStr) -> Word {
        match word.to_str() {
            Some(text) => Word::Text(text.into()),
            None => Word::Bytes(word.as_bytes().into()),
        }
    }

    fn into_os(self) -> OsString {
        match self {
            Word::Text(text) => text.into(),
            Word::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

pub(super) mod words {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(words: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(words.iter().map(|word| Word::new(word)))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OsString>, D::Error> {
        Ok(Vec::<Word>::deserialize(from)?.into_iter().map(Word::into_os).collect())
    }
}

pub(super) mod variables {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        variables: &[(OsString, OsString)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(variables.iter().map(|(name, value)| (Word::new(name), Word::new(value))))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let variables = Vec::<(Word, Word)>::deserialize(from)?;
        Ok(variables.into_iter().map(|(name, value)| (name.into_os(), value.into_os())).collect())
    }
}
