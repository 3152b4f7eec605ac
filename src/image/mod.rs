//! Images: from a reference to layers that an overlay can mount.
//!
//! In: a registry, an OCI layout, a docker-archive, a root file system. Out: [`Image`], the directories of its layers in
//! overlayfs's own form, what its config says, and a lease that keeps them.
//!
//! Order: `reference` and `manifest` say what is wanted and what was got (pure), `source` and `registry` fetch, `layer` unpacks
//! (on `tar`), `load` brings it all into the `store`, `config` becomes a process. `union` answers what a stack of layers shows,
//! `flatten` makes one tree of it.
//! Not here: mounts. Nothing is mounted by this module, nothing runs, and no path of an image is given to the host to resolve.

mod compare;
mod config;
mod copy;
mod digest;
mod flatten;
mod form;
#[cfg(test)]
mod fuzz;
mod import;
mod keep;
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
mod union;
mod unpack;

mod api;

pub use api::{Loaded, load, unpack_local};
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
pub use store::{Finding, Image, ImageRecord, Lease, Pruned, Removed, Repair, Store, Verified, default_path};
pub use unpack::from_store as unpack;
