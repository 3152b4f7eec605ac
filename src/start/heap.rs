//! The heap of a start, which makes some thousand small allocations and ends. musl's allocator asks the kernel for few
//! pages at a time and returns them at once: a tenth of a start's processor time (docs/decisions/0005-start-path.md).
//!
//! Pieces come from one block of zero pages; a freed piece serves the next allocation of its size. Its first word names
//! the next free piece: a table for that would be some 35 pages that a start touches. The system's allocator serves the
//! rest. Only the interface of [`GlobalAlloc`] is unsafe.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Bytes. A page that is never touched costs nothing.
const SIZE: usize = 1024 * 1024;
const UNIT: usize = 16;
const UNITS: usize = SIZE / UNIT;
/// Of the block: [`AtomicU32`]s.
const WORDS: usize = SIZE / 4;
/// Up to here each multiple of [`UNIT`] has a class; above, four for each doubling.
const FINE: usize = 512;
const LARGEST: usize = 256 * 1024;
/// Pieces from here on come from the end of the block: a start touches little of such a table.
const LARGE: usize = 16 * 1024;
const CLASSES: usize = FINE / UNIT + 4 * (LARGEST / FINE).ilog2() as usize;
/// Tries of [`free`]. Another thread keeps the account for some ten instructions.
const TRIES: usize = 1000;

#[repr(align(4096))]
struct Block([AtomicU32; WORDS]);

/// The pieces in use, in units from the block's start. 0 means "none" in lists: unit 0 is never given out.
struct Account {
    /// Units before this one are given out.
    used: u32,
    /// Units from this one on are given out.
    large: u32,
    /// The first free piece of each class.
    free: [u32; CLASSES],
}

static BLOCK: Block = Block([const { AtomicU32::new(0) }; WORDS]);
static ACCOUNT: Mutex<Account> = Mutex::new(Account::new());

/// The allocator of the `brig` program. A long-lived program wastes `SIZE` bytes at most.
#[derive(Debug, Clone, Copy)]
pub struct StartHeap;

/// Returns the class and the size of its pieces.
fn class(size: usize) -> (usize, usize) {
    if size <= FINE {
        let class = size.max(1).div_ceil(UNIT);
        return (class - 1, class * UNIT);
    }
    let doubling = (size - 1).ilog2();
    let step = 1 << (doubling - 2);
    let quarter = (size - (1 << doubling)).div_ceil(step);
    (FINE / UNIT + 4 * (doubling - FINE.ilog2()) as usize + quarter - 1, (1 << doubling) + quarter * step)
}

/// Below [`SIZE`] if `pointer` is in the block.
fn offset(pointer: *mut u8) -> usize {
    (pointer as usize).wrapping_sub(BLOCK.0.as_ptr() as usize)
}

fn is_inside(pointer: *mut u8) -> bool {
    offset(pointer) < SIZE
}

/// `None` while another thread has it, and after a fork during that.
fn account() -> Option<MutexGuard<'static, Account>> {
    ACCOUNT.try_lock().ok()
}

/// The first word of a free piece: the next free piece of its class.
fn next(block: &[AtomicU32], piece: u32) -> &AtomicU32 {
    &block[piece as usize * (UNIT / 4)]
}

impl Account {
    const fn new() -> Self {
        Account { used: 1, large: UNITS as u32, free: [0; CLASSES] }
    }

    /// With `true` the piece is zero throughout.
    fn take(&mut self, block: &[AtomicU32], class: usize, size: usize) -> Option<(u32, bool)> {
        let first = self.free[class];
        if first != 0 {
            self.free[class] = next(block, first).load(Ordering::Relaxed);
            return Some((first, false));
        }
        let units = (size / UNIT) as u32;
        if units > self.large - self.used {
            return None;
        }
        if size < LARGE {
            self.used += units;
            Some((self.used - units, true))
        } else {
            self.large -= units;
            Some((self.large, true))
        }
    }

    fn return_piece(&mut self, block: &[AtomicU32], class: usize, piece: u32) {
        next(block, piece).store(self.free[class], Ordering::Relaxed);
        self.free[class] = piece;
    }
}

/// Zero throughout if the flag is set. `None`: too large, no room, or another thread has the account.
fn take(layout: Layout) -> Option<(*mut u8, bool)> {
    if layout.align() > UNIT || layout.size() > LARGEST {
        return None;
    }
    let (class, size) = class(layout.size());
    let (piece, is_fresh) = account()?.take(&BLOCK.0, class, size)?;
    Some((BLOCK.0.as_ptr().cast_mut().cast::<u8>().wrapping_add(piece as usize * UNIT), is_fresh))
}

/// If other threads keep the account all the while, the piece is lost until the program ends.
fn free(pointer: *mut u8, layout: Layout) {
    let (class, _) = class(layout.size());
    for _ in 0..TRIES {
        if let Some(mut account) = account() {
            return account.return_piece(&BLOCK.0, class, (offset(pointer) / UNIT) as u32);
        }
        std::hint::spin_loop();
    }
}

// SAFETY: a piece has one owner at a time: `take` removes it from the account. It is as large as its class and aligned
// to UNIT. Its address comes from a pointer to the whole block, whose words may change (AtomicU32). System gets back
// only what it gave out. Callers keep to the layout.
unsafe impl GlobalAlloc for StartHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some((piece, _)) => piece,
            // SAFETY: as above.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above; a piece is at least as long as the layout.
        unsafe {
            match take(layout) {
                Some((piece, true)) => piece,
                Some((piece, false)) => {
                    piece.write_bytes(0, layout.size());
                    piece
                }
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if is_inside(pointer) {
            return free(pointer, layout);
        }
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // A piece returns to the class of its last layout, so a smaller one must move.
        if is_inside(pointer) && size <= LARGEST && class(size) == class(layout.size()) {
            return pointer;
        }
        // SAFETY: as above; the caller promises that `size` with this alignment is a valid layout. The two pieces do
        // not overlap: the new one was free.
        unsafe {
            if !is_inside(pointer) {
                return System.realloc(pointer, layout, size);
            }
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                pointer.copy_to_nonoverlapping(new, layout.size().min(size));
                free(pointer, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes_and_waste_a_fifth_at_most() {
        let mut last = (0, 0);
        for wanted in 1..=LARGEST {
            let (class, size) = class(wanted);
            assert!(class < CLASSES && size >= wanted && size.is_multiple_of(UNIT), "{wanted}: {class} {size}");
            assert!(size - wanted <= (wanted / 4).max(UNIT - 1), "{wanted}: {size}");
            assert!((class, size) == last || class == last.0 + 1 && wanted == last.1 + 1 || wanted == 1);
            last = (class, size);
        }
        assert_eq!(last, (CLASSES - 1, LARGEST));
    }

    fn fresh() -> (Account, Vec<AtomicU32>) {
        (Account::new(), (0..WORDS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns pieces at random, from a fixed seed, until the account is full.
    #[test]
    fn no_two_pieces_that_are_handed_out_overlap() {
        let (mut account, block) = fresh();
        let (mut held, mut owner) = (Vec::new(), vec![false; UNITS]);
        let mut state = 88_172_645_463_325_252_u64;
        let mut below = |most: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % most as u64) as usize
        };
        let mut full = 0;
        for _ in 0..200_000 {
            let size = if below(200) == 0 { 1 + below(LARGEST) } else { 1 + below(2000) };
            let (class, piece_size) = class(size);
            match account.take(&block, class, piece_size) {
                Some((piece, _)) => {
                    let range = piece as usize..piece as usize + piece_size / UNIT;
                    assert!(range.start > 0 && range.end <= UNITS, "{range:?} of {size} is outside of the block");
                    assert!(!owner[range.clone()].contains(&true), "{range:?} of {size} has an owner");
                    owner[range.clone()].fill(true);
                    // Its owner may write anything.
                    next(&block, piece).store(u32::MAX, Ordering::Relaxed);
                    held.push((class, range));
                }
                None => full += 1,
            }
            if below(3) > 0 && !held.is_empty() {
                let (class, range) = held.swap_remove(below(held.len()));
                owner[range.clone()].fill(false);
                account.return_piece(&block, class, range.start as u32);
            }
        }
        assert!(full > 0 && !held.is_empty());
    }

    #[test]
    fn fresh_pieces_are_marked_and_freed_ones_serve_their_class_again() {
        let (mut account, block) = fresh();
        assert_eq!(account.take(&block, 0, UNIT), Some((1, true)));
        account.return_piece(&block, 0, 1);
        assert_eq!(account.take(&block, 1, 2 * UNIT), Some((2, true)));
        assert_eq!(account.take(&block, 0, UNIT), Some((1, false)));
        let (table, size) = class(LARGE);
        assert_eq!(
            account.take(&block, table, size),
            Some(((UNITS - LARGE / UNIT) as u32, true)),
            "tables are at the end"
        );
    }

    #[test]
    fn allocations_keep_their_contents_and_too_large_ones_come_from_the_system() {
        let heap = StartHeap;
        let of = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: layouts are valid, and every pointer is used within its size and freed once with its layout.
        unsafe {
            let first = heap.alloc(of(10));
            first.write_bytes(7, 10);
            let moved = heap.realloc(first, of(10), 100);
            assert!(moved != first && moved.read() == 7 && moved.add(9).read() == 7);
            let beyond = heap.realloc(moved, of(100), LARGEST + 1);
            assert!(!is_inside(beyond) && beyond.read() == 7);
            heap.dealloc(beyond, of(LARGEST + 1));
            assert!(!is_inside(heap.alloc(Layout::from_size_align(1, 4096).unwrap())));
        }
    }

    #[test]
    fn threads_never_share_a_piece() {
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                scope.spawn(move || {
                    let heap = StartHeap;
                    for round in 0..20_000_usize {
                        let layout = Layout::from_size_align(1 + round % 700, 8).unwrap();
                        // SAFETY: the pointer is used within its size and freed once with its layout.
                        unsafe {
                            let piece = heap.alloc_zeroed(layout);
                            assert!(std::slice::from_raw_parts(piece, layout.size()).iter().all(|byte| *byte == 0));
                            piece.write_bytes(mark, layout.size());
                            assert!(std::slice::from_raw_parts(piece, layout.size()).iter().all(|byte| *byte == mark));
                            heap.dealloc(piece, layout);
                        }
                    }
                });
            }
        });
    }
}
