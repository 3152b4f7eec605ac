//! Files: the host's secrets, deceptive trees, and ways out of the workspace.

use super::{answer, attack, attacker, executable, host, stopped, task};
use crate::support::{Lab, is_root};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

#[test]
fn the_hosts_secrets_are_not_there() {
    let lab = Lab::new();
    let secrets = "/etc/shadow /etc/ssh /etc/sudoers /etc/ssl/private /root/.ssh /root/.bashrc /home/agent/.ssh /home/agent/.aws /var/lib /var/log \
                   /run/docker.sock /var/run/docker.sock /run/systemd /run/dbus /boot /mnt /media /srv /opt /sys/class /sys/devices /sys/kernel /etc/machine-id /etc/hostid";
    let run = task(&lab)
        .sh(&format!("for path in {secrets}; do [ -e $path ] && echo there: $path; done; ls -A /root /run /home 2>&1"));
    assert!(!run.stderr.contains("there:"), "{run:#?}");
    // The tests' own files, the store and the working directory are the host's as well.
    let secret = lab.file("secret", "private");
    let run = task(&lab).sh(&format!("cat {} {} 2>&1; pwd", secret.display(), lab.store().display()));
    assert_eq!(run.stderr.matches("No such file").count(), 2, "{run:#?}");
    assert!(run.stderr.contains("/workspace"), "{run:#?}");
}

#[test]
fn programs_find_the_names_of_ports_the_time_zone_and_the_distribution() {
    let lab = Lab::new();
    for name in ["services", "protocols", "localtime", "timezone", "os-release", "mime.types", "fonts", "mtab"] {
        let path = format!("/etc/{name}");
        let there = std::fs::metadata(&path).is_ok();
        let script = format!("if [ -r {path} ]; then echo there; else echo gone; fi; [ -f {path} ] && cksum < {path}");
        let run = task(&lab).sh(&script);
        assert_eq!(run.stderr.starts_with("there"), there, "{path}: {run:#?}");
        if there && path != "/etc/mtab" && std::path::Path::new(&path).is_file() {
            let hosts = host("sh", &["-c", &format!("cksum < {path}")]);
            assert!(run.stderr.contains(hosts.trim()), "{path}: {run:#?}");
        }
    }
    stopped(&[attack("write /etc/services x", "EROFS|EACCES|ENOENT", "").root_gets("done")]);
}

#[test]
fn nothing_outside_the_scratch_file_system_can_be_written() {
    // The root of root inside is copy-on-write on the scratch file system.
    stopped(&[
        attack("make /usr/x", "EROFS|EACCES", "").root_gets("done"),
        attack("make /usr/bin/x", "EROFS|EACCES", "").root_gets("done"),
        attack("make /etc/x", "EROFS|EACCES", "").root_gets("done"),
        attack("write /etc/passwd x", "EROFS|EACCES", "").root_gets("done"),
        attack("write /usr/bin/env x", "EROFS|EACCES", "").root_gets("done"),
        attack("make /bin/x", "EROFS|EACCES", "").root_gets("done"),
        attack("make /x", "EROFS|EACCES", if is_root() { "" } else { "read-only-mounts,landlock" }).root_gets("done"),
        attack("make /run/x", "EROFS|EACCES", if is_root() { "" } else { "read-only-mounts,landlock" })
            .root_gets("done"),
        attack("make /proc/self/fd/x", "ENOENT|EACCES", ""),
    ]);
}

#[test]
fn landlock_holds_where_a_mount_is_writable_by_mistake() {
    let lab = Lab::new();
    if is_root() {
        // As root the root's folders belong to the administrator, so modes also protect them; only /proc shows Landlock
        // alone.
        // Root inside may write in all of its root.
        return stopped(&[attack("write /proc/self/oom_score_adj 300", "EACCES", "landlock").root_gets("done")]);
    }
    let work = attacker(&lab);
    let go = |weak: &str| {
        answer(&task(&lab).weakened(weak).args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "make", "/x"]))
    };
    assert_eq!(go("read-only-mounts"), "EACCES");
    assert_eq!(go("read-only-mounts,landlock"), "done");
    assert_eq!(go("landlock"), "EROFS");
}

#[test]
fn what_is_kept_of_a_root_is_the_same_for_the_next_sandbox() {
    if Lab::root().is_none() {
        return;
    }
    // Three protections, each sufficient: the mount, the files' owner, Landlock.
    for (weak, answered) in [
        ("kept-owner,landlock", "EROFS"),
        ("read-only-mounts,landlock", "EACCES"),
        ("read-only-mounts,kept-owner", "EACCES"),
        ("read-only-mounts,kept-owner,landlock", "done"),
    ] {
        let lab = Lab::new();
        let work = attacker(&lab);
        let tree = || {
            let entries = fs::read_dir(lab.store().join("templates")).unwrap().map(|entry| entry.unwrap().path());
            let mut kept = entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("root-"));
            let tree = kept.next().expect("a kept root");
            assert!(kept.next().is_none());
            host("sh", &["-c", &format!("cd {} && find . -printf '%p %y %m %s %T@ %U %i\\n' | sort", tree.display())])
        };
        assert_eq!(lab.task().weakened(weak).sh("true").receipt()["outcome"], "succeeded");
        let before = tree();
        let run = lab.task().weakened(weak).args(["--dir".as_ref(), work.as_os_str()]).sh("./attacker make /etc/x");
        assert_eq!(answer(&run), answered, "{weak}: {run:#?}");
        assert_eq!(before == tree(), answered != "done", "{weak}");
        let next = lab.task().weakened(weak).sh("[ ! -e /etc/x ] || echo there >&2");
        assert_eq!(next.stderr.contains("there"), answered == "done", "{weak}: {next:#?}");
    }
}

#[test]
fn a_folder_given_as_workspace_is_never_written() {
    let lab = Lab::new();
    let work = attacker(&lab);
    fs::write(work.join("kept"), "kept").unwrap();
    let before =
        host("sh", &["-c", &format!("cd {} && find . -printf '%p %m %s %T@ %U %i\\n' | sort", work.display())]);
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).sh(
        "echo changed > kept; rm attacker; mkdir d; ln -s /etc/passwd l; chmod 777 . kept; touch -d @0 kept; mkfifo f; echo done",
    );
    assert!(run.stderr.contains("done"), "{run:#?}");
    let after = host("sh", &["-c", &format!("cd {} && find . -printf '%p %m %s %T@ %U %i\\n' | sort", work.display())]);
    assert_eq!(before, after);
}

#[test]
fn nothing_can_be_linked_or_renamed_out_of_the_workspace() {
    stopped(&[
        attack("link /workspace/attacker /tmp/out", "EXDEV|EACCES", ""),
        attack("rename /workspace/attacker /home/agent/out", "EXDEV|EACCES", ""),
        attack("link /usr/bin/env /workspace/env", "EXDEV|EPERM|EACCES", ""),
        // A link in the root, if the folder has its own path.
        attack("rename /workspace /out", "EBUSY|EACCES|EROFS|EXDEV", "").root_gets("EBUSY|EXDEV|done"),
        attack("rename /workspace/attacker /workspace/../out", "EACCES|EROFS|EXDEV", ""),
    ]);
}

#[test]
fn sockets_and_fifos_in_a_folder_do_not_reach_the_host() {
    let lab = Lab::new();
    let work = attacker(&lab);
    let _listener = std::os::unix::net::UnixListener::bind(work.join("agent.sock")).unwrap();
    let fifo = work.join("fifo");
    host("mkfifo", &["-m", "666", fifo.to_str().unwrap()]);
    executable(&work.join("agent.sock"), 0o777);
    let reader =
        rustix::fs::open(&fifo, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK, rustix::fs::Mode::empty())
            .unwrap();
    let script = "./attacker socket-at agent.sock; ./attacker fifo fifo";
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).sh(script);
    // The copy-on-write layer shows copies: no process listens at that socket or reads that FIFO.
    assert_eq!(run.stderr.lines().take(2).collect::<Vec<_>>(), ["ECONNREFUSED", "ENXIO"], "{run:#?}");
    assert_eq!(rustix::io::read(&reader, &mut [0_u8; 64]), Err(rustix::io::Errno::AGAIN));
}

#[test]
fn device_nodes_in_a_folder_or_root_cannot_be_opened() {
    let Some(lab) = Lab::root() else { return };
    let work = attacker(&lab);
    let root = lab.directory("root");
    for place in [&work, &root] {
        host("mknod", &["-m", "666", place.join("memory").to_str().unwrap(), "c", "1", "5"]);
    }
    fs::copy(work.join("attacker"), root.join("attacker")).unwrap();
    let go = |weak: &str, flag: &str, place: &Path, path: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        answer(&task.args([flag.as_ref(), place.as_os_str()]).run([
            format!("{path}attacker"),
            "open".into(),
            format!("{path}memory"),
        ]))
    };
    for (flag, place, path) in [("--dir", &work, "/workspace/"), ("--rootfs", &root, "/")] {
        assert_eq!(go("", flag, place, path), "EACCES", "{flag}");
        // A root's devices have only Landlock's read right outside of /dev, which is enough here.
        assert_eq!(go("nodev", flag, place, path), "done", "{flag}");
    }
}

/// A root file system of the attacker's making, enough to run it.
fn hostile_root(lab: &Lab, name: &str) -> std::path::PathBuf {
    let work = attacker(lab);
    let root = lab.directory(name);
    fs::copy(work.join("attacker"), root.join("attacker")).unwrap();
    root
}

#[test]
fn links_in_a_root_file_system_lead_nowhere_outside_of_it() {
    let lab = Lab::new();
    let victim = lab.directory("victim");
    let untouched = || assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    for (index, place) in ["home", "tmp", "workspace", "home/agent"].into_iter().enumerate() {
        for (kind, target) in [
            ("absolute", victim.clone()),
            ("dots", Path::new("../../../../../../../../").join(victim.strip_prefix("/").unwrap())),
        ] {
            let root = hostile_root(&lab, &format!("root-{index}-{kind}"));
            if let Some(parent) = Path::new(place).parent() {
                fs::create_dir_all(root.join(parent)).unwrap();
            }
            symlink(&target, root.join(place)).unwrap();
            let run =
                task(&lab).args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "read", "/etc/shadow"]);
            assert!(matches!(run.outcome().as_str(), "start_failed" | "succeeded"), "{run:#?}");
            assert!(!run.stderr.contains("done"), "{run:#?}");
            untouched();
        }
    }
    if is_root() {
        let root = hostile_root(&lab, "root-weak");
        symlink(&victim, root.join("home")).unwrap();
        lab.task().weakened("resolve").args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "read", "/"]);
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "resolved like any path, a folder is made on the host");
    }
}

#[test]
fn a_root_file_system_whose_kernel_folders_are_links_is_refused() {
    let lab = Lab::new();
    for (index, (place, target)) in [
        ("proc", "/tmp"),
        ("proc", "/"),
        ("dev", "/etc"),
        ("dev", "proc"),
        // A folder of the sandbox that would cover /proc and its masks.
        ("home", "/proc"),
        ("tmp", "/proc"),
        ("workspace", "proc"),
    ]
    .into_iter()
    .enumerate()
    {
        let root = hostile_root(&lab, &format!("root-{index}"));
        fs::create_dir_all(root.join("etc")).unwrap();
        symlink(target, root.join(place)).unwrap();
        let run = task(&lab).args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "read", "/proc/keys"]);
        run.ended_as("start_failed", 125);
    }
}

#[test]
fn links_to_the_kernels_folders_inside_a_root_show_nothing_more() {
    // T-05: /dev/null as a link would redirect a mask; /dev is always the sandbox's own.
    let lab = Lab::new();
    let root = hostile_root(&lab, "root");
    fs::create_dir_all(root.join("dev")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    symlink("/etc/passwd", root.join("dev/null")).unwrap();
    symlink("/proc/kcore", root.join("dev/zero")).unwrap();
    fs::write(root.join("etc/passwd"), "image\n").unwrap();
    let run = task(&lab).args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "write", "/dev/null", "x"]);
    assert_eq!(answer(&run), "done");
    assert_eq!(fs::read_to_string(root.join("etc/passwd")).unwrap(), "image\n");
    let run = task(&lab).args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "read", "/proc/keys"]);
    assert_eq!(answer(&run), "done", "the mask reads as empty");
}

#[test]
fn files_of_a_root_file_system_keep_their_owners_and_are_not_the_agents() {
    let Some(lab) = Lab::root() else { return };
    let root = hostile_root(&lab, "root");
    fs::write(root.join("private"), "private").unwrap();
    executable(&root.join("private"), 0o600);
    let run = lab.task().args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "read", "/private"]);
    assert_eq!(answer(&run), "EACCES");
    let meta = fs::metadata(root.join("private")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o600));
}

#[test]
fn a_root_file_system_is_never_written() {
    let lab = Lab::new();
    let root = hostile_root(&lab, "root");
    fs::create_dir_all(root.join("srv")).unwrap();
    executable(&root.join("srv"), 0o777);
    let list = || host("sh", &["-c", &format!("cd {} && find . -printf '%p %m %s %U %T@\\n' | sort", root.display())]);
    let before = list();
    let run = task(&lab).args(["--rootfs".as_ref(), root.as_os_str()]).run(["/attacker", "make", "/srv/new"]);
    assert_eq!(answer(&run), "done");
    assert_eq!(before, list());
}

#[test]
fn a_workspace_that_is_a_link_is_the_folder_that_it_names_and_nothing_else() {
    let lab = Lab::new();
    let work = attacker(&lab);
    symlink(&work, lab.path().join("link")).unwrap();
    symlink("/etc", work.join("etc")).unwrap();
    let link = lab.path().join("link");
    let run = task(&lab).args(["--dir".as_ref(), link.as_os_str()]).sh("ls; ls etc/shadow 2>&1");
    assert!(run.stderr.contains("attacker") && run.stderr.contains("No such file"), "{run:#?}");
}

#[test]
fn a_folder_of_the_system_or_around_the_store_is_refused() {
    let lab = Lab::new();
    task(&lab).sh("true").ended_as("succeeded", 0); // makes the store
    symlink("/etc", lab.path().join("link")).unwrap();
    let refused = |folder: &Path, words: &str| {
        let run = task(&lab).plain().args(["--dir".as_ref(), folder.as_os_str()]).sh("cat shadow etc/shadow");
        run.refused(125, &[words, &format!("`{}`", folder.display())]);
    };
    for folder in ["/", "/etc", "/usr", "/proc/self/root", "/dev", "/sys/fs/cgroup"] {
        refused(Path::new(folder), "folder of the system");
    }
    refused(&lab.path().join("link"), "folder of the system");
    refused(Path::new("/home"), "home folder");
    // An ordinary user cannot even look at it.
    refused(Path::new("/root"), if is_root() { "home folder" } else { "Permission denied" });
    let own = lab.directory("own/project");
    let home = own.parent().unwrap();
    let run =
        |folder: &Path| task(&lab).plain().env("HOME", home).args(["--dir".as_ref(), folder.as_os_str()]).sh("true");
    run(home).refused(125, &["home folder"]);
    run(&own).succeeded();
    refused(lab.path(), "store of brig");
    refused(&lab.store().join("tasks"), "store of brig");
    // The folder's owner is the agent: it may read files that only the owner may read.
    let secret = lab.file("work/secret", "private");
    executable(&secret, 0o600);
    let work = attacker(&lab);
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).run(["./attacker", "read", "secret"]);
    assert_eq!(answer(&run), "done");
}

/// A folder whose `.git` names another folder as its repository: that repository must name it too.
#[test]
fn a_folder_that_calls_itself_a_worktree_shows_no_other_folder() {
    let lab = Lab::new();
    let Some(folder) = Lab::own_path() else { return };
    let root = std::fs::canonicalize(folder.path()).unwrap();
    let (work, victim) = (root.join("work"), root.join("victim"));
    std::fs::create_dir_all(&work).unwrap();
    for part in ["objects", "worktrees/x"] {
        std::fs::create_dir_all(victim.join(part)).unwrap();
    }
    std::fs::write(victim.join("HEAD"), "").unwrap();
    std::fs::write(victim.join("secret"), "private").unwrap();
    std::fs::write(work.join(".git"), format!("gitdir: {}/worktrees/x\n", victim.display())).unwrap();
    let words = ["--dir".as_ref(), work.as_os_str()];
    let read = format!("cat {}/secret", victim.display());
    assert!(!task(&lab).args(words).sh(&read).stderr.contains("private"));
    let run = task(&lab).weakened("worktree-mutual").args(words).sh(&read);
    assert!(run.stderr.contains("private"), "without the guard: {run:#?}");
}
