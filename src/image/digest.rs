//! A [`Digest`] has passed the grammar, so its text is safe in a path or a URL (CVE-2024-3727: an unchecked
//! `sha256:../../x` became a path).

use crate::error::{Error, Kind, Result};
use crate::files::hash;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Those that image-spec registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    /// Also the folder below `blobs/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn hex_length(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

/// A checked content digest such as `sha256:e3b0…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// The SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(bytes);
        hasher.finish()
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The hexadecimal part: safe as a file name.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// The first twelve digits, for tables.
    pub fn short(&self) -> &str {
        &self.hex[..12]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            Err(Error::new(Kind::Image, why).doing(format!("read the digest `{}`", shown.escape_debug())))
        };
        let Some((name, hex)) = text.split_once(':') else {
            return wrong("`algorithm:` is missing before the digits");
        };
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return wrong("only sha256 and sha512 can be checked"),
        };
        if crate::sys::weaken::is_off("image-digest-grammar") {
            // Weakened, as in containers/image: the text becomes a path.
            return Ok(Digest { algorithm, hex: hex.to_owned() });
        }
        if hex.len() != algorithm.hex_length() || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return wrong("not the right number of lower-case hexadecimal digits");
        }
        Ok(Digest { algorithm, hex: hex.to_owned() })
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Digest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

pub(crate) struct Hasher {
    algorithm: Algorithm,
    state: hash::Hasher,
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Hasher {
        let state = match algorithm {
            Algorithm::Sha256 => hash::Hasher::sha256(),
            Algorithm::Sha512 => hash::Hasher::sha512(),
        };
        Hasher { algorithm, state }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest { algorithm: self.algorithm, hex: self.state.hexadecimal() }
    }
}

/// ChainIDs, bottom first (image-spec, config.md, "Layer ChainID").
pub(crate) fn chain(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let next = match chain.last() {
            None => diff_id.clone(),
            Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
        };
        chain.push(next);
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_digest_is_hashed_printed_and_read_back() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), Digest::of(b""));
    }

    #[test]
    fn text_that_could_become_a_path_is_no_digest() {
        let traversal = format!("sha256:../../{}", "a".repeat(58));
        let upper = EMPTY.to_uppercase();
        for text in ["", "sha256", "sha256:", "sha256:../../x", "md5:00", &traversal, &upper, "sha256:e3b0\n"] {
            assert!(text.parse::<Digest>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_chain_starts_with_the_first_diff_id_and_depends_on_all_below() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let one = chain(&[a.clone(), b.clone()]);
        assert_eq!(one[0], a);
        assert_eq!(one[1], Digest::of(format!("{a} {b}").as_bytes()));
        assert_ne!(one[1], chain(&[b, a])[1]);
    }
}
