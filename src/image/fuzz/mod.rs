//! Mutated input for the parsers of foreign data.
//!
//! BRIG_TEST_FUZZ multiplies the rounds; BRIG_TEST_FUZZ_SEED sets the seed; a failure names the seed of its round. The
//! control: without its resolver the unpacker fails within the same rounds.

mod archives;
mod documents;
mod trees;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn rounds(count: u64, round: impl Fn(&mut Dice)) {
    let seed = number("BRIG_TEST_FUZZ_SEED", 1);
    for index in 0..count * number("BRIG_TEST_FUZZ", 1) {
        let seed = seed.wrapping_add(index);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| round(&mut Dice::new(seed))));
        if let Err(cause) = caught {
            eprintln!("again: BRIG_TEST_FUZZ_SEED={seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

/// SplitMix64: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// `end` is not zero.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
