//! One layer: from a compressed tar to a directory in overlayfs's form.
//!
//! `stream` decodes and hashes; `extract` runs in parallel with other layers; `finish` needs the layers below.

mod attributes;
mod extract;
mod finish;
mod limits;
mod path_records;
mod stream;
mod tree;

pub use attributes::Skipped;
pub(crate) use extract::Extractor;
pub(crate) use finish::{FinishedLayer, finish_layer};
pub(crate) use limits::Budget;
pub use limits::Limits;
pub(crate) use stream::{Compression, Measured, decode};

#[cfg(test)]
mod tests;
