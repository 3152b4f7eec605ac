//! The heap of a short life: a start of brig allocates a few hundred small things and ends. musl's allocator asks the kernel for a few pages
//! at a time and gives them back at once, some sixty calls and as many page faults a start (docs/decisions/0005-start-path.md).
//! So the first allocations come out of one block of the program's own zero pages, and only what it has no room for goes to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the block. A page that is never touched costs nothing.
const SIZE: usize = 256 * 1024;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: each byte of the block is handed out to one owner at a time, by the atomic `USED`.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; SIZE]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// How far the block was ever used: what lies behind is zero as the kernel gave it.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);

/// The allocator of the `brig` program. In the block, only what was allocated last can be freed or grown in place; the rest stays until the
/// program ends, so a long life wastes [`SIZE`] bytes at the most.
#[derive(Debug, Clone, Copy)]
pub struct StartHeap;

fn base() -> usize {
    BLOCK.0.get() as usize
}

/// Where in the block `pointer` is, if it is.
fn inside(pointer: *mut u8) -> Option<usize> {
    (pointer as usize).checked_sub(base()).filter(|offset| *offset < SIZE)
}

/// Moves the end of what is used, if it still is where the caller saw it.
fn advance(from: usize, to: usize) -> bool {
    to <= SIZE && USED.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Takes room for `layout` out of the block, if there is some.
fn take(layout: Layout) -> Option<usize> {
    if layout.align() > 4096 {
        return None;
    }
    loop {
        let used = USED.load(Ordering::Relaxed);
        let start = used.next_multiple_of(layout.align());
        let end = start.checked_add(layout.size()).filter(|end| *end <= SIZE)?;
        if advance(used, end) {
            return Some(start);
        }
    }
}

// SAFETY: pointers come from the block, at offsets that no other allocation has (advance moves the end past them before they are handed
// out) and that are aligned since the block is to 4096; or from System, which gets back just what is not in the block.
unsafe impl GlobalAlloc for StartHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some(start) => {
                TOUCHED.fetch_max(start + layout.size(), Ordering::Relaxed);
                (base() + start) as *mut u8
            }
            // SAFETY: the caller's promise about the layout is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(start) = take(layout) else {
            // SAFETY: the caller's promise about the layout is passed on.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let pointer = (base() + start) as *mut u8;
        let touched = TOUCHED.fetch_max(start + layout.size(), Ordering::Relaxed);
        let dirty = touched.saturating_sub(start).min(layout.size());
        // SAFETY: `dirty` bytes from `pointer` on are inside the room that was just taken.
        unsafe { pointer.write_bytes(0, dirty) };
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match inside(pointer) {
            Some(start) => {
                advance(start + layout.size(), start);
            }
            // SAFETY: what is not in the block came from System, with this layout.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = inside(pointer) else {
            // SAFETY: what is not in the block came from System, with this layout.
            return unsafe { System.realloc(pointer, layout, size) };
        };
        if advance(start + layout.size(), start + size) {
            TOUCHED.fetch_max(start + size, Ordering::Relaxed);
            return pointer;
        }
        if size <= layout.size() {
            return pointer;
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, is a valid layout.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are valid for the old size, which is the smaller one, and do not overlap: `new` was free until now.
            unsafe { std::ptr::copy_nonoverlapping(pointer, new, layout.size()) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_used_first_grown_in_place_and_left_when_full() {
        let heap = StartHeap;
        let of = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: layouts are valid, and every pointer is used within its size and freed once with its layout.
        unsafe {
            let first = heap.alloc(of(10));
            assert_eq!(inside(first), Some(0));
            first.write_bytes(7, 10);
            let first = heap.realloc(first, of(10), 100);
            assert_eq!(inside(first), Some(0));
            let second = heap.alloc(of(1));
            assert_eq!(inside(second), Some(104));
            let moved = heap.realloc(first, of(100), 200); // no longer the last
            assert_eq!((inside(moved), moved.read(), moved.add(9).read()), (Some(112), 7, 7));
            heap.dealloc(moved, of(200));
            assert_eq!(inside(heap.alloc(of(8))), Some(112));
            let large = heap.alloc(of(SIZE));
            assert_eq!(inside(large), None);
            heap.dealloc(large, of(SIZE));
            let dirty = heap.alloc(of(64));
            dirty.write_bytes(9, 64);
            heap.dealloc(dirty, of(64));
            let clean = heap.alloc_zeroed(of(128));
            assert!(std::slice::from_raw_parts(clean, 128).iter().all(|byte| *byte == 0));
            let page = heap.alloc(Layout::from_size_align(1, 4096).unwrap());
            assert_eq!(page as usize % 4096, 0);
        }
    }
}
