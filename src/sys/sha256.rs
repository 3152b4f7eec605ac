//! SHA-256 of eight messages at once, each in a lane of the vector registers, by what the processor's own names for that are (AVX2, AVX-512VL).
//! Only the compression of whole blocks: states, padding and bookkeeping are `files::lanes`'s. FIPS 180-4, section 6.2.2; the manner is that of
//! Gueron and Krasnov, "Simultaneous hashing of multiple messages" (2012).

/// Messages at once.
pub(crate) const LANES: usize = 8;
/// Bytes of a block.
pub(crate) const BLOCK: usize = 64;
/// The eight words of a state, each of all lanes.
pub(crate) type States = [[u32; LANES]; 8];

pub(crate) use machine::Kernel;

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{BLOCK, LANES, States};
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;

    /// A compression of eight lanes that this processor has: what it takes is known to be there when one exists.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Kernel(Form);

    #[derive(Clone, Copy, Debug)]
    enum Form {
        Avx2,
        Avx512,
    }

    impl Kernel {
        /// The fastest one, where lanes are worth it: with instructions for SHA-256 one message at a time is faster.
        pub(crate) fn best() -> Option<Kernel> {
            if is_x86_feature_detected!("sha") { None } else { Kernel::all().pop() }
        }

        /// All of this processor, the slowest first.
        pub(crate) fn all() -> Vec<Kernel> {
            let mut all = Vec::new();
            if is_x86_feature_detected!("avx2") {
                all.push(Kernel(Form::Avx2));
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                    all.push(Kernel(Form::Avx512));
                }
            }
            all
        }

        /// Takes as many whole blocks of every lane as the shortest has.
        pub(crate) fn compress(self, states: &mut States, data: [&[u8]; LANES]) {
            let blocks = data.iter().map(|bytes| bytes.len() / BLOCK).min().unwrap_or(0);
            let data = data.map(<[u8]>::as_ptr);
            match self.0 {
                // SAFETY: a kernel exists only where the processor has what it takes, and each pointer has `blocks` blocks of a slice that lives
                // until this returns.
                Form::Avx2 => unsafe { avx2(states, data, blocks) },
                // SAFETY: as above.
                Form::Avx512 => unsafe { avx512(states, data, blocks) },
            }
        }
    }

    /// FIPS 180-4, section 4.2.2.
    const ROUND: [u32; 64] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
        0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
        0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
        0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
        0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
        0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
        0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2,
    ];

    /// `x` rotated, three words' exclusive or, Ch and Maj, with what AVX2 has.
    macro_rules! with_avx2 {
        (rotate $x:expr, $by:literal) => {
            _mm256_or_si256(_mm256_srli_epi32::<$by>($x), _mm256_slli_epi32::<{ 32 - $by }>($x))
        };
        (xor $x:expr, $y:expr, $z:expr) => {
            _mm256_xor_si256(_mm256_xor_si256($x, $y), $z)
        };
        (choose $x:expr, $y:expr, $z:expr) => {
            _mm256_xor_si256($z, _mm256_and_si256($x, _mm256_xor_si256($y, $z)))
        };
        (majority $x:expr, $y:expr, $z:expr) => {
            _mm256_or_si256(_mm256_and_si256($x, $y), _mm256_and_si256($z, _mm256_or_si256($x, $y)))
        };
    }

    /// The same as one instruction each.
    macro_rules! with_avx512 {
        (rotate $x:expr, $by:literal) => {
            _mm256_ror_epi32::<$by>($x)
        };
        (xor $x:expr, $y:expr, $z:expr) => {
            _mm256_ternarylogic_epi32::<0x96>($x, $y, $z)
        };
        (choose $x:expr, $y:expr, $z:expr) => {
            _mm256_ternarylogic_epi32::<0xca>($x, $y, $z)
        };
        (majority $x:expr, $y:expr, $z:expr) => {
            _mm256_ternarylogic_epi32::<0xe8>($x, $y, $z)
        };
    }

    /// A round: `$t` is that of the first of its sixteen, `$i` its place among them (section 6.2.2, step 3).
    macro_rules! round {
        ($with:ident, $words:ident, $t:expr, $i:literal, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
            let key = _mm256_set1_epi32(ROUND[$t + $i] as i32);
            let one = $with!(xor $with!(rotate $e, 6), $with!(rotate $e, 11), $with!(rotate $e, 25));
            let input = _mm256_add_epi32($words[$i], key);
            let sum = _mm256_add_epi32(_mm256_add_epi32($h, one), $with!(choose $e, $f, $g));
            let sum = _mm256_add_epi32(sum, input);
            let zero = $with!(xor $with!(rotate $a, 2), $with!(rotate $a, 13), $with!(rotate $a, 22));
            $d = _mm256_add_epi32($d, sum);
            $h = _mm256_add_epi32(sum, _mm256_add_epi32(zero, $with!(majority $a, $b, $c)));
        };
    }

    /// The next sixteen words of the message schedule, in place of the last (step 1).
    macro_rules! expand {
        ($with:ident, $words:ident, $($i:literal)*) => {$(
            let (x, y) = ($words[($i + 1) & 15], $words[($i + 14) & 15]);
            let zero = $with!(xor $with!(rotate x, 7), $with!(rotate x, 18), _mm256_srli_epi32::<3>(x));
            let one = $with!(xor $with!(rotate y, 17), $with!(rotate y, 19), _mm256_srli_epi32::<10>(y));
            let sum = _mm256_add_epi32($words[$i], zero);
            $words[$i] = _mm256_add_epi32(sum, _mm256_add_epi32($words[($i + 9) & 15], one));
        )*};
    }

    macro_rules! kernel {
        ($name:ident, $features:literal, $with:ident) => {
            /// # Safety
            /// Each pointer must have `blocks` blocks behind it.
            #[target_feature(enable = $features)]
            unsafe fn $name(states: &mut States, data: [*const u8; LANES], blocks: usize) {
                // SAFETY: a row of the states has the 32 bytes of a register; unaligned loads take any address.
                let load = |row: &[u32; LANES]| unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
                let mut state = [
                    load(&states[0]), load(&states[1]), load(&states[2]), load(&states[3]),
                    load(&states[4]), load(&states[5]), load(&states[6]), load(&states[7]),
                ];
                for block in 0..blocks {
                    let mut words = [_mm256_setzero_si256(); 16];
                    for half in 0..2 {
                        let at = block * BLOCK + half * (BLOCK / 2);
                        // SAFETY: half a block is a register's 32 bytes, and the caller vouches for `blocks` whole ones.
                        let row = |lane: usize| unsafe { _mm256_loadu_si256(data[lane].add(at).cast()) };
                        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
                        words[half * 8..half * 8 + 8].copy_from_slice(&transposed(rows));
                    }
                    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
                    for at in [0, 16, 32, 48] {
                        if at > 0 {
                            expand!($with, words, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
                        }
                        round!($with, words, at, 0, a b c d e f g h);
                        round!($with, words, at, 1, h a b c d e f g);
                        round!($with, words, at, 2, g h a b c d e f);
                        round!($with, words, at, 3, f g h a b c d e);
                        round!($with, words, at, 4, e f g h a b c d);
                        round!($with, words, at, 5, d e f g h a b c);
                        round!($with, words, at, 6, c d e f g h a b);
                        round!($with, words, at, 7, b c d e f g h a);
                        round!($with, words, at, 8, a b c d e f g h);
                        round!($with, words, at, 9, h a b c d e f g);
                        round!($with, words, at, 10, g h a b c d e f);
                        round!($with, words, at, 11, f g h a b c d e);
                        round!($with, words, at, 12, e f g h a b c d);
                        round!($with, words, at, 13, d e f g h a b c);
                        round!($with, words, at, 14, c d e f g h a b);
                        round!($with, words, at, 15, b c d e f g h a);
                    }
                    for (state, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                        *state = _mm256_add_epi32(*state, word);
                    }
                }
                for (row, word) in states.iter_mut().zip(state) {
                    // SAFETY: a row has the 32 bytes of a register; unaligned stores take any address.
                    unsafe { _mm256_storeu_si256(row.as_mut_ptr().cast(), word) };
                }
            }
        };
    }

    kernel!(avx2, "avx2", with_avx2);
    kernel!(avx512, "avx2,avx512f,avx512vl", with_avx512);

    /// Eight words of each lane become eight registers of one word of all lanes, in the processor's byte order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transposed(rows: [__m256i; 8]) -> [__m256i; 8] {
        let swap = _mm256_setr_epi8(
            3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
        );
        let [a, b, c, d, e, f, g, h] = rows;
        let (low_ab, high_ab) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (low_cd, high_cd) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let (low_ef, high_ef) = (_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f));
        let (low_gh, high_gh) = (_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h));
        let first = [
            _mm256_unpacklo_epi64(low_ab, low_cd),
            _mm256_unpackhi_epi64(low_ab, low_cd),
            _mm256_unpacklo_epi64(high_ab, high_cd),
            _mm256_unpackhi_epi64(high_ab, high_cd),
        ];
        let second = [
            _mm256_unpacklo_epi64(low_ef, low_gh),
            _mm256_unpackhi_epi64(low_ef, low_gh),
            _mm256_unpacklo_epi64(high_ef, high_gh),
            _mm256_unpackhi_epi64(high_ef, high_gh),
        ];
        let mut words = [_mm256_setzero_si256(); 8];
        for (at, (first, second)) in first.into_iter().zip(second).enumerate() {
            words[at] = _mm256_shuffle_epi8(_mm256_permute2x128_si256::<0x20>(first, second), swap);
            words[at + 4] = _mm256_shuffle_epi8(_mm256_permute2x128_si256::<0x31>(first, second), swap);
        }
        words
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{LANES, States};

    /// Here is none: processors of other architectures have instructions for SHA-256.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Kernel {}

    impl Kernel {
        /// None.
        pub(crate) fn best() -> Option<Kernel> {
            None
        }

        /// None.
        #[cfg(test)]
        pub(crate) fn all() -> Vec<Kernel> {
            Vec::new()
        }

        /// Cannot be called.
        pub(crate) fn compress(self, _states: &mut States, _data: [&[u8]; LANES]) {
            match self {}
        }
    }
}
