//! A set of grams, three or four successive bytes: one bit a hash. It may contain more than was added.

/// The used part of the table stays in the first caches. A hundred secrets in a hundred forms each seldom make a false
/// hit in a line.
const BITS: u32 = 20;
const WORDS: usize = 1 << (BITS - 6);

#[derive(Clone)]
pub(super) struct Grams<const LENGTH: usize> {
    /// The used words of the table, a power of two, minus one.
    mask: usize,
    table: Box<[u64; WORDS]>,
}

impl<const LENGTH: usize> Grams<LENGTH> {
    /// A set of few grams touches four pages, not 32.
    pub(super) fn new(is_small: bool) -> Grams<LENGTH> {
        // Zero pages of the kernel: a start pays only for those with a bit.
        let table = vec![0; WORDS].into_boxed_slice().try_into().unwrap_or_else(|_| Box::new([0; WORDS]));
        Grams { mask: if is_small { 1 << 10 } else { WORDS } - 1, table }
    }

    /// Spreads the bytes over the upper bits (Knuth's constant). Later bytes than the gram's have no effect.
    #[inline(always)]
    fn place(bytes: [u8; 4]) -> usize {
        let gram = u32::from_le_bytes(bytes) << (8 * (4 - LENGTH));
        (gram.wrapping_mul(0x9E37_79B1) >> (32 - BITS)) as usize
    }

    /// In the lowest bit.
    #[inline(always)]
    fn bit(&self, bytes: [u8; 4]) -> u64 {
        let place = Self::place(bytes);
        self.table[(place / 64) & self.mask & (WORDS - 1)] >> (place % 64)
    }

    pub(super) fn add(&mut self, gram: [u8; LENGTH]) {
        if let Some(bytes) = padded(&gram) {
            let place = Self::place(bytes);
            self.table[(place / 64) & self.mask & (WORDS - 1)] |= 1 << (place % 64);
        }
    }

    pub(super) fn has(&self, text: &[u8], at: usize) -> bool {
        text.len() >= at + LENGTH && padded(&text[at..]).is_some_and(|bytes| self.bit(bytes) & 1 != 0)
    }

    /// The first place with a gram, of `at` and each `STRIDE` bytes on.
    pub(super) fn next<const STRIDE: usize>(&self, text: &[u8], mut at: usize) -> Option<usize> {
        const COUNT: usize = 6;
        // Unrolled by hand: a size-optimised build does not unroll the loop, which takes three times as long.
        while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<{ 3 * COUNT + 1 }>()) {
            let bit = |number: usize| {
                let at = number * STRIDE;
                self.bit([block[at], block[at + 1], block[at + 2], block[at + 3]])
            };
            if (bit(0) | bit(1) | bit(2) | bit(3) | bit(4) | bit(5)) & 1 != 0 {
                break;
            }
            at += COUNT * STRIDE;
        }
        (at..text.len()).step_by(STRIDE).find(|&at| self.has(text, at))
    }
}

fn padded(text: &[u8]) -> Option<[u8; 4]> {
    match *text {
        [a, b, c, d, ..] => Some([a, b, c, d]),
        [a, b, c] => Some([a, b, c, 0]),
        _ => None,
    }
}
