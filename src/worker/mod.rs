//! Workers: named sandboxes that live for months, each from a file, each kept alive by a unit of systemd.
//!
//! In: the files `/etc/brig/workers/NAME.toml`, the store, the units `brig-worker@NAME.service`. Out: what a worker runs,
//! its state, its deaths, and the changes that make the units match the files. systemd starts and restarts them: brig has
//! no daemon. Never: a worker with the login of a person that its file does not name twice.

mod file;
mod history;
mod login;
mod plan;
mod state;
mod unit;
mod update;

pub use file::{Folder, Restart, Worker};
pub use history::{Death, history};
pub use plan::{Change, Verb, apply, changes};
pub use state::{WorkerState, state, states};
pub use unit::Unit;
pub use update::{Update, update};

/// The label by which the tasks of a worker are found.
const LABEL: &str = "brig.worker";

fn unknown(name: &str) -> crate::error::Error {
    crate::error::Error::new(crate::error::Kind::NotFound, format!("unknown worker `{name}`"))
        .hint("see `brig worker ls`")
}
