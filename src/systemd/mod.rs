//! systemd makes and limits a container's cgroup for brig (the systemd cgroup driver).
//!
//! Order: [`Systemd::connect`]; [`Systemd::start`] when the process exists, since a scope needs one.
//! `cgroup::Cgroup::adopt` then writes what systemd cannot express; [`Systemd::stop`] at the end. The client is
//! synchronous and small: D-Bus libraries bring a thread or C, and the process that clones has one thread.

mod annotation;
mod bus;
mod driver;
mod names;
mod properties;
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use annotation::property;
pub(crate) use driver::Systemd;
pub(crate) use names::{Manager, Unit};
pub(crate) use wire::Property;
