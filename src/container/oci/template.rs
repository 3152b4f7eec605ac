//! The config.json of `spec`, as runc's.

use serde_json::{Value, json};

/// A shell on a terminal, with few capabilities and a read-only root. `rootless` suits a user other than root.
pub fn template(rootless: bool) -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    let mount = |destination: &str, kind: &str, source: &str, options: &[&str]| {
        let owners = |option: &&&str| !(rootless && (option.starts_with("uid=") || option.starts_with("gid=")));
        let options: Vec<_> = options.iter().filter(owners).collect();
        json!({"destination": destination, "type": kind, "source": source, "options": options})
    };
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ];
    mounts.push(if rootless {
        mount("/sys", "none", "/sys", &["rbind", "nosuid", "noexec", "nodev", "ro"])
    } else {
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"])
    });
    mounts.push(mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]));
    let mut kinds = vec!["pid", "network", "ipc", "uts", "mount"];
    if rootless {
        kinds.retain(|kind| *kind != "network");
        kinds.push("user");
    }
    if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        kinds.push("cgroup");
    }
    let namespaces: Vec<_> = kinds.into_iter().map(|kind| json!({"type": kind})).collect();
    let mut linux = json!({
        "resources": {"devices": [{"allow": false, "access": "rwm"}]},
        "namespaces": namespaces,
        "maskedPaths": [
            "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
            "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"
        ],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    });
    if let (true, Some(linux)) = (rootless, linux.as_object_mut()) {
        linux.remove("resources");
        let map = |id: u32| json!([{"containerID": 0, "hostID": id, "size": 1}]);
        linux.insert("uidMappings".into(), map(rustix::process::geteuid().as_raw()));
        linux.insert("gidMappings".into(), map(rustix::process::getegid().as_raw()));
    }
    json!({
        "ociVersion": "1.3.0",
        "process": {
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "brig",
        "mounts": mounts,
        "linux": linux,
    })
}
