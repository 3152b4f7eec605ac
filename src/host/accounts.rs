//! Ranges of ids that are set aside for accounts (subuid(5)).

use super::Check;
use rustix::process::{geteuid, getuid};

pub(super) fn subordinate_ids() -> Check {
    const NAME: &str = "subordinate ids";
    let lines = |path: &str| -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    let (users, groups) = (lines("/etc/subuid"), lines("/etc/subgid"));
    if geteuid().is_root() {
        let given = users.len().max(groups.len());
        return Check::good(NAME, format!("own ranges from 0x70000000; {given} given to accounts are left alone"));
    }
    let id = getuid().as_raw().to_string();
    let name = nix::unistd::User::from_uid(getuid().as_raw().into()).ok().flatten().map(|user| user.name);
    let ours = |line: &&String| {
        let owner = line.split(':').next().unwrap_or_default();
        owner == id || Some(owner) == name.as_deref()
    };
    match (users.iter().find(ours), groups.iter().find(ours)) {
        (Some(users), Some(_)) => Check::good(NAME, format!("{users} (a sandbox uses one id, your own)")),
        _ => Check::good(NAME, "none needed: a sandbox uses one id, your own"),
    }
}
