//! A cache for one text: the ends of runs of letters, and the next places of fixed words.
//!
//! A shape may begin at every third byte of a run and walk to its end: `ghp_ghp_ghp_…` would cost quadratic time. With
//! the cache each byte is walked once a set, while places go forward.

use std::ops::Range;

/// Runs for each set: a token of three parts uses three from each of its places.
const KEPT: usize = 4;

/// A set of letters; comparable, unlike a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letters {
    Word,
    Dashed,
}

impl Letters {
    /// How many of the first bytes are in the set.
    pub(super) fn run(self, text: &[u8]) -> usize {
        match self {
            Letters::Word => run(text, word),
            Letters::Dashed => run(text, dashed),
        }
    }
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn dashed(byte: u8) -> bool {
    word(byte) || byte == b'-'
}

fn run(text: &[u8], letters: fn(u8) -> bool) -> usize {
    text.iter().position(|&byte| !letters(byte)).unwrap_or(text.len())
}

/// A place is the rest of the text from there on.
#[derive(Debug, Default)]
pub(super) struct Known {
    length: usize,
    /// Runs of each set, from the requested place to their end.
    runs: [[Range<usize>; KEPT]; 2],
    oldest: [usize; 2],
    words: Vec<Searched>,
    #[cfg(test)]
    pub(super) walked: u64,
}

#[derive(Debug)]
struct Searched {
    word: &'static [u8],
    nowhere: Range<usize>,
}

impl Known {
    pub(super) fn new(length: usize) -> Known {
        Known { length, ..Known::default() }
    }

    pub(super) fn run(&mut self, rest: &[u8], letters: Letters) -> usize {
        let from = self.length - rest.len();
        let set = letters as usize;
        let covers = |run: &&Range<usize>| run.end > 0 && (run.start..=run.end).contains(&from);
        if let Some(run) = self.runs[set].iter().find(covers) {
            return run.end - from;
        }
        let length = letters.run(rest);
        self.walk(length + 1);
        self.runs[set][self.oldest[set]] = from..from + length;
        self.oldest[set] = (self.oldest[set] + 1) % KEPT;
        length
    }

    /// Like [`Known::run`] for short runs, without the cache.
    pub(super) fn short_run(&mut self, rest: &[u8], letters: fn(u8) -> bool, most: usize) -> usize {
        let length = run(&rest[..rest.len().min(most)], letters);
        self.walk(length);
        length
    }

    /// The first whole occurrence in `most` bytes.
    pub(super) fn find(&mut self, rest: &[u8], word: &'static [u8], most: usize) -> Option<usize> {
        let from = self.length - rest.len();
        let index = self.words.iter().position(|each| each.word == word).unwrap_or_else(|| {
            self.words.push(Searched { word, nowhere: 0..0 });
            self.words.len() - 1
        });
        let nowhere = &mut self.words[index].nowhere;
        if !(nowhere.start..=nowhere.end).contains(&from) {
            *nowhere = from..from;
        }
        let asked = &rest[..rest.len().min(most)];
        let first = nowhere.end - from;
        let places = asked.get(first..).unwrap_or_default().windows(word.len());
        let count = places.len();
        let found = places.into_iter().position(|each| each == word);
        nowhere.end += found.unwrap_or(count);
        self.walk(found.map_or(count, |found| found + 1));
        found.map(|found| first + found)
    }

    #[cfg(test)]
    fn walk(&mut self, bytes: usize) {
        self.walked += bytes as u64;
    }

    #[cfg(not(test))]
    fn walk(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_what_a_walk_would_say() {
        let text = b"ab-cd ef-END gh--END.";
        let mut known = Known::new(text.len());
        for at in [0, 1, 2, 5, 3, 6, 8, 9, 12, 13, 0, 20, 21] {
            let rest = &text[at..];
            for letters in [Letters::Word, Letters::Dashed] {
                assert_eq!(known.run(rest, letters), letters.run(rest), "{at} {letters:?}");
            }
            for most in [3, 4, 9, 100] {
                let walked = rest[..rest.len().min(most)].windows(4).position(|each| each == b"-END");
                assert_eq!(known.find(rest, b"-END", most), walked, "{at} {most}");
            }
        }
    }
}
