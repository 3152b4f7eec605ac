//! Hashes by ring: without SHA instructions it is twice as fast as the `sha2` crate (350 beside 184 MB/s with AVX2). An
//! image is hashed twice.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

#[derive(Clone)]
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn sha256() -> Hasher {
        Hasher(Context::new(&SHA256))
    }

    pub(crate) fn sha512() -> Hasher {
        Hasher(Context::new(&SHA512))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// For `LENGTH` of the algorithm.
    pub(crate) fn finish<const LENGTH: usize>(self) -> [u8; LENGTH] {
        array(self.0)
    }

    pub(crate) fn hexadecimal(self) -> String {
        hexadecimal(self.0.finish().as_ref())
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Hasher::sha256();
    hasher.update(bytes);
    hasher.finish()
}

/// For names in some formats, not for security.
pub(crate) fn sha1(parts: &[&[u8]]) -> [u8; 20] {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| context.update(part));
    array(context)
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn array<const LENGTH: usize>(context: Context) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // FIPS 180-4, examples of "abc".
        assert_eq!(hexadecimal(&sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hexadecimal(&sha1(&[b"a", b"bc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let mut hasher = Hasher::sha512();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert!(hasher.hexadecimal().starts_with("ddaf35a193617abacc417349ae20413112e6fa4e89a97ea2"));
    }
}
