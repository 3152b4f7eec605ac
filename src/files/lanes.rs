//! SHA-256 of several streams at once, each a lane of `sys::sha256`: states, blocks that begin in one piece and end in the next, padding.
//! All lanes together take the time of 1.6 to 2.3 streams alone, so that three streams and more gain.

use crate::sys::sha256::{BLOCK, Kernel, LANES, States};

/// A SHA-256 in progress, whose state can be put into a lane.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    state: [u32; 8],
    /// The beginning of a block whose end is not there yet.
    begun: [u8; BLOCK],
    length: u64,
}

impl Lane {
    /// Of nothing yet.
    pub(crate) fn new() -> Lane {
        // FIPS 180-4, section 5.3.3.
        let state = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
        Lane { state, begun: [0; BLOCK], length: 0 }
    }

    /// Bytes of the block that has begun.
    fn pending(&self) -> usize {
        (self.length % BLOCK as u64) as usize
    }

    /// What follows the message: a one, zeros, and its length in bits at a block's end (section 5.1.1).
    fn padding(&self) -> ([u8; 2 * BLOCK], usize) {
        let mut bytes = [0; 2 * BLOCK];
        bytes[0] = 0x80;
        let zeros = (2 * BLOCK - 1 - size_of::<u64>() - self.pending()) % BLOCK;
        let count = 1 + zeros + size_of::<u64>();
        bytes[1 + zeros..count].copy_from_slice(&self.length.wrapping_mul(8).to_be_bytes());
        (bytes, count)
    }
}

/// More bytes of up to eight messages, of any length each.
pub(crate) fn update(kernel: Kernel, messages: &mut [(&mut Lane, &[u8])]) {
    for group in messages.chunks_mut(LANES) {
        // First the blocks that an earlier piece has begun.
        let mut begun: Vec<[u8; BLOCK]> = Vec::new();
        let mut whole: Vec<usize> = Vec::new();
        for (at, (lane, bytes)) in group.iter_mut().enumerate() {
            let pending = lane.pending();
            lane.length = lane.length.wrapping_add(bytes.len() as u64);
            if pending == 0 {
                continue;
            }
            let count = bytes.len().min(BLOCK - pending);
            lane.begun[pending..pending + count].copy_from_slice(&bytes[..count]);
            *bytes = &bytes[count..];
            if pending + count == BLOCK {
                whole.push(at);
                begun.push(lane.begun);
            }
        }
        let mut blocks: Vec<(usize, &[u8])> = Vec::new();
        whole.iter().zip(&begun).for_each(|(at, block)| blocks.push((*at, block)));
        compress(kernel, group, &blocks);
        // Then as many whole blocks as all have that still have one, until none has.
        loop {
            let left = group.iter().map(|(_, bytes)| bytes.len() / BLOCK).filter(|blocks| *blocks > 0);
            let Some(count) = left.min().map(|blocks| blocks * BLOCK) else { break };
            let mut blocks: Vec<(usize, &[u8])> = Vec::new();
            for (at, (_, bytes)) in group.iter_mut().enumerate().filter(|(_, (_, bytes))| bytes.len() >= count) {
                let (now, later) = bytes.split_at(count);
                blocks.push((at, now));
                *bytes = later;
            }
            compress(kernel, group, &blocks);
        }
        for (lane, bytes) in group {
            let start = lane.pending().saturating_sub(bytes.len());
            lane.begun[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// The hashes, after which the messages are over.
pub(crate) fn finish(kernel: Kernel, lanes: &mut [&mut Lane]) -> Vec<[u8; 32]> {
    let paddings: Vec<([u8; 2 * BLOCK], usize)> = lanes.iter().map(|lane| lane.padding()).collect();
    let mut messages: Vec<(&mut Lane, &[u8])> = Vec::new();
    for (lane, (bytes, count)) in lanes.iter_mut().zip(&paddings) {
        messages.push((lane, &bytes[..*count]));
    }
    update(kernel, &mut messages);
    let hash = |lane: &&mut Lane| {
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(4).zip(lane.state).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
        bytes
    };
    lanes.iter().map(hash).collect()
}

/// Whole blocks, equally many, of those that have some. A lane without gets another's bytes, and what comes out of it is forgotten.
fn compress(kernel: Kernel, group: &mut [(&mut Lane, &[u8])], blocks: &[(usize, &[u8])]) {
    let Some((_, any)) = blocks.first() else { return };
    let mut states: States = [[0; LANES]; 8];
    let mut data = [*any; LANES];
    for (at, bytes) in blocks {
        data[*at] = bytes;
        states.iter_mut().zip(group[*at].0.state).for_each(|(row, word)| row[*at] = word);
    }
    kernel.compress(&mut states, data);
    for (at, _) in blocks {
        group[*at].0.state.iter_mut().zip(&states).for_each(|(word, row)| *word = row[*at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::hash::sha256;
    use proptest::prelude::*;

    fn noise(seed: usize, length: usize) -> Vec<u8> {
        let mut state = seed as u64 + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    /// Feeds each message in pieces that `piece` gives by message and turn, and compares with ring.
    fn check(messages: &[Vec<u8>], piece: impl Fn(usize, usize) -> usize) {
        if Kernel::all().is_empty() {
            crate::sys::skip("no processor with AVX2: SHA-256 of several messages at once");
        }
        for kernel in Kernel::all() {
            let mut lanes = vec![Lane::new(); messages.len()];
            let mut left: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            for turn in 0.. {
                let mut now = Vec::new();
                for (at, (lane, left)) in lanes.iter_mut().zip(&mut left).enumerate() {
                    let (bytes, later) = left.split_at(left.len().min(piece(at, turn)));
                    *left = later;
                    now.push((lane, bytes));
                }
                update(kernel, &mut now);
                if left.iter().all(|left| left.is_empty()) {
                    break;
                }
            }
            let found = finish(kernel, &mut lanes.iter_mut().collect::<Vec<_>>());
            let expected: Vec<[u8; 32]> = messages.iter().map(|message| sha256(message)).collect();
            let lengths: Vec<usize> = messages.iter().map(Vec::len).collect();
            assert_eq!(found, expected, "{kernel:?} {lengths:?}");
        }
    }

    #[test]
    fn lanes_hash_as_ring_does_at_every_length_around_a_block_and_with_every_number_of_lanes() {
        for count in 1..=LANES + 1 {
            for length in (0..=3 * BLOCK).chain([64 * BLOCK - 1, 64 * BLOCK, 64 * BLOCK + 1]) {
                let alike: Vec<Vec<u8>> = (0..count).map(|seed| noise(seed, length)).collect();
                check(&alike, |_, _| usize::MAX);
                let mixed: Vec<Vec<u8>> = (0..count).map(|seed| noise(seed, length + seed * 61)).collect();
                check(&mixed, |_, _| usize::MAX);
            }
        }
    }

    #[test]
    fn where_the_pieces_end_does_not_matter() {
        for size in 1..=2 * BLOCK + 1 {
            let messages: Vec<Vec<u8>> = (0..LANES).map(|seed| noise(seed, 300 + seed * 29)).collect();
            check(&messages, |_, _| size);
        }
    }

    proptest! {
        #[test]
        fn any_messages_in_any_pieces_hash_as_ring_does(
            lengths in prop::collection::vec(0_usize..5000, 1..=2 * LANES),
            pieces in prop::collection::vec(1_usize..700, 1..9),
        ) {
            let messages: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(seed, length)| noise(seed, *length)).collect();
            check(&messages, |at, turn| pieces[(at * 5 + turn) % pieces.len()]);
        }
    }
}
