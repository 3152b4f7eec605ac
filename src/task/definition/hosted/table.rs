//! The rule of hosted mode for every flag of `brig task` and every key of a profile. A flag or key without a row fails a test.

/// What hosted mode does about one flag or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedRule {
    /// It reaches and uses nothing of the host.
    Free,
    /// Its path must be in one of the operator's `folders`.
    Folder,
    /// Refused unless the operator sets this key.
    Key(&'static str),
    /// At most what the operator sets in `[max]`; without that key, this default.
    AtMost(&'static str, &'static str),
    /// Refused always.
    Never,
}

use HostedRule::{AtMost, Folder, Free, Key, Never};

/// One row: flags and keys of profiles that have one rule.
type Row = (&'static [&'static str], &'static [&'static str], HostedRule);

/// What the rules say about the flags with a value of the host, and about the keys of profiles that are the same thing.
/// A parameter without a name on the command line is written `<verb name>`.
const ROWS: &[Row] = &[
    // Paths of the host
    (&["--store"], &[], Key("store")),
    (&["--dir"], &[], Folder),
    (&["--repo"], &[], Folder),
    (&["--rootfs"], &["rootfs"], Folder),
    (&["--profile"], &[], Folder),
    (&["--artifacts-dir"], &[], Folder),
    (&["--events"], &[], Folder),
    (&["--result-schema"], &["result.schema"], Folder),
    (&["--secret"], &["secrets.*.source"], Folder),
    (&["--git-credential"], &["git.credential"], Folder),
    (&["--git-ssh-key"], &["git.ssh_key"], Folder),
    (&["--git-known-hosts"], &["git.known_hosts"], Folder),
    (&["--git-ca"], &["git.ca", "secrets.*.ca"], Folder),
    (&["--git-from"], &["git.from"], Folder),
    (&["--into"], &[], Folder),
    (&["--output", "<cp from>", "<cp to>"], &[], Never),
    // The network
    (&["--network"], &["network.mode"], Key("allow_network_open")),
    (&["--learn"], &[], Key("allow_network_open")),
    (&["--allow", "<allow rule>"], &["network.allow", "secrets.*.host"], Key("networks")),
    (&["--resolver"], &["network.resolver"], Key("networks")),
    (&["--git-address"], &["git.addresses"], Key("networks")),
    (&["--publish"], &["network.publish"], Key("publish")),
    (&["--ech"], &["network.ech"], Key("ech")),
    (&["--image", "--pull"], &["image"], Key("registries")),
    // Isolation
    (&["--backend"], &["backend"], Key("backends")),
    (&["--allow-degraded"], &["allow_degraded"], Key("allow_degraded")),
    // Amounts
    (&["--cpus"], &["limits.cpus"], AtMost("cpus", "2")),
    (&["--cpu-time"], &["limits.cpu_time"], AtMost("cpu_time", "4h")),
    (&["--memory"], &["limits.memory"], AtMost("memory", "4G")),
    (&["--swap"], &["limits.swap"], AtMost("swap", "0")),
    (&["--pids"], &["limits.pids"], AtMost("pids", "1024")),
    (&["--disk"], &["limits.disk"], AtMost("disk", "10G")),
    (&["--inodes"], &["limits.inodes"], AtMost("inodes", "1000000")),
    (&["--open-files"], &["limits.open_files"], AtMost("open_files", "8192")),
    (&["--wall"], &["limits.wall"], AtMost("wall", "2h")),
    (&["--idle"], &["limits.idle"], AtMost("idle", "30m")),
    (&["--output-bytes"], &["limits.output_bytes"], AtMost("output_bytes", "256M")),
    (&["--io-bps"], &["limits.io_bps"], AtMost("io_bps", "not limited")),
    (&["--io-iops"], &["limits.io_iops"], AtMost("io_iops", "not limited")),
    (&["--grace"], &["grace"], AtMost("grace", "10s")),
    (&["--artifact-bytes"], &["artifact_bytes"], AtMost("artifact_bytes", "256M")),
    (&["--network-rate"], &["network.rate"], AtMost("network_rate", "not limited")),
    (&["--network-bytes"], &["network.bytes"], AtMost("network_bytes", "not limited")),
    (&["--number"], &[], AtMost("number", "1")),
    // What the command does inside, and what is shown of it
    (&["--env", "--tty", "--no-tty", "--hold", "--raw"], &["env"], Free),
    (&["--at", "--workdir", "--stream-json"], &["at", "workdir", "stream_json"], Free),
    (&["--entrypoint", "--user", "--stop-signal"], &[], Free),
    (&["--empty", "--ref", "--depth", "--filter", "--submodules", "--lfs"], &["git.depth", "git.filter"], Free),
    (&[], &["git.submodules", "git.lfs", "git.name", "git.email", "git.settings"], Free),
    (&["--push-branch", "--push-default-branch"], &["push.branch", "push.default_branch"], Free),
    (
        &["--artifact", "--result", "--no-changes", "--ignored"],
        &["artifacts", "result.path", "changes", "ignored"],
        Free,
    ),
    (&["--canary", "--deny", "<deny rule>"], &["canary", "network.deny"], Free),
    (&[], &["exit_codes.succeeded", "exit_codes.retryable", "exit_codes.needs_input"], Free),
    (&[], &["secrets.*.expose", "secrets.*.header", "secrets.*.basic", "secrets.*.placeholder"], Free),
    (&[], &["secrets.*.methods", "secrets.*.paths"], Free),
    (&["--keep", "--keep-on-failure", "--max-parallel", "--queue-wait"], &[], Free),
    (&["--detach", "--interactive", "--json", "--explain", "--follow", "--since", "--replay", "--no-input"], &[], Free),
    (&["--stdout", "--stderr"], &[], Free),
    (&["--quiet", "--older-than", "--max-size", "--workspaces", "--dry-run", "--every", "--timeout"], &[], Free),
    (
        &["--no-wait", "--stat", "--binary", "--include-git", "--force", "--patch", "--bundle", "--with-secrets"],
        &[],
        Free,
    ),
    (
        &["--exclude", "--merge", "<apply paths>", "<diff paths>", "<export paths>", "<kill signal>", "<revoke name>"],
        &[],
        Free,
    ),
];

/// The rule of a flag of `brig task` such as `--dir`, or of a parameter such as `<cp from>`.
pub fn hosted_rule_of_flag(flag: &str) -> Option<HostedRule> {
    ROWS.iter().find(|(flags, ..)| flags.contains(&flag)).map(|row| row.2)
}

/// The rule of a key of a profile, such as `limits.memory`; `*` stands for the name of a secret.
pub fn hosted_rule_of_key(key: &str) -> Option<HostedRule> {
    ROWS.iter().find(|(_, keys, _)| keys.contains(&key)).map(|row| row.2)
}

/// The lines of the table in docs/host.md.
#[cfg(test)]
pub(super) fn page() -> Vec<String> {
    let words = |all: &[&str]| all.iter().map(|each| format!("`{each}`")).collect::<Vec<_>>().join(", ");
    let rule = |rule| match rule {
        Free => "free".to_owned(),
        Folder => "in `folders`".to_owned(),
        Key(key) => format!("needs `{key}`"),
        AtMost(key, default) => format!("at most `max.{key}` [default: {default}]"),
        Never => "refused".to_owned(),
    };
    ROWS.iter().map(|(flags, keys, each)| format!("| {} | {} | {} |", words(flags), words(keys), rule(*each))).collect()
}
