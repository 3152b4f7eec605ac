//! Known attacks on runtimes (comments have the catalogue's numbers). Each runs once against the program and once
//! against the weakened build. There it must succeed, or the test would prove nothing.

use crate::fields::through;
use crate::support::{Lab, eventually, in_terminal};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Runs `attack` on the strong build, and again on the weakened one with `name` off; returns whether it succeeded.
pub fn attempt(name: &'static str, attack: impl Fn(&mut Lab) -> bool) {
    let Some(mut lab) = Lab::new() else { return };
    assert!(!attack(&mut lab), "the attack got through");
    drop(lab);
    let Some(mut lab) = Lab::new() else { return };
    if lab.weaken(name).is_some() {
        assert!(attack(&mut lab), "without `{name}` the attack does not get through either: it proves nothing");
    }
}

#[test]
fn our_executable_cannot_be_overwritten_from_inside() {
    // T-03, CVE-2019-5736
    attempt("own-executable", |lab| {
        let copy = copy_of_brig(lab);
        overwrites_executable(lab, &copy, || std::process::Command::new(&copy))
    });
}

fn copy_of_brig(lab: &Lab) -> PathBuf {
    let copy = lab.path().join("brig");
    assert!(std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_brig")).arg(&copy).status().unwrap().success());
    copy
}

/// Whether a container that `command` starts has changed the program's file.
fn overwrites_executable(lab: &mut Lab, file: &Path, command: impl Fn() -> std::process::Command) -> bool {
    let length = std::fs::metadata(file).unwrap().len();
    for set in ["bounding", "effective", "permitted"] {
        lab.config["process"]["capabilities"][set] = json!(["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]);
    }
    let line = "exec 9</proc/1/exe || exit 1; (for i in $(seq 100); do echo evil > /proc/self/fd/9 && break; sleep 0.05; done; touch /done) > /dev/null 2>&1 &";
    lab.config["hooks"] =
        json!({"startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin"]}]});
    lab.args(&["sleep", "30"]);
    for verb in ["create", "start"] {
        let ours = lab.command(&[verb, &lab.id]);
        let mut own = command();
        own.args(ours.get_args())
            .current_dir(lab.path())
            .envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let quiet = || std::process::Stdio::null();
        assert!(own.stdin(quiet()).stdout(quiet()).stderr(quiet()).status().unwrap().success(), "{verb}");
    }
    eventually("the attack is over", || lab.root("/done").exists());
    std::fs::metadata(file).unwrap().len() != length
}

/// The mount is made by the commands of the unit, in a mount namespace of the test.
#[test]
fn our_executable_on_a_read_only_mount_starts_once_and_cannot_be_overwritten() {
    let Some(mut lab) = Lab::new() else { return };
    let copy = copy_of_brig(&lab);
    let unit = include_str!("../../rootfs/systemd/brig-runtime.service");
    let lines: Vec<_> = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
    let lines = lines.join(" && ").replace("/run/brig-runtime", "mounted").replace("/usr/bin/brig", "brig");
    let mut holder = std::process::Command::new("unshare");
    holder.args(["-m", "/bin/sh", "-ec", &format!("mkdir mounted; {lines}; touch ready; exec sleep 100")]);
    let mut holder = holder.current_dir(lab.path()).spawn().unwrap();
    eventually("it is mounted", || lab.path().join("ready").exists());
    let (namespace, trace) = (format!("--mount=/proc/{}/ns/mnt", holder.id()), lab.path().join("trace"));
    let directory = format!("--wdns={}", lab.path().display());
    let mounted = lab.path().join("mounted/brig");
    let started = |program: &Path| {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-qq", "-A", "-e", "trace=execveat", "-o"]).arg(&trace);
        strace.arg("nsenter").args([&namespace, &directory]).arg(program);
        strace
    };
    assert!(!overwrites_executable(&mut lab, &copy, || started(&mounted)));
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "", "it has started again");
    lab.on(&["delete", "--force"]).succeeded();
    std::fs::remove_file(lab.root("/done")).unwrap();
    // Elsewhere it starts again, from such a mount.
    assert!(!overwrites_executable(&mut lab, &copy, || started(&copy)));
    assert!(std::fs::read_to_string(&trace).unwrap().contains("execveat("));
    let _ = (holder.kill(), holder.wait());
}

#[test]
fn proc_is_mounted_on_a_true_directory_only() {
    // T-05, CVE-2019-19921, CVE-2023-28642
    for place in ["proc", "sys"] {
        attempt("true-proc", |lab| {
            std::fs::create_dir(lab.root("/evil")).unwrap();
            std::fs::remove_dir(lab.root(place)).unwrap();
            symlink("/evil", lab.root(place)).unwrap();
            for key in ["maskedPaths", "readonlyPaths"] {
                lab.config["linux"].as_object_mut().unwrap().remove(key);
            }
            lab.unmount("/sys/fs/cgroup");
            lab.args(&["true"]).run().status == 0
        });
    }
}

#[test]
fn a_leaked_directory_of_the_host_is_no_way_out() {
    // T-10, CVE-2024-21626: as working directory, and as the path to a program
    attempt("descriptors,working-directory", |lab| {
        std::fs::write(lab.path().join("canary"), "host").unwrap();
        lab.config["process"]["cwd"] = json!("/proc/self/fd/9");
        lab.sh("cat canary");
        leaking(lab, "")
    });
    // Variables that name another process, which a parent left, keep no descriptor open.
    for left in ["", "LISTEN_FDS=7", "LISTEN_FDS=7 LISTEN_PID=1"] {
        attempt("descriptors", |lab| {
            assert!(
                std::process::Command::new("cp")
                    .arg(lab.root("/bin/busybox"))
                    .arg(lab.path().join("cat"))
                    .status()
                    .unwrap()
                    .success()
            );
            lab.args(&["/proc/self/fd/9/cat", "/proc/self/fd/9/canary"]);
            std::fs::write(lab.path().join("canary"), "host").unwrap();
            leaking(lab, left)
        });
    }
    let Some(mut lab) = Lab::new() else { return };
    for number in 3..40 {
        for path in [format!("/proc/self/fd/{number}"), format!("/proc/1/fd/{number}")] {
            lab.config["process"]["cwd"] = json!(path);
            assert_ne!(lab.args(&["true"]).run().status, 0, "{path}");
        }
    }
}

/// Runs the container with these variables, and descriptor 9 open on the bundle, which is outside its root.
fn leaking(lab: &Lab, variables: &str) -> bool {
    through(lab, &["run", &lab.id], &format!("{variables} exec \"$@\" 9<.")).out == "host"
}

#[test]
fn a_false_null_device_masks_nothing_and_so_is_refused() {
    // T-11, CVE-2025-31133
    attempt("device-check,null-device", |lab| {
        for place in ["/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"] {
            lab.unmount(place);
        }
        symlink("/proc/sys/kernel/core_pattern", lab.root("/dev/null")).unwrap();
        lab.config["linux"]["maskedPaths"] = json!(["/proc/keys"]);
        lab.config["linux"].as_object_mut().unwrap().remove("readonlyPaths");
        lab.args(&["true"]).run().status == 0
    });
}

#[test]
fn a_console_that_is_a_link_makes_nothing_on_the_host() {
    // T-12, T-17, CVE-2025-52565, CVE-2026-88264
    attempt("console-link", |lab| {
        for place in ["/dev", "/dev/shm", "/dev/mqueue"] {
            lab.unmount(place);
        }
        symlink("../../canary", lab.root("/dev/console")).unwrap();
        lab.config["process"]["terminal"] = json!(true);
        lab.args(&["true"]).run();
        lab.path().join("canary").exists()
    });
}

#[test]
fn a_dev_that_is_a_link_changes_nothing_on_the_host() {
    // T-16, CVE-2026-41579
    attempt("true-dev", |lab| {
        for place in ["/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"] {
            lab.unmount(place);
        }
        let host = lab.path().join("hostdir");
        std::fs::create_dir(&host).unwrap();
        std::fs::write(host.join("ptmx"), "canary").unwrap();
        std::fs::remove_dir(lab.root("/dev")).unwrap();
        symlink("../hostdir", lab.root("/dev")).unwrap();
        lab.args(&["true"]).run();
        let names: Vec<_> = std::fs::read_dir(&host).unwrap().flatten().map(|entry| entry.file_name()).collect();
        names != ["ptmx"] || std::fs::read(host.join("ptmx")).unwrap() != b"canary"
    });
}

#[test]
fn a_file_of_the_host_on_a_standard_stream_keeps_its_owner() {
    // T-18, CVE-2026-88265
    attempt("stream-check", |lab| {
        let file = lab.path().join("input");
        std::fs::write(&file, "x").unwrap();
        lab.config["process"]["user"]["uid"] = json!(1000);
        lab.args(&["true"]);
        let mut command = lab.command(&["run", &lab.id]);
        assert!(command.stdin(std::fs::File::open(&file).unwrap()).status().unwrap().success());
        std::fs::metadata(&file).unwrap().uid() != 0
    });
}

#[test]
fn a_terminal_that_a_container_inherits_keeps_its_owner() {
    // Another user of that number could open it, and its own user no more.
    attempt("stream-check", |lab| {
        lab.config["process"]["user"]["uid"] = json!(1000);
        lab.args(&["true"]);
        let done = in_terminal(lab, &["run", &lab.id], "", "; stat -c owner:%u: $(tty)");
        assert!(done.out.contains("owner:"), "{}", done.out);
        !done.out.contains("owner:0:")
    });
}

/// The file that takes the place of the multiplexer is that of another devpts. A FUSE file could answer its ioctls with
/// the number of any descriptor.
#[test]
fn a_terminal_is_not_made_by_a_file_over_the_multiplexer() {
    // CVE-2025-52565
    attempt("console-devpts", |lab| {
        for set in ["bounding", "effective", "permitted"] {
            lab.config["process"]["capabilities"][set] = json!(["CAP_SYS_ADMIN"]);
        }
        lab.sh("mount -t tmpfs none /dev/pts && mkdir /dev/pts/pts && touch /dev/pts/ptmx && \
            mount -t devpts -o newinstance,ptmxmode=666 other /dev/pts/pts && \
            mount -o bind /dev/pts/pts/ptmx /dev/pts/ptmx && echo ready > /ready; exec sleep 100");
        lab.start();
        eventually("the file is replaced", || lab.root("/ready").exists());
        in_terminal(lab, &["exec", "-t", &lab.id, "true"], "", "").status == 0
    });
}

#[test]
fn no_standard_stream_is_the_hosts_null_device() {
    // Its root could change the mode and the owner of the host's device.
    let hosts = std::fs::metadata("/dev/null").unwrap();
    let hosts = format!("{}:{}", hosts.dev(), hosts.ino());
    let line = "stat -L -c %d:%i /proc/self/fd/0";
    attempt("null-stream", |lab| lab.sh(line).run().out.contains(&hosts));
    attempt("null-stream", |lab| {
        lab.args(&["sleep", "100"]).start();
        lab.exec(line).out.contains(&hosts)
    });
    // A false device in the container must not be opened instead.
    let Some(mut lab) = Lab::new() else { return };
    lab.sh("rm /dev/null && echo x > /dev/null && echo ready > /ready && sleep 100").start();
    eventually("the device is replaced", || lab.root("/ready").exists());
    lab.exec("true").failed_with("it is not the null device");
}

#[test]
fn a_read_only_root_is_so_whatever_the_image_ships() {
    // T-19, CVE-2026-115521
    attempt("read-only-root", |lab| {
        lab.unmount("/proc");
        for key in ["maskedPaths", "readonlyPaths"] {
            lab.config["linux"].as_object_mut().unwrap().remove(key);
        }
        std::fs::create_dir_all(lab.root("/proc/self/fd")).unwrap();
        for number in 0..40 {
            symlink("/tmp", lab.root(&format!("/proc/self/fd/{number}"))).unwrap();
        }
        lab.config["root"]["readonly"] = json!(true);
        lab.sh("echo x > /written").run();
        lab.root("/written").exists()
    });
}

#[test]
fn masked_paths_are_masked() {
    attempt("masks", |lab| {
        lab.config["linux"]["maskedPaths"] = json!(["/etc"]);
        lab.sh("cat /etc/passwd").run().out.contains("root")
    });
}

#[test]
fn no_capability_comes_along_that_was_not_given() {
    // T-08, CVE-2022-29162
    attempt("capabilities", |lab| {
        lab.config["process"]["capabilities"] = json!({});
        !lab.sh("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status")
            .run()
            .out
            .lines()
            .all(|line| line.ends_with("0000000000000000"))
    });
}

#[test]
fn a_bind_destination_that_is_a_link_stays_inside() {
    // CVE-2021-30465 without the race: the destination and its missing parents
    let Some(mut lab) = Lab::new() else { return };
    let canary = lab.path().join("canary");
    std::fs::create_dir(&canary).unwrap();
    symlink(&canary, lab.root("/out")).unwrap();
    symlink("../../../../../../../../../..", lab.root("/up")).unwrap();
    let source = lab.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let up = format!("/up{}/deep", canary.display());
    for destination in ["/out/made", &up] {
        lab.config["mounts"].as_array_mut().unwrap().truncate(7);
        lab.mount(destination, "bind", source.to_str().unwrap(), &["bind"]);
        lab.args(&["true"]).run();
        assert_eq!(std::fs::read_dir(&canary).unwrap().count(), 0, "{destination}");
    }
}

#[test]
fn a_link_of_the_image_leads_no_volume_over_proc_or_the_root() {
    // CVE-2019-16884: the path of the volume looks harmless
    for (target, place) in
        [("/proc", "/proc"), ("proc/sys", "/proc/sys"), ("/proc/1/attr", "/proc/1/attr"), ("..", "/..")]
    {
        attempt("destination", |lab| {
            let source = lab.path().join("source");
            std::fs::create_dir(&source).unwrap();
            std::fs::write(source.join("covered"), "").unwrap();
            symlink(target, lab.root("/data")).unwrap();
            lab.mount("/data", "bind", source.to_str().unwrap(), &["bind"]);
            let done = lab.sh(&format!("ls {place}")).run();
            let is_refused = done.err.contains("inside /proc") || done.err.contains("the root itself");
            assert!(is_refused || lab.weakened.is_some(), "{target}: {}", done.err);
            done.out.contains("covered")
        });
        // Nor a new file system.
        let Some(mut lab) = Lab::new() else { return };
        symlink(target, lab.root("/data")).unwrap();
        lab.mount("/data", "tmpfs", "tmpfs", &[]).args(&["true"]);
        assert_ne!(lab.run().status, 0, "{target}");
    }
}

#[test]
fn a_racing_link_never_leads_a_mount_to_the_host() {
    // T-06, CVE-2021-30465, CVE-2024-45310: a destination that alternates between directory and link, in a directory
    // shared with the attacker
    use std::sync::atomic::{AtomicBool, Ordering};
    attempt("resolve", |lab| {
        let (canary, source) = (lab.path().join("canary"), lab.path().join("source"));
        std::fs::create_dir(&canary).unwrap();
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir_all(lab.root("/shared/a")).unwrap();
        symlink(&canary, lab.root("/shared/b")).unwrap();
        lab.mount("/shared/a/made", "bind", source.to_str().unwrap(), &["bind"]).args(&["true"]);
        let (one, other) = (lab.root("/shared/a"), lab.root("/shared/b"));
        let (stop, mut through) = (AtomicBool::new(false), false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange).unwrap();
                }
            });
            let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
            while !through && std::time::Instant::now() < end {
                lab.run(); // it may fail, but it must not do this:
                through = std::fs::read_dir(&canary).unwrap().count() != 0;
            }
            stop.store(true, Ordering::Relaxed);
        });
        through
    });
}

#[test]
fn groups_of_a_sibling_cannot_be_entered() {
    // T-21: `/foo` is not a prefix of `/foobar`
    attempt("cgroup-below", |lab| {
        let Some(mut other) = Lab::new() else { return false };
        other.args(&["sleep", "100"]).start();
        lab.args(&["sleep", "100"]).start();
        lab.brig(&["exec", "--cgroup", &format!("../{}", other.id), &lab.id, "true"]).status == 0
    });
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["sleep", "100"]).start();
    let sibling = format!("../{}x", lab.id);
    for path in ["..", "../..", sibling.as_str(), "/../x", "a/../../x"] {
        assert_eq!(
            lab.brig(&["exec", "--cgroup", path, &lab.id, "true"]).failed_with("bad sub cgroup path").status,
            255,
            "{path}"
        );
    }
}

#[test]
fn a_link_that_takes_the_place_of_a_new_device_changes_no_file_of_the_host() {
    // The attacker shares the device's directory, sees the device come, and is faster than we are: in real time, on our
    // processor.
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
    attempt("device-link", |lab| {
        let (victim, volume) = (lab.path().join("victim"), lab.path().join("volume"));
        std::fs::write(&victim, "").unwrap();
        std::fs::set_permissions(&victim, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::create_dir(&volume).unwrap();
        lab.mount("/volume", "bind", volume.to_str().unwrap(), &["bind"]).args(&["true"]);
        lab.config["linux"]["devices"] =
            json!([{"path": "/volume/x", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}]);
        let events = init(CreateFlags::CLOEXEC).unwrap();
        add_watch(&events, &volume, WatchFlags::CREATE).unwrap();
        let mut here = rustix::thread::CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        let (link, device, stop) = (volume.join("link"), volume.join("x"), volume.join("stop"));
        let mut through = false;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rustix::thread::sched_setaffinity(None, &here).unwrap();
                let own = rustix::thread::gettid().as_raw_nonzero().to_string();
                let quick = std::process::Command::new("chrt").args(["-f", "-p", "1", &own]).status();
                assert!(quick.is_ok_and(|status| status.success()), "not in real time");
                let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
                let mut reader = Reader::new(&events, &mut bytes);
                while reader.next().is_ok() && !stop.exists() {
                    if std::fs::symlink_metadata(&device).is_ok_and(|found| found.mode() & 0o170_000 == 0o020_000) {
                        let _ = std::fs::rename(&link, &device);
                    }
                }
            });
            rustix::thread::sched_setaffinity(None, &here).unwrap(); // and our children's
            for _ in 0..20 {
                let _ = std::fs::remove_file(&device);
                let _ = symlink(&victim, &link);
                lab.run(); // it may fail, but it must not do this:
                through |= std::fs::metadata(&victim).unwrap().mode() & 0o777 != 0o600;
            }
            std::fs::write(&stop, "").unwrap();
        });
        through
    });
}
