//! One story from its start to its end. An agent in an image works on a clone, asks for input and goes on with more
//! memory. It is forked from a checkpoint, and the best attempt is pushed.

use super::{bare, host};
use crate::support::{Image, Lab, eventually, has_program};
use serde_json::Value;

#[test]
fn task_asks_goes_on_with_more_memory_is_forked_and_the_best_is_pushed() {
    let Some(lab) = Lab::root() else { return };
    if !has_program("git") {
        return;
    }
    let remote = bare(&lab);
    Image::new(&lab, "agent").packages(&["git", "coreutils", "dash"]).load();
    let profile =
        lab.file("agent.toml", "[exit_codes]\nneeds_input = [9]\n[git]\nname = \"agent\"\nemail = \"a@b.test\"\n");
    let profile = profile.to_str().unwrap();
    let receipt =
        |id: &str| -> Value { serde_json::from_str(&lab.brig(["task", "wait", "--json", id]).stdout).unwrap() };
    let git = "git config --global --add safe.directory '*'";
    // It works, tries what its memory does not allow, leaves a session in its home and a tool in the root, and asks.
    let big = "head -c 150M /dev/zero | tail -c 150M > /dev/null";
    let work = format!(
        "{git}; echo 1 > step; git add step; git commit -qm first; echo session > ~/session; echo tool > /tool; exit 9"
    );
    let words = ["--keep", "--name", "agent", "--memory", "64M", "--push-branch", "agent/best", "--profile", profile];
    let image = ["--image", "agent:1", "--pull", "never", "--user", "root", "--root-inside"];
    let run = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(words).args(image).sh(&work);
    assert_eq!(run.outcome(), "needs_input", "{run:#?}");
    let weak = lab.brig(["task", "resume", "--json", "agent", "--", "sh", "-c", big]);
    assert_eq!(weak.outcome(), "memory", "{weak:#?}");
    // Answered, and with more memory. The name leads to the newest of the line.
    let on = format!("{big}; cat ~/session /tool; echo 2 > step; git commit -qam second; echo ready; sleep 300");
    let id = lab.brig(["task", "resume", "-d", "--memory", "512M", "agent", "--", "sh", "-c", &on]);
    let id = id.succeeded().stdout.trim().to_owned();
    eventually("it goes on where it was", || lab.brig(["task", "logs", &id]).stdout.contains("session\ntool\nready\n"));
    assert_eq!(lab.brig(["task", "checkpoint", "agent", "half"]).succeeded().stdout, "half\n");
    // Four attempts from there. Each writes its score.
    let attempt = "n=$(od -An -N2 -tu2 /dev/urandom | tr -d ' '); echo $n > step; git commit -qam attempt-$n; \
                   mkdir -p .brig; echo \"{\\\"score\\\": $n}\" > .brig/result.json";
    let forks = lab.brig(["task", "fork", "agent", "--from", "half", "-n", "4", "--", "sh", "-ec", attempt]);
    let forks: Vec<_> = forks.succeeded().stdout.lines().map(str::to_owned).collect();
    let ended: Vec<_> = forks.iter().map(|id| (receipt(id), id)).collect();
    assert!(ended.len() == 4 && ended.iter().all(|(ended, _)| ended["outcome"] == "succeeded"), "{ended:#?}");
    let score = |ended: &Value| ended["result"]["value"]["score"].as_u64().unwrap();
    let (best, best_id) = ended.iter().max_by_key(|(ended, _)| score(ended)).unwrap();
    lab.brig(["task", "stop", "agent"]).succeeded();
    lab.brig(["task", "push", best_id, "--push-branch", "agent/best"]).succeeded();
    let log = host(&remote, "git log --format=%s agent/best");
    assert_eq!(log, format!("attempt-{}\nsecond\nfirst\ntwo\none", score(best)));
    // What is in between is not lost, and all of it can be given up.
    lab.brig(["task", "rollback", &id, "half", "--", "sh", "-c", "test $(cat step) = 2"]).succeeded();
    for each in lab.ids() {
        lab.brig(["task", "wait", &each]);
        lab.brig(["task", "discard", &each]).succeeded();
    }
    lab.assert_clean();
}
