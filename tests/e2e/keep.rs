//! Kept workspaces: continued, forked, discarded.

use crate::support::{Lab, eventually};
use serde_json::Value;

fn logs(lab: &Lab, id: &str) -> String {
    lab.brig(["task", "logs", id]).succeeded().stdout.clone()
}

#[track_caller]
fn wait(lab: &Lab, id: &str) -> Value {
    serde_json::from_str(&lab.brig(["task", "wait", "--json", id]).stdout).unwrap()
}

#[test]
fn a_kept_workspace_goes_on_in_a_new_sandbox_with_its_home() {
    let Some(lab) = Lab::root() else { return };
    let work = lab.file("work/base", "of the user\n");
    let work = work.parent().unwrap();
    let script = "echo changed >> base; mkdir d; echo one > d/one; rm -f gone; ln -s /etc/passwd link; chmod 600 d/one; \
                  echo x > ~/mine; echo x > /tmp/mine; exit 1";
    std::fs::write(work.join("gone"), "").unwrap();
    lab.task().args(["--dir".as_ref(), work.as_os_str()]).args(["--keep"]).sh(script).ended_as("failed", 1);
    let first = lab.ids().remove(0);
    let look = "cat base d/one; readlink link; stat -c '%U %a' d/one ~/mine; ls /tmp | grep -c mine; ls gone 2>&1; echo two > d/two; rm d/one";
    let run = lab.brig(["task", "resume", "--json", &first, "--", "sh", "-c", look]);
    run.ended_as("succeeded", 0);
    let expected = "of the user\nchanged\none\n/etc/passwd\nagent 600\nagent 644\n0\nls: cannot access 'gone': No such file or directory\n";
    assert!(run.stderr.contains(expected), "{run:#?}");
    let second = run.receipt()["id"].as_str().unwrap().to_owned();
    // The workspace has moved on; it has the work of both in the end.
    lab.brig(["task", "resume", &first]).refused(125, &["nothing was kept"]);
    let diff = lab.brig(["task", "diff", &second]);
    for words in ["+changed", "d/two", "gone"] {
        assert!(diff.succeeded().stdout.contains(words), "{words}: {diff:#?}");
    }
    assert!(!diff.stdout.contains("d/one"), "{diff:#?}");
    assert_eq!(std::fs::read_to_string(work.join("base")).unwrap(), "of the user\n");
    lab.brig(["task", "discard", &second]).succeeded();
    lab.brig(["task", "resume", &second]).refused(125, &["nothing was kept"]);
}

#[test]
fn resume_in_the_background_prints_the_form_of_run() {
    let lab = Lab::new();
    lab.task().args(["--keep"]).run(["true"]).ended_as("succeeded", 0);
    let kept = lab.ids().remove(0);
    let run = lab.brig(["task", "resume", "-d", "--json", &kept]);
    let printed: serde_json::Value = serde_json::from_str(&run.succeeded().stdout).unwrap();
    assert_eq!(printed["store"], lab.store().to_str().unwrap());
    lab.brig(["task", "wait", printed["id"].as_str().unwrap()]).succeeded();
}

#[test]
fn what_goes_on_has_other_limits_and_its_variables_again() {
    let Some(lab) = Lab::root() else { return };
    lab.task().args(["--keep", "--memory", "300M", "-e", "KEY=secret-value"]).sh("echo $KEY > key").succeeded();
    let id = lab.ids().remove(0);
    lab.brig(["task", "resume", &id]).refused(125, &["KEY"]);
    assert_eq!(lab.ids().len(), 1, "nothing was begun");
    let words =
        ["task", "resume", "--json", "-e", "KEY=x", "--memory", "200M", "--wall", "3h", &id, "--", "cat", "key"];
    let run = lab.brig(words);
    let limits = run.ended_as("succeeded", 0).receipt()["limits"].clone();
    assert_eq!((&limits["memory"], &limits["wall"]), (&(200_u64 << 20).into(), &10800.0.into()), "{limits:#}");
    for entry in std::fs::read_dir(lab.store().join("tasks").join(&id)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            assert!(!std::fs::read_to_string(&path).unwrap().contains("secret-value"), "{}", path.display());
        }
    }
}

#[test]
fn a_task_that_met_a_limit_or_asked_or_was_lost_goes_on_with_more() {
    let Some(lab) = Lab::root() else { return };
    let profile = lab.file("asks.toml", "[exit_codes]\nneeds_input = [3]\n");
    let profile = ["--profile".as_ref(), profile.as_os_str()];
    let go_on = |id: &str, more: &[&str], script: &str| {
        let words = [&["task", "resume", "--json"], more, &[id, "--", "sh", "-c", script]].concat();
        lab.brig(words).ended_as("succeeded", 0);
    };
    let newest = || lab.ids().pop().unwrap();
    lab.task().args(["--keep", "--wall", "1s"]).sh("echo half > ~/half; sleep 30").ended_as("timeout", 124);
    go_on(&newest(), &["--wall", "1m"], "sleep 1.5; grep half ~/half");
    let fill = "echo 1 > before; head -c 150M /dev/zero | tail -c 150M | wc -c > size; grep 157286400 size";
    lab.task().args(["--keep", "--memory", "64M"]).sh(fill).ended_as("memory", 137);
    go_on(&newest(), &["--memory", "1G"], &format!("grep 1 before && {fill}"));
    lab.task().args(["--keep-on-failure"]).args(profile).sh("echo which > question; exit 3").ended_as("needs_input", 3);
    go_on(&newest(), &[], "grep which question");
    let task = lab.task().args(["--keep-on-failure"]).start_sh("echo mine > ~/mine; echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(rustix::process::Signal::KILL);
    task.finish();
    lab.reap();
    let lost = newest();
    let shown: Value = serde_json::from_str(&lab.brig(["task", "show", "--json", &lost]).succeeded().stdout).unwrap();
    assert_eq!(shown["outcome"], "lost");
    go_on(&lost, &["--cpu-time", "8h", "--pids", "2000"], "grep mine ~/mine");
    lab.assert_clean();
}

#[test]
fn a_kept_workspace_goes_on_however_deep_its_folders_are() {
    let Some(lab) = Lab::root() else { return };
    let script = "i=0; while [ $i -lt 900 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done; echo deep > file";
    lab.task().args(["--keep"]).sh(script).succeeded();
    let id = lab.ids().remove(0);
    let look = "i=0; while [ $i -lt 900 ]; do cd d || exit 1; i=$((i+1)); done; cat file; echo more >> file";
    let run = lab.brig(["task", "resume", "--json", &id, "--", "sh", "-c", look]);
    assert!(run.ended_as("succeeded", 0).stderr.ends_with("deep\n"), "{run:#?}");
    // The workspace is the new task's, and the error names it.
    let new = lab.ids().pop().unwrap();
    lab.brig(["task", "resume", &id]).refused(125, &["nothing was kept"]);
    assert!(lab.brig(["task", "resume", &id]).stderr.contains(&format!("`{new}` went on from it")));
}

#[test]
fn what_goes_on_is_at_the_same_path() {
    let Some(lab) = Lab::root() else { return };
    let Some(work) = Lab::own_path() else { return };
    let path = std::fs::canonicalize(work.path()).unwrap();
    let begin = |words: &[&str]| {
        lab.task().args(["--keep", "--dir"]).args([&path]).args(words).sh("mkdir /workspace/sub").succeeded();
        lab.ids().pop().unwrap()
    };
    for (words, at, start) in [
        (&[] as &[&str], path.to_str().unwrap(), path.to_str().unwrap()),
        (&["--at", "/src/x", "-w", "/tmp"], "/src/x", "/tmp"),
    ] {
        let id = begin(words);
        let run =
            lab.brig(["task", "resume", "--json", &id, "--", "sh", "-c", "pwd; cd /workspace; pwd -P; ls -d sub"]);
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains(&format!("{start}\n{at}\nsub\n")), "{run:#?}");
        assert_eq!(run.receipt()["workspace_at"], at);
    }
}

#[test]
fn what_goes_on_has_its_network_and_its_settings_of_git_and_asks_for_its_secrets() {
    let Some(lab) = Lab::root() else { return };
    let token = lab.file("token", "a-token-that-is-secret\n");
    let source = format!("TOKEN=file:{}", token.display());
    let text = "[git]\nname = \"Some Agent\"\n\n[env]\nOF = \"profile\"\n\n[network]\nmode = \"egress\"\nallow = [\"a.test:8443\"]\n";
    let profile = lab.file("profile.toml", text);
    lab.task().args(["--keep", "--secret", &source, "--profile"]).args([&profile]).sh("true").succeeded();
    let id = lab.ids().remove(0);
    lab.brig(["task", "resume", &id]).refused(125, &["secret `TOKEN`"]);
    // The profile's variable is not needed again, unless the profile has changed.
    lab.file("profile.toml", format!("{text}#\n"));
    lab.brig(["task", "resume", "--secret", &source, &id]).refused(125, &["variable `OF`"]);
    lab.file("profile.toml", text);
    let look = "cat /run/secrets/TOKEN; echo $GIT_CONFIG_VALUE_0 $OF; cat /etc/resolv.conf";
    let run = lab.brig(["task", "resume", "--json", "--secret", &source, &id, "--", "sh", "-c", look]);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("Some Agent profile\n") && run.stderr.contains("nameserver"), "{run:#?}");
    assert!(!run.stderr.contains("a-token-that-is-secret"), "{run:#?}");
    assert!(run.receipt()["egress"].is_object(), "{run:#?}");
}

#[test]
fn a_kill_at_the_moment_at_which_it_changes_hands_loses_no_workspace() {
    const TRIES: usize = 12;
    let Some(lab) = Lab::root() else { return };
    lab.task().args(["--keep"]).sh("echo mine >file; sync").succeeded();
    let mut holder = lab.ids().remove(0);
    let image = |id: &str| lab.store().join("tasks").join(id).join("workspace.img");
    for _ in 0..TRIES {
        let task = lab.start(["task", "resume", &holder, "--", "sleep", "60"]);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while image(&holder).exists() {
            assert!(std::time::Instant::now() < end, "{}", task.output());
        }
        task.signal(rustix::process::Signal::KILL);
        task.finish();
        lab.reap();
        holder = lab.ids().into_iter().find(|id| image(id).exists()).expect("somebody has it");
    }
    let run = lab.brig(["task", "resume", "--json", &holder, "--", "cat", "file"]);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("mine\n"), "{run:#?}");
}

#[test]
fn forks_begin_alike_and_go_apart() {
    let Some(lab) = Lab::root() else { return };
    lab.task().args(["--keep"]).sh("head -c 2M /dev/urandom > data; sha256sum data").succeeded();
    let id = lab.ids().remove(0);
    let sum = logs(&lab, &id);
    let run = lab.brig([
        "task",
        "fork",
        &id,
        "-n",
        "3",
        "--",
        "sh",
        "-c",
        "sha256sum data; ls; echo $$ > own; sleep 0.2; ls",
    ]);
    let forks: Vec<_> = run.succeeded().stdout.lines().map(str::to_owned).collect();
    assert_eq!(forks.len(), 3);
    for fork in &forks {
        assert_eq!(wait(&lab, fork)["outcome"], "succeeded");
        assert_eq!(logs(&lab, fork), format!("{sum}data\ndata\nown\n"));
    }
    // The first workspace is unchanged.
    let run = lab.brig(["task", "resume", "--json", &id, "--", "ls"]);
    assert!(run.succeeded().stderr.ends_with("data\n"), "{run:#?}");
}

#[test]
fn a_variable_that_was_passed_on_is_given_again_as_a_variable() {
    let Some(lab) = Lab::root() else { return };
    lab.task().env("KEY", "secret-value").args(["--keep", "-e", "KEY", "-e", "OTHER=x"]).sh("true").succeeded();
    let id = lab.ids().remove(0);
    let refused = lab.brig(["task", "resume", "-e", "OTHER=x", &id]);
    refused.refused(125, &["its secret `KEY` has no value"]);
    assert!(refused.stderr.contains("from a variable of that name: -e KEY"), "{refused:#?}");
    let words = ["task", "resume", "--json", "-e", "KEY=set", "-e", "OTHER", &id, "--", "sh", "-c", "echo $KEY $OTHER"];
    let run = lab.command(words).env("OTHER", "passed").run([""; 0]);
    assert!(run.ended_as("succeeded", 0).stderr.contains("set"), "{run:#?}");
}

#[test]
fn only_a_failure_is_kept_when_that_was_asked_and_a_crash_is_one() {
    let Some(lab) = Lab::root() else { return };
    lab.task().args(["--keep-on-failure"]).sh("echo x > file").succeeded();
    let id = lab.ids().remove(0);
    lab.brig(["task", "resume", &id]).refused(125, &["nothing was kept"]);
    let task = lab.task().args(["--keep-on-failure"]).start_sh("echo precious > file; echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(rustix::process::Signal::KILL);
    task.finish();
    lab.reap();
    let id = lab.ids().into_iter().find(|each| *each != id).unwrap();
    let run = lab.brig(["task", "resume", "--json", &id, "--", "cat", "file"]);
    assert!(run.succeeded().stderr.contains("precious"), "{run:#?}");
    lab.brig(["task", "prune", "--workspaces", "--keep", "0"]).succeeded();
    for id in lab.ids() {
        lab.brig(["task", "resume", &id]).refused(125, &["nothing was kept"]);
    }
}

#[test]
fn a_paused_task_that_is_resumed_goes_on() {
    let Some(lab) = Lab::root() else { return };
    let task = lab.task().start_sh("while [ ! -e /tmp/go ]; do echo tick; sleep 0.02; done");
    task.wait_for("tick");
    let id = lab.ids().remove(0);
    lab.brig(["task", "pause", &id]).succeeded();
    lab.brig(["task", "resume", &id]).succeeded();
    // Whatever `touch` ends with: the task may see the file and end first.
    eventually("it takes others in", || {
        lab.brig(["task", "exec", &id, "--", "touch", "/tmp/go"]).status == Some(0)
            || !lab.brig(["task", "ls"]).succeeded().stdout.contains("running")
    });
    task.finish().ended_as("succeeded", 0);
}

#[test]
fn a_kept_file_that_cannot_be_removed_costs_no_receipt() {
    let Some(lab) = Lab::root() else { return };
    let task = lab.task().args(["--keep-on-failure"]).start_sh("echo ready; while [ ! -e go ]; do sleep 0.05; done");
    task.wait_for("ready");
    let id = lab.ids().remove(0);
    let note = lab.store().join("tasks").join(&id).join("kept.json");
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir(&note).unwrap();
    // Its status does not matter: the task may end before `touch` does.
    lab.brig(["task", "exec", &id, "--", "touch", "go"]);
    let run = task.finish();
    let receipt = run.receipt();
    assert_eq!((run.status, &receipt["outcome"]), (Some(0), &"succeeded".into()), "{run:#?}");
    assert!(receipt["cleanup"]["left"][0].as_str().unwrap().contains("workspace"), "{receipt:#}");
    let shown = lab.brig(["task", "show", "--json", &id]);
    assert_eq!(serde_json::from_str::<Value>(&shown.succeeded().stdout).unwrap()["outcome"], "succeeded");
    assert!(lab.brig(["task", "ls"]).succeeded().stdout.contains("succeeded"));
}
