//! The file system of a container: planned by the parent, built by init in a new mount namespace.
//!
//! In: a sandbox's [`Plan`](sandbox::Plan) or a [`Bundle`](bundle::Bundle), made without a system call. Out: a root
//! that init has entered, without a path to the host. The same functions on descriptors build both, in different orders
//! ([`sandbox`], [`bundle`]).
//!
//! Not here: the choice of a sandbox's files (`sandbox::profile` or a config.json).
//!
//! Never: a mount in the host's namespace; a path below the new root that is opened without [`resolve`].

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
