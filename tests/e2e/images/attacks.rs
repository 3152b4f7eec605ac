//! Hostile images (/etc/passwd as a FIFO, links to the kernel's files, set-id programs, devices). Each is refused or
//! without effect, and has an effect in a weakened build.

use super::{has, task_in};
use crate::escape::host;
use crate::support::{Image, Lab, is_root, skip};
use serde_json::json;
use std::os::unix::fs::symlink;
use std::time::Duration;

#[test]
fn the_root_of_an_image_has_no_power() {
    let lab = Lab::new();
    Image::new(&lab, "root").load();
    let script = "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | while read a b; do echo $a$b; done; \
         mount -t tmpfs x /tmp 2>/dev/null && echo mounted; chown 1 /etc/passwd 2>/dev/null && echo chowned; \
         (echo 1 >/proc/sys/vm/drop_caches) 2>/dev/null && echo kernel; (echo x >/proc/sys/net/core/somaxconn) 2>/dev/null && echo net; true";
    let run = task_in(&lab, "root").sh(script);
    run.ended_as("succeeded", 0);
    let none = "0000000000000000";
    has(
        &run,
        &[
            "0",
            &format!("CapEff:{none}"),
            &format!("CapPrm:{none}"),
            &format!("CapBnd:{none}"),
            "NoNewPrivs:1",
            "Seccomp:2",
        ],
    );
    for word in ["mounted", "chowned", "kernel", "net"] {
        assert!(!run.stderr.lines().any(|line| line == word), "{word}: {run:#?}");
    }
    // Without these protections, root inside has the capabilities of its namespace.
    let run = task_in(&lab, "root").weakened("capabilities,no-new-privs,seccomp,landlock").sh(script);
    let power = if crate::support::is_root() { "chowned" } else { "mounted" }; // an ordinary user has no second id
    assert!(run.stderr.contains(power) && !run.stderr.contains(&format!("CapEff:{none}")), "{run:#?}");
}

/// T-39: account files of another type, or too long, are refused without waiting.
#[test]
fn account_files_that_are_none_are_refused_at_once() {
    let lab = Lab::new();
    for (name, make) in [
        ("fifo", "rm passwd; mkfifo passwd"),
        (
            "zero",
            "rm passwd; ln -s ../dev/zero passwd; mkdir -p ../dev; mknod ../dev/zero c 1 5 || : > ../dev/zero.none",
        ),
        ("sparse", "truncate -s 1G passwd"),
        ("folder", "rm passwd; mkdir passwd"),
    ] {
        if name == "zero" && !is_root() {
            continue; // a device is left out of an ordinary user's layers
        }
        let mut image = Image::new(&lab, name).config(json!({ "User": "me" }));
        let layer = image.layer("--owner=0 --group=0 --sparse");
        std::fs::create_dir(layer.join("etc")).unwrap();
        let made = std::process::Command::new("sh")
            .args(["-c", &format!("touch passwd; {make}")])
            .current_dir(layer.join("etc"))
            .status();
        assert!(made.unwrap().success());
        image.load();
        let run = task_in(&lab, name).sh("true");
        run.refused(125, &["/etc/passwd"]);
        assert!(run.elapsed < Duration::from_secs(5), "{name}: {run:#?}");
    }
}

/// T-37, CVE-2022-36109: a group that a mode or ACL denies is always among the groups.
#[test]
fn the_primary_group_is_one_of_the_groups() {
    if !is_root() {
        return skip("an ordinary user's sandbox has no supplementary groups");
    }
    let lab = Lab::new();
    Image::new(&lab, "groups").config(json!({ "User": "me" })).load();
    let script = "grep ^Groups /proc/self/status | while read a b; do echo groups $b; done";
    has(&task_in(&lab, "groups").sh(script), &["groups 55 1002"]);
    has(&task_in(&lab, "groups").weakened("image-primary-group").sh(script), &["groups 55"]);
}

/// Links of an image at the sandbox's own paths, or at Landlock's boundaries, reach nothing of the kernel or the host.
#[test]
fn links_of_an_image_reach_neither_the_host_nor_the_kernels_files() {
    let lab = Lab::new();
    let victim = lab.file("victim/file", "untouched");
    let folder = victim.parent().unwrap();
    let mut image = Image::new(&lab, "links").config(json!({
        "WorkingDir": "/out/made", "Volumes": { "/out/volume": {} },
    }));
    let layer = image.layer("--owner=0 --group=0");
    symlink(folder, layer.join("out")).unwrap();
    image.load();
    let run = task_in(&lab, "links").sh("true");
    // The link's target is resolved in the root, where it is missing.
    assert_eq!(run.outcome(), "start_failed", "{run:#?}");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");

    let mut image = Image::new(&lab, "kernel").config(json!({ "User": "0" }));
    let layer = image.layer("--owner=0 --group=0");
    symlink("proc", layer.join("up")).unwrap();
    image.load();
    let script = "(echo 500 >/up/self/oom_score_adj) 2>/dev/null && echo written || echo refused";
    has(&task_in(&lab, "kernel").sh(script), &["refused"]);
    has(&task_in(&lab, "kernel").weakened("landlock").sh(script), &["written"]);

    for (name, link, target) in [("proc", "proc", "tmp"), ("dev", "dev", "tmp"), ("etc", "etc", "proc/self")] {
        let mut image = Image::new(&lab, &format!("link-{name}"));
        let layer = image.layer("--owner=0 --group=0");
        std::fs::write(layer.join(format!(".wh.{link}")), "").unwrap();
        let layer = image.layer("--owner=0 --group=0");
        symlink(target, layer.join(link)).unwrap();
        image.load();
        let run = task_in(&lab, &format!("link-{name}")).sh("true");
        assert_eq!(run.outcome(), "start_failed", "{name}: {run:#?}");
    }
}

#[test]
fn set_id_programs_and_devices_of_an_image_give_nothing() {
    let lab = Lab::new();
    let mut image = Image::new(&lab, "armed").config(json!({ "User": "me" }));
    let layer = image.layer("--owner=0 --group=0");
    let source = "#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf(\"euid %d\\n\", (int)geteuid()); return 0; }\n";
    std::fs::copy(lab.compile("euid", source), layer.join("suid")).unwrap();
    std::fs::set_permissions(layer.join("suid"), std::os::unix::fs::PermissionsExt::from_mode(0o6755)).unwrap();
    if is_root() {
        host("mknod", &[layer.join("memory").to_str().unwrap(), "c", "1", "5"]);
        std::fs::set_permissions(layer.join("memory"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    }
    image.load();
    let script = "/suid; (head -c 1 /memory >/dev/null) 2>/dev/null && echo opened || echo closed";
    has(&task_in(&lab, "armed").sh(script), &["euid 1001", "closed"]);
    if is_root() {
        let run = task_in(&lab, "armed").weakened("nodev,nosuid,no-new-privs,seccomp,landlock").sh(script);
        has(&run, &["euid 0", "opened"]);
    }
}

/// T-40, CVE-2026-95837: CRI-O and containerd restore an image with this annotation, with its maker's configuration.
#[test]
fn a_checkpoint_that_comes_as_an_image_is_only_files() {
    let lab = Lab::new();
    let spec = json!({
        "ociVersion": "1.0.2", "root": { "path": "/" }, "process": { "user": { "uid": 0, "gid": 0 }, "cwd": "/", "noNewPrivileges": false,
            "args": ["/bin/sh", "-c", "echo restored"], "capabilities": { "effective": ["CAP_SYS_ADMIN"], "bounding": ["CAP_SYS_ADMIN"] } },
        "mounts": [{ "destination": "/host", "type": "bind", "source": "/", "options": ["rbind", "rw"] }],
    });
    let said = json!({ "io.kubernetes.cri-o.annotations.checkpoint.name": "frozen", "org.criu.checkpoint.container.name": "frozen",
        "org.criu.checkpoint.engine.name": "containerd" });
    let script = "id -u; ls /host 2>/dev/null; ls /checkpoint; grep -E '^(CapBnd|NoNewPrivs):' /proc/self/status | while read a b; do echo $a$b; done";
    let image = Image::new(&lab, "frozen")
        .config(json!({ "User": "me", "Cmd": ["/bin/sh", "-c", script], "Labels": said }))
        .annotations(said)
        .file("config.dump", &spec.to_string(), 0o644)
        .file("spec.dump", &spec.to_string(), 0o644);
    image.file("checkpoint/inventory.img", "frozen", 0o644).load();
    let run = task_in(&lab, "frozen").run([] as [&str; 0]);
    run.ended_as("succeeded", 0).wrote(&["1001", "inventory.img", "CapBnd:0000000000000000", "NoNewPrivs:1"]);
}
