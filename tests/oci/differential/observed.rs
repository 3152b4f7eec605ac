//! The compared lines, without the differences of each run and without those in docs/oci.md.

use crate::support::Lab;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// The limits of the control groups, as they are called on v1 and on v2.
const FILES: [&str; 20] = [
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "cpu.shares",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "pids.max",
    "cpuset.cpus",
    "cpuset.mems",
    "blkio.weight",
    "devices.list",
    "freezer.state",
    "memory.max",
    "memory.low",
    "memory.swap.max",
    "cpu.weight",
    "cpu.max",
    "cgroup.freeze",
    "memory.oom_control",
    "cpuset.cpu_exclusive",
];

/// The errors of runc 1.1 for bundles that brig runs (docs/oci.md).
const RUNC_ALONE_FAILS: [&str; 5] = [
    // A FIFO of `linux.devices` in a user namespace, where the host has none.
    "error creating device nodes: mount /dev/deep/er:",
    // A default device that `linux.devices` names, too, is left out of the device rules.
    "error reopening /dev/null inside container",
    // The root cannot be bound to itself when its mount is unbindable.
    "error preparing rootfs: mount LAB/rootfs:LAB/rootfs, flags: 0x5000: invalid argument",
    // A share of 1 becomes a negative weight on v2.
    "cpu.weight: numerical result out of range",
    // `exec --cap` where the configuration has no capabilities.
    "panic: runtime error: invalid memory address or nil pointer dereference",
];

/// Its errors in a user namespace: locked attributes of a bind mount are lost.
const RUNC_ALONE_FAILS_WITH_USERS: [&str; 2] = ["mount /mnt, flags: 0x", "mount /opt, flags: 0x"];

/// brig's refusals that runc 1.1 does not make (docs/oci.md).
const BRIG_ALONE_FAILS: [&str; 3] = [
    "unable to set domainname without a private UTS namespace",
    // runc's `run --detach` and `start` do not wait for this hook.
    "error running startContainer hook #0: exit status 3",
    // `poststart` hooks run when the program runs; runc 1.1 runs them in `create`.
    "error running poststart hook #0: exit status 3",
];

/// Whether one of them failed for a known reason.
pub fn is_intended(ours: &[String], theirs: &[String], users: bool) -> bool {
    let has = |all: &[String], known: &[&str]| all.iter().any(|line| known.iter().any(|words| line.contains(words)));
    has(theirs, &RUNC_ALONE_FAILS)
        || (users && has(theirs, &RUNC_ALONE_FAILS_WITH_USERS))
        || has(ours, &BRIG_ALONE_FAILS)
}

/// The limits of a process's cgroups, a line each.
pub fn groups(pid: &str) -> Vec<String> {
    let mut lines = BTreeSet::new();
    let mut is_frozen = false;
    let is_v2_alone = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    for group in std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default().lines() {
        let mut fields = group.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (fields.next(), fields.next()) else { continue };
        for name in names.split(',') {
            for file in FILES {
                let place = if name.is_empty() && !is_v2_alone { "unified" } else { name };
                let Ok(text) = std::fs::read_to_string(format!("/sys/fs/cgroup/{place}{path}/{file}")) else {
                    continue;
                };
                // docs/oci.md: where v1 and v2 are mounted, v2 freezes.
                if matches!(file, "freezer.state" | "cgroup.freeze") {
                    is_frozen |= matches!(text.trim(), "FROZEN" | "1");
                    continue;
                }
                // docs/oci.md: on v2 brig enables the controllers of limits that were asked for, and weighs shares as
                // newer releases of runc do.
                if place.is_empty() && (file == "cpu.weight" || matches!(text.trim(), "" | "max 100000")) {
                    continue;
                }
                // docs/oci.md: runc 1.1 allows /dev/net/tun in every container.
                let mut values: Vec<_> = text.lines().filter(|line| !line.starts_with("c 10:200 ")).collect();
                values.sort_unstable();
                lines.insert(format!("group {name}: {file}: {}", values.join(", ")));
            }
        }
    }
    lines.insert(format!("frozen: {is_frozen}"));
    lines.into_iter().collect()
}

/// The output of `state`, without times and paths.
pub fn state(out: &str, lab: &Lab) -> String {
    let Ok(mut state) = serde_json::from_str::<Value>(out) else { return out.to_owned() };
    if let Some(all) = state.as_object_mut() {
        all.remove("created");
        all.remove("ociVersion"); // docs/oci.md: the configuration's, not the runtime's
        let runs = all.get("pid").is_some_and(|pid| pid != 0);
        all.insert("pid".into(), runs.into());
    }
    replaced(&state.to_string(), lab)
}

/// The output of a verb, by line. Only numbers of limits stay.
pub fn printed(verb: &str, out: &str, lab: &Lab) -> Vec<String> {
    let out = replaced(out, lab);
    let of_json = |out: &str| {
        let Ok(value) = serde_json::from_str::<Value>(out) else { return vec![out.to_owned()] };
        let mut lines = Vec::new();
        leaves(&value, String::new(), &mut lines);
        lines
    };
    match verb {
        // docs/oci.md: only a newer runc reads the pressure. Some counters are left out while they are 0.
        "events" => {
            const KNOWN: [&str; 2] = [".data.memory.cache:", ".data.cpu.throttling."];
            let is_known = |line: &String| line.contains(".psi.") || KNOWN.iter().any(|key| line.starts_with(key));
            of_json(&out).into_iter().filter(|line| !is_known(line)).collect()
        }
        "list" if out.starts_with('[') => {
            let keys = of_json(&out).into_iter().filter(|line| !line.contains(".created:") && !line.contains(".pid:"));
            keys.filter(|line| !line.contains(".ociVersion:")).collect()
        }
        // Columns of times and numbers, and as wide as these.
        "list" | "ps" => out.lines().map(without_numbers).collect(),
        _ => out.lines().map(str::to_owned).collect(),
    }
}

/// The words of a line, with `N` for each number.
fn without_numbers(line: &str) -> String {
    let word = |word: &str| {
        let mut plain = String::new();
        for each in word.chars() {
            match each {
                each if !each.is_ascii_digit() => plain.push(each),
                _ if plain.ends_with('N') => {}
                _ => plain.push('N'),
            }
        }
        plain
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Each value of a JSON document with its path; only numbers of limits stay.
fn leaves(value: &Value, path: String, lines: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, format!("{path}.{key}"), lines)),
        // As many as there are processors, devices or containers.
        Value::Array(all) => all.iter().for_each(|value| leaves(value, format!("{path}[]"), lines)),
        Value::Number(_) if !path.ends_with(".limit") => lines.push(format!("{path}: N")),
        other => lines.push(format!("{path}: {other}")),
    }
}

/// A text with the names of this bundle replaced.
pub fn replaced(text: &str, lab: &Lab) -> String {
    text.replace(&lab.path().display().to_string(), "LAB").replace(&lab.id, "ID")
}

/// The output of the container.
pub struct Container<'lab> {
    lab: &'lab Lab,
    /// Whether `exec` ran the program.
    is_exec: bool,
}

impl Container<'_> {
    pub fn of(lab: &Lab, is_exec: bool) -> Container<'_> {
        Container { lab, is_exec }
    }

    /// Its output, a line each with the name of its section.
    pub fn lines(&self, out: &str) -> Vec<String> {
        let mut section = "output";
        let mut lines = Vec::new();
        // Not the help that follows a wrong option, which docs/oci.md names.
        for line in out.lines().take_while(|line| !line.starts_with("Incorrect Usage")) {
            if let Some(name) = line.strip_prefix("== ") {
                section = name;
                continue;
            }
            let line = replaced(line, self.lab);
            let plain = match section {
                "mountinfo" => self.mount(&line),
                "devices" if line.starts_with("/dev/mqueue ") => continue, // docs/oci.md: its owner in a user namespace
                // docs/oci.md: in `exec` it is the container's, not the caller's.
                "status" if self.is_exec && line.starts_with("Umask:") => continue,
                "umask" if self.is_exec => continue,
                // docs/oci.md: runc's own runtime raises the soft one now and then.
                "limits" if line.starts_with("Max open files") => {
                    line.split_whitespace().skip(4).collect::<Vec<_>>().join(" ")
                }
                "namespaces" => namespace(&line),
                "groups" => line.split_once(':').map_or_else(String::new, |(_, rest)| rest.to_owned()),
                _ => line,
            };
            lines.push(format!("{section}: {plain}"));
        }
        sort_mounts(&mut lines);
        lines
    }

    /// A mount without its numbers. Masks, which are stricter than runc's, and the directory of the cgroups, only by
    /// their paths.
    fn mount(&self, line: &str) -> String {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, _, _, root, place, rest @ ..] = fields.as_slice() else { return line.to_owned() };
        let linux = &self.lab.config["linux"];
        let is_masked = linux["maskedPaths"].as_array().is_some_and(|all| all.iter().any(|each| each == place));
        if is_masked {
            return format!("mask {place}");
        }
        let is_tmpfs = rest.contains(&"tmpfs");
        let users = linux["uidMappings"].is_array();
        if let ([options, "-", "cgroup", _, words], true) = (rest, place.starts_with("/sys/fs/cgroup/")) {
            // docs/oci.md: in a user namespace the groups are read-only (CVE-2023-25809).
            let options = if users { options.trim_start_matches("rw,").trim_start_matches("ro,") } else { options };
            return format!("{root} {place} {options} cgroup {words}");
        }
        if let ([options @ .., "-", "cgroup2", _, words], true) = (rest, *place == "/sys/fs/cgroup") {
            return format!("{root} {place} {} cgroup2 {words}", options.join(" ")); // its source: docs/oci.md
        }
        if is_tmpfs && *place == "/sys/fs/cgroup" {
            return format!("groups {place}");
        }
        let mut rest = rest.to_vec();
        // stat(1) compares a tmpfs's mode; docs/oci.md: its own ro is that of its mount.
        let options: Vec<&str>;
        let last = rest.len() - 1;
        let joined;
        if is_tmpfs {
            options = rest[last]
                .split(',')
                .filter(|each| !each.starts_with("mode=") && !matches!(*each, "ro" | "rw"))
                .collect();
            joined = options.join(",");
            rest[last] = &joined;
        }
        // Peer groups have numbers.
        let rest: Vec<String> = rest
            .iter()
            .map(|field| {
                field
                    .split_once(':')
                    .filter(|(name, _)| matches!(*name, "shared" | "master"))
                    .map_or_else(|| (*field).to_owned(), |(name, _)| name.to_owned())
            })
            .collect();
        format!("{root} {place} {}", rest.join(" "))
    }

    /// The output of the container's programs, and the number of the runtime's errors, not their words.
    pub fn complaints(&self, err: &str) -> Vec<String> {
        let is_ours =
            |line: &&str| line.starts_with("time=") || !(line.starts_with("touch:") || line.starts_with("mkdir:"));
        let others =
            err.lines().filter(|line| !is_ours(line)).map(|line| format!("stderr: {}", replaced(line, self.lab)));
        others.collect()
    }
}

/// Sorts neighbouring lines of mounts by path, and keeps the order of those at one path: there the last one counts.
/// docs/oci.md: mounts at different paths are made in another order.
fn sort_mounts(lines: &mut [String]) {
    let place = |line: &String| {
        line.strip_prefix("mountinfo: ").map(|rest| rest.split(' ').nth(1).unwrap_or_default().to_owned())
    };
    lines
        .chunk_by_mut(|one, other| place(one).is_some() == place(other).is_some())
        .for_each(|section| section.sort_by_key(place));
}

/// Whether a namespace is that of the host.
fn namespace(line: &str) -> String {
    let Some((path, link)) = line.split_once(' ') else { return line.to_owned() };
    let number = link.rsplit_once('[').map(|(_, rest)| rest.trim_end_matches(']'));
    let own = std::fs::metadata(path).map(|found| found.ino().to_string()).ok();
    format!("{path} {}", if number == own.as_deref() { "of the host" } else { "of its own" })
}
