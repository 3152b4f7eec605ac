//! Images: from a registry, an archive or a root file system to layers that an overlay can mount.
//!
//! `source` and `registry` fetch; `layer` unpacks (on `tar`). `load` fills the `store`; `config` becomes a process.
//! `union` shows a stack of layers, `flatten` merges it. The host resolves no path of an image.

mod blob_writer;
mod compare;
mod config;
mod copy;
mod digest;
mod flatten;
mod form;
#[cfg(test)]
mod fuzz;
mod import;
mod layer;
mod load;
mod manifest;
#[cfg(test)]
mod oracle;
mod platform;
mod progress;
mod reference;
mod registry;
mod root;
pub mod rootless;
mod save;
mod source;
mod store;
pub(crate) mod tar;
mod toc;
mod union;
mod unpack;
mod verify;

mod api;

pub use api::{Loaded, load, unpack_local};
pub(crate) use config::LARGEST_ACCOUNT_FILE;
pub use config::{Accounts, ImageConfig, Overrides, Process, User, to_process};
pub use digest::Digest;
pub use form::{Form, Marks, Owners, Whiteouts};
pub use import::import;
pub use layer::Limits;
pub use load::LoadOptions;
pub use platform::Platform;
pub use progress::{Event, Report};
pub use reference::Reference;
pub use registry::{Pulled, RegistryOptions, pull, push};
pub(crate) use root::gather;
pub use root::{Copied, LayeredRoot, Mounter};
pub use save::save;
pub use store::{Image, ImageRecord, Lease, Pruned, Removed, Store, default_path};
pub(crate) use tar::write::one_file_archive;
pub use unpack::from_store as unpack;
pub use verify::{Finding, Repair, Verified};
