//! Parses `org.systemd.property.NAME` annotations: a unit's property as GVariant text. Pure.

use super::wire::{Property, Value};
use crate::error::{Error, Kind, Result};

/// `key` is the part after `org.systemd.property.`. As with runc, it has only letters. A name that ends in `Sec` takes
/// seconds, which become microseconds.
pub(crate) fn property(key: &str, text: &str) -> Result<Property> {
    let fail = |reason: String| {
        Err(Error::new(Kind::Spec, reason)
            .doing(format!("read the annotation `org.systemd.property.{}`", key.escape_default())))
    };
    if key.len() < 3 || !key.bytes().all(|letter| letter.is_ascii_alphabetic()) {
        return fail("invalid property name: use three or more letters and nothing else".to_owned());
    }
    let Some(value) = Parser { text }.parse() else {
        return fail(format!(
            "invalid value `{}`: use a value such as `'text'`, `true`, `uint64 5` or `['a', 'b']`",
            text.escape_default()
        ));
    };
    let is_seconds = key.strip_suffix("Sec").filter(|stem| stem.ends_with(|letter: char| letter.is_ascii_lowercase()));
    let Some(stem) = is_seconds else { return Ok((key.to_owned(), value)) };
    match microseconds(&value) {
        Some(value) => Ok((format!("{stem}USec"), Value::U64(value))),
        None => fail("invalid number of seconds: use a number of at least 0".to_owned()),
    }
}

fn microseconds(value: &Value) -> Option<u64> {
    let whole = match *value {
        Value::Byte(value) => u64::from(value),
        Value::I16(value) => u64::try_from(value).ok()?,
        Value::U16(value) => u64::from(value),
        Value::I32(value) => u64::try_from(value).ok()?,
        Value::U32(value) => u64::from(value),
        Value::I64(value) => u64::try_from(value).ok()?,
        Value::U64(value) => value,
        // Up to 2^63 microseconds.
        Value::Double(value) if (0.0..9.2e12).contains(&value) => return Some((value * 1e6) as u64),
        _ => return None,
    };
    whole.checked_mul(1_000_000)
}

struct Parser<'a> {
    text: &'a str,
}

impl<'a> Parser<'a> {
    fn parse(mut self) -> Option<Value> {
        let value = self.value()?;
        self.skip_space();
        self.text.is_empty().then_some(value)
    }

    fn skip_space(&mut self) {
        self.text = self.text.trim_start();
    }

    fn take(&mut self, word: &str) -> bool {
        self.skip_space();
        match self.text.strip_prefix(word) {
            Some(rest) => {
                self.text = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        self.skip_space();
        let end = self.text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-._@".contains(letter));
        let (word, rest) = self.text.split_at(end.unwrap_or(self.text.len()));
        self.text = rest;
        word
    }

    fn value(&mut self) -> Option<Value> {
        self.skip_space();
        match self.text.chars().next()? {
            '\'' | '"' => Some(Value::Text(self.string()?)),
            '[' => self.list(),
            _ => self.plain(),
        }
    }

    /// A word, or a type and a number: `uint64 5`, `@t 5`.
    fn plain(&mut self) -> Option<Value> {
        let word = self.word();
        if let Ok(value) = word.parse() {
            return Some(Value::Bool(value));
        }
        let is_type = word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '@');
        let number = if is_type { self.word() } else { word };
        Some(match if is_type { word } else { "" } {
            "" if number.contains(['.', 'e']) => Value::Double(number.parse().ok()?),
            "" | "int32" | "@i" => Value::I32(number.parse().ok()?),
            "byte" | "@y" => Value::Byte(byte(number)?),
            "int16" | "@n" => Value::I16(number.parse().ok()?),
            "uint16" | "@q" => Value::U16(number.parse().ok()?),
            "uint32" | "@u" => Value::U32(number.parse().ok()?),
            "int64" | "@x" => Value::I64(number.parse().ok()?),
            "uint64" | "@t" => Value::U64(number.parse().ok()?),
            "double" | "@d" => Value::Double(number.parse().ok()?),
            _ => return None,
        })
    }

    fn string(&mut self) -> Option<String> {
        let mut letters = self.text.char_indices();
        let (_, quote) = letters.next()?;
        let mut text = String::new();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => text.push(match letters.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                }),
                letter if letter == quote => {
                    self.text = &self.text[at + letter.len_utf8()..];
                    return Some(text);
                }
                letter => text.push(letter),
            }
        }
        None
    }

    /// Of strings, bytes or 32-bit numbers.
    fn list(&mut self) -> Option<Value> {
        self.take("[");
        let mut items = Vec::new();
        while !self.take("]") {
            if !items.is_empty() && !self.take(",") {
                return None;
            }
            // The first element gives the type; a plain number adopts it.
            let item = match (items.first(), self.value()?) {
                (Some(Value::Byte(_)), Value::I32(value)) => Value::Byte(u8::try_from(value).ok()?),
                (Some(Value::U32(_)), Value::I32(value)) => Value::U32(u32::try_from(value).ok()?),
                (_, item) => item,
            };
            items.push(item);
        }
        let all = |pick: fn(&Value) -> bool| items.iter().all(pick);
        match items.first() {
            None | Some(Value::Text(_)) if all(|item| matches!(item, Value::Text(_))) => {
                let text = |item| if let Value::Text(text) = item { Some(text) } else { None };
                Some(Value::Texts(items.into_iter().filter_map(text).collect()))
            }
            Some(Value::Byte(_)) if all(|item| matches!(item, Value::Byte(_))) => {
                let byte = |item| if let Value::Byte(byte) = item { Some(byte) } else { None };
                Some(Value::Bytes(items.into_iter().filter_map(byte).collect()))
            }
            Some(Value::U32(_)) if all(|item| matches!(item, Value::U32(_))) => {
                let number = |item| if let Value::U32(number) = item { Some(number) } else { None };
                Some(Value::Numbers(items.into_iter().filter_map(number).collect()))
            }
            _ => None,
        }
    }
}

/// `255` or `0xff`.
fn byte(text: &str) -> Option<u8> {
    match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, text: &str, expected: (&str, Value)) {
        assert_eq!(property(key, text).unwrap(), (expected.0.to_owned(), expected.1), "{key}={text}");
    }

    #[test]
    fn property_parses_with_its_type() {
        check("CollectMode", "'inactive-or-failed'", ("CollectMode", Value::Text("inactive-or-failed".into())));
        check("KillMode", "\"a\\\"b\"", ("KillMode", Value::Text("a\"b".into())));
        check("DefaultDependencies", " true ", ("DefaultDependencies", Value::Bool(true)));
        check("MemoryHigh", "uint64 5", ("MemoryHigh", Value::U64(5)));
        check("MemoryHigh", "@t 5", ("MemoryHigh", Value::U64(5)));
        check("Nice", "-5", ("Nice", Value::I32(-5)));
        check(
            "After",
            "['a.service', 'b.service']",
            ("After", Value::Texts(vec!["a.service".into(), "b.service".into()])),
        );
        check("AllowedCPUs", "[byte 0x03, 1]", ("AllowedCPUs", Value::Bytes(vec![3, 1])));
        check("After", "[]", ("After", Value::Texts(vec![])));
    }

    #[test]
    fn seconds_become_microseconds() {
        check("TimeoutStopSec", "uint64 5", ("TimeoutStopUSec", Value::U64(5_000_000)));
        check("TimeoutStopSec", "1.5", ("TimeoutStopUSec", Value::U64(1_500_000)));
        check("RuntimeMaxUSec", "uint64 5", ("RuntimeMaxUSec", Value::U64(5)));
        assert!(property("TimeoutStopSec", "-5").is_err());
        assert!(property("TimeoutStopSec", "'5'").is_err());
    }

    #[test]
    fn invalid_name_or_value_is_refused() {
        for (key, text) in [
            ("Ab", "1"),
            ("A.b.c", "1"),
            ("Key", ""),
            ("Key", "'open"),
            ("Key", "[1, 'a']"),
            ("Key", "true false"),
            ("Key", "{1:2}"),
        ] {
            assert_eq!(property(key, text).unwrap_err().kind(), Kind::Spec, "{key}={text}");
        }
    }
}
