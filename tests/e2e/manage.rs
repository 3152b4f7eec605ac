//! Lists, shows, removes and explains tasks.

use crate::support::{Lab, has_program, program_under_test};
use std::process::Stdio;

#[test]
fn explain_prints_every_limit_and_makes_nothing() {
    let lab = Lab::new();
    let run = lab.task().plain().args(["--explain", "--memory", "123M"]).sh("echo started");
    run.succeeded();
    for word in [
        "cpus",
        "cpu_time",
        "memory",
        "swap",
        "pids",
        "disk",
        "inodes",
        "open_files",
        "wall",
        "idle",
        "output_bytes",
        "io_bps",
        "io_iops",
        "network",
        "seccomp",
        "landlock",
        "guarantee",
        "workspace",
        "root",
    ] {
        assert!(run.stdout.lines().any(|line| line.split_whitespace().next() == Some(word)), "{word}: {run:#?}");
    }
    assert!(run.stdout.contains("123M") && !run.stdout.contains("started"), "{run:#?}");
    let run = lab.brig(["task", "run", "--explain", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&run.succeeded().stdout).unwrap();
    assert_eq!(rows["network"], "none");
    assert!(!lab.store().exists());
    lab.brig(["task", "run", "--explain", "--dir", "/no/such"]).refused(125, &["/no/such`"]);
}

#[test]
fn tasks_are_listed_shown_and_removed_by_the_beginning_of_their_ids() {
    let lab = Lab::new();
    lab.task().sh("echo first").succeeded();
    lab.task().sh("echo second; exit 9");
    let ids = lab.ids();
    let list = lab.brig(["task", "ls"]).succeeded().stdout.clone();
    assert!(list.contains(&ids[0]) && list.contains("succeeded") && list.contains("echo second"), "{list}");
    let rows: serde_json::Value = serde_json::from_str(&lab.brig(["task", "ls", "--json"]).succeeded().stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    assert_eq!((&rows[0]["id"], &rows[1]["outcome"]), (&ids[0].as_str().into(), &"failed".into()));
    assert_eq!(lab.brig(["task", "ls", "-q"]).succeeded().stdout, format!("{}\n{}\n", ids[0], ids[1]));

    let beginning = &ids[1][..8];
    let shown = lab.brig(["task", "show", beginning, "--json"]);
    let receipt: serde_json::Value = serde_json::from_str(&shown.succeeded().stdout).unwrap();
    assert_eq!((&receipt["id"], &receipt["exit_code"]), (&ids[1].as_str().into(), &9.into()));
    let words = lab.brig(["task", "show", beginning]).succeeded().stdout.clone();
    assert!(words.contains("outcome") && words.contains("failed") && words.contains("removed"), "{words}");
    assert_eq!(lab.brig(["task", "logs", beginning]).succeeded().stdout, "second\n");

    let newest = lab.brig(["task", "show", "@", "--json"]);
    let newest: serde_json::Value = serde_json::from_str(&newest.succeeded().stdout).unwrap();
    assert_eq!(newest["id"], ids[1].as_str());
    let mut lines = words.lines().map(|line| line.split("  ").next().unwrap());
    assert!(lines.by_ref().take(4).eq(["task", "command", "outcome", "exit status"]), "{words}");
    lab.brig(["task", "show", "zzz"]).refused(125, &["unknown task `zzz`"]);
    lab.brig(["task", "logs", ""]).refused(125, &["unknown task ``"]);
    lab.brig(["task", "rm", "../.."]).refused(125, &["unknown task"]);

    lab.brig(["task", "rm", beginning, &ids[1]]).succeeded();
    assert_eq!(lab.ids(), ids[..1]);
    lab.brig(["task", "rm", &ids[0]]).succeeded();
    assert!(lab.ids().is_empty());
    assert_eq!(lab.brig(["task", "ls", "-q"]).succeeded().stdout, "");
}

#[test]
fn an_error_before_the_start_is_json_too() {
    let lab = Lab::new();
    let check = |words: &[&str], code: &str, text: &str| {
        let run = lab.brig(words);
        assert_eq!(run.status, Some(125), "{run:#?}");
        let error: serde_json::Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:#?}"));
        assert_eq!(error["error"]["code"], code, "{run:#?}");
        assert!(error["error"]["message"].as_str().unwrap().contains(text) && run.stderr.contains(text), "{run:#?}");
    };
    check(&["task", "run", "--json", "--dir", "/no/such", "--", "true"], "E-WORKSPACE", "/no/such");
    check(&["task", "run", "--json", "--artifact-bytes", "foo", "true"], "E-USAGE", "`foo` for `--artifact-bytes`");
    check(&["task", "run", "--json", "--no-such-flag", "true"], "E-USAGE", "--no-such-flag");
    check(&["task", "show", "--json", "none"], "E-NOT-FOUND", "none");
    check(&["task", "show", "--json"], "E-USAGE", "<ID>");
    let run = lab.brig(["task", "run", "--dir", "/no/such", "echo", "--json"]);
    assert!(run.refused(125, &["/no/such"]).stdout.is_empty(), "the command's own word: {run:#?}");
}

#[test]
fn words_of_docker_and_of_engines_get_a_hint() {
    let lab = Lab::new();
    let check = |words: &[&str], hint: &str| {
        let run = lab.brig(words);
        assert!(run.status != Some(0) && run.stderr.contains(&format!("hint:  {hint}")), "{run:#?}");
    };
    check(&["logs", "x"], "`brig task logs ID`");
    check(&["task", "inspect", "x"], "`brig task show ID`");
    check(&["task", "run", "--rm", "true"], "leave it out");
    check(&["task", "run", "-v", "/a:/b", "true"], "`--mount SOURCE:TARGET`");
    check(&["task", "run", "--timeout=5", "true"], "`--wall TIME`");
    check(&["run", "--image", "x", "--rm", "true"], "leave it out");
    check(&["task", "stop", "-t", "5", "x"], "`--grace TIME`");
    check(&["task", "kill", "--signal=INT", "x"], "the signal comes after the task");
    assert!(!lab.brig(["task", "diff", "-p", "x"]).stderr.contains("hint:"), "no hint for another verb's flag");
    for (verb, hint) in [
        ("ps", "`brig task ls`"),
        ("exec", "in a task"),
        ("run", "for a task"),
        ("state", "of a task: `brig task show ID`"),
        ("delete", "for a task: `brig task rm ID`"),
    ] {
        check(&[verb], &format!("this is the verb of an OCI runtime; {hint}"));
    }
    // An engine reads its log, and gets runc's message only.
    let log = lab.path().join("log");
    let run = lab.brig(["--log", log.to_str().unwrap(), "ps"]);
    assert!(!run.stderr.contains("hint:"), "{run:#?}");
    let help = lab.brig(["help"]);
    for words in ["\nAgents and tasks:\n  agent ", "\n  restore ", "brig run --image"] {
        assert!(help.succeeded().stdout.contains(words), "`{words}`: {help:#?}");
    }
    assert!(lab.brig(["help", "task", "exec"]).succeeded().stdout.contains("Run another process"));
}

#[test]
fn a_profile_by_name_is_a_file_of_the_caller_alone() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let file = lab.file("config/brig/small.toml", "[limits]\nmemory = \"64M\"\n");
    let run =
        |name: &str| lab.task().env("XDG_CONFIG_HOME", lab.path().join("config")).args(["--profile", name]).sh("true");
    let receipt = run("small").ended_as("succeeded", 0).receipt();
    assert_eq!(
        (&receipt["limits"]["memory"], &receipt["profile"]["path"]),
        (&(64 << 20).into(), &file.to_str().unwrap().into())
    );
    assert!(receipt["limits"]["disk"].as_u64().is_some(), "the limit that was in force: {receipt:#}");
    run("missing").refused(125, &["profile `missing`", "config/brig/missing.toml"]);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    run("small").refused(125, &["others may write it"]);
    if crate::support::is_root() {
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
        run("small").refused(125, &["another user's"]);
    }
}

#[test]
fn a_running_task_is_listed_and_its_log_read_but_it_is_not_removed() {
    let lab = Lab::new();
    let task = lab.task().start_sh("echo ready; sleep 300");
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    assert!(lab.brig(["task", "ls"]).succeeded().stdout.contains("running"));
    assert_eq!(lab.brig(["task", "logs", &id]).succeeded().stdout, "ready\n");
    let shown = lab.brig(["task", "show", &id]).succeeded().stdout.clone();
    assert!(shown.contains("status   running") && !shown.contains("health"), "{shown}");
    let shown = lab.brig(["task", "show", "--json", &id]).succeeded().stdout.clone();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["status"] == "running" && shown["health"].is_null(), "{shown}");
    lab.brig(["task", "rm", &id]).refused(125, &["running"]);
    assert!(lab.brig(["doctor", "--leaks"]).succeeded().stdout.is_empty());
    task.signal(rustix::process::Signal::TERM);
    task.finish().ended_as("cancelled", 130);
    lab.brig(["task", "rm", &id]).succeeded();
}

#[test]
fn a_receipt_has_the_proof_of_the_cleanup() {
    let lab = Lab::new();
    let run = lab.task().sh("sleep 30 & echo x > file");
    let receipt = run.ended_as("succeeded", 0).receipt();
    let removed: Vec<_> =
        receipt["cleanup"]["removed"].as_array().unwrap().iter().map(|each| each.as_str().unwrap()).collect();
    assert!(removed.iter().any(|each| each.contains("processes")), "{removed:?}");
    assert!(removed.contains(&"cgroup"), "{removed:?}");
    if crate::support::is_root() {
        assert!(removed.iter().any(|each| each.contains("disk image")), "{removed:?}");
    }
}

#[test]
fn text_of_a_sandbox_reaches_no_terminal_unescaped() {
    let lab = Lab::new();
    // A task's command line is text of its caller, and `ls` of another user shows it.
    lab.task().run(["true", "\x1b]0;title\x07\x1b[31m"]).succeeded();
    let id = lab.ids().remove(0);
    for words in [&["task", "ls"][..], &["task", "show", &id], &["task", "ls", "--json"]] {
        let run = lab.brig(words);
        assert!(!run.succeeded().stdout.contains('\x1b'), "{words:?}: {run:#?}");
    }
}

#[test]
fn units_that_prune_every_day_are_accepted_by_systemd_and_their_commands_run() {
    let Some(lab) = Lab::root() else { return };
    let program = program_under_test().display().to_string();
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("rootfs/systemd");
    let mut commands = 0;
    for name in ["brig-prune.service", "brig-prune.timer"] {
        let text = std::fs::read_to_string(units.join(name)).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/brig ")) {
            lab.brig(line.split(' ')).succeeded();
            commands += 1;
        }
        lab.file(&format!("units/{name}"), text.replace("/usr/bin/brig", &program));
    }
    assert_eq!(commands, 2);
    if !has_program("systemd-analyze") {
        return;
    }
    let timer = lab.path().join("units/brig-prune.timer");
    let verify = || {
        let mut command = std::process::Command::new("systemd-analyze");
        command.arg("verify").arg(&timer).env("SYSTEMD_UNIT_PATH", format!("{}:", timer.parent().unwrap().display()));
        command.output().unwrap()
    };
    let done = verify();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let broken = std::fs::read_to_string(&timer).unwrap().replace("OnCalendar=daily", "OnCalendar=sometimes");
    std::fs::write(&timer, broken).unwrap();
    assert!(!verify().status.success());
}

#[test]
fn a_relative_store_is_below_the_callers_directory_in_the_background_too() {
    let lab = Lab::new();
    let words = ["task", "run", "--detach", "--store", "beside/store", "--empty", "--", "true"];
    let begun = lab.command(words).command().current_dir(lab.path()).stdin(Stdio::null()).output().unwrap();
    assert!(begun.status.success(), "{begun:#?}");
    let (id, store) = (String::from_utf8(begun.stdout).unwrap(), lab.path().join("beside/store"));
    lab.brig(["task", "wait", "--store", store.to_str().unwrap(), id.trim()]).succeeded();
    assert!(store.join("tasks").join(id.trim()).join("receipt.json").exists());
}
