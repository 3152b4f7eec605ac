//! `--root-inside` in a whole root of Debian 13, with packages of a signed mirror behind the gateway.
//!
//! Ubuntu's roots have the same parts. `/usr` is merged, sources are deb822 with `Signed-By`, and apt works as `_apt`.
//! Accounts come from systemd-sysusers and adduser; sudo, locales and triggers of dpkg are used.

use crate::egress::world::World;
use crate::escape::has_root_inside;
use crate::root_inside::inside;
use crate::support::{Image, Lab, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of tests/debian: `BRIG_TEST_DEBIAN`, or made now. Prints `SKIP` where it cannot be made.
fn made() -> Option<PathBuf> {
    let given = std::env::var_os("BRIG_TEST_DEBIAN").map(PathBuf::from).filter(|path| path.exists());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debian");
    let make = || {
        let done = Command::new(script).output().ok().filter(|done| done.status.success())?;
        Some(String::from_utf8(done.stdout).ok()?.trim().into())
    };
    let found = given.or_else(make);
    if found.is_none() {
        skip("needs the root of tests/debian");
    }
    found
}

const SCRIPT: &str = "set -e; exec 2>&1; export DEBIAN_FRONTEND=noninteractive
    readlink /bin /lib /sbin
    rm -r /etc/apt/sources.list*; mkdir /etc/apt/sources.list.d
    install -D -m 644 /workspace/key.asc /etc/apt/keyrings/tests.asc
    printf 'Types: deb\nURIs: http://a.test:8085\nSuites: trixie\nComponents: main\nSigned-By: /etc/apt/keyrings/tests.asc\n' \
        > /etc/apt/sources.list.d/tests.sources
    apt-get -q update; apt-get -q install -y --no-install-recommends adduser locales openssh-server sudo systemd-sysv
    stat -c 'lists of %U' /var/lib/apt/lists/partial
    useradd --create-home other; adduser --disabled-password --comment '' worker; getent passwd sshd worker
    su - worker -c 'echo $(id -un) in $(pwd) | tee own; stat -c %U own; sudo -n true || echo asked for a password'
    echo 'worker ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/worker
    su worker -c 'sudo -n id -un; sudo -n -u other id -un'
    mkdir -p /logs/sub; chown -R worker: /logs; stat -c '%U:%G of %n' /logs/sub
    echo 'de_DE.UTF-8 UTF-8' > /etc/locale.gen; locale-gen; LC_ALL=de_DE.UTF-8 date --date 2026-03-01 +%B
    ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519; install -d -o other -m 700 /home/other/.ssh
    install -o other -m 600 /root/.ssh/id_ed25519.pub /home/other/.ssh/authorized_keys; mkdir -p /run/sshd; /usr/sbin/sshd -p 22
    ssh -o StrictHostKeyChecking=accept-new other@127.0.0.1 'echo by ssh as $(id -un)'
    apt-get -q remove -y locales; ! test -e /usr/sbin/locale-gen; deluser worker; dpkg --audit; echo all done";

#[test]
fn packages_accounts_and_a_server_of_debian_13_work() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    let Some(made) = made() else { return };
    let mirror = made.join("mirror");
    let site = |address, _: &Path| {
        format!("server {{ listen {address}:8085; server_name a.test; location / {{ root {}; }} }}", mirror.display())
    };
    let Some(world) = World::with_sites(&lab, site) else { return };
    Image::of(&lab, "trixie", made.join("root.tar")).load();
    lab.file("work/key.asc", std::fs::read(mirror.join("key.asc")).unwrap());
    let near = format!("{}:8085", world.address);
    let task = world.bare(&lab).args(["--allow", "a.test:8085", "--allow", &near]);
    let run = inside(task, "trixie").sh(SCRIPT);
    for line in [
        "usr/bin\nusr/lib\nusr/sbin\n",
        "InRelease [",
        "\nSetting up systemd (",
        "\nSetting up openssh-server (",
        "\nlists of _apt\n",
        "\nsshd:x:",
        "\nworker:x:",
        "\nworker in /home/worker\nworker\n",
        "asked for a password\n",
        "\nroot\nother\n",
        "\nworker:worker of /logs/sub\n",
        "\nM\u{e4}rz\n",
        "\nby ssh as other\n",
        "\nall done\n",
    ] {
        assert!(run.stderr.contains(line), "{line}: {run:#?}");
    }
    assert!(!run.stderr.contains("unsandboxed"), "{run:#?}");
    run.ended_as("succeeded", 0);
    assert!(world.heard().contains("/dists/trixie/InRelease"), "{}", world.heard());
}
