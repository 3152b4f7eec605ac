//! The writes that a plan consists of.

use super::controller::{Controller, Controllers};

/// One value for one file of the group of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// Whose group's file it is; `None` for the v2 group's own (`cgroup.*`).
    pub controller: Option<Controller>,
    pub file: String,
    pub value: String,
    pub missing: Missing,
}

/// What it means if the kernel has no such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The limit cannot be had.
    Refuse,
    /// Nothing is lost.
    Ignore,
    /// The kernel does not count swap: fine as long as there is none.
    NoSwap,
    /// Another file does the same, with its own scale.
    Instead(&'static str, String),
}

/// Collects writes.
#[derive(Default)]
pub(super) struct Plan(pub(super) Vec<Write>);

impl Plan {
    pub(super) fn add(&mut self, controller: Controller, file: impl Into<String>, value: impl ToString) {
        self.add_or(controller, file, value, Missing::Refuse);
    }

    pub(super) fn add_or(
        &mut self,
        controller: Controller,
        file: impl Into<String>,
        value: impl ToString,
        missing: Missing,
    ) {
        let (file, value) = (file.into(), value.to_string());
        self.0.push(Write { controller: Some(controller), file, value, missing });
    }
}

/// The controllers that the writes need.
pub(crate) fn controllers(writes: &[Write]) -> Controllers {
    writes.iter().filter_map(|write| write.controller).collect()
}

/// A number, or `max` for -1.
pub(super) fn bytes_or_max(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}
