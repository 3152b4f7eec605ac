//! The processes of brig itself: pid 1 of the sandbox, and its supervisor.

use super::{answer, attack, attacker, executable, stopped, task};
use crate::support::{Lab, eventually, is_root, skip};
use std::fs;

/// All protections between an agent and pid 1, which has brig's memory. As root it has another id than the agent; an
/// ordinary user has only one id.
const OPEN: &str = "hidepid,undumpable,landlock,capabilities";

#[test]
fn pid_1_is_not_shown() {
    stopped(&[
        attack("read /proc/1/cmdline", "ENOENT", "hidepid"),
        attack("read /proc/1/status", "ENOENT", "hidepid"),
        attack("read /proc/1/mountinfo", "ENOENT", "hidepid"),
    ]);
}

#[test]
fn the_command_line_of_brig_is_not_readable_inside() {
    let lab = Lab::new();
    let run = |weak: bool| {
        let task = if weak { task(&lab).weakened("hidepid") } else { task(&lab) };
        task.args(["-e", "API_KEY=hunter2"]).sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c API_KEY=hunt[e]r2")
    };
    assert_eq!(answer(&run(false)), "0");
    assert_eq!(answer(&run(true)), "1");
}

#[test]
fn the_memory_descriptors_and_environment_of_pid_1_are_out_of_reach() {
    if is_root() {
        // pid 1 has another id, so the kernel refuses even without the rest; each of the other protections is tested
        // alone.
        for (weak, expected) in [("", "ENOENT"), ("hidepid", "EACCES|EPERM"), (OPEN, "EACCES|EPERM")] {
            let lab = Lab::new();
            let work = attacker(&lab);
            for path in ["environ", "mem", "maps", "fd", "root", "cwd", "exe"] {
                let task = if weak.is_empty() { task(&lab) } else { task(&lab).weakened(weak) };
                let how = if matches!(path, "root" | "cwd" | "exe") { "readlink" } else { "open" };
                let run = task.args(["--dir".as_ref(), work.as_os_str()]).run([
                    "./attacker",
                    how,
                    &format!("/proc/1/{path}"),
                ]);
                let got = answer(&run);
                // The directory of descriptors itself may be opened by its owner alone.
                assert!(expected.split('|').any(|word| word == got), "{path} without {weak}: {got}");
            }
        }
        return;
    }
    stopped(&[
        attack("read /proc/1/environ", "ENOENT", OPEN),
        attack("open /proc/1/mem", "ENOENT", OPEN),
        attack("open /proc/1/fd", "ENOENT", OPEN),
        attack("readlink /proc/1/root", "ENOENT", OPEN),
        attack("readlink /proc/1/cwd", "ENOENT", OPEN),
        attack("readlink /proc/1/exe", "ENOENT", OPEN),
    ]);
}

#[test]
fn pid_1_can_be_neither_traced_nor_read_nor_robbed_of_descriptors() {
    let free = if is_root() { "" } else { "undumpable,landlock,capabilities" };
    let take = if is_root() { "" } else { "seccomp,undumpable,landlock,capabilities" };
    // pid 1 has one descriptor, its channel to the supervisor; the numbers of all others are closed.
    stopped(&[
        attack("ptrace 1", "EPERM", free),
        attack("vm-read 1", "EPERM", free),
        attack("take-fd 1 3", "EPERM", ""),
    ]);
    if !take.is_empty() {
        let lab = Lab::new();
        let work = attacker(&lab);
        let script = "for n in $(seq 0 99); do ./attacker take-fd 1 $n; done | sort | uniq -c";
        let run = task(&lab).weakened(take).args(["--dir".as_ref(), work.as_os_str()]).sh(script);
        assert!(run.stderr.contains("done"), "{run:#?}");
    }
}

#[test]
fn pid_1_can_be_neither_killed_nor_stopped() {
    let lab = Lab::new();
    let work = attacker(&lab);
    let script = "./attacker kill 1 9; ./attacker kill 1 19; ./attacker kill 1 15; sleep 0.1; echo alive";
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).sh(script);
    assert_eq!(run.stderr.lines().take(4).collect::<Vec<_>>(), ["EPERM", "EPERM", "EPERM", "alive"], "{run:#?}");
    run.ended_as("succeeded", 0);
    if is_root() {
        return skip("pid 1 has an id of its own as root: the kernel refuses whatever Landlock says");
    }
    // Without Landlock's scope the signals arrive; the kernel still keeps pid 1 from dying of them.
    let run = task(&lab)
        .weakened("landlock")
        .args(["--dir".as_ref(), work.as_os_str()])
        .sh("./attacker kill 1 19; ./attacker kill 1 9; echo alive");
    assert_eq!(run.stderr.lines().take(3).collect::<Vec<_>>(), ["done", "done", "alive"], "{run:#?}");
}

#[test]
fn as_root_the_command_and_pid_1_have_unique_ids() {
    let Some(lab) = Lab::root() else { return };
    let work = attacker(&lab);
    let ids = |weak: &str| {
        let task = if weak.is_empty() { lab.task() } else { lab.task().weakened(weak) };
        let started = task.args(["--dir".as_ref(), work.as_os_str()]).start_sh("echo up; sleep 20");
        started.wait_for("up");
        let reaper = started.pid_1();
        let children = fs::read_to_string(format!("/proc/{reaper}/task/{reaper}/children")).unwrap();
        let command = children.split_whitespace().next().unwrap().to_owned();
        let uid = |pid: &str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned();
            let ids: Vec<u32> = line.split_whitespace().skip(1).map(|id| id.parse().unwrap()).collect();
            assert!(ids.iter().all(|id| *id == ids[0]), "{line}");
            ids[0]
        };
        let found = (uid(&reaper.to_string()), uid(&command));
        started.signal(rustix::process::Signal::INT);
        (found, started)
    };
    let ((first_reaper, first), one) = ids("");
    let ((second_reaper, second), two) = ids("");
    let range = 0x7000_0000..0x7ffd_0000_u32;
    for id in [first_reaper, first, second_reaper, second] {
        assert!(range.contains(&id), "{id}");
    }
    assert_eq!(first % 65_536, 1000);
    assert_ne!(first_reaper, first);
    assert_ne!(first / 65_536, second / 65_536, "two sandboxes share a range");
    let ((_, weak), three) = ids("user-namespace,capabilities");
    assert_eq!(weak, 1000, "without a user namespace it is a user of the host");
    for started in [one, two, three] {
        started.finish();
    }
}

#[test]
fn the_command_does_not_begin_before_pid_1_has_given_up_what_it_does_not_need() {
    const CAP_KILL: &str = "CapEff:\t0000000000000020";
    let lab = Lab::new();
    for (weak, waits) in [("swift-pid-1", true), ("swift-pid-1,gate", false)] {
        let started = lab.task().weakened(weak).start_sh("echo up; sleep 20");
        started.wait_for("up");
        let status = fs::read_to_string(format!("/proc/{}/status", started.pid_1())).unwrap();
        assert_eq!(status.lines().any(|line| line == CAP_KILL), waits, "{weak}: {status}");
        started.signal(rustix::process::Signal::INT);
        started.finish();
    }
}

#[test]
fn two_sandboxes_at_once_cannot_read_each_others_files_or_processes() {
    let lab = Lab::new();
    let secret = task(&lab).start_sh("echo private > secret; echo private > /tmp/secret; echo ready; exec sleep 20");
    secret.wait_for("ready");
    let run = task(&lab)
        .sh("cat /tmp/secret /workspace/secret 2>&1; cat /proc/*/environ | wc -c; ls /proc | grep -c '^[0-9]'");
    assert_eq!(run.stderr.matches("No such file").count(), 2, "{run:#?}");
    secret.signal(rustix::process::Signal::INT);
    secret.finish();
}

#[test]
fn a_script_whose_interpreter_is_the_running_program_does_not_get_brig() {
    // CVE-2019-5736: `#!/proc/self/exe` makes the runtime itself run inside, with a descriptor of its file on the host.
    let lab = Lab::new();
    let script = lab.file("work/agent", "#!/proc/self/exe --version\n");
    executable(&script, 0o755);
    let work = script.parent().unwrap();
    let run = task(&lab).args(["--dir".as_ref(), work.as_os_str()]).run(["./agent"]);
    run.ended_as("start_failed", 126);
    assert!(run.receipt()["error"]["message"].as_str().unwrap().contains("Permission denied"), "{run:#?}");
    let run = task(&lab).weakened("landlock").args(["--dir".as_ref(), work.as_os_str()]).run(["./agent"]);
    assert_ne!(run.outcome(), "start_failed", "without Landlock brig itself runs: {run:#?}");
}

#[test]
fn a_killed_supervisor_takes_the_sandbox_with_it() {
    let lab = Lab::new();
    let mut started = task(&lab).start_sh("echo up; sleep 60");
    started.wait_for("up");
    let reaper = started.pid_1();
    started.signal(rustix::process::Signal::KILL);
    eventually("brig is gone", || started.has_ended());
    eventually("pid 1 is gone", || !std::path::Path::new(&format!("/proc/{reaper}")).exists());
    lab.reap();
}
