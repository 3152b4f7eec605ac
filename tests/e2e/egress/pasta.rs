//! pasta's rights on the host, as root and as an ordinary user.

use super::open::{EVERYWHERE, Ground, PUBLIC, ask, pastas, reached};
use crate::escape::WITHOUT_GROUP;
use crate::support::{Lab, Run, eventually, program_under_test};
use rustix::process::Signal;
use std::os::unix::fs::chown;

/// A user id without files on this machine.
const SOMEBODY: u32 = 54_321;

#[test]
fn pasta_has_power_over_its_own_network_and_nothing_else() {
    let lab = Lab::new();
    let Some(ground) = Ground::with_pasta(&lab) else { return };
    let node = std::fs::metadata("/dev/net/tun").map(|node| node.permissions()).ok();
    let task = ground.task(&lab, "pasta").start_sh("echo begun; sleep 60");
    task.wait_for("begun");
    let all = pastas(&ground);
    assert!(!all.is_empty(), "no pasta runs");
    for pid in all.into_iter().map(rustix::process::Pid::as_raw_pid) {
        let of = |pid: i32, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        let own = std::process::id() as i32;
        // Capabilities count only in its own user namespace, which is neither the host's nor the sandbox's.
        assert_ne!(of(pid, "user"), of(own, "user"), "{pid} is in the host's user namespace");
        assert_ne!(of(pid, "user"), of(task.pid_1(), "user"), "{pid} is in the sandbox's user namespace");
        assert_ne!(of(pid, "mnt"), of(own, "mnt"), "{pid} sees the host's files");
        let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
        let numbers: Vec<u32> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert!(numbers.len() == 3 && numbers[1] >= 0x7000_0000 && numbers[2] == 1, "{map}");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert!(uid.split_whitespace().skip(1).all(|word| word.parse::<u32>().unwrap() == numbers[1]), "{status}");
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    }
    assert_eq!(std::fs::metadata("/dev/net/tun").map(|node| node.permissions()).ok(), node, "the host's device");
    task.signal(Signal::TERM);
    task.finish();
}

/// Runs a script as an ordinary user with `pasta`, in a separate mount namespace where `/dev/net/tun` has this mode.
fn as_ordinary_user(ground: &Ground, lab: &Lab, mode: &str, script: &str) -> Run {
    let program = lab.path().join("brig");
    std::fs::copy(program_under_test(), &program).unwrap();
    chown(lab.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let become_somebody = format!(
        "mount -t tmpfs none /dev/net && mknod /dev/net/tun c 10 200 && chmod {mode} /dev/net/tun && shift && \
         exec setpriv --reuid {SOMEBODY} --regid {SOMEBODY} --clear-groups --inh-caps=-all -- {} \"$@\"",
        program.display()
    );
    let mut prefix = ground.host.enter().to_vec();
    prefix.extend(["unshare", "--mount", "sh", "-c", &become_somebody, "sh"].map(str::to_owned));
    lab.task()
        .by(prefix)
        .env("HOME", lab.path())
        .args(["--empty", "--network", "pasta", "--resolver", PUBLIC, "--allow-degraded", WITHOUT_GROUP])
        .sh(script)
}

#[test]
fn an_ordinary_user_has_pasta_where_the_device_is_everybodys() {
    let lab = Lab::new();
    let Some(ground) = Ground::with_pasta(&lab) else { return };
    reached(&as_ordinary_user(&ground, &lab, "666", &ask(&EVERYWHERE)), &[PUBLIC]);
    eventually("pasta has ended", || pastas(&ground).is_empty());
}

#[test]
fn an_ordinary_user_without_the_device_is_told_what_to_do() {
    let lab = Lab::new();
    let Some(ground) = Ground::with_pasta(&lab) else { return };
    let run = as_ordinary_user(&ground, &lab, "600", "echo ran");
    let words = run.stdout.clone() + &run.stderr;
    assert_ne!(run.status, Some(0), "{run:#?}");
    for word in ["/dev/net/tun", "Permission denied", "chmod 666", "--network egress"] {
        assert!(words.contains(word), "no `{word}`: {run:#?}");
    }
}
