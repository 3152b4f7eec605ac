//! One layer: from a compressed tar to a directory in overlayfs's form.
//!
//! Order: `stream` decodes and hashes; `extract` fills a private directory; `finish` finishes it when the layers
//! below are ready. Layers are extracted independently and in parallel; only `finish` needs the layers below.
//! Not here: the directory's place and name (`store`).
//! Never: a path of the archive that the host resolves, a process, a mount.

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
pub(crate) use stream::{Compression, Measured, decode, lost};

#[cfg(test)]
mod tests;
