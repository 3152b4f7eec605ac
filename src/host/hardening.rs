//! Security modules and kernel switches that harden the host. All are optional.

use super::{Check, State, setting};

/// securityfs is often not mounted in containers.
pub(super) fn security_modules() -> Check {
    const NAME: &str = "security modules";
    let from_list = setting("/sys/kernel/security/lsm").filter(|list| !list.is_empty());
    let found = from_list.map(|list| list.replace(',', " ")).unwrap_or_else(|| {
        let signs =
            [("apparmor", "/sys/module/apparmor/parameters/enabled", "Y"), ("selinux", "/sys/fs/selinux/enforce", "1")];
        let on: Vec<_> = signs
            .iter()
            .filter(|(_, path, value)| setting(path).as_deref() == Some(*value))
            .map(|(name, ..)| *name)
            .collect();
        if on.is_empty() { "neither AppArmor nor SELinux".to_owned() } else { on.join(" ") }
    });
    // brig's own layers do not rely on a policy of the host.
    Check::good(NAME, found)
}

struct Switch {
    name: &'static str,
    path: &'static str,
    hard: fn(i64) -> bool,
    advice: &'static str,
}

/// Each is a second fence: seccomp or namespaces refuse the same inside the sandbox.
const SWITCHES: [Switch; 6] = [
    // Kernel addresses help exploits.
    Switch {
        name: "kptr_restrict",
        path: "/proc/sys/kernel/kptr_restrict",
        hard: |value| value >= 1,
        advice: "kernel.kptr_restrict=1",
    },
    // The kernel log contains them, too.
    Switch {
        name: "dmesg_restrict",
        path: "/proc/sys/kernel/dmesg_restrict",
        hard: |value| value >= 1,
        advice: "kernel.dmesg_restrict=1",
    },
    // The verifier is a large attack surface.
    Switch {
        name: "unprivileged_bpf_disabled",
        path: "/proc/sys/kernel/unprivileged_bpf_disabled",
        hard: |value| value >= 1,
        advice: "kernel.unprivileged_bpf_disabled=2",
    },
    // userfaultfd makes kernel races easy to win.
    Switch {
        name: "unprivileged_userfaultfd",
        path: "/proc/sys/vm/unprivileged_userfaultfd",
        hard: |value| value == 0,
        advice: "vm.unprivileged_userfaultfd=0",
    },
    // TIOCSTI types into another terminal (6.2).
    Switch {
        name: "legacy_tiocsti",
        path: "/proc/sys/dev/tty/legacy_tiocsti",
        hard: |value| value == 0,
        advice: "dev.tty.legacy_tiocsti=0",
    },
    // Links in shared folders that mislead other users.
    Switch {
        name: "protected_symlinks",
        path: "/proc/sys/fs/protected_symlinks",
        hard: |value| value >= 1,
        advice: "fs.protected_symlinks=1",
    },
];

pub(super) fn switches() -> Check {
    const NAME: &str = "hardening";
    let soft: Vec<_> = SWITCHES
        .iter()
        .filter(|switch| {
            let value = setting(switch.path).and_then(|text| text.parse().ok());
            value.is_some_and(|value: i64| !(switch.hard)(value))
        })
        .collect();
    if soft.is_empty() {
        let names: Vec<_> = SWITCHES.iter().map(|switch| switch.name).collect();
        return Check::good(NAME, names.join(" "));
    }
    let names: Vec<_> = soft.iter().map(|switch| switch.name).collect();
    let advice: Vec<_> = soft.iter().map(|switch| switch.advice).collect();
    Check::bad(NAME, State::Weaker, format!("off: {}", names.join(" ")), format!("sysctl -w {}", advice.join(" ")))
}
