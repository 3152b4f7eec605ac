//! Finds values in hexadecimal lines of `xxd`, `hexdump` and `od -x`. Octal lines, which `od` writes by default, pass.
//!
//! [`WINDOW`] successive bytes of a value on a line, in any grouping, identify it; the rest of the line is hidden.
//! Fewer bytes stay visible, and so do up to three before the first space.

use std::collections::{BTreeSet, HashMap};

pub(super) const WINDOW: usize = super::SHORTEST;
/// Later bytes are not searched.
const LONGEST: usize = 64 << 10;
/// `hexdump` and `od` swap the two bytes of a word, and the first word may be incomplete.
const READ: usize = WINDOW + 1;
/// The longest text that can be [`Dumped::Begun`]: two digits and two spaces a byte.
pub(super) const LONGEST_BEGUN: usize = 4 * READ;

/// The low half of a byte as a digit of each case.
fn digits(half: u8) -> [u8; 2] {
    let lower = b"0123456789abcdef"[usize::from(half & 15)];
    [lower, lower.to_ascii_uppercase()]
}

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

    /// Passes on each gram at the first three places of a match.
    pub(super) fn grams(&self, add: &mut impl FnMut([u8; 4])) {
        let (mut firsts, mut pairs, mut seconds) = (BTreeSet::<u8>::new(), BTreeSet::new(), BTreeSet::new());
        for &[a, b, c, d, e, _] in self.windows.keys() {
            firsts.extend([a, b, c, d, e]);
            // The second byte, and the first digit of the third one, also with swapped words.
            pairs.extend([(b, c >> 4), (b, a >> 4)]);
        }
        for (second, third) in pairs {
            for [high, low] in digits(second >> 4).into_iter().flat_map(|high| digits(second).map(|low| [high, low])) {
                seconds.insert([high, low]);
                add([b' ', b' ', high, low]);
                add([b' ', high, low, b' ']);
                digits(third).into_iter().for_each(|third| add([b' ', high, low, third]));
            }
        }
        for first in firsts {
            for [high, low] in [0, 1].map(|case| [digits(first >> 4)[case], digits(first)[case]]) {
                add([high, low, b' ', b' ']);
                for &[next, after] in &seconds {
                    add([high, low, b' ', next]);
                    add([low, b' ', next, after]);
                    add([low, b' ', b' ', next]);
                }
            }
        }
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
