//! Checks a config.json before anything is created. Pure.

use super::Config;
use super::linux::NamespaceKind;
use super::process::Process;
use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::collections::BTreeSet;

/// A bind mount may cover these files: tools such as lxcfs replace them. All others below /proc are protected
/// (CVE-2019-16884).
const PROC_FILES: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// Values of `linux.rootfsPropagation`.
const PROPAGATIONS: [&str; 9] =
    ["", "shared", "rshared", "slave", "rslave", "private", "rprivate", "unbindable", "runbindable"];

/// The error names every fault.
pub(crate) fn check(config: &Config) -> Result<()> {
    let mut faults = Vec::new();
    top(config, &mut faults);
    namespaces(config, &mut faults);
    mounts(config, &mut faults);
    sysctls(config, &mut faults);
    hooks(config, &mut faults);
    match &config.process {
        Some(process) => faults.extend(process_faults(process)),
        None => faults.push("`process` is missing".to_owned()),
    }
    raise(faults)
}

pub(crate) fn check_process(process: &Process) -> Result<()> {
    raise(process_faults(process))
}

fn raise(faults: Vec<String>) -> Result<()> {
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::new(Kind::Spec, faults.join("; ")).doing("check the configuration"))
    }
}

/// New or joined.
pub(crate) fn has(config: &Config, kind: NamespaceKind) -> bool {
    config.linux.namespaces.iter().any(|each| each.kind == kind)
}

/// Not joined by a path.
pub(crate) fn is_new(config: &Config, kind: NamespaceKind) -> bool {
    config.linux.namespaces.iter().any(|each| each.kind == kind && each.path.is_empty())
}

/// Compared with the caller's: Docker names its own for `--network host`.
pub(crate) fn has_separate_network(config: &Config) -> bool {
    let network = config.linux.namespaces.iter().find(|each| each.kind == NamespaceKind::Network);
    network.is_some_and(|each| each.path.is_empty() || !is_our_own(&each.path, NamespaceKind::Network))
}

fn top(config: &Config, faults: &mut Vec<String>) {
    let major = config.oci_version.split('.').next().unwrap_or("");
    if major != "1" {
        faults.push(format!("`ociVersion` is `{}`, but this runtime knows version 1", config.oci_version));
    }
    if config.root.as_ref().is_none_or(|root| root.path.is_empty()) {
        faults.push("`root.path` is missing".into());
    }
    let uts = has(config, NamespaceKind::Uts);
    if !config.hostname.is_empty() && !uts {
        faults.push("unable to set hostname without a private UTS namespace".into());
    }
    if !config.domainname.is_empty() && !uts {
        faults.push("unable to set domainname without a private UTS namespace".into());
    }
    for (name, value) in [("hostname", &config.hostname), ("domainname", &config.domainname)] {
        if value.len() > 64 || value.contains('\0') {
            faults.push(format!("`{name}` is longer than the kernel's 64 bytes or holds a NUL"));
        }
    }
    if !PROPAGATIONS.contains(&config.linux.rootfs_propagation.as_str()) {
        faults.push(format!(
            "`linux.rootfsPropagation` is `{}`, which is not a propagation",
            config.linux.rootfs_propagation
        ));
    }
    for device in &config.linux.devices {
        if !matches!(device.kind.as_str(), "c" | "u" | "b" | "p") {
            faults.push(format!("device `{}`: type `{}` is not one of c, u, b, p", device.path, device.kind));
        }
        if !device.path.starts_with('/') {
            faults.push(format!("device `{}`: the path is not absolute", device.path));
        }
        if device.kind != "p" && !(0..1 << 12).contains(&device.major) || !(0..1 << 20).contains(&device.minor) {
            faults.push(format!("device `{}`: {}:{} is not a device number", device.path, device.major, device.minor));
        }
    }
}

fn namespaces(config: &Config, faults: &mut Vec<String>) {
    let linux = &config.linux;
    let mut seen = BTreeSet::new();
    for namespace in &linux.namespaces {
        if !seen.insert(namespace.kind) {
            faults.push(format!("malformed spec file: duplicated ns `{}`", namespace.kind.word()));
        }
        if !namespace.path.is_empty() && !namespace.path.starts_with('/') {
            faults.push(format!(
                "namespace `{}`: the path `{}` is not absolute",
                namespace.kind.word(),
                namespace.path
            ));
        }
        if namespace.path.contains('\0') {
            faults.push(format!("namespace `{}`: the path holds a NUL", namespace.kind.word()));
        }
    }
    let new_user = is_new(config, NamespaceKind::User);
    let maps = !linux.uid_mappings.is_empty() || !linux.gid_mappings.is_empty();
    if maps && !has(config, NamespaceKind::User) {
        faults.push("User namespace mappings specified, but USER namespace isn't enabled in the config".into());
    }
    if new_user && (linux.uid_mappings.is_empty() || linux.gid_mappings.is_empty()) {
        faults.push("a new user namespace needs `linux.uidMappings` and `linux.gidMappings`".into());
    }
    for map in [&linux.uid_mappings, &linux.gid_mappings] {
        if map.len() > 340 && !weaken::is_off("long-values") {
            faults.push("an id map has more than the kernel's 340 lines".into());
        }
        for line in map.iter() {
            if line.size == 0
                || line.container_id.checked_add(line.size - 1).is_none()
                || line.host_id.checked_add(line.size - 1).is_none()
            {
                faults.push(format!(
                    "the id map line {} {} {} is out of range",
                    line.container_id, line.host_id, line.size
                ));
            }
        }
    }
    let new_time = is_new(config, NamespaceKind::Time);
    if !linux.time_offsets.is_empty() && !new_time {
        faults.push("time namespace offsets are given, but no new TIME namespace is asked for".into());
    }
    for name in linux.time_offsets.keys().filter(|name| !matches!(name.as_str(), "monotonic" | "boottime")) {
        faults.push(format!("`linux.timeOffsets`: `{name}` is not a clock with an offset"));
    }
    if !has(config, NamespaceKind::Mount) {
        if !linux.masked_paths.is_empty() || !linux.readonly_paths.is_empty() {
            faults.push("unable to restrict sys entries without a private MNT namespace".into());
        }
        if !config.mounts.is_empty() {
            faults.push("`mounts` need a private MNT namespace".into());
        }
    }
    if !linux.net_devices.is_empty() && !has(config, NamespaceKind::Network) {
        faults.push("unable to move network devices without a NET namespace".into());
    }
}

fn mounts(config: &Config, faults: &mut Vec<String>) {
    for mount in &config.mounts {
        let place = &mount.destination;
        if place.is_empty() || place.contains('\0') || mount.source.contains('\0') {
            faults.push(format!("mount `{}`: a path is empty or holds a NUL", place.escape_debug()));
            continue;
        }
        let clean = clean(place);
        if clean == "/" {
            faults.push(format!("mount `{place}`: the root itself cannot be mounted over"));
        }
        if mount.uid_mappings.is_empty() != mount.gid_mappings.is_empty() {
            faults.push(format!("mount `{place}`: `uidMappings` and `gidMappings` go together"));
        }
        if clean == "/proc" && mount.kind != "proc" && !is_bind(&mount.options) {
            faults.push(format!("mount `{place}`: only type `proc` or a bind mount can be there"));
        }
        if clean.starts_with("/proc/") && !may_be_covered(&clean) {
            faults.push(format!("\"{place}\" cannot be mounted because it is inside /proc"));
        }
    }
}

/// `path` is a clean one.
pub(crate) fn may_be_covered(path: &str) -> bool {
    PROC_FILES.contains(&path)
}

pub(crate) fn is_bind(options: &[String]) -> bool {
    options.iter().any(|each| each == "bind" || each == "rbind")
}

/// Absolute, without doubled slashes, `.` and `..`.
pub(crate) fn clean(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

fn sysctls(config: &Config, faults: &mut Vec<String>) {
    for key in config.linux.sysctl.keys() {
        if let Err(words) = sysctl_allowed(config, key) {
            faults.push(words);
        }
    }
}

/// Below /proc/sys. The first separator decides between `.` and `/`, as in sysctl.d(5).
pub(crate) fn sysctl_path(key: &str) -> String {
    match key.find(['.', '/']) {
        Some(at) if key.as_bytes()[at] == b'.' => key
            .chars()
            .map(|each| match each {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => key.to_owned(),
    }
}

/// Only those of the container's own namespaces: all others are the host's.
fn sysctl_allowed(config: &Config, key: &str) -> Result<(), String> {
    let path = sysctl_path(key);
    if path.split('/').any(|name| matches!(name, "" | "." | "..")) || path.contains('\0') {
        return Err(format!("sysctl \"{key}\" is not a name"));
    }
    let needed = match path.as_str() {
        "kernel/msgmax"
        | "kernel/msgmnb"
        | "kernel/msgmni"
        | "kernel/sem"
        | "kernel/shmall"
        | "kernel/shmmax"
        | "kernel/shmmni"
        | "kernel/shm_rmid_forced" => NamespaceKind::Ipc,
        "kernel/domainname" => NamespaceKind::Uts,
        "kernel/hostname" => return Err(format!("sysctl \"{key}\" conflicts with `hostname`")),
        _ if path.starts_with("fs/mqueue/") => NamespaceKind::Ipc,
        _ if path.starts_with("net/") => NamespaceKind::Network,
        _ if path.starts_with("user/") => NamespaceKind::User,
        _ => return Err(format!("sysctl \"{key}\" is not in a separate kernel namespace")),
    };
    let namespace = config.linux.namespaces.iter().find(|each| each.kind == needed);
    if namespace.is_none_or(|namespace| !namespace.path.is_empty() && is_our_own(&namespace.path, needed)) {
        return Err(match needed {
            NamespaceKind::Network => format!("sysctl \"{key}\" not allowed in host network namespace"),
            _ => format!("sysctl \"{key}\" is not allowed in the hosts {} namespace", needed.word()),
        }); // runc's words
    }
    Ok(())
}

fn is_our_own(path: &str, kind: NamespaceKind) -> bool {
    let identity = |path: &str| rustix::fs::stat(path).map(|status| (status.st_dev, status.st_ino));
    match (identity(path), identity(&format!("/proc/self/ns/{}", kind.file()))) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        // The later join of an unreadable namespace reports the error.
        _ => false,
    }
}

fn hooks(config: &Config, faults: &mut Vec<String>) {
    let hooks = &config.hooks;
    let all = [
        &hooks.prestart,
        &hooks.create_runtime,
        &hooks.create_container,
        &hooks.start_container,
        &hooks.poststart,
        &hooks.poststop,
    ];
    for hook in all.into_iter().flatten() {
        if !hook.path.starts_with('/') {
            faults.push(format!("hook `{}`: the path is not absolute", hook.path));
        }
        if hook.timeout.is_some_and(|seconds| seconds <= 0) {
            faults.push(format!("hook `{}`: the timeout is not above zero", hook.path));
        }
    }
}

fn process_faults(process: &Process) -> Vec<String> {
    let mut faults = Vec::new();
    if process.args.is_empty() {
        faults.push("args must not be empty".into());
    }
    if process.cwd.is_empty() {
        faults.push("Cwd property must not be empty".into());
    } else if !process.cwd.starts_with('/') {
        faults.push("Cwd must be an absolute path".into());
    }
    let user = &process.user;
    // The largest number means "no change" in the kernel's calls: the process would stay root.
    if [user.uid, user.gid].iter().chain(&user.additional_gids).any(|&id| id == u32::MAX) {
        faults.push(format!("{} is not a user or group id", u32::MAX));
    }
    let mut seen = BTreeSet::new();
    for limit in &process.rlimits {
        if !seen.insert(&limit.kind) {
            faults.push(format!("rlimit `{}` is there twice", limit.kind));
        }
        if limit.soft > limit.hard {
            faults.push(format!("rlimit `{}`: the soft limit is above the hard one", limit.kind));
        }
    }
    // runc's words.
    if process.env.iter().any(|variable| !variable.contains('=')) {
        faults.push("invalid environment variable: missing '='".into());
    }
    if process.env.iter().any(|variable| variable.starts_with('=')) {
        faults.push("invalid environment variable: name cannot be empty".into());
    }
    for variable in process.env.iter().filter(|variable| variable.contains('\0')) {
        faults.push(format!("invalid environment variable: `{}` contains a NUL", variable.escape_debug()));
    }
    if process.oom_score_adj.is_some_and(|value| !(-1000..=1000).contains(&value)) {
        faults.push("`oomScoreAdj` is not between -1000 and 1000".into());
    }
    if process.user.umask.is_some_and(|mask| mask > 0o777) {
        faults.push("`user.umask` is above 0777".into());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::config::parse;

    /// A valid config with additional members.
    fn faults(top: &str, linux: &str) -> String {
        let text = format!(
            r#"{{"ociVersion":"1.3.0","root":{{"path":"r"}},"process":{{"args":["a"],"cwd":"/"}},{top}
               "linux":{{"namespaces":[{{"type":"mount"}},{{"type":"ipc"}}],{linux}"x":0}}}}"#
        );
        check(&parse(text.as_bytes()).unwrap()).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        let check = |top: &str, linux: &str, expected: &str| {
            let found = faults(top, linux);
            let right = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
            assert!(right, "{top} {linux}: `{found}` and not `{expected}`");
        };
        check("", "", "");
        check(r#""hostname":"a","#, "", "unable to set hostname without a private UTS namespace");
        check(r#""mounts":[{"destination":"/proc/sys","type":"bind","options":["bind"]}],"#, "", "inside /proc");
        check(r#""mounts":[{"destination":"/x/../proc//self/","options":["bind"]}],"#, "", "inside /proc");
        check(r#""mounts":[{"destination":"/proc/cpuinfo","options":["bind"]}],"#, "", "");
        for root in ["//.", "/..", "/x/..", "."] {
            check(&format!(r#""mounts":[{{"destination":"{root}"}}],"#), "", "the root itself");
        }
        check("", r#""sysctl":{"kernel.shmmax":"1"},"#, "");
        check("", r#""sysctl":{"net.ipv4.ip_forward":"1"},"#, "not allowed in host network namespace");
        check("", r#""sysctl":{"kernel.panic":"1"},"#, "not in a separate kernel namespace");
        check("", r#""sysctl":{"net.../../kernel/panic":"1"},"#, "is not a name");
        check("", r#""rootfsPropagation":"sideways","#, "rootfsPropagation");
        check("", r#""timeOffsets":{"boottime":{"secs":1}},"#, "TIME namespace");
        check("", r#""uidMappings":[{"containerID":0,"hostID":1,"size":1}],"#, "USER namespace isn't enabled");
        check(r#""hooks":{"poststop":[{"path":"x"}]},"#, "", "the path is not absolute");
    }

    #[test]
    fn the_first_separator_of_a_sysctl_decides() {
        assert_eq!(sysctl_path("net.ipv4.conf.eth0/1.forwarding"), "net/ipv4/conf/eth0.1/forwarding");
        assert_eq!(sysctl_path("net/ipv4/conf/eth0.1/forwarding"), "net/ipv4/conf/eth0.1/forwarding");
    }

    #[test]
    fn pids_limit_of_zero_asks_for_no_controller_before_version_1_3() {
        for (version, limit) in [("1.0.2-dev", None), ("1.2.1", None), ("1.3.0", Some(0))] {
            let text = format!(r#"{{"ociVersion":"{version}","linux":{{"resources":{{"pids":{{"limit":0}}}}}}}}"#);
            let resources = parse(text.as_bytes()).unwrap().linux.resources.unwrap();
            assert_eq!(resources.pids.limit, limit, "{version}");
        }
    }

    #[test]
    fn unknown_properties_are_ignored_and_wrong_types_refused() {
        assert!(parse(br#"{"ociVersion":"1.0.0","new":{},"process":null,"linux":{"later":1}}"#).is_ok());
        for wrong in [
            &br#"{"mounts":{}}"#[..],
            br#"{"linux":{"namespaces":[{"type":"moon"}]}}"#,
            b"{",
            b"",
            br#"{"process":{"user":{"uid":-1}}}"#,
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
        let deep = "[".repeat(100_000);
        assert!(parse(format!("{{\"mounts\":{deep}").as_bytes()).is_err());
    }
}
