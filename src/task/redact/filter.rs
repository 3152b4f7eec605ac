//! The filter of possible places: one bit a hash of three bytes, so that plain text costs the same with any number of
//! secrets.
//!
//! A bit covers a byte and the one before, so only every second place is tested. Teddy of aho-corasick (SIMD) searches
//! long texts for the shapes alone. With the forms of a secret it takes no beginnings, or passes too many places.
//! bench/redact measures the speed.

use super::Candidate;
use aho_corasick::packed::Searcher;
use std::cell::OnceCell;

/// The used part of the table stays in the first caches. A hundred secrets in a hundred forms each seldom make a false
/// hit in a line.
const BITS: u32 = 20;
const WORDS: usize = 1 << (BITS - 6);

/// With at most this many beginnings (the shapes alone), [`FEW_WORDS`] of each table are used: four pages, not 64.
const FEW: usize = 256;
const FEW_WORDS: usize = 1 << 10;

/// The processor is asked once which instructions it has. That costs microseconds in a virtual machine, and a short
/// text is searched sooner.
const LONG: usize = 4096;

pub(super) type Gram = u32;

type Table = Box<[u64; WORDS]>;

#[derive(Clone)]
pub(super) struct Filter {
    /// The used words of each table, a power of two, minus one.
    mask: usize,
    begins: Table,
    /// A candidate begins here or one byte before.
    passes: Table,
    /// For long texts. `None` with too many beginnings, or without the instructions.
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

/// Spreads the three bytes over the upper half (Knuth's constant).
fn hash(gram: Gram) -> usize {
    (gram.wrapping_mul(0x9E37_79B1) >> (32 - BITS)) as usize
}

/// Zero pages of the kernel: a start pays only for those with a bit.
fn table() -> Table {
    vec![0; WORDS].into_boxed_slice().try_into().unwrap_or_else(|_| Box::new([0; WORDS]))
}

fn set(table: &mut Table, mask: usize, bytes: [u8; 3]) {
    let place = hash(gram(bytes));
    table[(place / 64) & mask & (WORDS - 1)] |= 1 << (place % 64);
}

fn bit(table: &Table, mask: usize, gram: Gram) -> u64 {
    let place = hash(gram);
    table[(place / 64) & mask & (WORDS - 1)] >> (place % 64) & 1
}

impl Filter {
    /// Each beginning has at least three bytes.
    pub(super) fn of<'bytes>(beginnings: impl Iterator<Item = (&'bytes [u8], Candidate)>) -> Filter {
        let beginnings: Vec<_> = beginnings.collect();
        let mut filter = Filter {
            mask: if beginnings.len() <= FEW { FEW_WORDS } else { WORDS } - 1,
            begins: table(),
            passes: table(),
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
        let &[one, two, three, ref rest @ ..] = beginning else { return };
        set(&mut self.begins, self.mask, [one, two, three]);
        set(&mut self.passes, self.mask, [one, two, three]);
        match rest.first() {
            Some(&four) => set(&mut self.passes, self.mask, [two, three, four]),
            None => (0..=u8::MAX).for_each(|four| set(&mut self.passes, self.mask, [two, three, four])),
        }
        self.candidates.push((gram([one, two, three]), candidate));
        self.first[usize::from(one)] = true;
        self.pairs.push([one, two]);
    }

    fn teddy(&self) -> Option<Searcher> {
        let mut grams: Vec<_> = self.candidates.iter().map(|(gram, _)| gram.to_le_bytes()).collect();
        grams.dedup();
        Searcher::new(grams.iter().map(|gram| &gram[..3]))
    }

    pub(super) fn next(&self, text: &[u8], from: usize) -> Option<usize> {
        if text.len() >= from + LONG
            && let Some(teddy) = self.teddy.get_or_init(|| self.teddy())
        {
            return teddy.find_in(text, (from..text.len()).into()).map(|found| found.start());
        }
        /// One step tests places 0, 2, 4, … 10.
        const STEP: usize = 12;
        let (mask, mut at) = (self.mask, from);
        // Unrolled by hand: a size-optimised build does not unroll the loop, which takes three times as long.
        while let Some(&[a, b, c, d, e, f, g, h, i, j, k, l, m, n]) =
            text.get(at..at + STEP + 2).and_then(|all| all.first_chunk())
        {
            let one = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let two = u64::from_le_bytes([g, h, i, j, k, l, m, n]);
            let passes = |word: u64, byte: u32| bit(&self.passes, mask, (word >> (8 * byte)) as u32 & 0xFF_FFFF);
            let found =
                passes(one, 0) | passes(one, 2) | passes(one, 4) | passes(two, 0) | passes(two, 2) | passes(two, 4);
            if found != 0
                && let Some(place) = self.begins_in(text, at.saturating_sub(1).max(from), at + STEP - 1)
            {
                return Some(place);
            }
            at += STEP;
        }
        self.begins_in(text, at.saturating_sub(1).max(from), text.len())
    }

    #[cold]
    fn begins_in(&self, text: &[u8], from: usize, to: usize) -> Option<usize> {
        let places = text.get(from..text.len().min(to + 2))?;
        let begins = |three: &[u8]| bit(&self.begins, self.mask, gram([three[0], three[1], three[2]])) != 0;
        let found = places.windows(3).position(begins)?;
        Some(from + found)
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
