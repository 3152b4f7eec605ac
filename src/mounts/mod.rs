//! The file system that a container sees: planned by the parent, built by init in a mount namespace of its own.
//!
//! In: a sandbox's [`Plan`](sandbox::Plan) or a [`Bundle`](bundle::Bundle), made without a system call. Out: a root that init has entered, with nothing of
//! the host above it. Both are built by the same functions on descriptors, each in its own order ([`sandbox`], [`bundle`]).
//! Not here: what a sandbox should see (that is `sandbox::profile` or a config.json).
//! Never: a mount in the host's namespace; a path below the new root that is opened other than through [`resolve`].

pub(crate) mod bundle;
mod cover;
pub(crate) mod device;
pub(crate) mod disk;
mod mount;
mod pivot;
pub(crate) mod resolve;
mod root;
pub(crate) mod sandbox;
pub(crate) mod tun;
mod write;

pub(crate) use root::Root;
