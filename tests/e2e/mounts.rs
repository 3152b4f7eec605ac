//! `--mount` and `--ro`: files and folders of the host at places in a sandbox.

use crate::support::{Image, Lab, Task, has_program, skip};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// A lab with a folder and a file to mount.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.file("data/sub/file", "of the host\n");
    lab.file("one", "one file\n");
    lab
}

/// A value of `--mount`: a path of the lab at a place inside.
fn mount(lab: &Lab, name: &str, rest: &str) -> String {
    format!("{}:{rest}", lab.path().join(name).display())
}

fn with<'lab>(lab: &'lab Lab, mounts: &[String]) -> Task<'lab> {
    mounts.iter().fold(lab.task(), |task, each| task.args(["--mount", each]))
}

#[test]
fn a_mount_is_read_only_unless_another_mode_is_written_out() {
    let lab = lab();
    let script = "exec 2>&1; cat /data/sub/file /one; touch /data/new; touch /data/sub/file; echo x > /one; \
                  grep -cE ' (/data|/one) ro,nosuid,nodev' /proc/self/mountinfo";
    for mode in ["", ":ro"] {
        let mounts = [mount(&lab, "data", &format!("/data{mode}")), mount(&lab, "one", &format!("/one{mode}"))];
        let run = with(&lab, &mounts).sh(script);
        run.ended_as("succeeded", 0);
        for words in ["of the host\n", "one file\n", "\n2\n"] {
            assert!(run.stderr.contains(words), "{words}: {run:#?}");
        }
        assert_eq!(run.stderr.matches("Read-only file system").count(), 3, "{run:#?}");
        let receipt = run.receipt();
        assert_eq!((&receipt["mounts"][0]["target"], &receipt["mounts"][1]["mode"]), (&"/data".into(), &"ro".into()));
    }
    let names: Vec<_> =
        std::fs::read_dir(lab.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["sub"]);
}

#[test]
fn a_mount_below_the_home_of_root_is_open_to_the_command() {
    let lab = lab();
    let run = with(&lab, &[mount(&lab, "data", "/root/tools/data")]).sh("cat /root/tools/data/sub/file; touch /root/x");
    run.ended_as("failed", 1);
    assert!(run.stderr.starts_with("of the host\n"), "{run:#?}");
}

#[test]
fn copy_on_write_ends_with_the_task_and_counts_against_its_disk() {
    let lab = lab();
    let mounts = [mount(&lab, "data", "/data:cow")];
    let run = with(&lab, &mounts)
        .sh("echo changed > /data/sub/file; mkdir /data/new; mv /data/sub/file /data/new/; cat /data/new/file");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "changed\n");
    assert_eq!(run.receipt()["changes"]["added"], 0);
    assert_eq!(std::fs::read_to_string(lab.path().join("data/sub/file")).unwrap(), "of the host\n");
    let run = with(&lab, &mounts).args(["--disk", "32M"]).sh("dd if=/dev/zero of=/data/large bs=1M count=64");
    assert!(run.stderr.contains("No space left"), "{run:#?}");
    assert!(!lab.path().join("data/large").exists());
    // A file is copied to the task's disk.
    let file = [mount(&lab, "one", "/one:cow")];
    let run = with(&lab, &file).sh("cat /one; echo mine > /one; cat /one; stat -c '%u %a' /one");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "one file\nmine\n1000 644\n", "{run:#?}");
    assert_eq!(std::fs::read_to_string(lab.path().join("one")).unwrap(), "one file\n");
    lab.file("large", vec![1; 64 << 20]);
    let run = with(&lab, &[mount(&lab, "large", "/large:cow")]).args(["--disk", "32M"]).sh("true");
    assert!(
        run.ended_as("start_failed", 125).receipt()["error"]["hint"].as_str().unwrap().contains("--disk"),
        "{run:#?}"
    );
}

#[test]
fn a_mount_that_writes_through_changes_the_host_and_is_named_everywhere() {
    let lab = lab();
    let mounts = [mount(&lab, "data", "/data:rw"), mount(&lab, "one", "/one:rw")];
    let run = with(&lab, &mounts)
        .sh("echo of the agent > /data/new; rm /data/sub/file; echo more >> /one; stat -c %u /data/new");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "1000\n");
    let new = lab.path().join("data/new");
    assert_eq!(std::fs::read_to_string(&new).unwrap(), "of the agent\n");
    assert_eq!(std::fs::metadata(&new).unwrap().uid(), std::fs::metadata(lab.path()).unwrap().uid(), "the owner's");
    assert!(!lab.path().join("data/sub/file").exists());
    assert_eq!(std::fs::read_to_string(lab.path().join("one")).unwrap(), "one file\nmore\n");
    let receipt = run.receipt();
    assert_eq!(receipt["mounts"][0]["mode"], "rw");
    let shown = lab.brig(["task", "show", receipt["id"].as_str().unwrap()]);
    assert!(shown.stdout.contains("at /data, WRITES TO THE HOST"), "{shown:#?}");
    let explained = with(&lab, &mounts).plain().args(["--explain"]).sh("true");
    assert!(explained.stdout.contains("at /data, WRITES TO THE HOST"), "{explained:#?}");
}

#[test]
fn a_path_is_shown_at_its_own_place() {
    let lab = Lab::new();
    let Some(folder) = Lab::own_path() else { return };
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("file"), "shown\n").unwrap();
    std::os::unix::fs::symlink(folder.path().join("file"), folder.path().join("link")).unwrap();
    let path = folder.path().join("file");
    for path in [folder.path(), &path, &folder.path().join("link")] {
        let run = lab
            .task()
            .args(["--ro".as_ref(), path.as_os_str()])
            .sh(&format!("cat {0} || cat {0}/file", path.display()));
        assert!(run.ended_as("succeeded", 0).stderr.contains("shown\n"), "{run:#?}");
    }
    // A relative path is one of the working folder; in a profile, of the profile's folder.
    let profile = lab.file("profile.toml", "mounts = [\"data:/data\"]\n");
    lab.file("data/file", "by the profile\n");
    let run = lab.task().args(["--profile".as_ref(), profile.as_os_str()]).sh("cat /data/file");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "by the profile\n");
}

#[test]
fn mounts_are_in_a_root_of_the_callers_too_and_in_the_home() {
    let lab = lab();
    let mounts = [
        mount(&lab, "data", "/home/agent/.tool/data:cow"),
        mount(&lab, "one", "/etc/tool.conf"),
        mount(&lab, "data/sub", "/tmp/a/b"),
    ];
    let run = with(&lab, &mounts)
        .sh("cat ~/.tool/data/sub/file /etc/tool.conf /tmp/a/b/file; touch ~/.tool/mine ~/.tool/data/mine /tmp/a/mine");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "of the host\none file\nof the host\n");
    let root = lab.directory("root");
    for name in ["bin", "etc", "tmp", "opt"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists()) else {
        return skip("needs busybox");
    };
    std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    let mounts = [mount(&lab, "data", "/opt/data"), mount(&lab, "one", "/etc/tool.conf:rw")];
    let script = "busybox cat /opt/data/sub/file; echo x >> /etc/tool.conf; busybox touch /opt/data/new";
    let check = |run: crate::support::Run| {
        assert!(run.stderr.contains("of the host\n") && run.stderr.contains("Read-only"), "{run:#?}");
    };
    check(with(&lab, &mounts).args(["--rootfs".as_ref(), root.as_os_str()]).sh(script));
    Image::new(&lab, "base").load();
    check(with(&lab, &mounts).args(["--image", "base:1"]).sh(script));
    assert_eq!(std::fs::read_to_string(lab.path().join("one")).unwrap(), "one file\nx\nx\n");
}

#[test]
fn files_that_the_owner_of_a_mount_cannot_read_stay_closed() {
    let Some(lab) = Lab::root() else { return };
    let data = lab.directory("data");
    for (name, owner, mode) in [("own", 4321, 0o600), ("roots", 0, 0o600), ("agents", 1000, 0o600), ("open", 0, 0o644)]
    {
        let path = lab.file(&format!("data/{name}"), format!("{name}\n"));
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(&data, Some(4321), Some(4321)).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", data.join("link")).unwrap();
    for mode in ["ro", "cow", "rw"] {
        let run =
            with(&lab, &[mount(&lab, "data", &format!("/data:{mode}"))]).sh("cd /data; cat own open roots agents link");
        assert!(run.stderr.contains("own\n") && run.stderr.contains("open\n"), "{mode}: {run:#?}");
        for refused in ["roots: Permission denied", "agents: Permission denied", "link: No such file"] {
            assert!(run.stderr.contains(refused), "{mode}: {refused}: {run:#?}");
        }
    }
}

#[test]
fn sockets_and_pipes_of_the_host_in_a_mount_are_not_reached() {
    let lab = lab();
    let path = lab.path().join("data/socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let attack = "import socket, sys
try: socket.socket(socket.AF_UNIX).connect('/data/socket'); print('reached', file=sys.stderr)
except OSError as error: print(error, file=sys.stderr)";
    for mode in ["ro", "cow"] {
        let mounts = [mount(&lab, "data", &format!("/data:{mode}"))];
        let run = with(&lab, &mounts).run(["python3", "-c", attack]);
        assert!(run.stderr.contains("Connection refused") || run.stderr.contains("Read-only"), "{mode}: {run:#?}");
        let run = with(&lab, &mounts).weakened("mount-overlay").run(["python3", "-c", attack]);
        assert!(mode == "ro" || run.stderr.contains("reached"), "{mode}: {run:#?}");
    }
    with(&lab, &[mount(&lab, "data", "/data:rw")]).sh("true").refused(125, &["`socket`", "socket, FIFO or device"]);
    with(&lab, &[mount(&lab, "data/socket", "/socket")]).sh("true").refused(125, &["neither a file nor a folder"]);
    drop(listener);
}

#[test]
fn no_file_of_the_host_gets_a_set_user_id_bit() {
    let lab = lab();
    lab.compile(
        "data/attack",
        r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/openat2.h>
static void see(const char *name) {
    struct stat status;
    if (stat(name, &status) == 0 && status.st_mode & 06000) fprintf(stderr, "got %s\n", name);
}
int main(void) {
    umask(0);
    close(open("chmod", O_CREAT | O_WRONLY, 0755));
    chmod("chmod", 04755); chmod("chmod", 02755); see("chmod");
    int file = open("fchmod", O_CREAT | O_WRONLY, 0755);
    fchmod(file, 06755); see("fchmod");
    syscall(SYS_fchmodat, AT_FDCWD, "fchmod", 04755); see("fchmod");
    syscall(452, AT_FDCWD, "fchmod", 04755, 0); see("fchmod");
    close(open("open", O_CREAT | O_WRONLY, 04755)); see("open");
    close(creat("creat", 02755)); see("creat");
    mknod("mknod", S_IFREG | 04755, 0); see("mknod");
    mknodat(AT_FDCWD, "mknodat", S_IFREG | 04755, 0); see("mknodat");
    struct open_how how = { .flags = O_CREAT | O_WRONLY, .mode = 04755 };
    close(syscall(SYS_openat2, AT_FDCWD, "openat2", &how, sizeof how)); see("openat2");
    int unnamed = open(".", O_TMPFILE | O_RDWR, 04755);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
    linkat(AT_FDCWD, path, AT_FDCWD, "tmpfile", AT_SYMLINK_FOLLOW); see("tmpfile");
    fprintf(stderr, "tried\n");
    return access("chmod", X_OK);
}
"#,
    );
    let mounts = [mount(&lab, "data", "/data:rw")];
    let run = with(&lab, &mounts).sh("cd /data && ./attack");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "tried\n", "{run:#?}");
    let set = |name: &str| {
        std::fs::metadata(lab.path().join("data").join(name)).is_ok_and(|found| found.mode() & 0o6000 != 0)
    };
    let names = ["chmod", "fchmod", "open", "creat", "mknod", "mknodat", "openat2", "tmpfile"];
    assert!(names.iter().all(|name| !set(name)));
    for name in names {
        let _ = std::fs::remove_file(lab.path().join("data").join(name));
    }
    let run = with(&lab, &mounts).weakened("set-id-bits").sh("cd /data && ./attack");
    assert!(names.iter().filter(|name| set(name)).count() >= 6, "{run:#?}");
    // A file that has the bit already could be filled with another program through a memory map.
    with(&lab, &mounts).sh("true").refused(125, &["set-user-ID"]);
    // A command that enters later has the same filter, and the sandbox without such a mount keeps the bits.
    let run = lab.task().sh("touch x; chmod 4755 x; stat -c %a x");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "4755\n");
}

#[test]
fn a_command_that_enters_has_the_filter_of_the_mounts() {
    let lab = lab();
    let data = lab.path().join("data");
    let mut started = with(&lab, &[mount(&lab, "data", "/data:rw")]).start_sh("touch /data/ready; sleep 30");
    crate::support::eventually("the task runs", || data.join("ready").exists() && !lab.ids().is_empty());
    let id = lab.ids().remove(0);
    let run = lab.brig(["task", "exec", &id, "--", "sh", "-c", "echo x > /data/by-exec; chmod 4755 /data/by-exec"]);
    assert!(run.stderr.contains("Operation not permitted"), "{run:#?}");
    assert_eq!(std::fs::metadata(data.join("by-exec")).unwrap().mode() & 0o6000, 0);
    lab.brig(["task", "stop", &id]);
    crate::support::eventually("it ends", || started.has_ended());
}

#[test]
fn wrong_mounts_are_refused_in_one_line_before_anything_starts() {
    let lab = lab();
    std::os::unix::fs::symlink("/etc", lab.path().join("link")).unwrap();
    let refused = |mounts: &[String], words: &[&str]| {
        with(&lab, mounts).sh("true").refused(125, words);
        with(&lab, mounts).args(["--explain"]).sh("true").refused(125, words);
    };
    refused(&[mount(&lab, "missing", "/x")], &["missing:/x:ro", "No such file"]);
    refused(&[mount(&lab, "link", "/x")], &["folder of the system"]);
    refused(&["/proc:/x".into()], &["folder of the system"]);
    refused(&["/dev/null:/x".into()], &["folder of the system"]);
    refused(&[mount(&lab, "data", "/proc/x")], &["in `/proc`"]);
    refused(&[mount(&lab, "data", "/dev/shm/x")], &["in `/dev`"]);
    refused(&[mount(&lab, "data", "/")], &["would cover"]);
    refused(&[mount(&lab, "data", "/a/../x")], &["without `..`"]);
    refused(&[mount(&lab, "data", "/workspace/x")], &["overlaps the workspace"]);
    refused(&[mount(&lab, "data", "/usr/local/x")], &["`/usr` is the host's own"]);
    refused(&[mount(&lab, "data", "/x"), mount(&lab, "one", "/x/y")], &["overlaps the mount at `/x`"]);
    refused(&[mount(&lab, "data", "/x:wr")], &["--mount", "`wr` is not a mode"]);
    refused(&["data".into()], &["--mount", "`data`", "a source"]);
    let local = ["--backend", "local", "--allow-degraded", "isolation,network,disk,inodes"];
    with(&lab, &[mount(&lab, "data", "/x")]).args(local).sh("true").refused(125, &["backend `local`"]);
    // The first task makes the store.
    assert!(!lab.store().exists());
    refused(&[mount(&lab, "", "/x")], &["store of brig"]);
    with(&lab, &[mount(&lab, "", "/x:rw")]).sh("true").refused(125, &["store of brig"]);
    assert!(!lab.store().exists());
    lab.task().sh("true").succeeded();
    let before = lab.ids();
    refused(&[mount(&lab, "store", "/x")], &["store of brig"]);
    refused(&[mount(&lab, "store/tasks", "/x")], &["store of brig"]);
    assert_eq!((before.len(), lab.ids()), (1, before));
}

#[test]
fn a_file_system_below_a_mount_is_read_only_or_named() {
    let Some(lab) = Lab::root() else { return };
    let data = lab.path().join("data").display().to_string();
    lab.file("data/own", "own\n");
    let script = format!(
        "set -e; mkdir -p {data}/a {data}/kernel; mount -t tmpfs none {data}/a; echo inside > {data}/a/file; chmod 777 {data}/a; \
         mount -t proc none {data}/kernel; exec \"$@\""
    );
    for mode in ["ro", "cow", "rw"] {
        let task = with(&lab, &[mount(&lab, "data", &format!("/data:{mode}"))]);
        let run = task.by(["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        let run = run.sh("cat /data/a/file; ls -A /data/kernel | wc -l; touch /data/a/new");
        for words in
            ["inside\n", "\n0\n", "Read-only", "/a` is another file system: it is read-only", "(proc) and is not shown"]
        {
            assert!(run.stderr.contains(words), "{mode}: {words}: {run:#?}");
        }
    }
}

#[test]
fn another_runtime_shows_mounts_and_writes_none() {
    let Some(_) = Lab::root() else { return };
    let lab = lab();
    if !has_program("crun") {
        return;
    }
    let crun = ["--backend", "oci:/usr/bin/crun", "--allow-degraded", "landlock"];
    let mounts = [
        mount(&lab, "data", "/data"),
        mount(&lab, "one", "/home/agent/.a/one"),
        mount(&lab, "data/sub", "/c:cow"),
        mount(&lab, "one", "/copy:cow"),
    ];
    let run = with(&lab, &mounts)
        .args(crun)
        .sh("cat /data/sub/file ~/.a/one; touch /data/new; echo x > /c/file; cat /c/file; echo y >> /copy; cat /copy");
    for words in ["of the host\n", "one file\n", "Read-only", "x\n", "one file\ny\n"] {
        assert!(run.stderr.contains(words), "{words}: {run:#?}");
    }
    with(&lab, &[mount(&lab, "data", "/data:rw")])
        .args(crun)
        .sh("true")
        .refused(125, &["oci:/usr/bin/crun", "set-user-ID"]);
}

#[test]
fn a_kept_workspace_has_its_mounts_again_and_nothing_of_their_changes() {
    let Some(_) = Lab::root() else { return };
    let lab = lab();
    let mounts = [mount(&lab, "data", "/data:cow"), mount(&lab, "one", "/one:cow")];
    let run =
        with(&lab, &mounts).args(["--keep"]).sh("echo changed > /data/sub/file; echo changed > /one; echo kept > file");
    let id = run.ended_as("succeeded", 0).receipt()["id"].as_str().unwrap().to_owned();
    let run = lab.brig([
        "task",
        "resume",
        &id,
        "--",
        "sh",
        "-c",
        "cat file /one /data/sub/file; echo x > /data/new; cat /data/new",
    ]);
    assert_eq!(run.stdout, "kept\none file\nof the host\nx\n", "{run:#?}");
    lab.brig(["task", "prune", "--workspaces", "--older-than", "0s"]).succeeded();
}

#[test]
fn killed_supervisor_leaves_nothing_of_its_mounts() {
    let lab = lab();
    let work = lab.file("work/.env", "secret\n");
    let mounts = [mount(&lab, "data", "/data:rw"), mount(&lab, "one", "/one:cow"), mount(&lab, "data/sub", "/c:cow")];
    let task = with(&lab, &mounts).args(["--dir".as_ref(), work.parent().unwrap().as_os_str()]);
    let mut started = task.args(["--hide", ".env"]).start_sh("echo x > /data/ready; echo x > /c/file; sleep 30");
    crate::support::eventually("the task runs", || lab.path().join("data/ready").exists());
    started.signal(rustix::process::Signal::KILL);
    crate::support::eventually("it ends", || started.has_ended());
    lab.reap();
    lab.assert_clean();
    assert_eq!(std::fs::read_to_string(lab.path().join("data/sub/file")).unwrap(), "of the host\n");
}
