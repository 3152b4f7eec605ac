//! Workers: named sandboxes that live for months, each from a file `/etc/brig/workers/NAME.toml`. A unit
//! `brig-worker@NAME.service` keeps each alive.
//!
//! systemd starts and restarts them: brig has no daemon. Never: a worker with a person's login that its file does not
//! name twice.

mod file;
mod login;
mod plan;
mod state;
mod unit;
mod update;

pub use file::{Folder, Restart, Worker};
pub use plan::{Change, Verb, apply, changes};
pub use state::{Death, history};
pub use state::{WorkerState, state, states};
pub use unit::Unit;
pub use update::{Update, update};

const LABEL: &str = "brig.worker";

fn unknown(name: &str) -> crate::error::Error {
    crate::error::Error::new(crate::error::Kind::NotFound, format!("unknown worker `{name}`"))
        .hint("see `brig worker ls`")
}
