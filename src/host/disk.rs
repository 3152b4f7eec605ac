//! What the disk cap of root's sandboxes needs: loop devices, and a program that formats ext4.

use super::{Check, State};
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::path::Path;

/// Where system programs are; the caller's PATH is not asked, because root's often lacks the sbin folders.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

const NOT_NEEDED: &str = "not needed: the disk cap of an ordinary user's sandbox is a tmpfs";

pub(super) fn loop_devices() -> Check {
    const NAME: &str = "loop devices";
    if !geteuid().is_root() {
        return Check::good(NAME, NOT_NEEDED);
    }
    match access("/dev/loop-control", Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Check::good(NAME, "/dev/loop-control"),
        Err(errno) => Check::bad(
            NAME,
            State::Missing,
            format!("/dev/loop-control: {errno}"),
            "load the module (`modprobe loop`), or run with --allow-degraded disk",
        ),
    }
}

pub(super) fn formatter() -> Check {
    const NAME: &str = "mke2fs";
    if !geteuid().is_root() {
        return Check::good(NAME, NOT_NEEDED);
    }
    match FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join("mke2fs"))
        .find(|path| access(path, Access::EXEC_OK).is_ok())
    {
        Some(path) => Check::good(NAME, path.display().to_string()),
        None => Check::bad(NAME, State::Missing, "not found", "install e2fsprogs, or run with --allow-degraded disk"),
    }
}
