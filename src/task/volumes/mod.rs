//! Volumes: named file systems of the store, whose files outlive tasks.
//!
//! ```text
//! <store>/volumes/<name>/   record.json  image
//! ```
//!
//! Each is an ext4 image with a journal and separate caps (`mounts::disk::volume`), or an ordinary user's archive
//! ([`archive`]). The lock belongs to the open image, so that it ends with the last mount.

mod archive;
mod open;
mod record;

pub use open::add_fill;
pub(crate) use open::{FirstUse, TaskVolumes};
pub use record::{VolumeRecord, VolumeRow, VolumeSize, VolumeUser};
