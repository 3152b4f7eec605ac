//! Backends: another OCI runtime in a cell, and none. Brig's own parts (workspace, disk, limits, evidence, gateway,
//! secrets, teardown) must hold with each. Every test runs on each runtime of this machine, with the same bundle.

use crate::egress::world::World;
use crate::support::{Image, Lab, Task, eventually, has_program, processes_of, program_under_test};
use rustix::process::Signal;

/// One other runtime.
struct Runtime {
    name: &'static str,
    backend: String,
    /// What must be given up with it.
    degraded: &'static [&'static str],
}

impl Runtime {
    /// brig itself, and the runtimes of this machine; prints a missing one.
    fn all() -> Vec<Runtime> {
        let flags: &[&str] = &["--allow-degraded", "landlock"];
        let mut all =
            vec![Runtime { name: "brig", backend: format!("oci:{}", program_under_test().display()), degraded: &[] }];
        for (name, path) in [("crun", "/usr/bin/crun"), ("runsc", "/usr/bin/runsc")] {
            if has_program(name) {
                all.push(Runtime { name, backend: format!("oci:{path}"), degraded: flags });
            }
        }
        all
    }

    fn task<'lab>(&self, lab: &'lab Lab) -> Task<'lab> {
        lab.task().args(["--backend", &self.backend]).args(self.degraded)
    }
}

#[test]
fn the_same_task_has_the_same_result_with_each_backend() {
    let Some(lab) = Lab::root() else { return };
    let work = lab.file("work/main.py", "print('hi')\n");
    for runtime in Runtime::all() {
        let run = runtime.task(&lab).args(["--dir".as_ref(), work.parent().unwrap().as_os_str()]).sh(
            "set -e; test $(id -u):$(id -g) = 1000:1000; pwd; grep -c . main.py; echo fixed >main.py; echo new >other; \
             echo x >/tmp/x; echo y >$HOME/y; test ! -w /etc; test ! -w /usr; test ! -e /root/.ssh; \
             test $(grep -c CapEff:.0000000000000000 /proc/self/status) = 1; exit 7",
        );
        run.ended_as("failed", 7);
        let receipt = run.receipt();
        assert_eq!(receipt["backend"], runtime.backend, "{run:#?}");
        assert_eq!(receipt["guarantee"], "nested", "{run:#?}");
        let degraded: Vec<_> =
            receipt["degraded"].as_array().unwrap().iter().map(|each| each["name"].clone()).collect();
        assert_eq!(degraded.len(), runtime.degraded.len() / 2, "{run:#?}");
        assert!(run.stderr.contains("/workspace\n1\n"), "{}: {run:#?}", runtime.name);
        let diff = lab.brig(["task", "diff", receipt["id"].as_str().unwrap()]).stdout;
        assert!(diff.contains("+fixed") && diff.contains("b/other"), "{}: {diff}", runtime.name);
        assert_eq!(std::fs::read_to_string(&work).unwrap(), "print('hi')\n");
    }
}

#[test]
fn a_folder_is_at_its_own_path_with_each_backend() {
    let Some(lab) = Lab::root() else { return };
    let Some(folder) = Lab::own_path() else { return };
    let path = std::fs::canonicalize(folder.path()).unwrap();
    for runtime in Runtime::all() {
        let run =
            runtime.task(&lab).args(["--dir"]).args([&path]).sh("pwd; cd /workspace; pwd -P; echo x > x; touch ../y");
        run.ended_as("failed", 1);
        let at = path.display();
        assert!(run.stderr.contains(&format!("{at}\n{at}\n")), "{}: {run:#?}", runtime.name);
        assert_eq!(run.receipt()["changes"]["added"], 1, "{}: {run:#?}", runtime.name);
    }
}

/// Commands that cannot start, with a shell's exit status for them.
#[test]
fn a_command_that_cannot_start_is_told_from_one_that_fails() {
    let Some(lab) = Lab::root() else { return };
    let plain = lab.file("work/plain", "#!/bin/sh\nexit 3\n");
    let work = plain.parent().unwrap();
    for (name, to) in [("none", "/none/such"), ("round", "round"), ("shell", "../bin/sh"), ("out", "/usr/../../bin/sh")]
    {
        std::os::unix::fs::symlink(to, work.join(name)).unwrap();
    }
    let work_file = |name: &str, content: &[u8]| {
        let path = lab.file(&format!("work/{name}"), content);
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    // The kernel's errors for formats: an unknown one, and a missing interpreter.
    work_file("text", b"echo no first line\n");
    work_file("empty", b"");
    work_file("lost", b"#!/no/such/interpreter -x\n");
    work_file("further", b"#!/workspace/lost\n");
    let mut elf = std::fs::read("/usr/bin/true").unwrap();
    let at = elf.windows(5).position(|each| each == b"/lib6").expect("a program of Debian's is linked dynamically");
    elf[at + 1] = b'L';
    work_file("elf", &elf);
    let task = |runtime: Option<&Runtime>| {
        let task = runtime.map_or_else(|| lab.task(), |runtime| runtime.task(&lab));
        task.args(["--dir".as_ref(), work.as_os_str()])
    };
    let all = Runtime::all();
    for runtime in std::iter::once(None).chain(all.iter().map(Some)) {
        let name = runtime.map_or("native", |runtime| runtime.name);
        let cases: [(&[&str], i32); 13] = [
            (&["./text"], 126),
            (&["./empty"], 126),
            (&["./lost"], 127),
            (&["./further"], 127),
            (&["./elf"], 127),
            (&["nonesuch"], 127),
            (&["/bin/nonesuch", "x"], 127),
            (&["/etc/passwd/sh"], 127),
            (&["./none"], 127),
            (&["./plain"], 126),
            (&["/etc"], 126),
            (&["/tmp"], 126),
            (&["./round"], 126),
        ];
        for (command, status) in cases {
            let run = task(runtime).run(command.iter().copied());
            assert_eq!(
                (run.outcome().as_str(), run.status),
                ("start_failed", Some(status)),
                "{name}, {command:?}: {run:#?}"
            );
            let error = run.receipt()["error"].clone();
            assert!(error["message"].as_str().unwrap().contains(command[0]), "{name}: {error:#}");
        }
        // Links resolve in the container's root, and a command may have these statuses too.
        for command in ["sh", "/bin/sh", "./shell", "../workspace/out"] {
            for status in [126, 127] {
                task(runtime).run([command, "-c", &format!("exit {status}")]).ended_as("failed", status);
            }
        }
    }
}

#[test]
fn an_image_is_the_root_of_another_runtimes_container() {
    let Some(lab) = Lab::root() else { return };
    let config = serde_json::json!({ "User": "me", "WorkingDir": "/home/me", "Env": ["PATH=/opt:/bin", "COLOR=blue"] });
    // The image's links resolve inside: on the host this one would lead to a host's file.
    let mut image =
        Image::new(&lab, "for-others").config(config).file("opt/greet", "#!/bin/sh\necho greetings\n", 0o755);
    std::os::unix::fs::symlink("/opt/greet", image.layer("--owner=0 --group=0").join("link")).unwrap();
    image.load();
    for runtime in Runtime::all() {
        let task = || runtime.task(&lab).args(["--pull", "never", "--image", "for-others:1"]);
        let run = task().run([
            "sh",
            "-c",
            "id -u; id -g; echo $COLOR; /link; ls /; touch /etc/new 2>/dev/null && echo written; exit 5",
        ]);
        run.ended_as("failed", 5);
        assert!(run.stderr.starts_with("1001\n1002\nblue\ngreetings\n"), "{}: {run:#?}", runtime.name);
        assert!(!run.stderr.contains("written"), "{}: {run:#?}", runtime.name);
        task().run(["greet"]).ended_as("succeeded", 0);
        task().run(["/link"]).ended_as("succeeded", 0);
        // The host has it, the image has not.
        task().run(["/usr/bin/env"]).ended_as("start_failed", 127);
        task().run(["/etc/group"]).ended_as("start_failed", 126);
    }
}

const FORKS: &str = "for i in $(seq 100); do sleep 2 & done; wait";

#[test]
fn limits_are_the_cells_and_their_evidence_is_the_kernels() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let run = runtime.task(&lab).args(["--memory", "160M"]).sh("head -c 400M /dev/zero | tail");
        run.ended_as("memory", 137);
        assert!(run.evidence("memory").unwrap().contains("oom_kill"), "{}: {run:#?}", runtime.name);
        let run = runtime.task(&lab).args(["--disk", "16M"]).sh("head -c 32M /dev/zero >filler");
        run.ended_as("disk", 1);
        let run = runtime.task(&lab).args(["--wall", "2s", "--grace", "1s"]).sh("echo begun; sleep 60");
        run.ended_as("timeout", 124);
        let run = runtime.task(&lab).args(["--pids", "60", "--wall", "10s", "--grace", "1s"]).sh(FORKS);
        // After failed forks gVisor's kernel stops: the evidence is the kernel's, and the time limit ends it.
        assert!(run.hit("pids"), "{}: {run:#?}", runtime.name);
    }
}

#[test]
fn nothing_is_left_when_it_is_ended_by_a_signal_or_brig_is_killed() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let task = runtime
            .task(&lab)
            .args(["--grace", "5s"])
            .start_sh("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done");
        task.wait_for("ready");
        task.signal(Signal::TERM);
        let run = task.finish();
        run.ended_as("cancelled", 130);
        assert!(run.stderr.contains("asked"), "{}: {run:#?}", runtime.name);
        let task = runtime.task(&lab).start_sh("setsid sleep 300 & echo ready; sleep 300");
        task.wait_for("ready");
        task.signal(Signal::KILL);
        task.finish();
        eventually("every process of the cell is gone", || processes_of(&lab).is_empty());
        lab.reap();
        lab.assert_clean();
    }
    let rows = lab.brig(["task", "ls", "--json"]).stdout;
    assert!(rows.contains("\"lost\"") && rows.contains("\"cancelled\""), "{rows}");
}

#[test]
fn the_gateway_serves_it_and_nothing_else_does() {
    let Some(lab) = Lab::root() else { return };
    let Some(world) = World::new(&lab) else { return };
    let script = String::from("curl -sS -m 5 http://a.test:8080/; curl -sS -m 5 http://b.test:9/");
    for runtime in Runtime::all() {
        let allow = ["--allow", "a.test:8080", "--allow"].map(str::to_owned);
        let near = format!("{}:8080", world.address);
        let run = world
            .bare(&lab)
            .args(["--backend", &runtime.backend])
            .args(runtime.degraded)
            .args(allow)
            .args([&near])
            .sh(&script);
        assert!(run.stderr.contains("served by a.test"), "{}: {run:#?}", runtime.name);
        let rows = run.receipt()["egress"]["rows"].clone();
        let row =
            rows.as_array().unwrap().iter().find(|row| row["host"] == "a.test" && row["allowed"] == true).cloned();
        assert!(row.is_some_and(|row| row["received_bytes"].as_u64() > Some(0)), "{}: {run:#?}", runtime.name);
        let refused =
            |host: &str| rows.as_array().unwrap().iter().any(|row| row["host"] == host && row["allowed"] == false);
        assert!(refused("b.test"), "{}: {run:#?}", runtime.name);
        let closed = runtime.task(&lab).sh(&format!("curl -sS -m 5 http://{}:8080/", world.address));
        assert!(!closed.stderr.contains("served by") && closed.status != Some(0), "{}: {closed:#?}", runtime.name);
    }
}

#[test]
fn secrets_come_as_files_and_variables_are_hidden_and_can_be_taken_back() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let run = runtime
            .task(&lab)
            .args(["--secret", "TOKEN=env:THE_SECRET", "-e", "OTHER"])
            .env("THE_SECRET", "swordfish-123456")
            .env("OTHER", "marlin-98765432")
            .sh("cat /run/secrets/TOKEN; echo; echo $OTHER; find /run/secrets/TOKEN -printf '%m %U\\n'; wc -c </run/secrets/TOKEN; touch /run/secrets/x");
        assert!(run.stderr.contains("16\n") && run.stderr.contains("400 1000\n"), "{}: {run:#?}", runtime.name);
        assert!(!run.stderr.contains("swordfish") && !run.stderr.contains("marlin"), "{}: {run:#?}", runtime.name);
        assert_ne!(run.status, Some(0), "a secret's folder is written: {run:#?}");
        let task = runtime
            .task(&lab)
            .args(["--secret", "TOKEN=env:THE_SECRET"])
            .env("THE_SECRET", "swordfish-123456")
            .start_sh("echo ready; while [ -e /run/secrets/TOKEN ]; do sleep 0.1; done; echo gone");
        task.wait_for("ready");
        let id = lab.ids().pop().unwrap();
        lab.brig(["task", "revoke", &id, "TOKEN"]).succeeded();
        let run = task.finish();
        run.ended_as("succeeded", 0);
    }
}

#[test]
fn what_enters_enters_the_container_and_its_files_are_not_the_cells() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let task = runtime.task(&lab).start_sh("echo ready; while [ ! -e /tmp/go ]; do sleep 0.1; done; cat /tmp/go");
        task.wait_for("ready");
        let id = lab.ids().pop().unwrap();
        let run = lab.brig(["task", "exec", &id, "--", "sh", "-c", "id -u; pwd; echo from-exec >/tmp/go; ls /bundle"]);
        assert!(run.stdout.starts_with("1000\n/workspace\n") && run.status != Some(0), "{}: {run:#?}", runtime.name);
        let run = task.finish();
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains("from-exec"), "{}: {run:#?}", runtime.name);
    }
}

#[test]
fn files_go_in_and_out_of_the_container_and_no_link_leads_out_of_it() {
    let Some(lab) = Lab::root() else { return };
    let secret = lab.file("secret", "of the host\n");
    for runtime in Runtime::all() {
        let script =
            format!("ln -s {} leak; echo ready; while [ ! -e in ]; do sleep 0.1; done; cat in", secret.display());
        let task = runtime.task(&lab).start_sh(&script);
        task.wait_for("ready");
        let id = lab.ids().pop().unwrap();
        let out = lab.path().join(runtime.name);
        let copy = |from: &str, to: &str| lab.brig(["task", "cp", from, to]);
        copy(&format!("{id}:/etc/passwd"), out.to_str().unwrap()).succeeded();
        assert!(std::fs::read_to_string(&out).unwrap().contains(":1000:1000:"), "{}", runtime.name);
        // A link comes as a link: the host did not follow it.
        let leaked = lab.path().join("leaked");
        copy(&format!("{id}:/workspace/leak"), leaked.to_str().unwrap()).succeeded();
        assert!(std::fs::symlink_metadata(&leaked).unwrap().is_symlink(), "{}", runtime.name);
        std::fs::remove_file(&leaked).unwrap();
        copy(&format!("{id}:/none"), lab.path().join("none").to_str().unwrap()).refused(125, &["/none"]);
        let file = lab.file("in", "from the host\n");
        copy(file.to_str().unwrap(), &format!("{id}:/workspace/in")).succeeded();
        let run = task.finish();
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains("from the host"), "{}: {run:#?}", runtime.name);
    }
}

#[test]
fn variables_of_an_entering_process_are_in_no_argument() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let task = runtime
            .task(&lab)
            .args(["-e", "MINE=own"])
            .start_sh("echo ready; while [ ! -e /tmp/go ]; do sleep 0.1; done");
        task.wait_for("ready");
        let id = lab.ids().pop().unwrap();
        let entered = lab.start([
            "task",
            "exec",
            "-e",
            "GIVEN=walrus 'x",
            "-w",
            "/tmp",
            &id,
            "--",
            "sh",
            "-c",
            "echo \"$GIVEN $MINE $(id -u) $PWD\"; env | grep -c BRIG_PROCESS; echo begun; sleep 1; touch /tmp/go",
        ]);
        entered.wait_for("begun");
        for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // The client's own command line has it from its caller.
            assert!(!line.contains("GIVEN=walrus") || line.contains("task exec"), "{}: {line}", runtime.name);
        }
        let run = entered.finish();
        assert!(run.stdout.starts_with("walrus 'x own 1000 /tmp\n0\n"), "{}: {run:#?}", runtime.name);
        task.finish().ended_as("succeeded", 0);
    }
}

#[test]
fn a_command_at_a_terminal_and_one_that_enters_have_one() {
    let Some(lab) = Lab::root() else { return };
    if !has_program("script") {
        return;
    }
    for runtime in Runtime::all() {
        let brig = program_under_test().display().to_string();
        let flags = runtime.degraded.join(" ");
        let line = format!(
            "{brig} task run --empty -t --backend {} {flags} -- sh -c 'test -t 0 && test -t 1 && echo at-a-terminal; exit 3'",
            runtime.backend
        );
        let mut script = std::process::Command::new("script");
        let run = script.args(["-qec", &line, "/dev/null"]).env("BRIG_STORE", lab.store()).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.code() == Some(3) && text.contains("at-a-terminal"), "{}: {text}", runtime.name);
    }
}

#[test]
fn an_attached_client_sees_output_gives_input_and_exits_as_the_task_does() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let flags = ["task", "run", "-d", "--interactive", "--empty", "--backend", &runtime.backend];
        let script = "echo first; read line; echo got $line; cat | wc -c; exit 4";
        let id = lab
            .brig(flags.iter().chain(runtime.degraded).chain(&["--", "sh", "-c", script]))
            .succeeded()
            .stdout
            .clone();
        let run = lab.attach_with_input(id.trim(), format!("word\n{}", "x".repeat(200_000)));
        let expected = (Some(4), "first\ngot word\n200000\n");
        assert_eq!((run.status, run.stdout.as_str()), expected, "{}: {run:#?}", runtime.name);
    }
}

#[test]
fn a_sandbox_without_a_command_is_entered_until_it_is_stopped() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let started = lab.brig(
            [&["task", "run", "-d", "--hold", "--empty", "--backend", &runtime.backend], runtime.degraded].concat(),
        );
        let id = started.succeeded().stdout.trim().to_owned();
        let run = lab.brig(["task", "exec", &id, "--", "sh", "-c", "echo $((6 * 7)); id -u"]);
        assert_eq!(run.stdout, "42\n1000\n", "{}: {run:#?}", runtime.name);
        lab.brig(["task", "stop", &id]).succeeded();
        lab.brig(["task", "wait", &id]);
        let receipt: serde_json::Value =
            serde_json::from_str(&lab.brig(["task", "show", "--json", &id]).succeeded().stdout).unwrap();
        assert_eq!(receipt["outcome"], "stopped", "{}: {receipt:#}", runtime.name);
    }
}

#[test]
fn a_runtime_is_in_a_cell_and_has_no_power_on_the_host() {
    let Some(lab) = Lab::root() else { return };
    // A test runtime that prints its surroundings and isolates nothing.
    let script = "#!/bin/sh\nid -u; cat /proc/self/uid_map; ls /; cat /etc/shadow /root/.bashrc; mount -t tmpfs x /usr && echo mounted; \
                  touch /usr/x && echo written; cat /sys/fs/cgroup/*; chroot / true; mknod /tmp/disk b 7 0 && head -c1 /tmp/disk && echo read; exit 0\n";
    let spy = lab.file("spy", script);
    std::fs::set_permissions(&spy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let backend = format!("oci:{}", spy.display());
    let run = lab.task().args(["--backend", &backend, "--allow-degraded", "landlock"]).sh("true");
    let map = run.stderr.lines().find(|line| line.split_whitespace().count() == 3).unwrap_or_default();
    let map: Vec<_> = map.split_whitespace().collect();
    assert!(run.stderr.starts_with("0\n") && map.len() == 3 && map[1] != "0" && map[2] == "65536", "{run:#?}");
    assert!(run.stderr.contains("bundle") && !run.stderr.contains("home"), "{run:#?}");
    for word in ["mounted", "written", "read\n", "root:"] {
        assert!(!run.stderr.contains(word), "{word}: {run:#?}");
    }
}

#[test]
fn what_a_backend_cannot_do_is_refused_by_name() {
    let Some(lab) = Lab::root() else { return };
    let check = |flags: &[&str], words: &[&str]| {
        let run = lab.task().plain().args(["--backend"]).args(flags).sh("true");
        run.refused(125, words);
        assert!(run.stderr.contains("E-"), "{run:#?}");
    };
    check(&["oci:/usr/bin/crun"], &["`landlock`", "oci:/usr/bin/crun"]);
    check(&["oci:/usr/sbin/runc", "--allow-degraded", "landlock"], &["runc does not run without its control groups"]);
    check(&["oci:/none/such", "--allow-degraded", "landlock"], &["/none/such"]);
    check(&["oci:/etc/passwd", "--allow-degraded", "landlock"], &["/etc/passwd"]);
    check(&["local"], &["`isolation`", "`network`", "`disk`", "`inodes`"]);
    check(&["local", "--network", "host", "--allow-degraded", "isolation,disk"], &["`inodes`"]);
    let local = ["local", "--allow-degraded", "isolation,network,disk,inodes"];
    check(&[&local[..], &["--rootfs", "/"]].concat(), &["root"]);
    check(&[&local[..], &["--allow", "example.org:443"]].concat(), &["gateway"]);
    check(&[&local[..], &["--secret", "A=env:PATH"]].concat(), &["secrets as files"]);
    assert_eq!(lab.task().plain().args(["--backend", "docker"]).sh("true").status, Some(125));
}

#[test]
fn explain_and_the_record_name_the_backend() {
    let Some(lab) = Lab::root() else { return };
    for runtime in Runtime::all() {
        let run = lab.brig([
            "task",
            "run",
            "--explain",
            "--empty",
            "--backend",
            &runtime.backend,
            "--allow-degraded",
            "landlock",
        ]);
        run.succeeded();
        assert!(run.stdout.contains(&runtime.backend) && run.stdout.contains("nested"), "{run:#?}");
    }
    let profile = lab.file(
        "p.toml",
        "backend = \"local\"\nallow_degraded = [\"isolation\", \"disk\", \"inodes\"]\n[network]\nmode = \"host\"\n",
    );
    let run = lab.task().args(["--profile".as_ref(), profile.as_os_str()]).sh("true");
    run.ended_as("succeeded", 0);
    assert_eq!((run.receipt()["backend"].as_str(), run.receipt()["guarantee"].as_str()), (Some("local"), Some("none")));
}

#[test]
fn local_runs_on_the_host_and_still_writes_no_folder_and_leaves_no_process() {
    let lab = Lab::new();
    let work = lab.file("work/file", "mine\n");
    let flags = ["--backend", "local", "--network", "host", "--allow-degraded", "isolation,disk,inodes"];
    let task = |lab: &Lab| {
        lab.task()
            .args(flags)
            .args(["--dir".as_ref(), work.parent().unwrap().as_os_str()])
            .start_sh("echo changed >file; cat file; id -u; readlink /proc/self/ns/net; setsid sleep 300 & echo done")
    };
    let run = task(&lab).finish();
    run.ended_as("succeeded", 0);
    let own = rustix::process::geteuid().as_raw();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
    for word in ["changed\n", &format!("{own}\n"), &network] {
        assert!(run.stderr.contains(word), "{word}: {run:#?}");
    }
    assert_eq!(std::fs::read_to_string(&work).unwrap(), "mine\n");
    let diff = lab.brig(["task", "diff", run.receipt()["id"].as_str().unwrap()]).stdout;
    assert!(diff.contains("+changed"), "{diff}");
    eventually("what it left behind is gone", || processes_of(&lab).is_empty());
    if crate::support::is_root() {
        let run = lab.task().args(flags).args(["--memory", "32M"]).sh("tail /dev/zero");
        run.ended_as("memory", 137);
    }
}
