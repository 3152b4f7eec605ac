//! What a container is to be, as plain data that every other part reads.
//!
//! Not here: how it is done. Planning from it is pure; only `container` and below carry it out.

pub(crate) mod landlock;
pub(crate) mod process;
pub(crate) mod root;
