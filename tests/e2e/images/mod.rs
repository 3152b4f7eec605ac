//! An image as the root of a task: its configuration is in force, its layers are one tree with the inside's ids.
//! Nothing of it is written, mounted on the host or weaker than with the default root.

mod attacks;

use crate::escape::{WITHOUT_GROUP, task};
use crate::support::{Image, Lab, Run, eventually, is_root, skip};
use serde_json::json;
use std::os::unix::fs::MetadataExt;

/// A task in the image of this name.
fn task_in<'lab>(lab: &'lab Lab, name: &str) -> crate::support::Task<'lab> {
    task(lab).args(["--pull", "never", "--image", &format!("{name}:1")])
}

#[track_caller]
fn has(run: &Run, lines: &[&str]) {
    for line in lines {
        assert!(run.stderr.lines().any(|each| each == *line), "no line `{line}`: {run:#?}");
    }
}

#[test]
fn failed_fetch_names_the_verb_with_flags_for_registries() {
    let lab = Lab::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("localhost:{}/none:1", server.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for mut client in server.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let run = lab.task().args(["--image", &image]).plain().run(["true"]);
    run.refused(125, &["400 Bad Request"]);
    assert!(
        run.stderr.contains(&format!("a flag that the hint names is one of `brig image pull {image}`")),
        "{run:#?}"
    );
}

#[test]
fn entrypoint_cmd_user_env_directory_and_volumes_of_an_image_hold() {
    let lab = Lab::new();
    let script = "echo \"$0 $*\"; id -u; id -g; id -G; pwd; echo $GREETING; echo $HOME; cat /data/seed; echo more >/data/new && \
         stat -c '%u %a' /data; touch ~/mine && echo home; stat -c %n /made; echo $PATH; cat /etc/hostname";
    let mut image = Image::new(&lab, "whole").config(json!({
        "Entrypoint": ["/bin/sh", "-c", script], "Cmd": ["first", "second"], "User": "me", "WorkingDir": "/srv/app",
        "Env": ["GREETING=hello", "PATH=/bin:/opt/tools"], "Volumes": { "/data": {}, "/made": {} }, "StopSignal": "SIGINT",
        "ExposedPorts": { "80/tcp": {} }, "Healthcheck": { "Test": ["CMD", "true"] }, "Shell": ["/bin/sh", "-ec"],
        "Labels": { "who": "tests" },
    }));
    let layer = image.layer("--owner=1001 --group=1002");
    std::fs::create_dir_all(layer.join("data")).unwrap();
    std::fs::create_dir_all(layer.join("home/me")).unwrap();
    std::fs::write(layer.join("data/seed"), "seeded\n").unwrap();
    image.load();

    let run = task_in(&lab, "whole").run([] as [&str; 0]);
    run.ended_as("succeeded", 0);
    has(
        &run,
        &["first second", "1001", "1002", "/srv/app", "hello", "/home/me", "seeded", "1001 755", "home", "/made"],
    );
    has(&run, &["/bin:/opt/tools", "sandbox", if is_root() { "1002 55" } else { "1002" }]);
    let used = &run.receipt()["image"];
    for (name, expected) in [
        ("reference", json!("whole:1")),
        ("user", json!("me")),
        ("uid", json!(1001)),
        ("gid", json!(1002)),
        ("groups", if is_root() { json!([1002, 55]) } else { json!([]) }),
        ("working_dir", json!("/srv/app")),
        ("volumes", json!(["/data", "/made"])),
        ("stop_signal", json!("SIGINT")),
        ("exposed_ports", json!(["80/tcp"])),
        ("healthcheck", json!({ "Test": ["CMD", "true"] })),
        ("shell", json!(["/bin/sh", "-ec"])),
        ("layers", json!(2)),
    ] {
        assert_eq!(used[name], expected, "{name}: {used:#}");
    }
    assert_eq!(used["annotations"]["who"], "tests");
    assert!(used["digest"].as_str().unwrap().starts_with("sha256:"));
    // The caller's words: arguments replace Cmd, an entrypoint replaces both, and a command starts in a workspace.
    has(&task_in(&lab, "whole").run(["mine"]), &["mine "]);
    let work = lab.directory("work");
    let flags = ["--entrypoint", "/bin/sh", "--user", "0:55", "-e", "GREETING=bye"];
    let run = task_in(&lab, "whole")
        .args(flags)
        .args(["--dir".as_ref(), work.as_os_str()])
        .sh("id -u; id -g; pwd; echo $GREETING");
    assert!(
        run.stderr.contains("can't open 'sh'") || run.status == Some(2),
        "the entrypoint takes the words: {run:#?}"
    );
    let run = task_in(&lab, "whole")
        .args(["--entrypoint", "", "--user", "0:55", "-e", "GREETING=bye"])
        .args(["--dir".as_ref(), work.as_os_str()])
        .sh("id -u; id -g; pwd; echo $GREETING");
    has(&run, &["0", "55", "/workspace", "bye"]);
    let run = task_in(&lab, "whole").args(["--entrypoint", "", "--workdir", "/data"]).sh("pwd");
    has(&run, &["/data"]);
}

#[test]
fn forty_layers_are_one_root_with_what_each_removes() {
    let lab = Lab::new();
    let mut image = Image::new(&lab, "forty");
    for number in 1..40 {
        let layer = image.layer("--owner=0 --group=0");
        std::fs::create_dir_all(layer.join("l")).unwrap();
        std::fs::write(layer.join("l").join(format!("{number}")), format!("{number}\n")).unwrap();
        std::fs::write(layer.join("top"), format!("{number}\n")).unwrap();
        if number % 2 == 0 {
            std::fs::write(layer.join("l").join(format!(".wh.{}", number - 1)), "").unwrap();
        }
        if number == 20 {
            std::fs::write(layer.join("l/.wh..wh..opq"), "").unwrap();
        }
    }
    image.load();
    let script = "cat /top; cd /l; ls | wc -l; cat 39 20; ls 19 18 21 2>&1 | grep -c 'No such'; rm 39 && touch new && ls | wc -l";
    let script = script.replace("wc -l", "grep -c .");
    let expected = ["39", "11", "39", "20", "3", "11"];
    // Also in the form for kernels before 6.7, where all names must fit into one page; 40 names do.
    for weak in ["", "lowerdir-by-layer"] {
        let task = task_in(&lab, "forty").args(["--user", "0"]);
        let run = if weak.is_empty() { task } else { task.weakened(weak) }.sh(&format!("cd /; {script}"));
        run.ended_as("succeeded", 0).wrote(&expected);
    }
}

/// As on a file system that cannot be a layer of an overlay (`image::store` has a real one): here with a cgroup that
/// counts.
#[test]
fn what_is_copied_into_memory_counts_against_the_memory_limit_and_not_the_disks() {
    const SIZE: u64 = 24 << 20;
    let Some(lab) = Lab::user() else { return };
    let mut image = Image::new(&lab, "copied");
    let mut noise = vec![0_u8; 1 << 20];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut noise).unwrap();
    let layer = image.layer("--owner=0 --group=0");
    std::fs::write(layer.join("large"), noise.repeat(SIZE as usize >> 20)).unwrap();
    image.load();
    let mounted = task_in(&lab, "copied").sh("true");
    let copied =
        task_in(&lab, "copied").weakened("layers-in-place").sh("stat -c %s /large; touch /etc/passwd && echo writable");
    has(&copied, &[&SIZE.to_string(), "writable"]);
    let of = |run: &Run, name: &str| run.receipt()["usage"][name].as_u64();
    assert_eq!(
        (&mounted.receipt()["image"]["copied"], &copied.receipt()["image"]["copied"]),
        (&json!(false), &json!(true))
    );
    if copied.receipt()["degraded"] != json!([]) {
        return skip("this user has no group");
    }
    assert!(of(&mounted, "memory_peak_bytes").unwrap() < SIZE, "{mounted:#?}");
    assert!(of(&copied, "memory_peak_bytes").unwrap() >= SIZE, "{copied:#?}");
    assert!(of(&copied, "disk_peak_bytes").unwrap() < SIZE, "{copied:#?}");
    // The command has what the copy leaves.
    let script = "cat /large >/tmp/a; echo enough";
    let run = task_in(&lab, "copied").args(["--memory", "32M", "--disk", "30M"]).weakened("layers-in-place").sh(script);
    run.ended_as("memory", 137);
    task_in(&lab, "copied")
        .args(["--memory", "20M"])
        .weakened("layers-in-place")
        .sh("true")
        .refused(125, &["must be copied into memory"]);
}

impl Run {
    /// Asserts that the command's lines are these.
    #[track_caller]
    fn wrote(&self, expected: &[&str]) {
        let lines: Vec<_> = self.stderr.lines().filter(|line| !line.starts_with("brig:")).collect();
        assert_eq!(lines, expected, "{self:#?}");
    }
}

#[test]
fn files_of_an_image_have_the_ids_of_inside_and_the_layers_are_never_written() {
    let lab = Lab::new();
    let mut image = Image::new(&lab, "owned");
    let layer = image.layer("--owner=1001 --group=1002");
    std::fs::create_dir(layer.join("theirs")).unwrap();
    std::fs::write(layer.join("theirs/file"), "as it was").unwrap();
    image.load();
    let before = layers(&lab);
    let script = "stat -c '%u:%g' /bin/busybox /theirs/file; echo changed >/theirs/file; rm -rf /theirs; mkdir /theirs/../home/me/x; \
         chown 55 /bin/busybox; chmod 777 /etc; rm -f /bin/cat; cp /bin/busybox /bin/new; ls / | grep -c theirs; true";
    let run = task_in(&lab, "owned").args(["--user", "me"]).sh(script);
    run.ended_as("succeeded", 0);
    has(&run, if is_root() { &["0:0", "1001:1002"] } else { &["1001:1002"] });
    has(&task_in(&lab, "owned").sh("cat /theirs/file; echo; ls /bin/cat"), &["as it was", "/bin/cat"]);
    assert_eq!(layers(&lab), before);
    let store = lab.store().display().to_string();
    lab.brig(["image", "--store", &store, "verify"]).succeeded();
}

/// Every file of every layer: path, owner, mode, inode, times.
fn layers(lab: &Lab) -> Vec<(String, u32, u32, u64, i64, i64)> {
    let mut all = Vec::new();
    let mut pending = vec![lab.store().join("layers")];
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(&path).unwrap().flatten() {
            let status = entry.path().symlink_metadata().unwrap();
            let name = entry.path().display().to_string();
            all.push((name, status.uid(), status.mode(), status.ino(), status.mtime(), status.ctime()));
            if status.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

#[test]
fn what_is_written_to_an_images_root_counts_against_the_disk() {
    let lab = Lab::new();
    Image::new(&lab, "full").load();
    let run = task_in(&lab, "full")
        .args(["--user", "0", "--disk", "24M"])
        .sh("dd if=/dev/zero of=/etc/fill bs=4k count=16384");
    run.ended_as("disk", 1);
    assert!(run.hit("disk"));
}

#[test]
fn an_image_stays_while_a_task_runs_in_it() {
    let lab = Lab::new();
    Image::new(&lab, "held").file("late", "still here\n", 0o644).load();
    let image = |words: &[&str]| {
        let store = lab.store().display().to_string();
        lab.brig(["image", "--store", &store].into_iter().chain(words.iter().copied()))
    };
    let script = "echo begun; while ! [ -e /workspace/go ]; do sleep 0.1; done; cat /late";
    let work = lab.directory("work");
    let mut running = task_in(&lab, "held").args(["--dir".as_ref(), work.as_os_str()]).start_sh(script);
    running.wait_for("begun");
    image(&["rm", "held:1"]);
    image(&["prune"]).succeeded();
    assert!(!layers(&lab).is_empty(), "prune removed the layers of a running task");
    assert!(!running.has_ended());
    // The folder's own file appears below the overlay only where no process has looked for it before. So end by a
    // signal.
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.finish().outcome(), "cancelled");
    eventually("the image is pruned", || {
        image(&["prune"]).succeeded();
        layers(&lab).is_empty()
    });
}

#[test]
fn the_stop_signal_of_an_image_asks_its_command_to_end() {
    let lab = Lab::new();
    let image = Image::new(&lab, "polite").config(json!({ "StopSignal": "SIGQUIT" }));
    image.load();
    let script =
        "trap 'echo asked; exit 7' QUIT; trap 'echo wrong; exit 8' TERM; echo ready; while :; do sleep 0.05; done";
    for (flags, word) in [(&[][..], "asked"), (&["--stop-signal", "TERM"], "wrong")] {
        let running = task_in(&lab, "polite").args(flags).start_sh(script);
        running.wait_for("ready");
        running.signal(rustix::process::Signal::TERM);
        let run = running.finish();
        has(&run, &[word]);
        assert_eq!(run.outcome(), "cancelled");
    }
}

#[test]
fn an_image_that_is_not_there_or_cannot_be_run_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let rows: [(&str, serde_json::Value, &[&str], &[&str]); 8] = [
        ("nobody", json!({ "User": "missing" }), &[], &["unable to find user missing"]),
        ("huge", json!({ "User": "4294967296" }), &[], &["is not between"]),
        ("negative", json!({ "User": "0:-1" }), &[], &["is not between"]),
        ("volume", json!({ "Volumes": { "/../../etc": {} } }), &[], &["leads upwards"]),
        ("directory", json!({ "WorkingDir": "/a/../../../x" }), &[], &["leads upwards"]),
        ("signal", json!({ "StopSignal": "SIGRTMIN+3" }), &[], &["SIGRTMIN+3"]),
        ("words", json!({}), &["--stop-signal", "SIGNOTHING"], &["SIGNOTHING"]),
        ("user", json!({}), &["--user", "me:none"], &["unable to find group none"]),
    ];
    for (name, config, flags, words) in rows {
        Image::new(&lab, name).config(config).load();
        task_in(&lab, name).args(flags).sh("true").refused(125, words);
    }
    Image::new(&lab, "silent").load();
    task_in(&lab, "silent").run([] as [&str; 0]).refused(125, &["silent:1", "neither Entrypoint nor Cmd"]);
    task_in(&lab, "absent").sh("true").refused(125, &["use the image `absent:1`", "no such image"]);
    assert!(lab.ids().is_empty(), "a task was made");
    if is_root() {
        Image::new(&lab, "beyond").config(json!({ "User": "70000" })).load();
        task_in(&lab, "beyond").sh("true").refused(125, &["70000", "65536 ids"]);
        task_in(&lab, "beyond").args(["--user", "65533"]).sh("true").refused(125, &["brig's own processes"]);
    }
}

#[test]
fn brig_run_with_an_image_is_the_short_form_and_without_one_runcs_verb() {
    let lab = Lab::new();
    Image::new(&lab, "short").config(json!({ "Cmd": ["/bin/echo", "by itself"] })).load();
    let store = lab.store().display().to_string();
    let mut words = vec!["run", "--store", &store, "--image", "short:1"];
    if !is_root() {
        words.extend(["--allow-degraded", WITHOUT_GROUP]);
    }
    assert_eq!(lab.brig(&words).succeeded().stdout, "by itself\n");
    words.extend(["--", "/bin/echo", "--image"]);
    assert_eq!(lab.brig(&words).succeeded().stdout, "--image\n");
    let run = lab.brig(["run", "--bundle", "/nonexistent", "id"]);
    assert!(run.status != Some(0) && run.stderr.contains("/nonexistent"), "{run:#?}");
}

#[test]
fn explain_says_which_image_it_would_be() {
    let lab = Lab::new();
    Image::new(&lab, "told").config(json!({ "User": "me", "Cmd": ["true"] })).load();
    let run = task_in(&lab, "told").plain().args(["--explain"]).run([] as [&str; 0]);
    run.succeeded();
    assert!(run.stdout.contains("told:1 (sha256:") && run.stdout.contains("1 layer of an image"), "{run:#?}");
    assert!(run.stdout.contains("1001 in an own user namespace"), "{run:#?}");
    assert!(lab.ids().is_empty());
}

#[test]
fn a_store_in_another_form_is_refused_by_name() {
    if !is_root() {
        return skip("needs root");
    }
    let lab = Lab::new();
    Image::new(&lab, "other").load();
    let header = lab.store().join("store.json");
    let text = std::fs::read_to_string(&header).unwrap();
    std::fs::write(&header, text.replace("\"trusted\"", "\"user\"")).unwrap();
    task_in(&lab, "other").sh("true").refused(125, &["made without root"]);
}

/// The default root has it in its /etc/gitconfig.
#[test]
fn git_in_an_image_reads_no_file_of_a_folder_again() {
    let lab = Lab::new();
    Image::new(&lab, "plain").load();
    let folder = lab.directory("project");
    let with_folder = || task_in(&lab, "plain").args(["--dir".as_ref(), folder.as_os_str()]);
    let run = with_folder().sh("env");
    has(&run, &["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.checkStat", "GIT_CONFIG_VALUE_0=minimal"]);
    let own = ["--env", "GIT_CONFIG_COUNT=0"];
    has(&with_folder().args(own).sh("env"), &["GIT_CONFIG_COUNT=0"]);
}
