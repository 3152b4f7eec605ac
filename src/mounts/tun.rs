//! A private /dev/net/tun for one program, where ordinary users may not open the host's.

use super::mount::{attach, tmpfs};
use crate::error::{Context, Kind, Result, Step};
use crate::spec::root::Attributes;
use crate::spec::root::Ids;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, makedev, mknodat};
use rustix::mount::{MountPropagationFlags, mount_change};
use std::os::fd::AsFd;

const DIRECTORY: &str = "/dev/net";
/// Documentation/admin-guide/devices.txt.
const NUMBERS: (u32, u32) = (10, 200);

/// A new node that every user may open covers the host's in a new mount namespace. Needs the machine's root. The kernel
/// still requires rights over the network namespace to make a device.
pub(crate) fn show_tun() -> Result<()> {
    let step = || "show `/dev/net/tun` to a program";
    unshare(CloneFlags::CLONE_NEWNS).failing(Kind::Mount, step)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).failing(Kind::Mount, step)?;
    let made = tmpfs(64 << 10, 8, 0o755, Ids { uid: 0, gid: 0 }, Attributes::DEVICES)?;
    let mode = Mode::from_raw_mode(0o666);
    mknodat(&made, "tun", FileType::CharacterDevice, mode, makedev(NUMBERS.0, NUMBERS.1)).failing(Kind::Mount, step)?;
    rustix::fs::chmodat(&made, "tun", mode, AtFlags::empty()).failing(Kind::Mount, step)?; // independent of the umask
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = rustix::fs::openat(CWD, DIRECTORY, flags, Mode::empty())
        .failing(Kind::Mount, || format!("open `{DIRECTORY}`"))
        .hint(|| "modprobe tun, or use --network egress")?;
    attach(&made, place.as_fd())
}
