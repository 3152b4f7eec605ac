//! Answers of a server that has seen a secret: where it says the secret again, stars of the same length. Pure.
//!
//! The length stays, so that no count of bytes in an answer becomes wrong. What may be the beginning of a secret is held back until more comes, or
//! until [`Mask::release`].

use std::collections::HashMap;

/// What is looked for in the answers of one host.
#[derive(Debug)]
pub(in crate::egress) struct Mask {
    held: Vec<u8>,
    /// How often something was hidden.
    pub(in crate::egress) count: u64,
}

/// Every form of every value that is added to requests.
#[derive(Debug)]
pub(in crate::egress) struct Needles {
    /// By their first two bytes.
    all: HashMap<[u8; 2], Vec<Vec<u8>>>,
    /// Which bytes are the first of one: all others pass without another look.
    beginnings: [bool; 256],
}

impl Default for Needles {
    fn default() -> Needles {
        Needles { all: HashMap::new(), beginnings: [false; 256] }
    }
}

impl Needles {
    /// Looks for these.
    pub(in crate::egress) fn add(&mut self, forms: Vec<Vec<u8>>) {
        for form in forms {
            if let [first, second, ..] = form[..] {
                self.beginnings[usize::from(first)] = true;
                let group = self.all.entry([first, second]).or_default();
                if !group.contains(&form) {
                    group.push(form);
                }
            }
        }
    }

    /// What begins here with the first byte of one: so many bytes of the longest, or perhaps one.
    fn look(&self, text: &[u8]) -> Option<Seen> {
        let [first, second, ..] = *text else { return Some(Seen::Begun(None)) };
        let group = self.all.get(&[first, second])?;
        let whole = group.iter().filter(|each| text.starts_with(each)).map(Vec::len).max();
        let begun = group.iter().any(|each| each.len() > text.len() && each.starts_with(text));
        match (whole, begun) {
            (_, true) => Some(Seen::Begun(whole)),
            (Some(length), false) => Some(Seen::Whole(length)),
            (None, false) => None,
        }
    }
}

enum Seen {
    Whole(usize),
    /// It may become one, and may be a shorter one already.
    Begun(Option<usize>),
}

impl Mask {
    pub(in crate::egress) fn new() -> Mask {
        Mask { held: Vec::new(), count: 0 }
    }

    /// How many bytes wait for more.
    pub(in crate::egress) fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Passes bytes on.
    pub(in crate::egress) fn pass(&mut self, needles: &Needles, bytes: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() {
            let held = self.scan(needles, bytes, false, out);
            self.held.extend_from_slice(&bytes[held..]);
        } else {
            self.held.extend_from_slice(bytes);
            let text = std::mem::take(&mut self.held);
            let held = self.scan(needles, &text, false, out);
            self.held.extend_from_slice(&text[held..]);
        }
    }

    /// Nothing more comes: what was held is no secret.
    pub(in crate::egress) fn release(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.held);
        self.scan(needles, &text, true, out);
    }

    /// Where it stopped because more must come.
    fn scan(&mut self, needles: &Needles, text: &[u8], whole: bool, out: &mut Vec<u8>) -> usize {
        let (mut at, mut done) = (0, 0);
        while at < text.len() {
            let begins = |byte: &u8| needles.beginnings[usize::from(*byte)];
            let Some(next) = text[at..].iter().position(begins) else {
                at = text.len();
                break;
            };
            at += next;
            match needles.look(&text[at..]) {
                None => at += 1,
                Some(Seen::Begun(_)) if !whole => break,
                Some(Seen::Begun(None)) => at += 1,
                Some(Seen::Whole(length) | Seen::Begun(Some(length))) => {
                    out.extend_from_slice(&text[done..at]);
                    out.resize(out.len() + length, b'*');
                    self.count += 1;
                    at += length;
                    done = at;
                }
            }
        }
        out.extend_from_slice(&text[done..at]);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str, size: usize) -> (String, u64) {
        let mut needles = Needles::default();
        needles.add(vec![b"hunter2".to_vec(), b"hunter2-long".to_vec(), b"aHVudGVy".to_vec()]);
        let (mut mask, mut out) = (Mask::new(), Vec::new());
        for part in text.as_bytes().chunks(size) {
            mask.pass(&needles, part, &mut out);
        }
        mask.release(&needles, &mut out);
        (String::from_utf8(out).unwrap(), mask.count)
    }

    #[test]
    fn a_secret_is_hidden_however_the_bytes_are_cut_and_the_length_stays() {
        for size in 1..40 {
            for (text, expected, count) in [
                ("nothing here", "nothing here", 0),
                ("a hunter2 b", "a ******* b", 1),
                ("hunter2", "*******", 1),
                ("hunter2-long-hunter", "************-hunter", 1),
                ("hunter2-lon", "*******-lon", 1),
                ("hhunter2hunter2h", "h**************h", 2),
                ("{\"x\":\"aHVudGVy\"}", "{\"x\":\"********\"}", 1),
                ("hunte", "hunte", 0),
            ] {
                assert_eq!(masked(text, size), (expected.to_owned(), count), "{text} in parts of {size}");
            }
        }
    }

    #[test]
    fn only_what_may_become_a_secret_is_held_back() {
        let mut needles = Needles::default();
        needles.add(vec![b"hunter2".to_vec()]);
        let (mut mask, mut out) = (Mask::new(), Vec::new());
        mask.pass(&needles, b"data: x\n\n", &mut out);
        assert_eq!((out.as_slice(), mask.waiting()), (&b"data: x\n\n"[..], 0));
        mask.pass(&needles, b"yes hun", &mut out);
        assert_eq!((out.as_slice(), mask.waiting()), (&b"data: x\n\nyes "[..], 3));
    }
}
