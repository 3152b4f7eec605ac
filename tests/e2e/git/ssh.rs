//! Repositories behind a real sshd: a key of the profile, and a known host key.

use super::server::{Host, SSH};
use super::{COMMIT, host, push, refused};
use crate::support::{Lab, Task};

fn user() -> String {
    host(std::path::Path::new("/"), "id -un")
}

/// A task on a repository of this host over ssh, with this key and these known hosts.
pub fn task<'lab>(lab: &'lab Lab, far: &Host, url: &str, key: &str, known: &str) -> Task<'lab> {
    let key = format!("file:{}", lab.path().join("keys").join(key).display());
    let known = lab.path().join(known);
    let address = far.world.address.to_string();
    let resolver = format!("{address}:5353");
    lab.task().args(["--network", "egress", "--resolver", &resolver, "--repo", url, "--git-address", &address]).args([
        "--git-ssh-key",
        &key,
        "--git-known-hosts",
        known.to_str().unwrap(),
    ])
}

#[test]
fn a_repository_is_cloned_and_pushed_over_ssh() {
    let lab = Lab::new();
    let Some(far) = Host::with_ssh(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = format!("ssh://{}@a.test:{SSH}{}", user(), remote.display());
    let run = task(&lab, &far, &url, "id", "known_hosts")
        .args(["--push-branch", "agent/fix"])
        .sh(&format!("git log --format=%s; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("two\none\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(host(&remote, "git rev-parse agent/fix"), run.receipt()["commit_out"].as_str().unwrap());
    let key = std::fs::read_to_string(lab.path().join("keys/id")).unwrap();
    super::https::assert_nowhere(&lab.store(), key.lines().nth(1).unwrap());
}

#[test]
fn the_short_form_goes_to_port_22() {
    let lab = Lab::new();
    let Some(far) = Host::with_ssh(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = format!("{}@a.test:{}", user(), remote.display());
    let run = task(&lab, &far, &url, "id", "known_hosts").sh("cat file");
    if std::net::TcpStream::connect((far.world.address, 22)).is_ok() {
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains("two"), "{run:#?}");
    } else {
        refused(&run, &["does not answer"]); // an ordinary user cannot give port 22
    }
}

#[test]
fn a_host_that_is_not_known_is_refused() {
    let lab = Lab::new();
    let Some(far) = Host::with_ssh(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = format!("ssh://{}@a.test:{SSH}{}", user(), remote.display());
    refused(&task(&lab, &far, &url, "id", "known_hosts.none").sh("echo ran"), &["the host's key is unknown"]);
    refused(&task(&lab, &far, &url, "id", "known_hosts.other").sh("echo ran"), &["another key than the known one"]);
    refused(&task(&lab, &far, &url, "stranger", "known_hosts").sh("echo ran"), &["does not take the key"]);
    let none = format!("ssh://{}@a.test:{SSH}/none.git", user());
    refused(&task(&lab, &far, &none, "id", "known_hosts").sh("echo ran"), &["the repository does not exist"]);
    // Errors that can be known early are reported before anything is made.
    let before = lab.ids().len();
    task(&lab, &far, &url, "locked", "known_hosts").plain().sh("echo ran").refused(125, &["passphrase"]);
    task(&lab, &far, &url, "id.pub", "known_hosts").plain().sh("echo ran").refused(125, &["not a private key"]);
    task(&lab, &far, &url, "id", "nowhere").plain().sh("echo ran").refused(125, &["nowhere", "No such file"]);
    task(&lab, &far, &url, "nowhere", "known_hosts").plain().sh("echo ran").refused(125, &["nowhere", "No such file"]);
    assert_eq!(lab.ids().len(), before);
}
