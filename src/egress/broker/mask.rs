//! Answers of a server that has seen a secret: where it says the secret again, stars of the same length. Pure.
//!
//! The length stays, so that no count of bytes in an answer becomes wrong. What may be the beginning of a secret is held back until more comes.
//! Where that takes too long ([`Mask::release`]) it is told, and stays known: the rest is hidden when it comes. Of a beginning that is told not
//! much is seen ([`SEEN`]), also at the end ([`Mask::finish`]): who decides where an answer is cut would have the secret in two halves.

use crate::sys::weaken;
use std::collections::HashMap;

/// A beginning of a secret that is as long as this is hidden when it is told; of a short secret half of it is. An innocent text that only begins
/// like a secret has stars then.
const SEEN: usize = 8;

/// What is looked for in the answers of one host.
#[derive(Debug)]
pub(in crate::egress) struct Mask {
    /// The end of what came, which may be the beginning of a secret.
    held: Vec<u8>,
    /// How much of it is told already.
    told: usize,
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

    /// A text that is there as a whole, with stars in it.
    pub(in crate::egress) fn hidden(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        scan(self, text, 0, true, &mut out);
        out
    }

    /// What begins here with the first byte of one.
    fn look(&self, text: &[u8]) -> Option<Seen> {
        let [first, second, ..] = *text else { return Some(Seen::Begun { whole: None, shortest: usize::MAX }) };
        let group = self.all.get(&[first, second])?;
        let whole = group.iter().filter(|each| text.starts_with(each)).map(Vec::len).max();
        let begun = group.iter().filter(|each| each.len() > text.len() && each.starts_with(text)).map(Vec::len).min();
        match (whole, begun) {
            (_, Some(shortest)) => Some(Seen::Begun { whole, shortest }),
            (Some(length), None) => Some(Seen::Whole(length)),
            (None, None) => None,
        }
    }
}

enum Seen {
    /// So many bytes of the longest.
    Whole(usize),
    /// All that is there may become one, of this length at the least, and may be a shorter one already.
    Begun { whole: Option<usize>, shortest: usize },
}

impl Mask {
    pub(in crate::egress) fn new() -> Mask {
        Mask { held: Vec::new(), told: 0 }
    }

    /// How many bytes wait for more.
    pub(in crate::egress) fn waiting(&self) -> usize {
        self.held.len() - self.told
    }

    /// Passes bytes on.
    pub(in crate::egress) fn pass(&mut self, needles: &Needles, bytes: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() {
            let held = scan(needles, bytes, 0, false, out);
            self.held.extend_from_slice(&bytes[held..]);
        } else {
            self.held.extend_from_slice(bytes);
            let text = std::mem::take(&mut self.held);
            let held = scan(needles, &text, self.told, false, out);
            self.told = self.told.saturating_sub(held);
            self.held.extend_from_slice(&text[held..]);
        }
    }

    /// Nothing more has come for long: tells what is held, and goes on to look for the rest.
    pub(in crate::egress) fn release(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        scan(needles, &self.held, self.told, true, out);
        if weaken::is_off("broker-told") {
            self.held.clear();
        }
        self.told = self.held.len();
    }

    /// Nothing more comes: tells what is held.
    pub(in crate::egress) fn finish(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        scan(needles, &self.held, self.told, true, out);
        self.held.clear();
        self.told = 0;
    }
}

/// Tells what may be told of a text whose first bytes are told already; returns where it stopped because more must come, which it does not do
/// if that is not waited for.
fn scan(needles: &Needles, text: &[u8], mut told: usize, is_late: bool, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while at < text.len() {
        let begins = |byte: &u8| needles.beginnings[usize::from(*byte)];
        let Some(next) = text[at..].iter().position(begins) else {
            at = text.len();
            break;
        };
        at += next;
        let hidden = match needles.look(&text[at..]) {
            None => None,
            Some(Seen::Begun { .. }) if !is_late => break,
            Some(Seen::Begun { shortest, .. }) if text.len() - at >= SEEN.min(shortest / 2) => Some(text.len() - at),
            Some(Seen::Begun { whole, .. }) => whole,
            Some(Seen::Whole(length)) => Some(length),
        };
        let Some(length) = hidden else {
            at += 1;
            continue;
        };
        if at > told {
            out.extend_from_slice(&text[told..at]);
            told = at;
        }
        at += length;
        out.resize(out.len() + at.saturating_sub(told), b'*');
        told = told.max(at);
    }
    if at > told {
        out.extend_from_slice(&text[told..at]);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles(all: &[&str]) -> Needles {
        let mut needles = Needles::default();
        needles.add(all.iter().map(|each| each.as_bytes().to_vec()).collect());
        needles
    }

    fn masked(text: &str, size: usize) -> String {
        let needles = needles(&["hunter2", "hunter2-long", "aHVudGVy"]);
        let (mut mask, mut out) = (Mask::new(), Vec::new());
        for part in text.as_bytes().chunks(size) {
            mask.pass(&needles, part, &mut out);
        }
        mask.finish(&needles, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_secret_is_hidden_however_the_bytes_are_cut_and_the_length_stays() {
        for size in 1..40 {
            for (text, expected) in [
                ("nothing here", "nothing here"),
                ("a hunter2 b", "a ******* b"),
                ("hunter2", "*******"),
                ("hunter2-long-hunter!", "************-hunter!"),
                ("hunter2-lob", "*******-lob"),
                ("hhunter2hunter2h", "h**************h"),
                ("{\"x\":\"aHVudGVy\"}", "{\"x\":\"********\"}"),
                ("hu", "hu"),
            ] {
                assert_eq!(masked(text, size), expected, "{text} in parts of {size}");
            }
        }
    }

    const SECRET: &str = "correct-horse-battery-staple";

    #[test]
    fn what_was_told_before_the_rest_came_is_known_when_it_comes() {
        let needles = needles(&[SECRET, "battery"]);
        let text = format!("said {SECRET}; battery");
        for cut in 0..text.len() {
            for again in cut..text.len() {
                let (mut mask, mut out) = (Mask::new(), Vec::new());
                for part in [&text[..cut], &text[cut..again], &text[again..]] {
                    mask.pass(&needles, part.as_bytes(), &mut out);
                    mask.release(&needles, &mut out);
                    assert_eq!(mask.waiting(), 0);
                }
                mask.finish(&needles, &mut out);
                let told = String::from_utf8(out).unwrap();
                let seen = told.strip_prefix("said ").unwrap().trim_start_matches(|each: char| each != '*');
                assert_eq!(told.len(), text.len(), "{told}");
                assert!(seen.len() >= text.len() - 5 - (SEEN - 1), "{cut} {again}: {told}");
                assert!(!told.contains("battery") && told[5 + SEEN..].starts_with("*".repeat(20).as_str()), "{told}");
            }
        }
    }

    #[test]
    fn of_a_secret_that_comes_in_two_halves_only_the_very_beginning_is_seen() {
        let check = |text: &str, expected: &str| {
            let needles = needles(&[SECRET, "s3cret"]);
            for is_end in [true, false] {
                let (mut mask, mut out) = (Mask::new(), Vec::new());
                mask.pass(&needles, text.as_bytes(), &mut out);
                let tell = if is_end { Mask::finish } else { Mask::release };
                tell(&mut mask, &needles, &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        };
        check("is correct", "is correct");
        check("is correct-", "is ********");
        check("is correct-horse-battery-stapl", "is ***************************");
        check("is s3", "is s3");
        check("is s3c", "is ***");
        check("correct-horse s3cre", "correct-horse *****");
    }

    #[test]
    fn only_what_may_become_a_secret_is_held_back() {
        let needles = needles(&["hunter2"]);
        let (mut mask, mut out) = (Mask::new(), Vec::new());
        mask.pass(&needles, b"data: x\n\n", &mut out);
        assert_eq!((out.as_slice(), mask.waiting()), (&b"data: x\n\n"[..], 0));
        mask.pass(&needles, b"yes hun", &mut out);
        assert_eq!((out.as_slice(), mask.waiting()), (&b"data: x\n\nyes "[..], 3));
    }
}
