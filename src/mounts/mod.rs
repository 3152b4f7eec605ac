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

use std::os::fd::OwnedFd;

/// A root that is built and not sealed yet.
#[derive(Debug)]
pub(crate) struct Built {
    /// The root directory, a mount.
    pub root: OwnedFd,
    /// The root directory of the file system for all writes, readable; `None` without a cap.
    pub scratch: Option<OwnedFd>,
    /// The files of written volumes that are in memory, in the order of the volumes.
    pub volumes: Vec<OwnedFd>,
    /// The directory of the secrets, writable; `None` without secrets.
    pub secrets: Option<OwnedFd>,
    /// Whether this process has entered the root already.
    is_entered: bool,
    /// Mounts that become read-only when the root is sealed.
    late: Vec<OwnedFd>,
}
