//! Networks of containers: devices that move into one, and what is made inside for somebody outside to serve.
//!
//! In: [`spec::network`](crate::spec::network), and a channel to whoever serves the sockets. Out: routes and sockets that are there
//! before anything of the sandbox runs. Not here: network namespaces themselves (`ns`), who may reach what (`egress`).

mod device;
mod netlink;
mod sockets;

pub(crate) use device::move_devices;
pub(crate) use netlink::Route;
pub(crate) use sockets::serve;
