//! The heap of a short life: a start of brig allocates some thousand small things and ends. musl's allocator asks the kernel for a few pages
//! at a time and gives them back at once, and each page that is touched for the first time costs a fault of 3 us (docs/decisions/0005-start-path.md).
//! So allocations come out of one block of the program's own zero pages, what is freed is used again for the next of its size, and only what the
//! block has no room for goes to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the block. A page that is never touched costs nothing.
const SIZE: usize = 1024 * 1024;
/// Bytes of a page, at which the kernel copies what is shared.
const PAGE: usize = 4096;
/// What every piece of the block is aligned to, and the least there is.
const UNIT: usize = 16;
/// Pieces up to here are of each multiple of [`UNIT`]; above, four sizes to a doubling.
const FINE: usize = 512;
/// The largest piece that comes out of the block.
const LARGEST: usize = 256 * 1024;
/// Pieces from here on come from the end of the block: they are tables of which a start touches little, and would keep what is touched apart.
const LARGE: usize = 16 * 1024;
/// Sizes of pieces: 32 fine ones, and four for each doubling up to [`LARGEST`].
const CLASSES: usize = FINE / UNIT + 4 * (LARGEST / FINE).ilog2() as usize;
/// How often one who frees looks whether the block is his turn. It is busy for some ten instructions.
const TRIES: usize = 1000;

/// The block. What lies between `Account::used` and `Account::large` is zero as the kernel gave it.
#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

/// What is known of the block, apart from it: nobody has a reference to bytes that others use.
struct Account {
    /// How much of the block was ever handed out, from its beginning,
    used: usize,
    /// and from its end.
    large: usize,
    /// What lies before this is shared with a child, and stays as it is when it is freed.
    shared: usize,
    /// So does as much at the end.
    shared_large: usize,
    /// The first free piece of each class; its first word is the next one, or null.
    free: [*mut u8; CLASSES],
}

struct Shared(UnsafeCell<Account>);

// SAFETY: each piece of the block has one owner at a time, by the account.
unsafe impl Sync for Block {}
// SAFETY: nobody looks at the account but the one whose exchange of `BUSY` succeeded.
unsafe impl Sync for Shared {}

/// At the end of the program's zero pages (rootfs/start.ld): what else is written there then shares its pages with what is written anyway.
#[unsafe(link_section = ".bss.brig_heap")]
static BLOCK: Block = Block(UnsafeCell::new([0; SIZE]));
static ACCOUNT: Shared = Shared(UnsafeCell::new(Account {
    used: 0,
    large: 0,
    shared: 0,
    shared_large: 0,
    free: [std::ptr::null_mut(); CLASSES],
}));
static BUSY: AtomicBool = AtomicBool::new(false);
/// Whether what is freed stays as it is.
static DONE: AtomicBool = AtomicBool::new(false);

/// The allocator of the `brig` program. The block is never given back, so a long life wastes [`SIZE`] bytes at the most.
#[derive(Debug, Clone, Copy)]
pub struct StartHeap;

impl StartHeap {
    /// Bytes of the block and of the stack that the reading of a command line and a plan touch, most of the time.
    pub const START: (usize, usize) = (60 * 1024, 48 * 1024);
    /// What a verb touches that only looks at a container's record.
    pub const LOOK: (usize, usize) = (16 * 1024, 32 * 1024);

    /// From now on nothing that is freed is used again: for a process that shares its memory with the one it was forked from, or that forked, and soon ends
    /// or becomes another program. Each page in which something is freed would have to be copied.
    pub(crate) fn last(&self) {
        DONE.store(true, Ordering::Relaxed);
    }

    /// For the moment before a fork whose child goes on for a while: what was handed out until now is not written by being freed, and the next pieces come
    /// from pages of their own. Each page that parent or child write would have to be copied, 4 us a page. What the first caller marked is what counts.
    pub(crate) fn share(&self) {
        let Some(mut turn) = Turn::take() else { return };
        let account = turn.account();
        if account.shared == 0 && account.used > 0 {
            account.shared = account.used.next_multiple_of(PAGE).min(SIZE);
            account.used = account.shared;
            account.shared_large = account.large;
            account.free = [std::ptr::null_mut(); CLASSES];
        }
    }

    /// Has the kernel, in a program whose allocator this is, fill the first pages of the block and of the stack in two calls, which takes less than half of
    /// what as many page faults do. For the first lines of a program that will need them, after its first forks: what a child shares must be copied.
    pub fn warm(&self, (heap, stack): (usize, usize)) {
        use rustix::mm::{Advice, madvise};
        if Turn::take().is_none_or(|mut turn| turn.account().used == 0) {
            return;
        }
        let here = 0_u8;
        let end = (&raw const here) as usize & !(PAGE - 1);
        // SAFETY: the block is ours and the stack's next pages are nobody's yet; neither call changes what is there. Where the stack has not grown as far,
        // or the kernel is older than 5.14, an error says that nothing was done.
        unsafe {
            let _ = madvise(BLOCK.0.get().cast(), heap, Advice::LinuxPopulateWrite);
            let _ = madvise((end - stack) as *mut _, stack, Advice::LinuxPopulateWrite);
        }
    }
}

/// The class of a size, and the size of its pieces.
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

/// A turn at the account. Dropped, it is over.
struct Turn;

impl Turn {
    /// `None` while another thread has it. (A Turn that is made is also dropped, so it is made only then.)
    fn take() -> Option<Turn> {
        BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| Turn)
    }

    fn account(&mut self) -> &mut Account {
        // SAFETY: there is one turn at a time, and the reference does not outlive it.
        unsafe { &mut *ACCOUNT.0.get() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// Where in the block `pointer` is: below [`SIZE`], or it is elsewhere.
fn place(pointer: *mut u8) -> usize {
    (pointer as usize).wrapping_sub(BLOCK.0.get() as usize)
}

fn is_inside(pointer: *mut u8) -> bool {
    place(pointer) < SIZE
}

/// A piece for `layout`, and whether it is fresh: zero throughout. `None` if there is no room, or it is too large, or it is another's turn.
fn take(layout: Layout) -> Option<(*mut u8, bool)> {
    if layout.align() > UNIT || layout.size() > LARGEST {
        return None;
    }
    let (class, size) = class(layout.size());
    let mut turn = Turn::take()?;
    let account = turn.account();
    let first = account.free[class];
    if !first.is_null() && !DONE.load(Ordering::Relaxed) {
        // SAFETY: a free piece is at least a word long, aligned to UNIT, and its first word was written when it was freed.
        account.free[class] = unsafe { first.cast::<*mut u8>().read() };
        return Some((first, false));
    }
    let start = account.used;
    if start + size > SIZE - account.large {
        return None;
    }
    let start = if size < LARGE {
        account.used = start + size;
        start
    } else {
        account.large += size;
        SIZE - account.large
    };
    // SAFETY: start + size is within the block.
    Some((unsafe { BLOCK.0.get().cast::<u8>().add(start) }, true))
}

/// Gives a piece of the block back. If others keep the block busy all the while, it is lost until the program ends.
fn give(pointer: *mut u8, layout: Layout) {
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    let (class, _) = class(layout.size());
    for _ in 0..TRIES {
        if let Some(mut turn) = Turn::take() {
            let account = turn.account();
            if place(pointer) < account.shared || place(pointer) >= SIZE - account.shared_large {
                return;
            }
            let free = &mut account.free[class];
            // SAFETY: the piece is nobody's any more, at least a word long and aligned to UNIT.
            unsafe { pointer.cast::<*mut u8>().write(*free) };
            *free = pointer;
            return;
        }
        std::hint::spin_loop();
    }
}

// SAFETY: pieces of the block have one owner at a time (`take` unlinks or advances under the turn), are as large as their class and aligned to UNIT;
// everything else is System's, which gets back just what is not in the block.
unsafe impl GlobalAlloc for StartHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some((piece, _)) => piece,
            // SAFETY: the caller's promise about the layout is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((piece, is_fresh)) = take(layout) else {
            // SAFETY: the caller's promise about the layout is passed on.
            return unsafe { System.alloc_zeroed(layout) };
        };
        if !is_fresh {
            // SAFETY: the piece is ours and at least as long as the layout.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if is_inside(pointer) {
            give(pointer, layout);
        } else {
            // SAFETY: what is not in the block came from System, with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_inside(pointer) {
            // SAFETY: what is not in the block came from System, with this layout.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        // Of the same class it stays where it is; a piece is given back to the class of its last layout, so a smaller one must move.
        if size <= LARGEST && class(size) == class(layout.size()) {
            return pointer;
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, is a valid layout.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are valid for the smaller of the two sizes, and do not overlap: `new` was free until now.
            unsafe { std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size)) };
            give(pointer, layout);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_are_for_and_waste_a_fifth_at_most() {
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

    /// Tests share the one block, and who finds it busy goes to the system's heap.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn the_block_is_used_first_again_and_left_when_full() {
        let _alone = ALONE.lock().unwrap();
        let heap = StartHeap;
        let of = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: layouts are valid, and every pointer is used within its size and freed once with its layout.
        unsafe {
            let early = heap.alloc(of(40));
            early.write_bytes(9, 40);
            heap.share();
            heap.dealloc(early, of(40));
            assert!(std::slice::from_raw_parts(early, 40).iter().all(|byte| *byte == 9), "it is shared with a child");
            let fresh = heap.alloc(of(40));
            assert!(fresh != early && (fresh as usize).is_multiple_of(PAGE), "it has a page of its own");
            let first = heap.alloc(of(10));
            assert!(is_inside(first) && (first as usize).is_multiple_of(UNIT));
            first.write_bytes(7, 10);
            assert_eq!(heap.realloc(first, of(10), 16), first);
            let moved = heap.realloc(first, of(16), 100);
            assert!(is_inside(moved) && moved != first && moved.read() == 7 && moved.add(9).read() == 7);
            let again = heap.alloc_zeroed(of(12));
            assert_eq!(again, first);
            assert!(std::slice::from_raw_parts(again, 12).iter().all(|byte| *byte == 0));
            let (small, large) = (heap.alloc(of(LARGE - 4096)), heap.alloc_zeroed(of(LARGE)));
            assert!(place(small) < place(large) && place(large) == SIZE - LARGE, "tables are at the end");
            assert!(!is_inside(heap.alloc(of(LARGEST + 1))));
            assert!(!is_inside(heap.alloc(Layout::from_size_align(1, 4096).unwrap())));
            let all: Vec<_> = (0..SIZE / LARGEST + 1).map(|_| heap.alloc(of(LARGEST))).collect();
            assert!(!is_inside(*all.last().unwrap()) && is_inside(all[0]));
            heap.dealloc(all[0], of(LARGEST));
            assert_eq!(heap.alloc(of(LARGEST - 1)), all[0]);
        }
    }

    #[test]
    fn many_threads_each_keep_their_own() {
        let _alone = ALONE.lock().unwrap();
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                scope.spawn(move || {
                    let heap = StartHeap;
                    for round in 0..20_000_usize {
                        let layout = Layout::from_size_align(1 + round % 700, 8).unwrap();
                        // SAFETY: the pointer is used within its size and freed once with its layout.
                        unsafe {
                            let piece = heap.alloc(layout);
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
