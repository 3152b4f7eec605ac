//! How an end-to-end test is written.
//!
//! ```ignore
//! #[test]
//! fn a_command_that_takes_too_much_memory_ends_as_memory() {
//!     let lab = Lab::new();                                        // an own store in an own directory
//!     let run = lab.task().args(["--memory", "32M"]).sh("tail /dev/zero");
//!     run.ended_as("memory", 137);                                 // outcome of the receipt and exit status
//!     assert!(run.hit("memory"));                                  // evidence: run.receipt()["limits_hit"]
//! }                                                                // the lab's drop asserts that nothing is left
//! ```
//!
//! - [`Lab::new`] for tests that run as root and as an ordinary user. `let Some(lab) = Lab::root() else { return }` for
//!   those that need root: it prints `SKIP`. [`skip`] prints it for any other reason.
//! - [`Task`] builds one `brig task run --json`; `.plain()` omits `--json`, which separates the command's streams.
//! - `.start…()` returns a [`Started`] to signal, watch and end.
//! - An attack succeeds on the weakened build: `lab.task().weakened("landlock")` runs it with `BRIG_WEAKEN=landlock`.
//! - [`Lab::compile`] makes a C program, for what a shell cannot do.
//! - Not here: brig's own code. A test observes the user's view and the kernel's.

mod host;
mod image;
mod lab;
pub mod memory;
mod packages;
mod program;
mod run;
mod task;

pub use host::{cgroups_of, processes_of};
pub use image::Image;
pub use lab::{Lab, changed_mounts, is_root, skip};
pub use program::brig as program;
pub use run::Run;
pub use task::{Started, Task};

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test, for tests that start it without [`Task`].
pub fn program_under_test() -> std::path::PathBuf {
    program::brig()
}

/// Whether a program is on this machine; prints `SKIP` if not.
pub fn has_program(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
    let found = found.unwrap().success();
    if !found {
        skip(&format!("needs {name}"));
    }
    found
}

/// Waits until `condition` holds; panics with `what` after ten seconds.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(10, what, condition);
}

/// The same with another number of seconds, for what takes a busy machine long.
pub fn eventually_within(seconds: u64, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds) * patience();
    while !condition() {
        assert!(Instant::now() < end, "not within {seconds} seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many times as long as usual a test waits: an emulated machine sets `BRIG_TEST_PATIENCE`.
pub fn patience() -> u32 {
    std::env::var("BRIG_TEST_PATIENCE").map_or(1, |times| times.parse().unwrap())
}
