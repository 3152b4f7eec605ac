//! `--root-inside`: real package tools, accounts and servers as root of the sandbox's user namespace. The attacks of
//! `escape` run in this mode too.

use crate::egress::world::World;
use crate::escape::{WITHOUT_GROUP, attacker, executable, has_root_inside};
use crate::hosted;
use crate::support::{Image, Lab, Task, has_program, is_root, skip};
use serde_json::json;
use std::process::Command;

/// A task that is root inside, in an image of the lab's.
pub fn inside<'lab>(task: Task<'lab>, image: &str) -> Task<'lab> {
    let task = task.args(["--root-inside", "--pull", "never", "--image", &format!("{image}:1")]);
    if is_root() { task } else { task.args(["--allow-degraded", WITHOUT_GROUP]) }
}

/// An image with Debian's tools for packages and accounts, as they are on this machine.
pub fn debian<'lab>(lab: &'lab Lab, packages: &[&str]) -> Image<'lab> {
    let tools = [
        "apt",
        "coreutils",
        "dash",
        "diffutils",
        "findutils",
        "grep",
        "libc-bin",
        "login",
        "passwd",
        "perl-base",
        "sed",
        "tar",
        "util-linux",
    ];
    let accounts = "root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/:/bin/sh\n_apt:x:42:65534::/:/bin/sh\n\
                    nobody:x:65534:65534::/:/bin/sh\n";
    // Debian's own file of su(1) needs files that its packages make when they are configured.
    let pam = "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\n\
               session required pam_permit.so\n";
    Image::new(lab, "debian")
        .packages(&tools.iter().chain(packages).copied().collect::<Vec<_>>())
        .file("etc/passwd", accounts, 0o644)
        .file("etc/group", "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n", 0o644)
        .file("etc/shadow", "root:*:1::::::\n", 0o640)
        .file("etc/gshadow", "root:*::\n", 0o640)
        .file("etc/pam.d/su", pam, 0o644)
        .file("etc/pam.d/other", pam, 0o644)
        .file("var/lib/dpkg/status", "", 0o644)
}

/// Servers, and a repository at `http://a.test:8085/debian`: unlike the others it has no file of each name.
fn world(lab: &Lab) -> Option<World> {
    World::with_sites(lab, |address, folder| {
        format!(
            "server {{ listen {address}:8085; server_name a.test; location / {{ root {}/www; }} }}",
            folder.display()
        )
    })
}

/// Puts one package, whose script makes an account, and its index into the repository.
fn publish_package(world: &World, lab: &Lab) -> bool {
    if !has_program("dpkg-deb") {
        return false;
    }
    let control = "Package: hello-brig\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t.test>\nDescription: a test\n";
    let script = "#!/bin/sh\nset -e\nuseradd --system hello\ninstall -d -o hello -m 700 /var/lib/hello\n";
    lab.file("package/DEBIAN/control", control);
    executable(&lab.file("package/DEBIAN/postinst", script), 0o755);
    executable(&lab.file("package/usr/bin/hello-brig", "#!/bin/sh\necho hello from $(id -un)\n"), 0o755);
    let packed = lab.path().join("hello.deb");
    let done = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zgzip", "--build"])
        .arg(lab.path().join("package"))
        .arg(&packed)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let bytes = std::fs::read(&packed).unwrap();
    let sum = Command::new("sha256sum").arg(&packed).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let index =
        format!("{control}Filename: ./hello.deb\nSize: {}\nSHA256: {}\n", bytes.len(), sum.split(' ').next().unwrap());
    world.publish("debian/hello.deb", &bytes);
    world.publish("debian/Packages", index.as_bytes());
    true
}

#[test]
fn apt_get_installs_a_package_through_the_gateway_and_its_script_makes_an_account() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    let Some(world) = world(&lab) else { return };
    if !publish_package(&world, &lab) {
        return;
    }
    debian(&lab, &[]).load();
    let script = "set -e; exec 2>&1
        mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/log/apt
        echo 'deb [trusted=yes] http://a.test:8085/debian ./' > /etc/apt/sources.list
        apt-get update; apt-get install -y hello-brig; hello-brig; stat -c '%U %a' /var/lib/hello
        su hello -s /bin/sh -c hello-brig; chown -R daemon /var/lib/hello; stat -c %U /var/lib/hello
        apt-get remove -y hello-brig; ! test -e /usr/bin/hello-brig; echo all done";
    let near = format!("{}:8085", world.address);
    let reach = ["--allow", "a.test:8085", "--allow", &near];
    let run = inside(world.bare(&lab).args(reach), "debian").sh(script);
    for line in ["Setting up hello-brig", "hello from root", "hello 700", "hello from hello", "daemon\n", "all done"] {
        assert!(run.stderr.contains(line), "{line}: {run:#?}");
    }
    let receipt = run.receipt();
    assert_eq!(receipt["root_inside"], json!(true), "{receipt:#?}");
    assert_eq!(receipt["image"]["uid"], json!(0), "{receipt:#?}");
    assert!(world.heard().contains("/hello.deb"), "{}", world.heard());
    if !is_root() {
        return; // all files of an image belong to an ordinary user, also those of root
    }
    // Without it nothing of this works, and the receipt has no such line.
    let task = world.bare(&lab).args(reach).args(["--pull", "never", "--image", "debian:1", "--user", "daemon"]);
    let run = task.sh("apt-get update; useradd x || echo refused");
    assert!(run.stderr.contains("refused") && run.receipt()["root_inside"].is_null(), "{run:#?}");
}

#[test]
fn postgresql_is_set_up_and_served_by_its_own_user() {
    let lab = Lab::new();
    let programs = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let Some(programs) = programs.map(|path| path.join("bin")).find(|path| path.join("initdb").exists()) else {
        return skip("needs postgresql");
    };
    if !has_root_inside() {
        return;
    }
    let version = programs.parent().unwrap().file_name().unwrap().to_str().unwrap();
    debian(&lab, &[&format!("postgresql-{version}"), &format!("postgresql-client-{version}")]).load();
    // As the image on Docker Hub does: root makes the folders and gives them away, then steps down.
    let script = format!(
        "set -e; exec 2>&1; useradd --system postgres; install -d -o postgres -m 700 /data; install -d -o postgres /var/run/postgresql
         export PATH=$PATH:{}
         su postgres -c 'initdb -N -D /data && pg_ctl -w -D /data -o \"-c listen_addresses=\" start && psql -Atc \"select 6 * 7\" && pg_ctl -w -D /data stop'
         stat -c '%U %a' /data",
        programs.display()
    );
    let run = inside(lab.task(), "debian").sh(&script);
    assert!(run.stderr.contains("\n42\n") && run.stderr.contains("postgres 700"), "{run:#?}");
}

#[test]
fn the_command_has_dockers_capabilities_in_its_namespace_alone() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    debian(&lab, &[]).config(json!({ "WorkingDir": "/opt/new/app" })).load();
    let script = "exec 2>&1; touch /opt/new/file && echo all is mine; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t '; cat /proc/self/uid_map; \
                  su daemon -c 'grep CapEff /proc/self/status | tr -d \"\\t \"; su root -c true || echo no way back'; \
                  touch /workspace/mine; mkdir /logs && echo made";
    let run = inside(lab.task(), "debian").sh(script);
    const DOCKERS: &str = "00000000a80425fb";
    for line in [format!("CapEff:{DOCKERS}"), format!("CapBnd:{DOCKERS}"), "CapAmb:0000000000000000".to_owned()] {
        assert!(run.stderr.contains(&line), "{line}: {run:#?}");
    }
    for line in ["NoNewPrivs:0", "Seccomp:2", "CapEff:0000000000000000", "no way back", "made", "all is mine"] {
        assert!(run.stderr.contains(line), "{line}: {run:#?}");
    }
    let first = run.stderr.lines().find(|line| line.starts_with("         0")).unwrap();
    let outside: u32 = first.split_whitespace().nth(1).unwrap().parse().unwrap();
    let owns_nothing = if is_root() { outside >= 0x7000_0000 } else { outside == rustix::process::geteuid().as_raw() };
    assert!(owns_nothing, "{run:#?}");
    // A process that enters has the same.
    let held = inside(lab.task().plain(), "debian").start_sh("echo up; sleep 60");
    held.wait_for("up");
    let id = lab.ids().pop().unwrap();
    let run = lab.brig(["task", "exec", &id, "--", "sh", "-c", "grep CapEff /proc/self/status; id -u"]);
    assert!(run.stdout.contains(DOCKERS) && run.stdout.ends_with("0\n"), "{run:#?}");
    // Another user has none, and a set-uid program may give it those of the limit.
    let run = lab.brig(["task", "exec", "--user", "daemon", &id, "--", "grep", "^Cap[EB]", "/proc/self/status"]);
    assert_eq!(run.stdout, format!("CapEff:\t0000000000000000\nCapBnd:\t{DOCKERS}\n"), "{run:#?}");
    held.signal(rustix::process::Signal::TERM);
    held.finish();
}

#[test]
fn set_uid_programs_of_the_root_have_effect_and_those_of_a_folder_have_none() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    debian(&lab, &[]).load();
    let work = attacker(&lab);
    let script = "cp attacker /usr/bin/rooted; chmod 4755 /usr/bin/rooted attacker; \
                  for each in /usr/bin/rooted ./attacker; do su daemon -c \"$each whoami\"; done";
    let run = inside(lab.task(), "debian").args(["--dir".as_ref(), work.as_os_str()]).sh(script);
    let found: Vec<_> = run.stderr.lines().filter(|line| line.contains("euid=")).collect();
    assert!(found.len() == 2 && found[0].contains("euid=0") && found[1].contains("euid=1"), "{run:#?}");
}

#[test]
fn the_label_of_an_image_asks_for_it_and_a_user_of_the_image_declines() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    debian(&lab, &[]).config(json!({ "User": "daemon", "Labels": { "dev.brig.root-inside": "true" } })).load();
    let task = |more: &[&str]| {
        let task = lab.task().args(["--pull", "never", "--image", "debian:1"]).args(more);
        let task = if is_root() { task } else { task.args(["--allow-degraded", WITHOUT_GROUP]) };
        task.sh("id -u; grep NoNew /proc/self/status")
    };
    let run = task(&[]);
    assert!(run.stderr.starts_with("0\n") && run.receipt()["root_inside"] == json!(true), "{run:#?}");
    let run = task(&["--user", "daemon"]);
    assert!(run.stderr.starts_with("1\n") && run.stderr.contains("NoNewPrivs:\t1"), "{run:#?}");
}

#[test]
fn hosted_mode_refuses_the_flag_and_the_label_until_the_operator_allows_them() {
    let Some(lab) = Lab::root() else { return };
    debian(&lab, &[]).config(json!({ "Labels": { "dev.brig.root-inside": "true" } })).load();
    let run = |rules: &str, more: &[&str]| {
        let words = ["task", "run", "--pull", "never", "--image", "debian:1"].iter().chain(more);
        hosted::brig(&lab, rules, &words.copied().chain(["--", "id", "-u"]).collect::<Vec<_>>())
    };
    for flags in [&[][..], &["--root-inside"]] {
        let refused = run(hosted::HOSTED, flags);
        assert!(refused.stderr.contains("root inside is not allowed"), "{flags:?}: {refused:#?}");
        let allowed = run(&format!("{}allow_root_inside = true\n", hosted::HOSTED), flags);
        assert_eq!(allowed.stdout, "0\n", "{flags:?}: {allowed:#?}");
    }
    assert_eq!(run(hosted::HOSTED, &["--user", "daemon"]).stdout, "1\n");
}

#[test]
fn what_it_cannot_go_with_is_refused_in_one_line() {
    let lab = Lab::new();
    let root = lab.directory("root").display().to_string();
    for (arguments, words) in [
        (&["--empty"][..], "root inside cannot change the host's own system folders"),
        (&["--rootfs", &root, "--mount", &format!("{root}:/data:rw")], "could give files of the host to other users"),
        (
            &["--rootfs", &root, "--backend", "oci:/usr/bin/crun", "--allow-degraded", "landlock"],
            "cannot give root inside",
        ),
    ] {
        let run = lab.task().plain().args(["--root-inside"]).args(arguments).run(["true"]);
        assert!(run.stderr.contains(words) && run.stderr.contains("hint:"), "{arguments:?}: {run:#?}");
    }
    if !is_root() {
        return;
    }
    // A user without subordinate ids.
    let program = lab.program_for_others();
    let own = lab.directory("own");
    std::os::unix::fs::chown(&own, Some(54_321), Some(54_321)).unwrap();
    let done = Command::new("setpriv")
        .args(["--reuid", "54321", "--regid", "54321", "--clear-groups"])
        .arg(&program)
        .args(["task", "run", "--root-inside", "--rootfs", &root, "--allow-degraded", WITHOUT_GROUP, "--store"])
        .arg(&own)
        .args(["--", "true"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(words.contains("this user has no range there") && words.contains("--add-subuids"), "{words}");
}

#[test]
fn root_inside_can_become_the_user_of_pid_1_and_do_nothing_to_it() {
    let lab = Lab::new();
    if !has_root_inside() {
        return;
    }
    debian(&lab, &[]).load();
    let script = "setpriv --reuid 65533 --regid 65533 --clear-groups sh -c 'id -u; cat /proc/1/cmdline /proc/1/environ /proc/1/mem; \
                  kill -9 1; kill -STOP 1'; kill -9 1; kill -TERM 1; sleep 0.2; echo still here";
    let run = inside(lab.task(), "debian").sh(script);
    assert!(run.stderr.contains("65533\n") && run.stderr.ends_with("still here\n"), "{run:#?}");
    assert_eq!(run.stderr.matches("No such file").count(), 3, "{run:#?}");
}
