//! Hides secrets in a server's answers with stars of the same length, so that byte counts stay correct. Pure.
//!
//! Bytes that may begin a secret wait for more. After a pause ([`Mask::release`]) they are sent, and the search
//! continues. A beginning that is sent is mostly hidden ([`SEEN`]), also at the end. Otherwise a client that decides
//! where an answer is cut would get the secret in two halves.

use crate::sys::weaken;
use std::collections::HashMap;

/// A beginning of this many bytes, or of half a short secret, is hidden when it is sent. Innocent text that begins like
/// a secret shows stars.
const SEEN: usize = 8;

#[derive(Debug)]
pub(in crate::egress) struct Mask {
    /// Bytes that may begin a secret.
    held: Vec<u8>,
    /// How many bytes of `held` were sent.
    told: usize,
}

/// Every form of every value that is added to requests.
#[derive(Debug)]
pub(in crate::egress) struct Needles {
    all: HashMap<[u8; 2], Vec<Vec<u8>>>,
    /// Bytes that begin a form; all others pass at once.
    beginnings: [bool; 256],
}

impl Default for Needles {
    fn default() -> Needles {
        Needles { all: HashMap::new(), beginnings: [false; 256] }
    }
}

impl Needles {
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

    pub(in crate::egress) fn hidden(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        scan(self, text, 0, true, &mut out);
        out
    }

    fn find_match(&self, text: &[u8]) -> Option<Match> {
        let [first, second, ..] = *text else { return Some(Match::Partial { whole: None, shortest: usize::MAX }) };
        let group = self.all.get(&[first, second])?;
        let whole = group.iter().filter(|each| text.starts_with(each)).map(Vec::len).max();
        let begun = group.iter().filter(|each| each.len() > text.len() && each.starts_with(text)).map(Vec::len).min();
        match (whole, begun) {
            (_, Some(shortest)) => Some(Match::Partial { whole, shortest }),
            (Some(length), None) => Some(Match::Whole(length)),
            (None, None) => None,
        }
    }
}

enum Match {
    /// The length of the longest whole form.
    Whole(usize),
    /// The bytes may become a form of at least `shortest` bytes, and may contain a shorter one.
    Partial { whole: Option<usize>, shortest: usize },
}

impl Mask {
    pub(in crate::egress) fn new() -> Mask {
        Mask { held: Vec::new(), told: 0 }
    }

    pub(in crate::egress) fn waiting(&self) -> usize {
        self.held.len() - self.told
    }

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

    /// After a long pause; the search continues.
    pub(in crate::egress) fn release(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        scan(needles, &self.held, self.told, true, out);
        if weaken::is_off("broker-told") {
            self.held.clear();
        }
        self.told = self.held.len();
    }

    /// At the end of the answer.
    pub(in crate::egress) fn finish(&mut self, needles: &Needles, out: &mut Vec<u8>) {
        scan(needles, &self.held, self.told, true, out);
        self.held.clear();
        self.told = 0;
    }
}

/// Sends what may be sent of a text whose first `told` bytes were sent. Returns where it waits for more bytes; with
/// `is_late` it does not wait.
fn scan(needles: &Needles, text: &[u8], mut told: usize, is_late: bool, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while at < text.len() {
        let begins = |byte: &u8| needles.beginnings[usize::from(*byte)];
        let Some(next) = text[at..].iter().position(begins) else {
            at = text.len();
            break;
        };
        at += next;
        let hidden = match needles.find_match(&text[at..]) {
            None => None,
            Some(Match::Partial { .. }) if !is_late => break,
            Some(Match::Partial { shortest, .. }) if text.len() - at >= SEEN.min(shortest / 2) => Some(text.len() - at),
            Some(Match::Partial { whole, .. }) => whole,
            Some(Match::Whole(length)) => Some(length),
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
