//! Finds values in lines of `xxd`, `hexdump` and `od`.
//!
//! [`WINDOW`] successive bytes of a value on a line, in any grouping, identify it; the rest of the line is hidden.
//! Fewer bytes stay visible, and so do up to three before the first space.

use std::collections::{BTreeSet, HashMap};

pub(super) const WINDOW: usize = super::SHORTEST;
/// Later bytes are not searched.
const LONGEST: usize = 64 << 10;
/// `hexdump` and `od` swap the two bytes of a word, and the first word may be incomplete.
const READ: usize = WINDOW + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dumped {
    No,
    /// The text ends inside a possible match.
    Begun,
    /// Length in the text, and the number of the value's name.
    Whole(usize, usize),
}

#[derive(Clone, Default)]
pub(super) struct Dumps {
    windows: HashMap<[u8; WINDOW], usize>,
    beginnings: BTreeSet<[u8; 4]>,
}

impl Dumps {
    pub(super) fn add(&mut self, value: &[u8], name: usize) {
        let value = &value[..value.len().min(LONGEST)];
        for window in value.windows(WINDOW) {
            if let Ok(window) = window.try_into() {
                self.windows.entry(window).or_insert(name);
            }
        }
        // A byte, a space, and the first digit of the next byte; with swapped words, of the one after the next two.
        for distance in [1, 3] {
            for (byte, next) in value.iter().zip(value.iter().skip(distance)) {
                for text in
                    [format!("{byte:02x} {next:02x}"), format!("{byte:02X} {next:02X}"), format!("{byte:02x}  ")]
                {
                    self.beginnings.extend(text.as_bytes().first_chunk());
                }
            }
        }
    }

    pub(super) fn beginnings(&self) -> impl Iterator<Item = &[u8]> {
        self.beginnings.iter().map(<[u8; 4]>::as_slice)
    }

    pub(super) fn parse_start(&self, text: &[u8], whole: bool) -> Dumped {
        let (mut bytes, mut at) = ([0; READ], 0);
        for count in 0..READ {
            let spaces = text[at..].iter().take(2).take_while(|&&byte| byte == b' ').count();
            // Without a space it is a number, or plain hexadecimal.
            if count == 1 && spaces == 0 && at < text.len() {
                return Dumped::No;
            }
            if count > 0 {
                at += spaces;
            }
            let digit = |place: usize| match text.get(place) {
                None => Err(if whole { Dumped::No } else { Dumped::Begun }),
                Some(&byte) => char::from(byte).to_digit(16).map(|digit| digit as u8).ok_or(Dumped::No),
            };
            match digit(at).and_then(|high| Ok(high << 4 | digit(at + 1)?)) {
                Ok(byte) => bytes[count] = byte,
                Err(_) if count == WINDOW && self.plain(&bytes).is_some() => break, // the line ends here
                Err(other) => return other,
            }
            at += 2;
        }
        let [_, b, a, d, c, f, e] = bytes;
        let found = self.plain(&bytes).or_else(|| self.windows.get(&[a, b, c, d, e, f]).copied());
        found.map_or(Dumped::No, |name| Dumped::Whole(at, name))
    }

    fn plain(&self, bytes: &[u8; READ]) -> Option<usize> {
        bytes.first_chunk::<WINDOW>().and_then(|window| self.windows.get(window)).copied()
    }
}
