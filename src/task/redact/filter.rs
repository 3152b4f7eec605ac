//! Where in a text something may begin: one bit for each hash of three bytes, so that plain text costs the same however many secrets there are.
//!
//! A packed search takes few patterns only, and five secrets have more beginnings than that in their encodings. How fast this is, bench/redact
//! measures; it has not been compared with the automaton of aho-corasick yet.

use super::Candidate;

/// Bits of a hash. 8 KiB of table stay in the first cache.
const BITS: u32 = 16;
const WORDS: usize = 1 << (BITS - 6);

/// Three bytes as a number.
pub(super) type Gram = u32;

#[derive(Clone)]
pub(super) struct Filter {
    bits: Box<[u64; WORDS]>,
    /// Sorted by their beginnings.
    candidates: Vec<(Gram, Candidate)>,
    /// Whether something begins with this byte.
    first: Box<[bool; 256]>,
    /// First pairs of bytes, sorted.
    pairs: Vec<[u8; 2]>,
}

fn gram(bytes: [u8; 3]) -> Gram {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// Multiplication spreads the three bytes over the upper half (Knuth's constant).
fn hash(gram: Gram) -> usize {
    (gram.wrapping_mul(0x9E37_79B1) >> (32 - BITS)) as usize
}

impl Filter {
    pub(super) fn new() -> Filter {
        Filter::of(std::iter::empty())
    }

    pub(super) fn of(beginnings: impl Iterator<Item = ([u8; 3], Candidate)>) -> Filter {
        let mut filter = Filter {
            bits: Box::new([0; WORDS]),
            candidates: Vec::new(),
            first: Box::new([false; 256]),
            pairs: Vec::new(),
        };
        for (bytes, candidate) in beginnings {
            let place = hash(gram(bytes));
            filter.bits[place / 64] |= 1 << (place % 64);
            filter.candidates.push((gram(bytes), candidate));
            filter.first[usize::from(bytes[0])] = true;
            filter.pairs.push([bytes[0], bytes[1]]);
        }
        filter.candidates.sort_by_key(|(gram, _)| *gram);
        filter.pairs.sort_unstable();
        filter.pairs.dedup();
        filter
    }

    fn bit(&self, gram: Gram) -> u64 {
        let place = hash(gram);
        self.bits[(place / 64) & (WORDS - 1)] >> (place % 64) & 1
    }

    /// The next place from `from` on at which something may begin.
    pub(super) fn next(&self, text: &[u8], from: usize) -> Option<usize> {
        /// Beginnings in one word of eight bytes.
        const STEP: usize = 6;
        let mut at = from;
        while let Some(word) = text.get(at..at + 8) {
            let word = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
            let mut hits = 0;
            for place in 0..STEP {
                hits |= self.bit((word >> (8 * place)) as u32 & 0xFF_FFFF) << place;
            }
            if hits != 0 {
                return Some(at + hits.trailing_zeros() as usize);
            }
            at += STEP;
        }
        let rest = text.get(at..)?;
        let found = rest.windows(3).position(|three| self.bit(gram([three[0], three[1], three[2]])) != 0)?;
        Some(at + found)
    }

    /// Who may begin at `at`.
    pub(super) fn candidates(&self, text: &[u8], at: usize) -> impl Iterator<Item = Candidate> + '_ {
        let wanted = match text.get(at..at + 3) {
            Some(three) => gram([three[0], three[1], three[2]]),
            None => Gram::MAX, // no three bytes have it
        };
        let from = self.candidates.partition_point(|(gram, _)| *gram < wanted);
        self.candidates[from..].iter().take_while(move |(gram, _)| *gram == wanted).map(|(_, candidate)| *candidate)
    }

    /// How many of the last bytes, two at most, may be the beginning of a beginning.
    pub(super) fn begun(&self, text: &[u8]) -> usize {
        match text {
            [.., one, two] if self.pairs.binary_search(&[*one, *two]).is_ok() => 2,
            [.., last] if self.first[usize::from(*last)] => 1,
            _ => 0,
        }
    }
}
