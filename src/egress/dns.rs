//! DNS messages (RFC 1035) with the sandbox and with servers outside. Pure.

use super::rule::canonical;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const A: u16 = 1;
pub(super) const PTR: u16 = 12;
pub(super) const AAAA: u16 = 28;
const OPT: u16 = 41;
const ANY: u16 = 255;
const INTERNET: u16 = 1;
const HEADER: usize = 12;
/// Flags of a response: QR and recursion available.
const RESPONSE: u16 = 0x8080;
const RECURSION_DESIRED: u16 = 0x0100;
const TRUNCATED: u16 = 0x0200;
/// Seconds that the sandbox may cache an answer; its meaning never changes.
const TIME_TO_LIVE: u32 = 60;
/// The largest UDP answer that the gateway accepts and announces (DNS flag day 2020).
pub(super) const LARGEST_DATAGRAM: u16 = 1232;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Code {
    Good = 0,
    Malformed = 1,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    id: u16,
    flags: u16,
    /// Returned unchanged: some clients randomise upper and lower case.
    section: Vec<u8>,
    has_options: bool,
    /// Lower case, without a final dot; empty if it is not a host name.
    pub name: String,
    /// The record type.
    pub kind: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Address(IpAddr),
    Pointer(String),
}

/// An error contains the answer to send, or `None` if the message deserves none.
pub(super) fn read_question(bytes: &[u8]) -> Result<Question, Option<Vec<u8>>> {
    let field = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (Some(id), Some(flags)) = (field(0), field(2)) else { return Err(None) };
    if flags & 0x8000 != 0 || bytes.len() < HEADER {
        return Err(None); // a response or an incomplete message
    }
    let refuse = |code| Err(Some(message(id, flags, code, &[], &[], false)));
    if flags & 0x7800 != 0 {
        return refuse(Code::NotImplemented);
    }
    if field(4) != Some(1) {
        return refuse(Code::Malformed);
    }
    let Some((labels, end)) = labels(bytes, HEADER) else { return refuse(Code::Malformed) };
    let (Some(kind), Some(class)) = (field(end), field(end + 2)) else { return refuse(Code::Malformed) };
    if class != INTERNET {
        return refuse(Code::Refused);
    }
    // Clients put an OPT record first after the question: the root's name, then its type.
    let has_options = bytes.get(end + 4..end + 7).is_some_and(|next| next == [0, 0, OPT as u8]);
    let name = canonical(&labels).unwrap_or_default();
    let section = bytes.get(HEADER..end + 4).unwrap_or_default().to_vec();
    Ok(Question { id, flags, section, has_options, name, kind })
}

impl Question {
    /// `Good` without a record means that the name has none of this type.
    pub(super) fn answer(&self, code: Code, records: &[Record]) -> Vec<u8> {
        message(self.id, self.flags, code, &self.section, records, self.has_options)
    }

    pub(super) fn addresses(&self, v4: Ipv4Addr, v6: Ipv6Addr) -> Vec<Record> {
        match self.kind {
            A => vec![Record::Address(v4.into())],
            AAAA => vec![Record::Address(v6.into())],
            ANY => vec![Record::Address(v4.into()), Record::Address(v6.into())],
            _ => Vec::new(), // also HTTPS and SVCB: no encrypted hello, no QUIC
        }
    }

    /// The address of a PTR question.
    pub(super) fn pointed(&self) -> Option<IpAddr> {
        if self.kind != PTR {
            return None;
        }
        if let Some(octets) = self.name.strip_suffix(".in-addr.arpa") {
            let mut parts: Vec<_> = octets.split('.').collect();
            parts.reverse();
            return parts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
        }
        let nibbles: Vec<_> = self.name.strip_suffix(".ip6.arpa")?.split('.').rev().collect();
        let hexadecimal = |nibble: &&str| nibble.len() == 1;
        (nibbles.len() == 32 && nibbles.iter().all(hexadecimal)).then_some(())?;
        u128::from_str_radix(&nibbles.concat(), 16).ok().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
    }
}

fn message(id: u16, flags: u16, code: Code, section: &[u8], records: &[Record], options: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + section.len() + records.len() * 28 + 11);
    let flags = RESPONSE | (flags & RECURSION_DESIRED) | code as u16;
    let counts = [u16::from(!section.is_empty()), records.len() as u16, 0, u16::from(options)];
    [id, flags].into_iter().chain(counts).for_each(|field| out.extend(field.to_be_bytes()));
    out.extend(section);
    for record in records {
        out.extend([0xc0, HEADER as u8]); // the name of the question
        let (kind, data) = match record {
            Record::Address(IpAddr::V4(v4)) => (A, v4.octets().to_vec()),
            Record::Address(IpAddr::V6(v6)) => (AAAA, v6.octets().to_vec()),
            Record::Pointer(name) => (PTR, encoded(name)),
        };
        [kind, INTERNET].into_iter().for_each(|field| out.extend(field.to_be_bytes()));
        out.extend(TIME_TO_LIVE.to_be_bytes());
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
    }
    if options {
        out.extend([0, 0, OPT as u8]);
        out.extend(LARGEST_DATAGRAM.to_be_bytes());
        out.extend([0; 6]);
    }
    out
}

fn encoded(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

/// Returns the name at `at` with dots, and its end. A byte that host names exclude makes a name that matches nothing.
fn labels(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut end = None;
    for _ in 0..128 {
        match *bytes.get(at)? {
            0 => return Some((text, end.unwrap_or(at + 1))),
            length @ 1..=63 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                if !text.is_empty() {
                    text.push('.');
                }
                text.extend(label.iter().map(|&byte| if byte == b'.' { '\u{fffd}' } else { char::from(byte) }));
                at += 1 + usize::from(length);
            }
            high @ 192.. => {
                let target = usize::from(u16::from_be_bytes([high & 0x3f, *bytes.get(at + 1)?]));
                end = end.or(Some(at + 2));
                at = (target < at).then_some(target)?; // backwards only, so that the loop ends
            }
            _ => return None,
        }
    }
    None
}

pub(super) fn write_question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + name.len() + 17);
    [id, RECURSION_DESIRED, 1, 0, 0, 1].into_iter().for_each(|field: u16| out.extend(field.to_be_bytes()));
    out.extend(encoded(name));
    [kind, INTERNET].into_iter().for_each(|field| out.extend(field.to_be_bytes()));
    out.extend([0, 0, OPT as u8]);
    out.extend(LARGEST_DATAGRAM.to_be_bytes());
    out.extend([0; 6]);
    out
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Addresses, and their lifetime in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The name or its record does not exist.
    Nothing(&'static str),
    /// Too long for a datagram; these addresses fitted.
    Truncated(Vec<IpAddr>, u32),
    Failed,
}

/// `None` if the reply answers another question.
pub(super) fn read_reply(bytes: &[u8], id: u16, name: &str, kind: u16) -> Option<Reply> {
    let field = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let flags = field(2)?;
    if field(0)? != id || flags & 0x8000 == 0 || field(4)? != 1 {
        return None;
    }
    let (asked, at) = labels(bytes, HEADER)?;
    if !asked.eq_ignore_ascii_case(name) || field(at)? != kind || field(at + 2)? != INTERNET {
        return None;
    }
    match flags & 0xf {
        0 => {}
        3 => return Some(Reply::Nothing("no such name")),
        _ => return Some(Reply::Failed),
    }
    let (found, least, is_whole) = addresses(bytes, at + 4, field(6)?);
    // Only a truncated reply may end within a record.
    match (is_whole, flags & TRUNCATED != 0) {
        (_, true) => Some(Reply::Truncated(found, least)),
        (false, false) => None,
        (true, false) if found.is_empty() => Some(Reply::Nothing("it has no address")),
        (true, false) => Some(Reply::Addresses(found, least)),
    }
}

/// Returns addresses, the shortest lifetime in seconds, and whether all records were complete.
fn addresses(bytes: &[u8], mut at: usize, count: u16) -> (Vec<IpAddr>, u32, bool) {
    let (mut found, mut least) = (Vec::new(), u32::MAX);
    // The server follows aliases: each address in its answer belongs to the name.
    for _ in 0..count {
        let Some((address, seconds, end)) = record(bytes, at) else { return (found, least, false) };
        found.extend(address);
        least = least.min(seconds);
        at = end;
    }
    (found, least, true)
}

/// Returns the address if it has one, its seconds, and its end.
fn record(bytes: &[u8], at: usize) -> Option<(Option<IpAddr>, u32, usize)> {
    let field = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let at = labels(bytes, at)?.1;
    let (kind, class, length) = (field(at)?, field(at + 2)?, usize::from(field(at + 8)?));
    let seconds = u32::from(field(at + 4)?) << 16 | u32::from(field(at + 6)?);
    let data = bytes.get(at + 10..at + 10 + length)?;
    let address = match (kind, <[u8; 4]>::try_from(data), <[u8; 16]>::try_from(data)) {
        (A, Ok(octets), _) => Some(IpAddr::from(octets)),
        (AAAA, _, Ok(octets)) => Some(IpAddr::from(octets)),
        _ => None,
    };
    Some((address.filter(|_| class == INTERNET), seconds, at + 10 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_in_its_own_words() {
        let bytes = write_question(7, "API.Example.com", AAAA);
        let question = read_question(&bytes).unwrap();
        assert_eq!((question.name.as_str(), question.kind, question.has_options), ("api.example.com", AAAA, true));
        let address: Ipv6Addr = "fd62:7269:6700::100".parse().unwrap();
        let records = question.addresses(Ipv4Addr::new(198, 18, 1, 0), address);
        let answer = question.answer(Code::Good, &records);
        let reply = read_reply(&answer, 7, "api.example.com", AAAA);
        assert_eq!(reply, Some(Reply::Addresses(vec![address.into()], 60)));
        assert_eq!(read_reply(&answer, 8, "api.example.com", AAAA), None);
        assert_eq!(read_reply(&answer, 7, "other.example.com", AAAA), None);
        assert_eq!(read_reply(&answer, 7, "api.example.com", A), None);
        let refused = question.answer(Code::NoSuchName, &[]);
        assert_eq!(read_reply(&refused, 7, "api.example.com", AAAA), Some(Reply::Nothing("no such name")));
        let none = question.answer(Code::Good, &[]);
        assert_eq!(read_reply(&none, 7, "api.example.com", AAAA), Some(Reply::Nothing("it has no address")));
    }

    #[test]
    fn an_answer_that_was_cut_says_so_wherever_the_cut_is() {
        let question = read_question(&write_question(7, "a.test", A)).unwrap();
        let address = IpAddr::from([192, 0, 2, 1]);
        let whole = question.answer(Code::Good, &[Record::Address(address), Record::Address(address)]);
        let cut = |length: usize, flag: u8| {
            let mut bytes = whole[..length].to_vec();
            bytes[2] |= flag;
            read_reply(&bytes, 7, "a.test", A)
        };
        let question_end = HEADER + 12;
        assert_eq!(cut(whole.len(), 2), Some(Reply::Truncated(vec![address, address], 60)));
        assert_eq!(cut(question_end + 20, 2), Some(Reply::Truncated(vec![address], 60)));
        assert_eq!(cut(question_end, 2), Some(Reply::Truncated(vec![], u32::MAX)));
        assert_eq!(cut(question_end + 20, 0), None);
    }

    #[test]
    fn other_types_of_record_are_not_there() {
        for kind in [64, 65, 16, 15, 2, 6] {
            let question = read_question(&write_question(1, "example.com", kind)).unwrap();
            assert!(question.addresses(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST).is_empty());
        }
    }

    #[test]
    fn the_address_of_a_pointer_question_is_read() {
        let check = |name: &str, expected: Option<&str>| {
            let question = read_question(&write_question(1, name, PTR)).unwrap();
            assert_eq!(question.pointed(), expected.map(|text| text.parse().unwrap()), "{name}");
        };
        check("0.1.18.198.in-addr.arpa", Some("198.18.1.0"));
        check("1.18.198.in-addr.arpa", None);
        check(&format!("{}ip6.arpa", "1.0.".to_owned() + &"0.".repeat(30)), Some("::1"));
        check("example.com", None);
    }

    #[test]
    fn what_is_torn_or_hostile_is_refused_and_never_loops() {
        let good = write_question(1, "example.com", A);
        for length in 0..good.len() - 11 {
            assert!(read_question(&good[..length]).is_err(), "{length}");
        }
        let mut looped = good.clone();
        looped[12..14].copy_from_slice(&[0xc0, 12]);
        assert!(read_question(&looped).is_err());
        let mut response = good.clone();
        response[2] = 0x80;
        assert_eq!(read_question(&response), Err(None));
        let mut dotted = good;
        dotted[13] = b'.';
        assert_eq!(read_question(&dotted).unwrap().name, "");
    }
}
