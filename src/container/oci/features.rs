//! `features` on any machine (runtime-spec, features.md). Callers ask without privileges.

use crate::mounts::bundle::options;
use crate::process::attributes::{MEMORY_FLAGS, MEMORY_MODES};
use crate::spec::config::linux::NamespaceKind;
use crate::spec::seccomp::{Action, Arch, Flag, Operator};
use crate::sys::weaken;
use serde_json::{Value, json};

/// Annotations, or their prefixes, by which an image could reach the host if a caller passed its labels on.
const UNSAFE: [&str; 4] = ["bundle", "dev.brig.", "org.systemd.property.", "org.criu.config"];

/// The whole structure.
pub fn features() -> Value {
    let mut capabilities: Vec<String> = caps::all().iter().map(ToString::to_string).collect();
    capabilities.sort_unstable();
    let names = |table: &[(&'static str, u64)]| table.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.3.0",
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": options::known().collect::<Vec<_>>(),
        "linux": {
            "namespaces": NamespaceKind::ALL.map(NamespaceKind::word),
            "capabilities": capabilities,
            "cgroup": {"v1": true, "v2": true, "systemd": true, "systemdUser": true, "rdma": true},
            "seccomp": {
                "enabled": true,
                "actions": Action::ALL.iter().map(|each| each.word()).collect::<Vec<_>>(),
                "operators": Operator::ALL.iter().map(|each| each.word()).collect::<Vec<_>>(),
                "archs": Arch::ALL.iter().map(|each| each.word()).collect::<Vec<_>>(),
                "knownFlags": Flag::ALL.iter().map(|each| each.word()).collect::<Vec<_>>(),
                "supportedFlags": Flag::ALL.iter().map(|each| each.word()).collect::<Vec<_>>(),
            },
            "apparmor": {"enabled": true},
            "selinux": {"enabled": true},
            "intelRdt": {"enabled": true, "schemata": true, "monitoring": true},
            "memoryPolicy": {"modes": names(&MEMORY_MODES), "flags": names(&MEMORY_FLAGS)},
            "mountExtensions": {"idmap": {"enabled": true}},
            "netDevices": {"enabled": true},
        },
        "annotations": {
            "org.opencontainers.runc.checkpoint.enabled": "true",
            "brig.version": env!("CARGO_PKG_VERSION"),
        },
        "potentiallyUnsafeConfigAnnotations": if weaken::is_off("unsafe-annotations") { &[][..] } else { &UNSAFE[..] },
    })
}
