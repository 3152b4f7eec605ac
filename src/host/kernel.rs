//! The kernel: version, system calls, seccomp and Landlock.

use super::{Check, State};
use crate::sys::probe::{self, Call, is_known};
use crate::sys::seccomp::{NEW_LISTENER, knows_action, knows_flags};
use crate::sys::weaken;
use std::sync::OnceLock;

/// Older kernels lack idmapped mounts and `mount_setattr`.
const OLDEST: (u32, u32) = (5, 12);

/// `SECCOMP_RET_KILL_PROCESS` of linux/seccomp.h (4.14), for the agent's profile.
const KILL_PROCESS: u32 = 0x8000_0000;

fn number() -> Option<(u32, u32)> {
    static NUMBER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *NUMBER.get_or_init(|| parse(&rustix::system::uname().release().to_string_lossy()))
}

/// `6.1.0-13-amd64`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first kernel with idmapped layers in overlayfs.
const MAPPED_LAYERS: (u32, u32) = (5, 19);
/// File systems by statfs(2) number (linux/magic.h), and the first kernel with idmapped mounts of them:
/// `FS_ALLOW_IDMAP` in `fs/*/super.c`. Others are tested.
const MAPPED: [(i64, Option<(u32, u32)>); 12] = [
    (0xEF53, Some((5, 12))),      // ext4
    (0x5846_5342, Some((5, 12))), // xfs
    (0x9123_683E, Some((5, 15))), // btrfs
    (0xF2F5_2010, Some((5, 18))), // f2fs
    (0x0102_1994, Some((6, 3))),  // tmpfs
    (0x794C_7630, None),          // overlayfs, as in another container
    (0x6969, None),               // NFS
    (0x6573_5546, None),          // FUSE: only if its server takes part (6.12)
    (0x0102_1997, None),          // 9p
    (0xFF53_4D42, None),          // CIFS
    (0xFE53_4D42, None),          // SMB 2
    (0x8584_58F6, None),          // ramfs
];

/// Whether an overlay can show its files with other owners.
pub(crate) fn shows_other_owners(magic: i64) -> bool {
    shows(magic, number().unwrap_or(OLDEST))
}

/// Whether every overlay accepts its files as a layer.
pub(super) fn is_plain(magic: i64) -> bool {
    MAPPED.iter().any(|(each, since)| *each == magic && since.is_some())
}

/// Whether only this kernel serves a file system: nothing else can delay an access or has another clock.
pub(crate) fn is_local(magic: i64) -> bool {
    const OVERLAYFS: i64 = 0x794C_7630;
    const BCACHEFS: i64 = 0xCA45_1A4E;
    const ZFS: i64 = 0x2FC1_2FC1;
    is_plain(magic) || [OVERLAYFS, BCACHEFS, ZFS].contains(&magic)
}

fn shows(magic: i64, kernel: (u32, u32)) -> bool {
    let since = MAPPED.iter().find(|(each, _)| *each == magic).map(|(_, since)| *since);
    kernel >= MAPPED_LAYERS && since.is_none_or(|since| since.is_some_and(|since| kernel >= since))
}

pub(super) fn version() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match number() {
        Some(number) if number >= OLDEST => Check::good("kernel", release),
        _ => {
            Check::bad("kernel", State::Missing, release, format!("run a kernel of {}.{} or newer", OLDEST.0, OLDEST.1))
        }
    }
}

/// The system calls of every start.
const CALLS: [(Call, &str, &str); 7] = [
    (Call::Clone3, "clone3", "5.3"),
    (Call::PidfdOpen, "pidfd_open", "5.3"),
    (Call::Fsopen, "fsopen", "5.2"),
    (Call::MoveMount, "move_mount", "5.2"),
    (Call::Openat2, "openat2", "5.6"),
    (Call::CloseRange, "close_range", "5.9"),
    (Call::MountSetattr, "mount_setattr", "5.12"),
];

pub(super) fn system_calls() -> Check {
    let (known, missing): (Vec<_>, Vec<_>) = CALLS.iter().partition(|(call, ..)| is_known(*call));
    if missing.is_empty() {
        let names: Vec<_> = known.iter().map(|(_, name, _)| *name).collect();
        return Check::good("system calls", names.join(" "));
    }
    let words: Vec<_> = missing.iter().map(|(_, name, since)| format!("{name} (kernel {since})")).collect();
    // On a new kernel a filter is the cause: container engines return ENOSYS for unknown calls.
    let remedy = if number() >= Some(OLDEST) {
        "inside another container, let its seccomp profile pass them (Docker: --security-opt seccomp=unconfined)"
    } else {
        "run a newer kernel"
    };
    Check::bad("system calls", State::Missing, format!("missing: {}", words.join(", ")), remedy)
}

pub(super) fn seccomp() -> Check {
    if !knows_action(KILL_PROCESS) {
        return Check::bad(
            "seccomp",
            State::Missing,
            "no seccomp filters",
            "use a kernel built with CONFIG_SECCOMP_FILTER=y",
        );
    }
    let listener = if knows_flags(NEW_LISTENER) { ", user notification" } else { "" };
    Check::good("seccomp", format!("filters{listener}"))
}

/// `None` without Landlock.
pub(crate) fn landlock_abi() -> Option<u32> {
    let abi = probe::landlock_abi().ok().filter(|_| !weaken::is_off("kernel-landlock"))?;
    Some(if weaken::is_off("kernel-landlock-scopes") { abi.min(4) } else { abi })
}

/// What this kernel's Landlock has no rule for. `None` if it has all that brig uses (ABI 6, Linux 6.12).
pub(crate) fn landlock_lacks() -> Option<&'static str> {
    match landlock_abi() {
        None => Some("no Landlock"),
        Some(..=2) => Some("no rule for truncation, device ioctls, signals and abstract sockets"),
        Some(3 | 4) => Some("no rule for device ioctls, signals and abstract sockets"),
        Some(5) => Some("no rule for signals and abstract sockets"),
        Some(_) => None,
    }
}

pub(super) fn landlock() -> Check {
    match (probe::landlock_abi(), landlock_lacks()) {
        (Ok(abi), None) => Check::good("landlock", format!("ABI {abi}")),
        (Ok(abi), Some(lack)) => Check::bad(
            "landlock",
            State::Weaker,
            format!("ABI {abi}: {lack}"),
            "run a kernel of 6.12 or newer for ABI 6",
        ),
        (Err(errno), _) => Check::bad(
            "landlock",
            State::Missing,
            format!("none: {errno}"),
            "add `landlock` to the kernel parameter lsm=, or run with --allow-degraded landlock",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_shown_by_file_systems_that_can_and_kernels_that_take_them_as_layers() {
        let check = |magic, kernel, expected| assert_eq!(shows(magic, kernel), expected, "{magic:x} {kernel:?}");
        check(0xEF53, (5, 18), false);
        check(0xEF53, (5, 19), true);
        check(0x0102_1994, (6, 1), false);
        check(0x0102_1994, (6, 3), true);
        check(0x794C_7630, (6, 18), false);
        check(0x1234, (6, 18), true);
    }

    #[test]
    fn a_file_system_that_a_server_or_a_process_serves_is_not_local() {
        for (magic, expected) in [
            (0xEF53, true),
            (0x5846_5342, true),
            (0x9123_683E, true),
            (0x0102_1994, true),
            (0x794C_7630, true),
            (0x2FC1_2FC1, true),
            (0x6969, false),
            (0x6573_5546, false),
            (0x0102_1997, false),
            (0xFE53_4D42, false),
            (0x1234, false),
        ] {
            assert_eq!(is_local(magic), expected, "{magic:x}");
        }
    }

    #[test]
    fn a_release_has_two_numbers() {
        for (release, expected) in [
            ("6.1.0-13-amd64", Some((6, 1))),
            ("5.15.167.4-microsoft", Some((5, 15))),
            ("6.18+", Some((6, 18))),
            ("x", None),
        ] {
            assert_eq!(parse(release), expected, "{release}");
        }
    }

    #[test]
    fn the_calls_that_the_tests_themselves_need_are_found() {
        assert_eq!(system_calls().state, State::Good);
        assert!(!is_known(Call::Unknown));
    }
}
