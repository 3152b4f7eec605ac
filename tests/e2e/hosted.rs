//! Hosted mode: the machine's rules at /etc/brig/brig.toml. The path is fixed, so a test shows brig another /etc in a
//! separate mount namespace.

use crate::support::{Lab, Run, Started, Task, eventually, eventually_within, skip};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The host's /etc with these rules.
pub fn etc(lab: &Lab, rules: &str) -> std::path::PathBuf {
    let etc = lab.path().join("etc");
    if !etc.exists() {
        assert!(Command::new("cp").args(["-a", "/etc"]).arg(&etc).status().unwrap().success());
    }
    let store = format!("{HOSTED}store = \"{}\"\n", lab.store().display());
    lab.file("etc/brig/brig.toml", rules.replace(HOSTED, &store));
    etc
}

/// A command in that namespace; its words follow.
pub fn shown(etc: &std::path::Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\""]).arg(etc);
    command
}

/// Runs brig where /etc has these rules.
pub fn brig(lab: &Lab, rules: &str, words: &[&str]) -> Run {
    let began = std::time::Instant::now();
    let mut command = shown(&etc(lab, rules));
    let done =
        command.arg(crate::support::program_under_test()).args(words).env("BRIG_STORE", lab.store()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Run {
        status: done.status.code(),
        signal: None,
        stdout: text(done.stdout),
        stderr: text(done.stderr),
        elapsed: began.elapsed(),
    }
}

/// A lab where that can be done.
fn lab() -> Option<Lab> {
    let lab = Lab::root()?;
    let seen = brig(&lab, "mode = \"open\"\n", &["doctor", "--json"]);
    if seen.stdout.contains("\"mode\"") {
        return Some(lab);
    }
    skip("nothing can be mounted over /etc here");
    None
}

pub const HOSTED: &str = "mode = \"hosted\"\n";

fn run<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&["task", "run"], flags, &["--", "sh", "-c", "echo ran"]].concat()
}

#[test]
fn what_weakens_isolation_is_refused_until_the_operator_switches_it_on_by_name() {
    let Some(lab) = lab() else { return };
    lab.file("work/file", "x\n");
    let work = lab.path().join("work").display().to_string();
    let out = lab.path().join("out").display().to_string();
    let folders = format!("{HOSTED}folders = [\"{}\"]\n", lab.path().display());
    let check = |flags: &[&str], words: &[&str], switched: &str| {
        let refused = brig(&lab, HOSTED, &run(flags));
        refused.refused(125, words);
        assert!(refused.stderr.contains("/etc/brig/brig.toml") && refused.stderr.contains("E-POLICY"), "{refused:#?}");
        assert!(!refused.stdout.contains("ran"), "{refused:#?}");
        brig(&lab, HOSTED, &[&["task", "run", "--explain"], flags].concat()).refused(125, words);
        let allowed = brig(&lab, switched, &run(flags));
        assert!(allowed.status == Some(0) && allowed.stdout.contains("ran"), "{allowed:#?}");
    };
    check(&["--network", "host"], &["hosted mode", "network"], &format!("{HOSTED}allow_network_host = true\n"));
    check(&["--allow-degraded", "swap"], &["--allow-degraded swap"], &format!("{HOSTED}allow_degraded = [\"swap\"]\n"));
    check(&["--dir", &work], &["folder", "work"], &folders);
    check(&["--artifact", "x", "--artifacts-dir", &out], &["folder for artifacts"], &folders);
    check(&["--rootfs", "/"], &["root file system"], &format!("{HOSTED}folders = [\"/\"]\n"));
    brig(&lab, HOSTED, &run(&["--repo", &work])).refused(125, &[]);
    let networks = format!("{HOSTED}networks = [\"127.0.0.1:9\", \"127.0.0.1:53\"]\n");
    check(&["--allow", "127.0.0.1:9"], &["address `127.0.0.1:9`"], &networks);
    check(&["--network", "egress", "--resolver", "127.0.0.1"], &["127.0.0.1:53"], &networks);
    check(&["--learn"], &["--learn"], &format!("{HOSTED}allow_network_open = true\n"));
    let publish = format!("{HOSTED}publish = [\"127.0.0.1:39000-39999\"]\n");
    check(&["--publish", "127.0.0.1:39876:80"], &["port `127.0.0.1:39876`"], &publish);
    let publish = format!("{HOSTED}publish = [\"0.0.0.0:39000-39999\"]\n");
    check(&["--publish", "0.0.0.0:39877:80"], &["port `0.0.0.0:39877`"], &publish);
    let most = format!("{HOSTED}[max]\nmemory = \"500G\"\nwall = \"3650d\"\ncpus = 64\npids = 4000000\n");
    check(&["--memory", "500G"], &["`memory` is 500G", "4G"], &most);
    check(&["--wall", "3650d"], &["`wall`", "2h"], &most);
    check(&["--cpus", "64"], &["`cpus` is 64"], &most);
    check(&["--pids", "4000000"], &["`pids` is 4000000", "1024"], &most);
    // What asks for none of that runs.
    let plain = brig(&lab, HOSTED, &run(&["--json"]));
    plain.ended_as("succeeded", 0);
    assert_eq!(plain.receipt()["guarantee"], "full");
}

#[test]
fn project_file_outside_of_the_operators_folders_is_not_shown() {
    let Some(lab) = lab() else { return };
    let text = "token: hunter2-of-another-user\n";
    let folder = lab.file("private/.brig.toml", text).parent().unwrap().display().to_string();
    for words in [["agent", "claude", "--dir", &folder], ["agent", "trust", "--", &folder]] {
        let refused = brig(&lab, HOSTED, &words);
        refused.refused(125, &["hosted mode", "folder", "private"]);
        assert!(!refused.stderr.contains("hunter2"), "{refused:#?}");
        let allowed = brig(&lab, &format!("{HOSTED}folders = [\"{folder}\"]\n"), &words);
        assert!(allowed.status == Some(125) && allowed.stderr.contains("hunter2"), "{allowed:#?}");
    }
}

#[test]
fn a_repository_at_an_address_of_the_host_is_reached_only_if_the_operator_lists_it() {
    let Some(lab) = lab() else { return };
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let address = server.local_addr().unwrap();
    let fetch = |rules: &str| brig(&lab, rules, &run(&["--repo", &format!("http://{address}/app"), "--wall", "5s"]));
    let refused = fetch(HOSTED);
    refused.refused(125, &["hosted mode", &format!("`{address}`")]);
    assert!(refused.stderr.contains("`networks = "), "{refused:#?}");
    assert!(server.accept().is_err(), "the server was reached");
    // With the operator's rule the server is reached. It does not answer, so the fetch fails later.
    let late = fetch(&format!("{HOSTED}networks = [\"{address}\"]\n"));
    assert!(server.accept().is_ok() && !late.stderr.contains("hosted mode"), "{late:#?}");
}

#[test]
fn only_listed_variables_of_the_caller_reach_a_task() {
    let Some(lab) = lab() else { return };
    let rules = |list: &str| format!("{HOSTED}variables = [{list}]\n");
    for flags in [["--env", "PATH"], ["--secret", "K=env:PATH"]] {
        let refused = brig(&lab, &rules(""), &run(&flags));
        refused.refused(125, &["hosted mode", "`PATH`"]);
        let has_hint = refused.stderr.contains("variables = [\"PATH\"]");
        assert!(has_hint && !refused.stdout.contains("ran"), "{refused:#?}");
        for rules in [rules("\"PATH\""), HOSTED.to_owned()] {
            let allowed = brig(&lab, &rules, &run(&flags));
            assert!(allowed.stdout.contains("ran"), "{allowed:#?}");
        }
    }
    let sleeper = brig(&lab, HOSTED, &["task", "run", "--detach", "--", "sleep", "60"]);
    let id = sleeper.stdout.trim();
    let exec = |list: &str, variable: &str| {
        brig(&lab, &rules(list), &["task", "exec", "--env", variable, id, "--", "sh", "-c", "echo ran"])
    };
    exec("", "PATH").refused(125, &["hosted mode", "`PATH`"]);
    assert!(exec("\"PATH\"", "PATH").stdout.contains("ran") && exec("", "PATH=/usr/bin:/bin").stdout.contains("ran"));
    brig(&lab, HOSTED, &["task", "kill", id]);
}

#[test]
fn a_proxy_of_the_callers_environment_receives_no_events() {
    let Some(lab) = lab() else { return };
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let (asked, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || proxy.incoming().try_for_each(|_| asked.send(())));
    let send = |rules: &str| {
        let mut command = shown(&etc(&lab, rules));
        let words = run(&["--events", "http://127.0.0.1:9/"]);
        command.arg(crate::support::program_under_test()).args(words).env("BRIG_STORE", lab.store());
        command.env("ALL_PROXY", format!("http://{address}")).output().unwrap();
        // Another process sends, also after this one.
        let sender = lab.store().join("tasks").join(lab.ids().pop().unwrap()).join("delivered-0.json");
        let has_tried = || std::fs::read_to_string(&sender).is_ok_and(|text| text.contains("\"error\": \""));
        crate::support::eventually_within(30, "it has tried to send", has_tried);
        seen.try_iter().count()
    };
    assert_eq!(send(&format!("{HOSTED}allow_event_endpoints = true\n")), 0);
    assert!(send("mode = \"open\"\n") > 0, "no guard needed");
}

#[test]
fn a_fork_starts_no_more_tasks_than_the_operator_allows() {
    let Some(lab) = lab() else { return };
    let fork = |rules: &str| brig(&lab, rules, &["task", "fork", "none", "-n", "2"]);
    fork(HOSTED).refused(125, &["hosted mode", "`number` is 2", "1 is the most"]);
    let allowed = fork(&format!("{HOSTED}[max]\nnumber = 2\n"));
    assert!(allowed.stderr.contains("`none`") && !allowed.stderr.contains("hosted mode"), "{allowed:#?}");
}

#[test]
fn a_link_into_an_allowed_folder_leads_nowhere_else() {
    let Some(lab) = lab() else { return };
    lab.directory("allowed");
    lab.directory("private");
    std::os::unix::fs::symlink(lab.path().join("private"), lab.path().join("allowed/link")).unwrap();
    let rules = format!("{HOSTED}folders = [\"{}\"]\n", lab.path().join("allowed").display());
    let at = |name: &str| lab.path().join(name).display().to_string();
    brig(&lab, &rules, &run(&["--dir", &at("allowed")])).succeeded();
    for path in ["allowed/link", "allowed/../private", "private"] {
        brig(&lab, &rules, &run(&["--dir", &at(path)])).refused(125, &["hosted mode"]);
    }
}

#[test]
fn less_isolation_than_the_operator_wants_refuses_and_the_doctor_says_it_before() {
    let Some(lab) = lab() else { return };
    // The root of another user namespace has the rights of an ordinary user.
    let nested = |rules: &str, words: &[&str]| {
        let mut command = shown(&etc(&lab, rules));
        command.args(["unshare", "--user", "--map-root-user"]).arg(crate::support::program_under_test()).args(words);
        command.env("BRIG_STORE", lab.store()).output().unwrap()
    };
    let refused = nested(HOSTED, &["task", "run", "--", "true"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(125) && text.contains("`full` is the least"), "{text}");
    let doctor = nested(HOSTED, &["doctor"]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        told.lines().any(|line| line.starts_with("mode") && line.contains("MISSING") && line.contains("least")),
        "{told}"
    );
    let doctor = brig(&lab, HOSTED, &["doctor"]);
    assert!(
        doctor.stdout.lines().any(|line| line.starts_with("mode") && line.contains("hosted: at least `full`")),
        "{doctor:#?}"
    );
}

#[test]
fn rules_that_cannot_be_believed_refuse_every_task() {
    let Some(lab) = lab() else { return };
    let check = |rules: &str, words: &[&str]| {
        brig(&lab, rules, &run(&[])).refused(125, words);
        let doctor = brig(&lab, rules, &["doctor"]);
        assert!(doctor.status == Some(1) && doctor.stdout.contains("/etc/brig/brig.toml"), "{doctor:#?}");
    };
    check("mode = \"hostd\"\n", &["/etc/brig/brig.toml", "line 1"]);
    check("mode = \"hosted\"\nfoldres = []\n", &["foldres"]);
    check("", &["mode"]);
    let path = lab.file("etc/brig/brig.toml", HOSTED);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    check(HOSTED, &["somebody else than root"]);
}

#[test]
fn no_variable_and_no_flag_names_other_rules() {
    let Some(lab) = lab() else { return };
    let open = lab.file("open.toml", "mode = \"open\"\n").display().to_string();
    for name in ["BRIG_CONFIG", "BRIG_RULES", "BRIG_TOML", "BRIG_ETC", "XDG_CONFIG_HOME", "BRIG_WEAKEN"] {
        let mut command = shown(&etc(&lab, HOSTED));
        command.arg(crate::support::program_under_test()).args(run(&["--network", "host"]));
        let done = command.env("BRIG_STORE", lab.store()).env(name, &open).output().unwrap();
        assert_eq!(done.status.code(), Some(125), "{name}: {done:?}");
    }
}

#[test]
fn the_store_is_the_operators_and_a_default_is_lowered_to_its_ceiling() {
    let Some(lab) = lab() else { return };
    let other = lab.directory("other").display().to_string();
    for words in
        [vec!["task", "run", "--empty", "--store", &other, "--", "true"], vec!["task", "--store", &other, "ls"]]
    {
        brig(&lab, HOSTED, &words).refused(125, &["hosted mode", "store", "operator"]);
    }
    for (named, status) in [(other.as_str(), 125), ("", 0)] {
        let mut command = shown(&etc(&lab, HOSTED));
        command.arg(crate::support::program_under_test()).args(["task", "ls"]).env("BRIG_STORE", named);
        assert_eq!(command.output().unwrap().status.code(), Some(status), "BRIG_STORE={named}");
    }
    let rules = format!("{HOSTED}[max]\nmemory = \"64M\"\n");
    let lowered = brig(&lab, &rules, &run(&["--json"]));
    lowered.ended_as("succeeded", 0);
    let id = lowered.receipt()["id"].as_str().unwrap().to_owned();
    let record = std::fs::read_to_string(lab.store().join("tasks").join(&id).join("record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["limits"]["memory"], 64 << 20);
    brig(&lab, HOSTED, &["task", "cp", &format!("{id}:x"), &other]).refused(125, &["hosted mode", "`cp`"]);
    brig(&lab, HOSTED, &["task", "export", &id, "--patch", "-o", "/tmp/none"])
        .refused(125, &["hosted mode", "`export -o`"]);
    brig(&lab, HOSTED, &run(&["--image", "127.0.0.1:1/none"])).refused(125, &["hosted mode", "`127.0.0.1:1`"]);
}

/// A lab with the listed folder `allowed` and the unlisted folder `private`.
fn folders() -> Option<(Lab, String)> {
    let lab = lab()?;
    lab.directory("allowed");
    lab.directory("private");
    let rules = format!("{HOSTED}folders = [\"{}\"]\n", lab.path().join("allowed").display());
    Some((lab, rules))
}

/// Begins a task of the weakened build under these rules, with this protection switched off.
pub fn weakened<'lab>(lab: &'lab Lab, rules: &str, protection: &str) -> Task<'lab> {
    task(lab, rules, false).weakened(protection)
}

/// `brig task run` under these rules; the weakened build opens paths by their names.
fn task<'lab>(lab: &'lab Lab, rules: &str, is_weakened: bool) -> Task<'lab> {
    let etc = etc(lab, rules);
    let words = ["unshare", "-m", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\""];
    let task = lab.task();
    let task = if is_weakened { task.weakened("pinned-paths,push-identity") } else { task };
    task.by(words.iter().map(|word| word.to_string()).chain([etc.display().to_string()]))
}

/// Exchanges the two names.
fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

/// Replaces `path`, whose tree moves away, by a link to `private`.
fn lead_away(lab: &Lab, path: &Path) -> PathBuf {
    let moved = path.with_extension("moved");
    std::fs::rename(path, &moved).unwrap();
    std::os::unix::fs::symlink(lab.path().join("private"), path).unwrap();
    moved
}

#[test]
fn a_folder_that_is_exchanged_for_a_link_shows_nothing_else() {
    let Some((lab, rules)) = folders() else { return };
    lab.file("allowed/a/own", "own\n");
    lab.file("private/secret", "root's\n");
    let (folder, link) = (lab.path().join("allowed/a"), lab.path().join("allowed/link"));
    std::os::unix::fs::symlink(lab.path().join("private"), &link).unwrap();
    // Whether one of the starts showed the file behind the link, within the time.
    let shown = |is_weakened: bool, starts: usize, time: Duration| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    exchange(&folder, &link);
                }
            });
            let began = Instant::now();
            let any = (0..starts).take_while(|_| began.elapsed() < time).any(|_| {
                let mount = ["--mount".to_owned(), format!("{}:/x", folder.display())];
                let run = task(&lab, &rules, is_weakened)
                    .args(["--dir".as_ref(), folder.as_os_str()])
                    .args(mount.iter().filter(|_| !is_weakened))
                    .plain()
                    .sh("cat secret own /x/secret /x/own");
                run.stdout.contains("root's")
            });
            is_over.store(true, Ordering::Relaxed);
            any
        })
    };
    assert!(!shown(false, 200, Duration::from_secs(10)));
    assert!(shown(true, 1000, Duration::from_secs(60)), "the weakened build shows it");
}

/// Starts a script that goes on when it finds the file `go` that the test has put, and waits until it runs.
fn started(task: Task<'_>, events: &Path, script: &str) -> Started {
    let started = task.args(["--events".as_ref(), events.as_os_str()]).start_sh(&format!("sleep 3; {script}"));
    eventually("the events begin", || std::fs::read_to_string(events).is_ok_and(|text| text.contains("running")));
    started
}

#[test]
fn artifacts_and_events_go_to_the_folders_that_were_checked() {
    let Some((lab, rules)) = folders() else { return };
    for is_weakened in [false, true] {
        let name = if is_weakened { "weakened" } else { "whole" };
        let at = |below: &str| lab.path().join("allowed").join(name).join(below);
        std::fs::create_dir_all(at("out")).unwrap();
        std::fs::create_dir_all(at("events")).unwrap();
        let task = task(&lab, &rules, is_weakened)
            .args(["--artifact", "made", "--artifacts-dir"])
            .args([at("out/new").as_os_str()]);
        let run = started(task, &at("events/log"), "echo agent >made");
        let (out, events) = (lead_away(&lab, &at("out")), lead_away(&lab, &at("events")));
        run.finish().ended_as("succeeded", 0);
        let private: Vec<_> =
            std::fs::read_dir(lab.path().join("private")).unwrap().flatten().map(|it| it.file_name()).collect();
        if is_weakened {
            assert!(
                lab.path().join("private/new/made").exists() && lab.path().join("private/log").exists(),
                "{private:?}"
            );
        } else {
            assert!(private.is_empty(), "{private:?}");
            assert!(out.join("new/made").exists());
            eventually("the last event", || {
                std::fs::read_to_string(events.join("log")).is_ok_and(|text| text.contains("ended"))
            });
        }
    }
}

#[test]
fn commits_go_to_the_repository_that_was_checked() {
    let Some((lab, rules)) = folders() else { return };
    lab.file("private/kept", "");
    for is_weakened in [false, true] {
        let name = if is_weakened { "weakened" } else { "whole" };
        let folder = lab.directory(&format!("allowed/{name}"));
        let script = "git init -q -b main one && cd one && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m one && \
            git switch -q -c other && cd .. && git clone -q --bare one mine.git && git clone -q --bare one other.git";
        assert!(Command::new("sh").args(["-ec", script]).current_dir(&folder).status().unwrap().success());
        let (mine, other) = (folder.join("mine.git"), folder.join("other.git"));
        let task =
            task(&lab, &rules, is_weakened).args(["--push-branch", "agent/x", "--repo"]).args([mine.as_os_str()]);
        let run = started(task, &folder.join("log"), "git commit -q --allow-empty -m agent");
        exchange(&mine, &other);
        run.finish().ended_as("succeeded", 0);
        let has = |repository: &Path| {
            let branch = ["rev-parse", "--verify", "-q", "refs/heads/agent/x"];
            Command::new("git").arg("-C").arg(repository).args(branch).output().unwrap().status.success()
        };
        // `mine` has the other's name now.
        assert_eq!((has(&other), has(&mine)), (!is_weakened, is_weakened), "{name}");
    }
}

/// The rules are about the folder, and its `.git` names another one.
#[test]
fn a_worktree_is_no_repository() {
    let Some((lab, rules)) = folders() else { return };
    let folder = lab.directory("allowed/trees");
    let script = "git init -q -b main ../../private/main; cd ../../private/main; \
        git -c user.name=t -c user.email=t@t commit -q --allow-empty -m one; git worktree add -q ../../allowed/trees/side";
    assert!(Command::new("sh").args(["-ec", script]).current_dir(&folder).status().unwrap().success());
    let tree = folder.join("side");
    let run = task(&lab, &rules, false).args(["--repo".as_ref(), tree.as_os_str()]).sh("git log");
    let message = run.ended_as("prepare_failed", 125).receipt()["error"]["message"].to_string();
    assert!(message.contains("names a repository elsewhere"), "{message}");
}

#[test]
fn commits_of_a_folder_that_became_a_link_are_not_exported() {
    let Some((lab, rules)) = folders() else { return };
    let script = "git init -q -b main a; cd a; git -c user.name=t -c user.email=t@t commit -q --allow-empty -m one; cd ..; cp -a a ../private/a";
    assert!(
        Command::new("sh").args(["-ec", script]).current_dir(lab.path().join("allowed")).status().unwrap().success()
    );
    let folder = lab.path().join("allowed/a");
    let commit = "git -c safe.directory='*' -c user.name=a -c user.email=a@b commit -q --allow-empty -m agent";
    task(&lab, &rules, false).args(["--dir".as_ref(), folder.as_os_str()]).sh(commit).ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let moved = folder.with_extension("moved");
    std::fs::rename(&folder, &moved).unwrap();
    std::os::unix::fs::symlink(lab.path().join("private/a"), &folder).unwrap();
    let export = || brig(&lab, &rules, &["task", "export", &id, "--bundle"]);
    export().refused(125, &["hosted mode", "folder"]);
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&moved, &folder).unwrap();
    assert_eq!(export().status, Some(0));
}

#[test]
fn the_base_of_a_file_is_read_from_the_folder_that_was_checked() {
    let Some((lab, rules)) = folders() else { return };
    let rest = "x\n".repeat(600_000); // too long for a copy: it is read from the repository
    for name in ["a", "b"] {
        let folder = lab.file(&format!("allowed/{name}/file"), format!("{name}\n2\n3\n{rest}"));
        let script = "sleep 1.1; git init -q; git add file";
        let done = Command::new("sh").args(["-ec", script]).current_dir(folder.parent().unwrap()).status();
        assert!(done.unwrap().success());
    }
    let (folder, other) = (lab.path().join("allowed/a"), lab.path().join("allowed/b"));
    let task = task(&lab, &rules, false).args(["--dir"]).args([folder.as_os_str()]);
    let events = lab.path().join("allowed/events");
    let run = started(task, &events, "sed -i s/3/three/ file");
    eventually_within(40, "an event of the usage", || {
        std::fs::read_to_string(&events).is_ok_and(|text| text.contains("usage"))
    });
    std::thread::sleep(Duration::from_millis(1500));
    lab.file("allowed/a/file", format!("a\ntwo\n3\n{rest}"));
    exchange(&folder, &other);
    run.finish().ended_as("succeeded", 0);
    let diff = lab.brig(["task", "diff", &lab.ids().pop().unwrap()]);
    // The agent started after the user's edit and has both: without the base, the patch would have only its own.
    let has_both = diff.succeeded().stdout.contains(" a\n-2\n-3\n+two\n+three\n");
    assert!(has_both, "{:?}", diff.stdout.lines().take(20).collect::<Vec<_>>());
}

#[test]
fn a_profile_is_in_a_folder_of_the_list_and_no_error_shows_its_text() {
    let Some((lab, rules)) = folders() else { return };
    let profile = |path: &Path| brig(&lab, &rules, &run(&["--profile", &path.display().to_string()]));
    let outside = lab.file("private/profile", "hunter2 = 1\n");
    let link = lab.path().join("allowed/link");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    for path in [&outside, &link, Path::new("/etc/shadow")] {
        profile(path).refused(125, &["hosted mode", "profile", "folder"]);
    }
    let wrong = profile(&lab.file("allowed/wrong", "hunter2 = 1\n"));
    wrong.refused(125, &["not a valid profile"]);
    assert!(!wrong.stderr.contains("hunter2"), "{wrong:#?}");
    profile(&lab.file("allowed/good", "canary = false\n")).succeeded();
    // Outside hosted mode the caller reads what it may read.
    brig(&lab, "mode = \"open\"\n", &run(&["--profile", &outside.display().to_string()])).refused(125, &["hunter2"]);
}

#[test]
fn the_callers_certificates_are_not_read() {
    let Some((lab, rules)) = folders() else { return };
    let Ok(all) = std::fs::read_to_string("/etc/ssl/certs/ca-certificates.crt") else {
        return skip("needs the machine's certificates");
    };
    let one = all.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let chosen = lab.file("private/pair.pem", format!("{one}{key}"));
    let profile = lab.file("allowed/profile", "[secrets.K]\nsource = \"env:K\"\nhost = \"api.example.com\"\n");
    let shown = |rules: &str| {
        let task = task(&lab, rules, false).env("SSL_CERT_FILE", &chosen).env("K", "correct-horse-battery");
        let run = task.args(["--profile".as_ref(), profile.as_os_str()]).plain().sh("cat $SSL_CERT_FILE");
        assert!(run.status == Some(0) && !run.stdout.contains("PRIVATE KEY"), "{run:#?}");
        run.stdout.matches("BEGIN CERTIFICATE").count()
    };
    // With the broker's own.
    assert_eq!(shown("mode = \"open\"\n"), 2);
    assert!(shown(&rules) > 2, "the caller's file took the place of the machine's");
}

#[test]
fn the_callers_known_hosts_are_in_a_folder_of_the_list_and_no_link_leads_out() {
    let Some((lab, rules)) = folders() else { return };
    // Not the operator's file: the caller chooses HOME.
    let run = |home: &Path| {
        let url = "ssh://git@127.0.0.1:1/app.git";
        let networks = format!("{rules}networks = [\"127.0.0.1:1\"]\n");
        task(&lab, &networks, false).env("HOME", home).args(["--repo", url]).sh("echo ran")
    };
    lab.file("private/.ssh/known_hosts", "# no host\n");
    run(&lab.path().join("private")).refused(125, &["file about a remote", ".ssh/known_hosts"]);
    let allowed = lab.path().join("allowed/home");
    std::fs::create_dir_all(allowed.join(".ssh")).unwrap();
    let link = allowed.join(".ssh/known_hosts");
    std::os::unix::fs::symlink(lab.path().join("private/.ssh/known_hosts"), &link).unwrap();
    run(&allowed).refused(125, &["file about a remote", ".ssh/known_hosts"]);
    std::fs::remove_file(&link).unwrap();
    lab.file("allowed/home/.ssh/known_hosts", "# no host\n");
    let run = run(&allowed);
    assert!(run.status == Some(125) && !run.stderr.contains("file about a remote"), "{run:#?}");
}

#[test]
fn mounts_are_below_the_operators_folders_and_write_only_where_the_operator_allows_it() {
    let Some((lab, rules)) = folders() else { return };
    lab.file("allowed/data/file", "of the operator\n");
    lab.file("allowed/shared/file", "shared\n");
    lab.file("private/secret", "root's\n");
    let at = |name: &str| lab.path().join(name).display().to_string();
    std::os::unix::fs::symlink(at("private"), at("allowed/link")).unwrap();
    std::os::unix::fs::symlink(at("allowed/data"), at("allowed/shared/out")).unwrap();
    let mount = |rules: &str, name: &str, rest: &str| {
        task(&lab, rules, false).args(["--mount", &format!("{}:{rest}", at(name))]).sh("cat /x/*; echo agent > /x/new")
    };
    let run = mount(&rules, "allowed/data", "/x");
    assert!(run.stderr.contains("of the operator") && run.stderr.contains("Read-only"), "{run:#?}");
    for name in ["private", "allowed/link", "allowed/../private"] {
        mount(&rules, name, "/x").refused(125, &["hosted mode", "source of a mount"]);
    }
    mount(&rules, "allowed/shared", "/x:rw").refused(125, &["hosted mode", "would write"]);
    let writable = format!("{rules}writable_folders = [\"{}\"]\n", at("allowed/shared"));
    for name in ["allowed/data", "allowed/shared/out", "allowed"] {
        mount(&writable, name, "/x:rw").refused(125, &["hosted mode", "would write"]);
    }
    assert!(!lab.path().join("allowed/data/new").exists());
    mount(&writable, "allowed/shared", "/x:rw").ended_as("succeeded", 0);
    assert_eq!(std::fs::read_to_string(at("allowed/shared/new")).unwrap(), "agent\n");
    // The weakened build writes where the operator has not allowed it.
    let mount = format!("{}:/x:rw", at("allowed/data"));
    weakened(&lab, &rules, "writable-folders")
        .args(["--mount", &mount])
        .sh("echo agent > /x/new")
        .ended_as("succeeded", 0);
    assert!(lab.path().join("allowed/data/new").exists());
}

#[test]
fn a_resumed_task_has_no_more_than_the_ceilings() {
    let Some(lab) = lab() else { return };
    let rules = format!("{HOSTED}[max]\nmemory = \"2G\"\ndisk = \"11G\"\n");
    let keep = ["task", "run", "--keep", "--memory", "1G", "--", "true"];
    assert_eq!(brig(&lab, &rules, &keep).status, Some(0));
    let id = lab.ids().remove(0);
    brig(&lab, &rules, &["task", "resume", "--memory", "3G", &id]).refused(125, &["hosted mode", "memory"]);
    brig(&lab, &rules, &["task", "resume", "--disk", "12G", &id]).refused(125, &["hosted mode", "disk"]);
    assert_eq!(lab.ids().len(), 1, "nothing was begun");
    let run = brig(&lab, &rules, &["task", "resume", "--memory", "2G", "--json", &id]);
    assert_eq!(run.receipt()["limits"]["memory"], 2_u64 << 30, "{run:#?}");
}
