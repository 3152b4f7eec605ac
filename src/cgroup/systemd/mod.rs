//! The systemd driver: a container's group is a unit's, made by systemd, which is told the limits and then left alone.
//!
//! In: `slice:prefix:name`, the limits, annotations. Out: a unit with the container's process in it.
//! Order: [`Systemd::connect`], [`Systemd::start`] once the process is there (a scope must have one), then
//! `Cgroup::adopt` on the unit's path, which writes what systemd cannot express; [`Systemd::stop`] at the end.
//! Our own client, and small: libraries bring a thread or C with them, and the process that clones must have one thread.
//! Not here: the groups' files.

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
