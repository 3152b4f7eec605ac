//! One layer: a compressed tar in, one directory in overlayfs's form out.
//!
//! Order: `stream` decodes and hashes, `extract` fills a directory that nobody else can see, and, once the layers below are
//! there, `settle` finishes it. Layers are unpacked independently of each other and in parallel; only `settle` needs what is
//! below. Not here: where the directory is kept and under which name (`store`).
//! Never: a path of the archive given to the host to resolve, a process, a mount.

mod attributes;
mod extract;
mod known;
mod limits;
mod place;
mod settle;
mod stream;

pub use attributes::Skipped;
pub(crate) use extract::Extractor;
pub(crate) use limits::Budget;
pub use limits::Limits;
pub(crate) use settle::{Settled, settle};
pub(crate) use stream::{Compression, Measured, decode, lost};

#[cfg(test)]
mod tests;
