//! The filter of possible places, so that plain text costs the same with any number of secrets.
//!
//! A table contains the three bytes of each beginning. Two faster searches pass over a long text. Teddy of aho-corasick
//! (SIMD) finds the shapes. The other one looks up four bytes at each third place in a table of secrets. Every form has
//! six bytes, and the table contains the three grams of its first ones. bench/redact measures the speed.

use super::dumps::LONGEST_BEGUN;
use super::grams::Grams;
use super::{Candidate, SHORTEST};
use aho_corasick::packed::Searcher;
use std::cell::OnceCell;

/// With at most this many beginnings (the shapes alone), the table is small.
const FEW: usize = 256;

/// The processor is asked once which instructions it has. That costs microseconds in a virtual machine, and a short
/// text is searched sooner.
const LONG: usize = 4096;

/// A form has a gram of four bytes at one of its first places.
const STRIDE: usize = SHORTEST - 3;

pub(super) type Gram = u32;

#[derive(Clone)]
pub(super) struct Filter {
    begins: Grams<3>,
    /// Finds shapes in long texts. `None` without the instructions.
    teddy: OnceCell<Option<Searcher>>,
    /// Candidates by their beginnings, sorted.
    candidates: Vec<(Gram, Candidate)>,
    first: Box<[bool; 256]>,
    /// Sorted first pairs of bytes.
    pairs: Vec<[u8; 2]>,
}

fn gram(bytes: [u8; 3]) -> Gram {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

impl Filter {
    /// Each beginning has at least three bytes.
    pub(super) fn of<'bytes>(beginnings: impl Iterator<Item = (&'bytes [u8], Candidate)>) -> Filter {
        let beginnings: Vec<_> = beginnings.collect();
        let mut filter = Filter {
            begins: Grams::new(beginnings.len() <= FEW),
            teddy: OnceCell::new(),
            candidates: Vec::new(),
            first: Box::new([false; 256]),
            pairs: Vec::new(),
        };
        for (beginning, candidate) in beginnings {
            filter.learn(beginning, candidate);
            // A terminal writes `\r\n` for `\n`.
            if let Some(line) = beginning.iter().take(4).position(|&byte| byte == b'\n') {
                filter.learn(&[&beginning[..line], b"\r", &beginning[line..]].concat(), candidate);
            }
        }
        filter.candidates.sort_by_key(|(gram, _)| *gram);
        filter.candidates.dedup(); // many beginnings of dumps share three bytes
        filter.pairs.sort_unstable();
        filter.pairs.dedup();
        filter
    }

    fn learn(&mut self, beginning: &[u8], candidate: Candidate) {
        let &[one, two, three, ..] = beginning else { return };
        self.begins.add([one, two, three]);
        self.candidates.push((gram([one, two, three]), candidate));
        self.first[usize::from(one)] = true;
        self.pairs.push([one, two]);
    }

    fn teddy(&self) -> Option<Searcher> {
        let shapes = self.candidates.iter().filter(|(_, candidate)| matches!(candidate, Candidate::Shape(_)));
        let mut grams: Vec<_> = shapes.map(|(gram, _)| gram.to_le_bytes()).collect();
        grams.dedup();
        Searcher::new(grams.iter().map(|gram| &gram[..3]))
    }

    /// Every place of a match from `from` on, and others. `forms` returns the grams of all forms, or `None` without a
    /// secret.
    pub(super) fn places<'a>(
        &'a self,
        text: &'a [u8],
        from: usize,
        forms: impl FnOnce() -> Option<&'a Grams<4>>,
    ) -> Places<'a> {
        let is_long = text.len() >= from + LONG;
        let teddy = is_long.then(|| self.teddy.get_or_init(|| self.teddy()).as_ref()).flatten();
        let long = teddy.map(|teddy| (teddy, forms()));
        let mut places = Places { begins: &self.begins, text, long, shape: None, form: None, passed: from };
        (places.shape, places.form) = (places.find_shape(from), places.find_form(from));
        places
    }

    pub(super) fn candidates(&self, text: &[u8], at: usize) -> impl Iterator<Item = Candidate> + '_ {
        let wanted = match text.get(at..at + 3) {
            Some(three) => gram([three[0], three[1], three[2]]),
            None => Gram::MAX, // three bytes never have this value
        };
        let from = self.candidates.partition_point(|(gram, _)| *gram < wanted);
        self.candidates[from..].iter().take_while(move |(gram, _)| *gram == wanted).map(|(_, candidate)| *candidate)
    }

    /// How many of the last bytes, two at most, may begin a candidate.
    pub(super) fn begun(&self, text: &[u8]) -> usize {
        match text {
            [.., one, two] if self.pairs.binary_search(&[*one, *two]).is_ok() => 2,
            [.., last] if self.first[usize::from(*last)] => 1,
            _ => 0,
        }
    }
}

/// Iterates over possible places.
pub(super) struct Places<'a> {
    begins: &'a Grams<3>,
    text: &'a [u8],
    long: Option<(&'a Searcher, Option<&'a Grams<4>>)>,
    /// The next place of each search.
    shape: Option<usize>,
    form: Option<usize>,
    /// The search of grams has passed the places before this one: `begins` decides.
    passed: usize,
}

impl Places<'_> {
    fn find_shape(&self, from: usize) -> Option<usize> {
        let (teddy, _) = self.long?;
        teddy.find_in(self.text, (from..self.text.len()).into()).map(|found| found.start())
    }

    /// Finds any place in a short text.
    fn find_form(&mut self, mut from: usize) -> Option<usize> {
        let Some((_, forms)) = self.long else { return self.begins.next::<1>(self.text, from) };
        let (forms, end) = (forms?, self.text.len());
        // Behind it, the text may end within a match.
        let most = &self.text[..end.saturating_sub(LONGEST_BEGUN)];
        loop {
            if let Some(place) = (from..self.passed).find(|&at| self.begins.has(self.text, at)) {
                return Some(place);
            }
            from = from.max(self.passed);
            if from == end {
                return None;
            }
            (from, self.passed) = match forms.next::<STRIDE>(most, from + STRIDE - 1) {
                Some(at) => (at + 1 - STRIDE, at + 1),
                None => (from.max(most.len().saturating_sub(SHORTEST - 1)), end),
            };
        }
    }
}

impl Iterator for Places<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.shape.into_iter().chain(self.form).min()?;
        if self.shape == Some(place) {
            self.shape = self.find_shape(place + 1);
        }
        if self.form == Some(place) {
            self.form = self.find_form(place + 1);
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Known, Patterns, Stream, Verdict, forms};
    use super::LONG;
    use proptest::prelude::*;

    /// A planted text: a form of a value or a dump of it, with line breaks, cut at both ends.
    type Plant = (usize, usize, Vec<(usize, u8)>, usize, usize, usize);

    fn planted(values: &[Vec<u8>], (value, form, breaks, skip, less, gap): &Plant) -> Vec<u8> {
        let value = &values[value % values.len()];
        let (hex, pairs) = (|byte: &u8| format!("{byte:02x}"), |pair: &[u8]| format!("{:02x}{:02x}", pair[0], pair[1]));
        let turned = |pair: &[u8]| format!("{:02X}{:02x}", pair[1], pair[0]);
        let words = |word: &dyn Fn(&[u8]) -> String| value.chunks_exact(2).map(word).collect::<Vec<_>>().join(" ");
        let dumps = [
            value.iter().map(hex).collect::<Vec<_>>().join(" "),
            value.iter().map(hex).collect::<Vec<_>>().join("  "),
            words(&pairs),
            words(&turned),
        ];
        let all: Vec<_> = dumps.into_iter().map(String::into_bytes).chain(forms(value)).collect();
        let mut text = all[form % all.len()].clone();
        for (at, byte) in breaks {
            text.insert(at % text.len(), *byte);
        }
        let text = &text[(*skip).min(text.len())..];
        [&b"it is a text "[..gap % 14], &text[..text.len() - less % (text.len() + 1)]].concat()
    }

    fn output<'text>(patterns: &Patterns, pieces: impl Iterator<Item = &'text [u8]>) -> String {
        let (mut stream, mut out) = (Stream::default(), Vec::new());
        pieces.for_each(|piece| stream.push(patterns, piece, &mut out));
        stream.finish(patterns, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn search_of_long_texts_passes_no_match(
            values in proptest::collection::vec(prop_oneof![
                proptest::collection::vec(any::<u8>(), 6..24),
                "[a-zA-Z0-9+/]{6,40}".prop_map(String::into_bytes),
                "[ab]{1,5}\n[a-z \n]{6,12}".prop_map(String::into_bytes),
            ], 1..4),
            plants in proptest::collection::vec((
                0usize..4, 0usize..400,
                prop_oneof![
                    2 => Just(Vec::new()),
                    1 => proptest::collection::vec((0usize..12, prop_oneof![Just(b'\n'), Just(b'\r')]), 1..4),
                ],
                prop_oneof![4 => Just(0), 1 => 0usize..8], prop_oneof![3 => Just(0), 1 => 0usize..40], 0usize..14,
            ), 1..40),
            piece in LONG..LONG + 3000,
        ) {
            let mut patterns = Patterns::new();
            let known = values.iter().filter(|value| patterns.add("S", value)).count();
            prop_assume!(known == values.len());
            let some: Vec<u8> = plants.iter().flat_map(|plant| planted(&values, plant)).collect();
            let text = [&some[..], &b"ghp_ and\nsome text ://".repeat(LONG / 20), &some].concat();
            let places: Vec<_> = patterns.places(&text, 0).collect();
            prop_assert!(places.is_sorted_by(|one, other| one < other));
            let (mut later, mut runs) = (Vec::new(), Known::new(text.len()));
            for at in 0..text.len() {
                let verdict = patterns.match_at(&text, at, false, &mut later, &mut runs);
                let is_match = verdict != Verdict::No || !std::mem::take(&mut later).is_empty();
                prop_assert!(!is_match || places.binary_search(&at).is_ok(), "{at}: {verdict:?} of {:?}", String::from_utf8_lossy(&text[at..text.len().min(at + 40)]));
            }
            // Short pieces have another search.
            let short = output(&patterns, text.chunks(LONG / 4));
            prop_assert_eq!(&output(&patterns, [&text[..]].into_iter()), &short);
            prop_assert_eq!(&output(&patterns, text.chunks(piece)), &short);
        }
    }
}
