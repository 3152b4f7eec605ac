//! The DER encodings (X.690) of a certificate. Pure.

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const UTC_TIME: u8 = 0x17;

pub(super) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        short @ 0..=0x7f => out.push(short as u8),
        long => {
            let bytes = long.to_be_bytes();
            let first = bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len() - 1);
            out.push(0x80 | (bytes.len() - first) as u8);
            out.extend_from_slice(&bytes[first..]);
        }
    }
    out.extend_from_slice(content);
    out
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    value(SEQUENCE, &parts.concat())
}

/// Values below a context-specific tag.
pub(super) fn tagged(number: u8, content: &[u8]) -> Vec<u8> {
    value(0xa0 | number, content)
}

/// The context-specific tag replaces the value's own.
pub(super) fn implicit(number: u8, content: &[u8]) -> Vec<u8> {
    value(0x80 | number, content)
}

pub(super) fn object(encoded: &[u8]) -> Vec<u8> {
    value(OBJECT, encoded)
}

/// A non-negative number.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let first = bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len().saturating_sub(1));
    let bytes = &bytes[first..];
    let sign: &[u8] = if bytes.first().is_some_and(|&byte| byte >= 0x80) { &[0] } else { &[] };
    value(INTEGER, &[sign, bytes].concat())
}

/// The last `unused` bits are padding.
pub(super) fn bits(unused: u8, bytes: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[unused], bytes].concat())
}

pub(super) fn yes() -> Vec<u8> {
    value(BOOLEAN, &[0xff])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers_are_written_as_short_as_they_must_be() {
        assert_eq!(value(4, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(value(4, &[0; 0x80])[..3], [4, 0x81, 0x80]);
        assert_eq!(value(4, &[0; 0x1234])[..4], [4, 0x82, 0x12, 0x34]);
        assert_eq!(integer(&[0, 0, 5]), [2, 1, 5]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[0]), [2, 1, 0]);
    }
}
