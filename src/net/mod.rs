//! Networks of containers: devices, and sockets inside that a process outside serves.
//!
//! Out: routes and sockets that exist before the sandbox runs, and fences that hold before its first packet. Not here:
//! the network namespaces (`ns`), the egress policy (`egress`).

mod device;
mod engine;
mod fence;
mod netlink;
mod sockets;
mod tables;
mod veth;

pub(crate) use device::move_devices;
pub(crate) use engine::EngineNetwork;
pub(crate) use fence::fence_inside;
pub(crate) use netlink::Route;
pub(crate) use sockets::serve;
pub(crate) use veth::{Inside, Veth, bring_up, counted, leaks, own_addresses, reap, settings};
