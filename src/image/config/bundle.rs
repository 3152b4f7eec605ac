//! The config.json that `unpack` writes, for any OCI runtime: the isolation of runc's `spec` and the image's process.
//! Pure. Plain JSON because it is output only.

use super::Process;
use serde_json::{Value, json};

/// Docker's default set, which ordinary images expect.
const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// user_namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl IdRange {
    pub(crate) fn has(&self, inside: u32) -> bool {
        inside >= self.inside && inside - self.inside < self.count
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    Root,
    /// In a user namespace with these ids.
    User {
        uids: Vec<IdRange>,
        gids: Vec<IdRange>,
    },
}

pub(crate) fn config(process: &Process, hostname: &str, runner: &Runner) -> Value {
    // With one mapped id every process is root inside.
    let (uid, gid, groups) = match runner {
        Runner::User { uids, .. } if !has(uids, 1) => (0, 0, Vec::new()),
        _ => (process.user.uid, process.user.gid, process.user.additional_gids.clone()),
    };
    let effective = if uid == 0 { CAPABILITIES } else { &[] };
    let mut namespaces = vec!["pid", "network", "ipc", "uts", "mount", "cgroup"];
    let mut linux = json!({
        "maskedPaths": MASKED,
        "readonlyPaths": READ_ONLY,
        "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
    });
    if let Runner::User { uids, gids } = runner {
        let line =
            |range: &IdRange| json!({ "containerID": range.inside, "hostID": range.outside, "size": range.count });
        namespaces.push("user");
        linux["uidMappings"] = uids.iter().map(line).collect();
        linux["gidMappings"] = gids.iter().map(line).collect();
        linux["resources"] = json!({});
    }
    linux["namespaces"] = namespaces.iter().map(|kind| json!({ "type": kind })).collect();
    json!({
        "ociVersion": "1.2.0",
        "process": {
            "terminal": false,
            "user": { "uid": uid, "gid": gid, "additionalGids": groups },
            "args": process.args,
            "env": environment(process),
            "cwd": process.cwd,
            "capabilities": {
                "bounding": CAPABILITIES, "permitted": effective, "effective": effective, "inheritable": [], "ambient": [],
            },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": false },
        "hostname": hostname,
        "mounts": mounts(runner, &process.volumes),
        "annotations": process.annotations,
        "linux": linux,
    })
}

fn environment(process: &Process) -> Vec<String> {
    let mut all = process.env.clone();
    if !all.iter().any(|line| line.starts_with("HOME=")) {
        all.push(format!("HOME={}", process.user.home.as_deref().unwrap_or("/")));
    }
    all
}

fn has(ids: &[IdRange], id: u32) -> bool {
    ids.iter().any(|range| range.has(id))
}

fn mounts(runner: &Runner, volumes: &[String]) -> Value {
    const TERMINALS: u32 = 5; // the group `tty` of all distributions
    let pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    let mut pts: Vec<&str> = pts.to_vec();
    let (rootless, names_group) = match runner {
        Runner::Root => (false, true),
        Runner::User { gids, .. } => (true, has(gids, TERMINALS)),
    };
    if names_group {
        pts.push("gid=5");
    }
    let mut all = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": pts }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] }),
        json!({ "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"] }),
    ];
    if rootless {
        // sysfs needs privileges in its network namespace.
        all.push(json!({ "destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "nosuid", "noexec", "nodev", "ro"] }));
    } else {
        all.push(json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] }));
        all.push(json!({ "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "relatime", "ro"] }));
    }
    for path in volumes {
        // Filled from the image's content at that path.
        all.push(json!({ "destination": path, "type": "tmpfs", "source": "volume", "options": ["nosuid", "nodev", "tmpcopyup"] }));
    }
    Value::Array(all)
}
