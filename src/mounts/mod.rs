//! The file system of a container: planned by the parent, built by init in a new mount namespace.
//!
//! A [`Plan`](sandbox::Plan) or a [`Bundle`](bundle::Bundle), made without a system call, becomes a root without a path
//! to the host, which init enters.
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

/// Not sealed yet.
#[derive(Debug)]
pub(crate) struct Built {
    pub root: OwnedFd,
    /// The readable root directory of the file system for all writes; `None` without a cap.
    pub scratch: Option<OwnedFd>,
    /// The files of written volumes in memory, in the order of the volumes.
    pub volumes: Vec<OwnedFd>,
    /// The directory of the secrets, writable; `None` without secrets.
    pub secrets: Option<OwnedFd>,
    is_entered: bool,
    /// Read-only once the root is sealed.
    late: Vec<OwnedFd>,
}
