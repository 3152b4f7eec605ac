//! Networks of containers.
//!
//! Not here: network namespaces themselves (`ns`), and who may reach what.

mod device;
mod netlink;

pub(crate) use device::move_devices;
pub(crate) use netlink::Route;
