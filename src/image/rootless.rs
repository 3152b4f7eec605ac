//! A user namespace for image commands of ordinary users. Inside it the process may read and remove files that an image
//! closed to their owner (mode 000). With subordinate ids (/etc/subuid, newuidmap), files get the owners of the image.

use super::config::bundle::IdRange;
use super::form::Owners;
use super::store::Store;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::host::subordinate_range;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// The ids inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// The caller's id, as root.
    Own,
    /// The caller's id as root, and the subordinate ids from 1 on.
    Subordinate,
}

static HAS_SUBORDINATE: AtomicBool = AtomicBool::new(false);

/// User ids and group ids, if [`enter`] mapped subordinate ones.
pub(crate) fn subordinate() -> Option<(Vec<IdRange>, Vec<IdRange>)> {
    HAS_SUBORDINATE.load(Ordering::Relaxed).then(|| (map("uid_map"), map("gid_map")))
}

/// Enters a namespace that fits the store, unless the caller is root. The process must have one thread. `wanted` is for
/// a new store.
pub fn enter(store: &Path, wanted: Ids) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let ids = match Store::peek(store)? {
        Some(form) if form.owners == Owners::Image => Ids::Subordinate,
        Some(_) => Ids::Own,
        None => wanted,
    };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let step = || "make a user namespace";
    let hint = || "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces), or run as root";
    if ids == Ids::Own {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)
            .map_err(std::io::Error::from)
            .failing(Kind::UserNamespace, step)
            .hint(hint)?;
        // Mapping one's own group needs setgroups(2) disabled.
        for (file, text) in
            [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
        {
            std::fs::write(format!("/proc/self/{file}"), text)
                .failing(Kind::UserNamespace, || format!("write `{file}`"))?;
        }
        return Ok(());
    }
    let range = |file| subordinate_range(file).map(|(start, count)| format!("{start} {count}"));
    let (uids, gids) = (range("/etc/subuid")?, range("/etc/subgid")?);
    // The helpers must be outside the namespace: they start before it and wait for a line.
    let pid = std::process::id();
    let script = format!("read line && newuidmap {pid} 0 {uid} 1 1 {uids} && newgidmap {pid} 0 {gid} 1 1 {gids}");
    let mut helper = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .failing(Kind::UserNamespace, || "start a shell")?;
    let entered = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)
        .map_err(std::io::Error::from)
        .failing(Kind::UserNamespace, step);
    if entered.is_ok()
        && let Some(mut input) = helper.stdin.take()
    {
        input.write_all(b"go\n").failing(Kind::UserNamespace, || "start newuidmap")?;
    }
    drop(helper.stdin.take());
    let status = helper.wait().failing(Kind::UserNamespace, || "wait for newuidmap")?;
    entered.hint(hint)?;
    if !status.success() {
        return Err(Error::new(Kind::UserNamespace, "newuidmap or newgidmap refused")
            .hint("install uidmap and give this user ranges in /etc/subuid and /etc/subgid"));
    }
    HAS_SUBORDINATE.store(true, Ordering::Relaxed);
    Ok(())
}

/// From the kernel's map. Without a namespace it is the same id.
pub(crate) fn outside(file: &str, inside: u32) -> u32 {
    map(file)
        .into_iter()
        .find(|range| range.has(inside))
        .map_or(inside, |range| range.outside.saturating_add(inside - range.inside))
}

/// Whether the user namespace of this process has that id.
pub(crate) fn is_mapped(file: &str, inside: u32) -> bool {
    map(file).iter().any(|range| range.has(inside))
}

fn map(file: &str) -> Vec<IdRange> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        Some(IdRange { inside: next()?, outside: next()?, count: next()? })
    };
    text.lines().filter_map(range).collect()
}
