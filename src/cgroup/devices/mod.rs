//! Which devices a container may use: v1's `devices` controller, or a BPF program of our own on v2.
//!
//! In: the rules of `linux.resources.devices`, in order. What no rule names is denied, as runc and crun have it.
//! `rules` checks and collapses them, `program` builds the filter (both pure), `attach` puts it in force.

mod attach;
mod list;
mod program;
mod rules;

pub(crate) use attach::DeviceControl;
pub(super) use attach::control;

pub(super) use list::DeviceList;
pub(super) use rules::{DeviceKind, Rule};
