//! How a command ends, and how brig says so.

use crate::support::Lab;

#[test]
fn the_exit_status_is_the_commands_own() {
    let lab = Lab::new();
    lab.task().sh("exit 0").ended_as("succeeded", 0);
    lab.task().sh("exit 1").ended_as("failed", 1);
    lab.task().sh("exit 2").ended_as("failed", 2);
    lab.task().sh("exit 3").ended_as("needs_input", 3);
    lab.task().sh("exit 137").ended_as("failed", 137);
    lab.task().sh("exit 255").ended_as("failed", 255);
}
