//! D-Bus messages as bytes (D-Bus specification 0.43, "Marshaling", "Message Format"). Pure.
//!
//! Writes little-endian, reads both byte orders. Has only the types of systemd's manager.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Byte(u8),
    Bool(bool),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Numbers(Vec<u32>),
    Texts(Vec<String>),
    /// For `DeviceAllow`.
    Pairs(Vec<(String, String)>),
}

impl Value {
    pub(super) fn signature(&self) -> &'static str {
        match self {
            Value::Byte(_) => "y",
            Value::Bool(_) => "b",
            Value::I16(_) => "n",
            Value::U16(_) => "q",
            Value::I32(_) => "i",
            Value::U32(_) => "u",
            Value::I64(_) => "x",
            Value::U64(_) => "t",
            Value::Double(_) => "d",
            Value::Text(_) => "s",
            Value::Bytes(_) => "ay",
            Value::Numbers(_) => "au",
            Value::Texts(_) => "as",
            Value::Pairs(_) => "a(ss)",
        }
    }
}

pub(crate) type Property = (String, Value);

/// Aligns each value to its size, counted from the start of the message.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn align(&mut self, size: usize) {
        self.0.resize(self.0.len().next_multiple_of(size), 0);
    }

    fn number(&mut self, bytes: &[u8]) {
        self.align(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.number(&value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(signature.len() as u8);
        self.0.extend_from_slice(signature.as_bytes());
        self.0.push(0);
    }

    /// An empty array has the padding too; the length never includes it.
    pub(super) fn array<T>(&mut self, alignment: usize, list: &[T], mut each: impl FnMut(&mut Writer, &T)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let start = self.0.len();
        for item in list {
            self.align(alignment);
            each(self, item);
        }
        let length = (self.0.len() - start) as u32;
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Byte(value) => self.0.push(*value),
            Value::Bool(value) => self.u32(u32::from(*value)),
            Value::I16(value) => self.number(&value.to_le_bytes()),
            Value::U16(value) => self.number(&value.to_le_bytes()),
            Value::I32(value) => self.number(&value.to_le_bytes()),
            Value::U32(value) => self.u32(*value),
            Value::I64(value) => self.number(&value.to_le_bytes()),
            Value::U64(value) => self.number(&value.to_le_bytes()),
            Value::Double(value) => self.number(&value.to_le_bytes()),
            Value::Text(value) => self.text(value),
            Value::Bytes(list) => self.array(1, list, |out, byte| out.0.push(*byte)),
            Value::Numbers(list) => self.array(4, list, |out, number| out.u32(*number)),
            Value::Texts(list) => self.array(4, list, |out, text| out.text(text)),
            Value::Pairs(list) => self.array(8, list, |out, (first, second)| {
                out.text(first);
                out.text(second);
            }),
        }
    }

    fn variant(&mut self, value: &Value) {
        self.signature(value.signature());
        self.value(value);
    }

    /// As `a(sv)`.
    pub(super) fn properties(&mut self, list: &[Property]) {
        self.array(8, list, |out, (name, value)| {
            out.text(name);
            out.variant(value);
        });
    }
}

// Message types and header fields.
pub(super) const CALL: u8 = 1;
pub(super) const RETURN: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const SIGNAL: u8 = 4;
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// systemd's replies are far below 1 MiB; the specification allows 128 MiB.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;
/// Enough for the length of a message.
pub(super) const PREFIX_BYTES: usize = 16;

pub(super) struct Call<'a> {
    pub destination: Option<&'a str>,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub signature: &'a str,
    pub body: Vec<u8>,
}

impl Call<'_> {
    pub(super) fn to_bytes(&self, serial: u32) -> Vec<u8> {
        let mut out = Writer::default();
        out.0.extend_from_slice(&[b'l', CALL, 0, 1]);
        out.u32(self.body.len() as u32);
        out.u32(serial);
        let mut fields = vec![(PATH, "o", self.path), (INTERFACE, "s", self.interface), (MEMBER, "s", self.member)];
        if let Some(destination) = self.destination {
            fields.push((DESTINATION, "s", destination));
        }
        if !self.signature.is_empty() {
            fields.push((SIGNATURE, "g", self.signature));
        }
        out.array(8, &fields, |out, (code, signature, text)| {
            out.0.push(*code);
            out.signature(signature);
            if *signature == "g" { out.signature(text) } else { out.text(text) }
        });
        out.align(8);
        out.0.extend_from_slice(&self.body);
        out.into_bytes()
    }
}

#[derive(Debug, Default)]
pub(super) struct Message {
    pub kind: u8,
    pub interface: String,
    pub member: String,
    pub error_name: String,
    pub reply_serial: u32,
    pub signature: String,
    is_big: bool,
    body: Vec<u8>,
}

impl Message {
    /// Of the whole message; `None` if the prefix is invalid.
    pub(super) fn length(prefix: &[u8]) -> Option<usize> {
        let is_big = is_big(*prefix.first()?)?;
        let body = read_u32(prefix, 4, is_big)? as usize;
        let fields = read_u32(prefix, 12, is_big)? as usize;
        let length = PREFIX_BYTES.checked_add(fields)?.next_multiple_of(8).checked_add(body)?;
        (length <= MESSAGE_BYTES).then_some(length)
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
        let is_big = is_big(*bytes.first()?)?;
        let mut message = Message { kind: *bytes.get(1)?, is_big, ..Message::default() };
        let end = PREFIX_BYTES + read_u32(bytes, 12, is_big)? as usize;
        let mut reader = Reader { bytes: bytes.get(..end)?, at: PREFIX_BYTES, is_big };
        while reader.at < end {
            reader.align(8);
            let code = reader.byte()?;
            let signature = reader.signature()?;
            match signature.as_str() {
                "s" | "o" => {
                    let text = reader.text()?;
                    match code {
                        INTERFACE => message.interface = text,
                        MEMBER => message.member = text,
                        ERROR_NAME => message.error_name = text,
                        _ => {}
                    }
                }
                "u" => {
                    let number = reader.u32()?;
                    if code == REPLY_SERIAL {
                        message.reply_serial = number;
                    }
                }
                "g" => {
                    let text = reader.signature()?;
                    if code == SIGNATURE {
                        message.signature = text;
                    }
                }
                // Every defined field has one of these types.
                _ => return None,
            }
        }
        message.body = bytes.get(end.next_multiple_of(8)..)?.to_vec();
        Some(message)
    }

    pub(super) fn body(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, is_big: self.is_big }
    }
}

fn is_big(order: u8) -> Option<bool> {
    match order {
        b'l' => Some(false),
        b'B' => Some(true),
        _ => None,
    }
}

fn read_u32(bytes: &[u8], at: usize, is_big: bool) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

/// Checks every length against the available bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_big: bool,
}

impl Reader<'_> {
    fn align(&mut self, size: usize) {
        self.at = self.at.next_multiple_of(size);
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.align(4);
        let value = read_u32(self.bytes, self.at, self.is_big)?;
        self.at += 4;
        Some(value)
    }

    /// A string or an object path.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        self.characters(length)
    }

    pub(super) fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.characters(length)
    }

    fn characters(&mut self, length: usize) -> Option<String> {
        let end = self.at.checked_add(length)?;
        let text = std::str::from_utf8(self.bytes.get(self.at..end)?).ok()?.to_owned();
        self.at = end;
        (self.byte()? == 0).then_some(text)
    }

    pub(super) fn text_variant(&mut self) -> Option<String> {
        if self.signature()? == "s" { self.text() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_has_the_layout_of_the_specification() {
        let mut body = Writer::default();
        body.text("x");
        let call = Call {
            destination: None,
            path: "/a",
            interface: "i.f",
            member: "M",
            signature: "s",
            body: body.into_bytes(),
        };
        let expected: &[u8] = b"l\x01\x00\x01\x06\x00\x00\x00\x07\x00\x00\x00\x37\x00\x00\x00\
            \x01\x01o\x00\x02\x00\x00\x00/a\x00\x00\x00\x00\x00\x00\
            \x02\x01s\x00\x03\x00\x00\x00i.f\x00\x00\x00\x00\x00\
            \x03\x01s\x00\x01\x00\x00\x00M\x00\x00\x00\x00\x00\x00\x00\
            \x08\x01g\x00\x01s\x00\x00\
            \x01\x00\x00\x00x\x00";
        assert_eq!(call.to_bytes(7), expected);
    }

    #[test]
    fn empty_array_is_padded_too() {
        let mut out = Writer::default();
        out.properties(&[]);
        out.properties(&[("A".into(), Value::Bool(true)), ("B".into(), Value::Bytes(vec![1, 2]))]);
        let expected: &[u8] = b"\x00\x00\x00\x00\x00\x00\x00\x00\
            \x22\x00\x00\x00\x00\x00\x00\x00\
            \x01\x00\x00\x00A\x00\x01b\x00\x00\x00\x00\x01\x00\x00\x00\
            \x01\x00\x00\x00B\x00\x02ay\x00\x00\x00\x02\x00\x00\x00\x01\x02";
        assert_eq!(out.into_bytes(), expected);
    }

    #[test]
    fn message_in_both_byte_orders_parses() {
        let little: &[u8] = b"l\x04\x00\x01\x0a\x00\x00\x00\x05\x00\x00\x00\x20\x00\x00\x00\
            \x03\x01s\x00\x04\x00\x00\x00Gone\x00\x00\x00\x00\
            \x05\x01u\x00\x09\x00\x00\x00\
            \x08\x01g\x00\x02us\x00\
            \x07\x00\x00\x00\x01\x00\x00\x00z\x00";
        assert_eq!(Message::length(little), Some(little.len()));
        let message = Message::parse(little).unwrap();
        assert_eq!((message.kind, message.member.as_str(), message.reply_serial), (SIGNAL, "Gone", 9));
        let mut body = message.body();
        assert_eq!((body.u32(), body.text()), (Some(7), Some("z".to_owned())));
        let big: &[u8] = b"B\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x08\x05\x01u\x00\x00\x00\x00\x03";
        assert_eq!(Message::length(big), Some(big.len()));
        assert_eq!(Message::parse(big).unwrap().reply_serial, 3);
    }

    proptest::proptest! {
        #[test]
        fn hostile_message_never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..96)) {
            let _ = Message::length(&bytes);
            if let Some(message) = Message::parse(&bytes) {
                let mut body = message.body();
                let _ = (body.u32(), body.text(), body.text_variant());
            }
            let mut framed = b"l\x02\x00\x01\x04\x00\x00\x00\x01\x00\x00\x00\x20\x00\x00\x00".to_vec();
            framed.extend(bytes);
            let _ = Message::parse(&framed);
        }
    }
}
