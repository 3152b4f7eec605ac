//! The allocator of a start, and the release of pages while the program waits. Not in `sys`: each is more than one
//! call.

#![allow(unsafe_code, reason = "the interface of GlobalAlloc, and madvise(2) on the program's own pages")]

pub(crate) mod heap;
pub(crate) mod pages;
