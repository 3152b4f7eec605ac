//! containerd with its CRI plugin, as in Kubernetes: `cri/client.py` drives it over the socket, with brig and with
//! runc.
//!
//! `BRIG_CRI_PODS=50` makes and removes more pods. Pods with user namespaces need a containerd that supports them and a
//! CNI network.

use crate::engines::Containerd;
use crate::support::{eventually, finish, skip};
use std::process::{Command, Stdio};

/// Two handlers, as `RuntimeClass` names them. Without the capability that the machine may lack, scores of the OOM
/// killer are limited.
const PLUGIN: &str = r#"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/bb:bb"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "$D/cni"
bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "brig"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.brig]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.brig.options]
BinaryName = "$BRIG"
Root = "$D/records-brig"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "runc"
Root = "$D/records-runc"
"#;

/// Debian's directory of the network plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The output of the client with each runtime, in this order of words.
const WORDS: [&str; 15] = [
    "up: True",
    "status: 1",
    "stderr F complaint",
    "exec: 5 '1000",
    "NoNewPrivs:\\t1\\nSeccomp:\\t2",
    "limits: 0 '67108864\\n50000\\n512\\n0\\n' ''",
    "updated: 0 '83886080\\n20000\\n100\\n0\\n' ''",
    "update of nonsense: True",
    "probe that takes too long: DEADLINE_EXCEEDED",
    "end: 7 Error",
    "success: 0 Completed",
    "out of memory: 137 OOMKilled",
    "all see each other: 0 '1",
    "churned: {\"0 'in",
    "left: ([], [])",
];

/// Whether pods may have user namespaces; if so, their network is configured.
fn knows_users(directory: &std::path::Path) -> bool {
    let version = finish(Command::new("containerd").arg("--version")).out;
    let number = version.split_whitespace().find_map(|word| {
        let (major, rest) = word.trim_start_matches('v').split_once('.')?;
        Some((major.parse::<u32>().ok()?, rest.split('.').next()?.parse::<u32>().ok()?))
    });
    if number.is_none_or(|number| number < (1, 7)) || !std::path::Path::new(PLUGINS).join("ptp").exists() {
        return false;
    }
    let network = r#"{"cniVersion": "0.4.0", "name": "test", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.231.9.0/24", "dataDir": "$D/addresses"}}]}"#;
    std::fs::create_dir_all(directory.join("cni")).unwrap();
    let network = network.replace("$D", &directory.display().to_string());
    std::fs::write(directory.join("cni/test.conflist"), network).unwrap();
    true
}

#[test]
fn kubernetes_gets_from_brig_what_it_gets_from_runc() {
    let python = Command::new("/usr/bin/python3").args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        return skip("needs python3-grpcio");
    }
    let Some(containerd) = Containerd::start(&PLUGIN.replace("$BRIG", env!("CARGO_BIN_EXE_brig"))) else { return };
    let lab = &containerd.lab;
    std::fs::create_dir(lab.path().join("volume")).unwrap();
    std::fs::write(lab.path().join("volume/note"), "note\n").unwrap();
    let users = knows_users(lab.path());
    if !users {
        skip("user namespaces need containerd 1.7 and containernetworking-plugins");
    }
    let pods = std::env::var("BRIG_CRI_PODS").unwrap_or_else(|_| "4".into());
    let [ours, theirs] = ["brig", "runc"].map(|handler| {
        let mut client = Command::new("/usr/bin/python3");
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oci/cri/client.py")).arg(lab.path().join("sock"));
        client.args([handler, "localhost/bb:bb"]).arg(lab.path()).arg(format!("/cri-{}", lab.id)).arg(&pods);
        client.args(users.then_some("users"));
        let done = finish(client.stdin(Stdio::null()));
        assert_eq!(done.status, 0, "{handler}: {}{}", done.out, done.err);
        // No record, monitor, cgroup or mount remains.
        let records = std::fs::read_dir(lab.path().join(format!("records-{handler}/k8s.io")));
        assert_eq!(records.map_or(0, Iterator::count), 0, "records are left");
        let address = format!("address {}/", lab.path().display());
        eventually("the monitors have ended", || {
            finish(Command::new("pgrep").args(["-f", "--", &address])).status == 1
        });
        let groups = ["/sys/fs/cgroup", "-path", &format!("*/cri-{}/*", lab.id), "-type", "d"];
        assert_eq!(finish(Command::new("find").args(groups)).out, "", "groups are left");
        assert_eq!(containerd.mounts(), "", "mounts are left");
        done.out.replace("error during container init: ", "") // of runc since 1.2 alone
    });
    let parent =
        ["/sys/fs/cgroup", "-depth", "-type", "d", "-name", &format!("cri-{}", lab.id), "-exec", "rmdir", "{}", ";"];
    finish(Command::new("find").args(parent));
    assert_eq!(ours, theirs);
    assert!(!users || ours.contains("users: 0 ' 0 700000 65536\\nallow\\n0\\n0\\nnote\\nname"), "{ours}");
    for words in WORDS {
        assert!(ours.contains(words), "`{words}` is not in:\n{ours}");
    }
}
