//! The allocator of a start, and the release of pages while the program waits. Both need more than one call and their
//! own reasoning, so they are not part of `sys`.

#![allow(unsafe_code, reason = "the interface of GlobalAlloc, and madvise(2) on the program's own pages")]

pub(crate) mod heap;
pub(crate) mod pages;
