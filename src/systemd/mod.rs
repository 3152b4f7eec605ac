//! systemd makes and limits a container's cgroup on behalf of brig (the systemd cgroup driver).
//!
//! In: `slice:prefix:name`, the limits, annotations. Out: a transient unit with the container's process in it.
//! Order: [`Systemd::connect`]; [`Systemd::start`] when the process exists, since a scope needs one. Then
//! `cgroup::Cgroup::adopt` on the unit's path writes what systemd cannot express. [`Systemd::stop`] at the end.
//! Files, lowest first: `wire` (D-Bus messages as bytes), `bus` (a connection), `names` (units and slices),
//! `annotation` and `properties` (values for a unit), `driver` (calls to the manager). The client is synchronous and
//! small: D-Bus libraries bring a thread or C, and the process that clones has one thread.
//! Not here: the files of the groups (`cgroup`).

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
