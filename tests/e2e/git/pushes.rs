//! Pushes after the first attempt: by a resumed task, and by `brig task push`.

use super::{COMMIT, bare, host, push, task};
use crate::crash::{Random, SEED};
use crate::support::{Lab, Run, eventually};
use serde_json::Value;

fn id(run: &Run) -> String {
    run.receipt()["id"].as_str().unwrap().to_owned()
}

fn shown(lab: &Lab, id: &str) -> Value {
    serde_json::from_str(&lab.brig(["task", "show", "--json", id]).succeeded().stdout).unwrap()
}

#[test]
fn failed_push_is_retried_and_a_second_push_finds_nothing_new() {
    let lab = Lab::new();
    let remote = bare(&lab);
    // An unrelated branch with this name is in the way.
    host(&remote, "git update-ref refs/heads/agent/x $(git commit-tree -m other $(git write-tree))");
    let run = task(&lab, &remote, &["--push-branch", "agent/x"], COMMIT);
    run.ended_as("push_failed", 125);
    let (id, commit) = (id(&run), run.receipt()["commit_out"].as_str().unwrap().to_owned());
    lab.brig(["task", "push", &id]).refused(125, &["commits that the agent's are not based on"]);
    assert_eq!(host(&remote, "git log -1 --format=%s agent/x"), "other", "a push never forces");
    // A retry that cannot take the commits out again leaves their bundle.
    let objects = lab.store().join("tasks").join(&id).join("changes/files/.git/objects");
    std::fs::rename(&objects, objects.with_extension("away")).unwrap();
    lab.brig(["task", "push", &id]).refused(125, &["take the commit"]);
    let bundle = shown(&lab, &id)["push"]["bundle"].as_str().map(str::to_owned);
    host(&remote, &format!("git bundle verify -q {}", bundle.unwrap()));
    std::fs::rename(objects.with_extension("away"), &objects).unwrap();
    host(&remote, "git update-ref -d refs/heads/agent/x");
    let pushed = lab.brig(["task", "push", &id]);
    assert!(pushed.succeeded().stdout.contains(&format!("{commit} is on the branch `agent/x`")), "{pushed:#?}");
    assert_eq!(host(&remote, "git rev-parse agent/x"), commit);
    assert_eq!(shown(&lab, &id)["push"]["state"], "pushed");
    let again = lab.brig(["task", "push", &id]);
    assert!(again.succeeded().stdout.starts_with("nothing new: "), "{again:#?}");
    // Another branch by name; never the default one without its own flag.
    lab.brig(["task", "push", &id, "--push-branch", "agent/y"]).succeeded();
    assert_eq!(host(&remote, "git rev-parse agent/y"), commit);
    lab.brig(["task", "push", &id, "--push-branch", "main"]).refused(125, &["default branch"]);
    let to_main = ["task", "push", &id, "--push-branch", "main", "--push-default-branch"];
    lab.brig(to_main).succeeded();
    assert!(lab.brig(to_main).succeeded().stdout.starts_with("nothing new: "));
    lab.assert_clean();
}

#[test]
fn later_push_goes_to_no_repository_that_took_the_place_of_the_cloned_one() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let id = id(task(&lab, &remote, &[], COMMIT).ended_as("succeeded", 0));
    lab.brig(["task", "push", &id]).refused(125, &["names no branch"]);
    host(lab.path(), "mv remote.git away.git; git clone -q --bare seed remote.git");
    let words = ["task", "push", &id, "--push-branch", "x"];
    lab.brig(words).refused(125, &["another folder than the one that was cloned"]);
    assert_eq!(host(&remote, "git branch --list x"), "");
    // The attack: without the comparison the other repository has the commits.
    lab.weakened("push-identity", words).succeeded();
    assert_ne!(host(&remote, "git branch --list x"), "");
}

#[test]
fn commits_of_a_folder_are_pushed_where_the_caller_says() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let seed = lab.path().join("seed");
    let hostile = "git config core.fsmonitor 'touch /tmp/ran'; git config remote.origin.url ext::false; \
         printf '#!/bin/sh\\ntouch /tmp/ran\\n' > .git/hooks/pre-push; chmod 755 .git/hooks/pre-push";
    let script = format!(
        "git config --global user.name a; git config --global user.email a@b; git config --global safe.directory '*'; \
         git checkout -qb topic; {COMMIT}; {hostile}"
    );
    let run = lab.task().args(["--dir".as_ref(), seed.as_os_str()]).sh(&script);
    let id = id(run.ended_as("succeeded", 0));
    let to = ["--push-to", remote.to_str().unwrap(), "--push-branch", "topic"];
    lab.brig(["task", "push", &id, "--push-branch", "topic"]).refused(125, &["names no repository"]);
    let words = [&["task", "push", &id], &to[..]].concat();
    lab.brig(&words).succeeded();
    assert_eq!(host(&remote, "git rev-parse topic"), run.receipt()["commit_out"].as_str().unwrap());
    assert!(lab.brig(&words).succeeded().stdout.starts_with("nothing new: "));
    let empty = lab.task().sh("true").receipt()["id"].as_str().unwrap().to_owned();
    lab.brig([&["task", "push", &empty], &to[..]].concat()).refused(125, &["workspace was empty"]);
    lab.assert_clean();
}

#[test]
fn killed_push_is_repeated() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let id = id(task(&lab, &remote, &[], COMMIT).ended_as("succeeded", 0));
    let began = std::time::Instant::now();
    lab.brig(["task", "push", &id, "--push-branch", "x0"]).succeeded();
    let (whole, mut random) = (began.elapsed(), Random(SEED));
    for round in 1..=crate::crash::kills(20) {
        let branch = format!("x{round}");
        let words = ["task", "push", &id, "--push-branch", &branch];
        let begun = lab.start(words);
        std::thread::sleep(random.below(whole));
        begun.signal(rustix::process::Signal::KILL);
        begun.finish();
        let mut again = lab.brig(words);
        // A killed git can leave its lock in a repository of this machine. The error names it.
        if again.stderr.contains(&format!("{branch}.lock': File exists")) {
            host(&remote, &format!("rm refs/heads/{branch}.lock"));
            again = lab.brig(words);
        }
        again.succeeded();
        assert_eq!(host(&remote, &format!("git rev-parse {branch}")), host(&remote, "git rev-parse x0"));
    }
    lab.assert_reaped();
}

/// The sandbox has gone, and only the next command can write the receipt.
#[test]
fn work_of_a_supervisor_that_is_killed_while_it_hands_it_back_is_in_the_receipt() {
    let lab = Lab::new();
    let remote = bare(&lab);
    for round in 0.. {
        assert!(round < 20, "each push was faster than the kill");
        let branch = format!("agent/x{round}");
        let begun = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", &branch]);
        let mut begun = begun.start_sh(COMMIT);
        let saved = |id: &String| lab.store().join("tasks").join(id).join("collected.json").exists();
        eventually("the work is collected", || begun.has_ended() || lab.ids().last().is_some_and(saved));
        begun.signal(rustix::process::Signal::KILL);
        begun.finish();
        let id = lab.ids().pop().unwrap();
        let receipt = shown(&lab, &id);
        if receipt["outcome"] != "lost" {
            continue; // it has ended before
        }
        assert_eq!((&receipt["changes"]["added"], &receipt["changes"]["modified"]), (&1.into(), &1.into()));
        assert!(lab.brig(["task", "diff", &id]).succeeded().stdout.contains("+more"));
        lab.brig(["task", "push", &id, "--push-branch", "agent/y"]).succeeded();
        assert_eq!(host(&remote, "git log -1 --format=%s agent/y"), "the agent was here");
        assert!(!lab.store().join("tasks").join(&id).join("collected.json").exists());
        break;
    }
    lab.assert_reaped();
}

#[test]
fn resumed_task_pushes_and_a_fork_does_not() {
    let Some(lab) = Lab::root() else { return };
    let remote = bare(&lab);
    let flags = ["--keep", "--push-branch", "agent/x", "--git-credential", "env:UNUSED"];
    let words = ["--repo".as_ref(), remote.as_os_str()];
    let first = lab.task().env("UNUSED", "of-a-local-repository").args(words).args(flags).sh(COMMIT);
    first.ended_as("succeeded", 0);
    assert_eq!(push(&first)["state"], "pushed");
    let more = "echo third >>file; git commit -qam third";
    let resume = |id: &str, more: &[&str], script: &str| {
        lab.brig([&["task", "resume", "--json", id], more, &["--", "sh", "-c", script]].concat())
    };
    resume(&id(&first), &[], more).refused(125, &["needs a secret for git"]);
    let credential = lab.file("credential", "user:of-a-local-repository\n").display().to_string();
    let credential = ["--git-credential", &format!("file:{credential}")];
    let second = resume(&id(&first), &credential, more);
    second.ended_as("succeeded", 0);
    assert_eq!(push(&second)["state"], "pushed", "{second:#?}");
    assert_eq!(second.receipt()["commit_in"], first.receipt()["commit_in"]);
    assert_eq!(host(&remote, "git log --format=%s agent/x"), "third\nthe agent was here\ntwo\none");
    // The same state once more, without a new commit.
    let third = resume(&id(&second), &credential, "true");
    assert_eq!(push(third.ended_as("succeeded", 0))["state"], "up_to_date");
    let fork = lab.brig(["task", "fork", &id(&third), "--", "sh", "-c", "echo f >>file; git commit -qam fork"]);
    let fork = fork.succeeded().stdout.trim().to_owned();
    lab.brig(["task", "wait", &fork]).succeeded();
    assert_eq!(shown(&lab, &fork)["push"], Value::Null);
    lab.brig(["task", "push", &fork, "--push-branch", "agent/best"]).succeeded();
    assert_eq!(host(&remote, "git log -1 --format=%s agent/best"), "fork");
    lab.assert_clean();
}
