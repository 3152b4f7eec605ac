//! The server name in the first message of a TLS client (RFC 8446, 4.1.2). Pure.

/// The first byte of a handshake's TLS record.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// Encrypted Client Hello, and its predecessor, which hid only the name.
const ENCRYPTED: [u16; 2] = [0xfe0d, 0xffce];
/// Larger than any client's hello: post-quantum keys take about two kilobytes.
pub(super) const LARGEST: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    Incomplete,
    /// In lower case, if the hello has one.
    Name(Option<String>),
    /// With an encrypted part that may name another server. Browsers send a meaningless one to every server.
    Encrypted(Option<String>),
    Invalid,
}

pub(super) fn read(bytes: &[u8]) -> Hello {
    let mut handshake = Vec::new();
    let mut rest = bytes;
    // A client that hides the name splits the message over several records.
    loop {
        let [kind, major, _, high, low, ..] = *rest else { return incomplete(bytes) };
        if kind != HANDSHAKE || major != 3 {
            return Hello::Invalid;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > LARGEST {
            return Hello::Invalid;
        }
        let available = &rest[5..rest.len().min(5 + length)];
        handshake.extend_from_slice(available);
        if let [kind, a, b, c, ..] = *handshake {
            let whole = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
            if kind != CLIENT_HELLO || whole > LARGEST {
                return Hello::Invalid;
            }
            if let Some(body) = handshake.get(4..4 + whole) {
                return body_of(body).unwrap_or(Hello::Invalid);
            }
        }
        if available.len() < length {
            return incomplete(bytes);
        }
        rest = &rest[5 + length..];
    }
}

fn incomplete(bytes: &[u8]) -> Hello {
    if bytes.len() > LARGEST { Hello::Invalid } else { Hello::Incomplete }
}

fn take<'all>(from: &mut &'all [u8], count: usize) -> Option<&'all [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

/// Takes as many bytes as a length of `width` bytes announces.
fn field<'all>(from: &mut &'all [u8], width: usize) -> Option<&'all [u8]> {
    let length = take(from, width)?.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    take(from, length)
}

fn body_of(mut body: &[u8]) -> Option<Hello> {
    take(&mut body, 34)?; // version and random
    field(&mut body, 1)?; // session
    field(&mut body, 2)?; // cipher suites
    field(&mut body, 1)?; // compression methods
    if body.is_empty() {
        return Some(Hello::Name(None));
    }
    let mut extensions = field(&mut body, 2)?;
    let (mut name, mut is_encrypted) = (None, false);
    while !extensions.is_empty() {
        let kind = u16::from_be_bytes(take(&mut extensions, 2)?.try_into().ok()?);
        let data = field(&mut extensions, 2)?;
        match kind {
            _ if ENCRYPTED.contains(&kind) => is_encrypted = true,
            SERVER_NAME if name.is_some() => return None, // of two names, the server may take the other one
            SERVER_NAME => name = Some(server_name(data)?),
            _ => {}
        }
    }
    Some(if is_encrypted { Hello::Encrypted(name) } else { Hello::Name(name) })
}

/// RFC 6066, 3: a list with one name of the only type.
fn server_name(mut data: &[u8]) -> Option<String> {
    let mut list = field(&mut data, 2)?;
    let kind = take(&mut list, 1)?;
    let name = field(&mut list, 2)?;
    if kind != [0] || !list.is_empty() || !data.is_empty() {
        return None;
    }
    super::rule::canonical(std::str::from_utf8(name).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([0; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let mut all = Vec::new();
        for (kind, data) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((data.len() as u16).to_be_bytes());
            all.extend(data);
        }
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        message
    }

    fn named(name: &str) -> (u16, Vec<u8>) {
        let length = name.len() as u16;
        let mut data = (length + 3).to_be_bytes().to_vec();
        data.push(0);
        data.extend(length.to_be_bytes());
        data.extend(name.as_bytes());
        (0, data)
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message
            .chunks(size)
            .flat_map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
            .collect()
    }

    #[test]
    fn the_name_is_found_however_the_message_is_split() {
        let message = hello(&[(10, vec![0, 0]), named("API.example.com"), (11, vec![])]);
        for size in [1, 3, 7, 50, 4096] {
            let bytes = records(&message, size);
            assert_eq!(read(&bytes), Hello::Name(Some("api.example.com".into())), "{size}");
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Hello::Incomplete, "{length} of {size}");
            }
        }
    }

    #[test]
    fn what_hides_or_doubles_a_name_is_seen() {
        let whole = |extensions: &[(u16, Vec<u8>)]| read(&records(&hello(extensions), 4096));
        assert_eq!(whole(&[]), Hello::Name(None));
        for kind in ENCRYPTED {
            let hidden = (kind, vec![0; 8]);
            assert_eq!(whole(&[hidden.clone(), named("a.example")]), Hello::Encrypted(Some("a.example".into())));
            assert_eq!(whole(&[named("a.example"), hidden.clone(), named("b.example")]), Hello::Invalid);
            assert_eq!(whole(&[hidden]), Hello::Encrypted(None));
        }
        assert_eq!(whole(&[named("a.example"), named("b.example")]), Hello::Invalid);
        assert_eq!(whole(&[named("a b")]), Hello::Invalid);
        assert_eq!(whole(&[named("a\0.example")]), Hello::Invalid);
        assert_eq!(whole(&[(0, vec![0, 1])]), Hello::Invalid);
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Hello::Invalid);
        assert_eq!(read(&[22, 3, 1, 0, 0]), Hello::Invalid);
        assert_eq!(read(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Hello::Invalid);
    }
}
