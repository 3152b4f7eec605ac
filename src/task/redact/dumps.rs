//! Dumps of bytes in lines, as `xxd`, `hexdump` and `od` write them: the bytes of a value in hexadecimal, cut wherever a line ends, with the same as
//! letters behind them.
//!
//! A dump is told by [`WINDOW`] bytes of a value in a row on one line, whatever the groups that it writes; the rest of that line is hidden. So of a line
//! with fewer of them these may be seen, and up to three before the first space.

use std::collections::{BTreeSet, HashMap};

/// So many bytes of a value tell it: as many as its least length.
pub(super) const WINDOW: usize = super::SHORTEST;
/// Further bytes of a value are not looked for.
const LONGEST: usize = 64 << 10;
/// In `hexdump` and `od` words have their two bytes turned round, and the first word is not whole.
const READ: usize = WINDOW + 1;

/// What a text says at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dumped {
    No,
    /// The text ends within it.
    Begun,
    /// So many bytes of the text are bytes of this value.
    Whole(usize, usize),
}

/// The windows of all values.
#[derive(Clone, Default)]
pub(super) struct Dumps {
    windows: HashMap<[u8; WINDOW], usize>,
    beginnings: BTreeSet<[u8; 4]>,
}

impl Dumps {
    /// Looks for this value too.
    pub(super) fn add(&mut self, value: &[u8], name: usize) {
        let value = &value[..value.len().min(LONGEST)];
        for window in value.windows(WINDOW) {
            if let Ok(window) = window.try_into() {
                self.windows.entry(window).or_insert(name);
            }
        }
        // A byte, a space, and the first digit of what follows: the next byte, or with words turned round the one after the next two.
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

    /// How they begin.
    pub(super) fn beginnings(&self) -> impl Iterator<Item = &[u8]> {
        self.beginnings.iter().map(<[u8; 4]>::as_slice)
    }

    /// What the text says at its beginning.
    pub(super) fn parse_start(&self, text: &[u8], whole: bool) -> Dumped {
        let (mut bytes, mut at) = ([0; READ], 0);
        for count in 0..READ {
            let spaces = text[at..].iter().take(2).take_while(|&&byte| byte == b' ').count();
            // Without a space it is a number, or hexadecimal as such.
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
                Err(_) if count == WINDOW && self.plain(&bytes).is_some() => break, // the line ends with it
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
