//! Networks of containers: devices that move into one or are made for one, and what is made inside for somebody outside to serve.
//!
//! In: [`spec::network`](crate::spec::network), and a channel to whoever serves the sockets. Out: routes and sockets that are there
//! before anything of the sandbox runs, and fences that hold from before its first packet. Not here: network namespaces themselves (`ns`), who may reach what (`egress`).

mod device;
mod fence;
mod netlink;
mod sockets;
mod tables;
mod veth;

pub(crate) use device::move_devices;
pub(crate) use fence::fence_inside;
pub(crate) use netlink::Route;
pub(crate) use sockets::serve;
pub(crate) use veth::{Inside, Veth, bring_up, counted, leaks, own_addresses, reap, settings};
