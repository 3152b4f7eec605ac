//! Kept tasks of an ordinary user, whose files are in memory: saved at the end, and put back into a new sandbox.

use crate::crash::{Random, SEED};
use crate::support::{Image, Lab, Run};
use rustix::process::Signal;
use std::time::Instant;

fn id(run: &Run) -> String {
    run.receipt()["id"].as_str().unwrap().to_owned()
}

fn resume(lab: &Lab, id: &str, script: &str) -> Run {
    lab.brig(["task", "resume", "--json", id, "--", "sh", "-c", script])
}

#[test]
fn files_in_memory_go_on_in_a_new_sandbox() {
    let Some(lab) = Lab::user() else { return };
    let work = lab.file("work/base", "of the user\n");
    let work = work.parent().unwrap();
    lab.file("work/gone", "");
    lab.file("work/lower/old", "");
    let script = "echo changed >> base; rm gone; rm -r lower; mkdir lower; echo new > lower/new; ln -s /etc/passwd link; \
         echo x > closed; chmod 000 closed; mkdir shut; echo in > shut/in; chmod 500 shut; ln base second; \
         truncate -s 1G holes; echo end >> holes; chmod 750 lower; \
         echo session > ~/session; mkdir -p ~/.deep/er; echo x > /tmp/mine; exit 1";
    let task = lab.task().args(["--dir".as_ref(), work.as_os_str()]).args(["--keep-on-failure"]);
    let first = id(task.sh(script).ended_as("failed", 1));
    let look = "cat base second lower/new shut/in ~/session; ls; ls lower /tmp; readlink link; ls -d ~/.deep/er; \
         stat -c '%a %h %U %n' base closed shut lower; stat -c %s holes; tail -c 4 holes; du -k holes | cut -f1";
    let run = resume(&lab, &first, look);
    let expected = "of the user\nchanged\nof the user\nchanged\nnew\nin\nsession\nbase\nclosed\nholes\nlink\nlower\nsecond\nshut\n\
         /tmp:\n\nlower:\nnew\n/etc/passwd\n/home/agent/.deep/er\n";
    let all = run.ended_as("succeeded", 0).stderr.replace("lower:\nnew\n\n/tmp:\n", "/tmp:\n\nlower:\nnew\n");
    assert!(all.contains(expected), "{expected}: {run:#?}");
    for line in ["0 1 agent closed", "644 2 agent base", "750 2 agent lower", "1073741828", "end"] {
        assert!(run.stderr.lines().any(|each| each == line), "{line}: {run:#?}");
    }
    let blocks: u64 = run.stderr.lines().last().unwrap().parse().unwrap();
    assert!(blocks < 1024, "the hole takes {blocks} KiB");
    lab.brig(["task", "resume", &first]).refused(125, &["nothing was kept"]);
    // The second task goes on too, and so do forks of it, each with its own files.
    let second = id(&run);
    let third = resume(&lab, &second, "echo third > own; cat base");
    assert!(third.ended_as("succeeded", 0).stderr.contains("changed"), "{third:#?}");
    let forks =
        lab.brig(["task", "fork", &id(&third), "-n", "2", "--", "sh", "-c", "cat own; echo fork > own; ls gone"]);
    for fork in forks.succeeded().stdout.lines() {
        lab.brig(["task", "wait", fork]);
        assert!(lab.brig(["task", "logs", fork]).succeeded().stdout.starts_with("third\n"));
        assert!(resume(&lab, fork, "cat own").ended_as("succeeded", 0).stderr.contains("fork\n"));
    }
    let diff = lab.brig(["task", "diff", &id(&third)]);
    for words in ["+changed", "gone", "lower/new"] {
        assert!(diff.succeeded().stdout.contains(words), "{words}: {diff:#?}");
    }
    assert_eq!(std::fs::read_to_string(work.join("base")).unwrap(), "of the user\n");
    lab.brig(["task", "discard", &id(&third)]).succeeded();
    lab.assert_clean();
}

#[test]
fn root_of_an_image_goes_on_from_memory() {
    let Some(lab) = Lab::user() else { return };
    Image::new(&lab, "kept").file("opt/tool/old", "one\n", 0o644).load();
    let script = "echo new > /etc/new; rm /etc/group; rm -r /opt/tool; mkdir /opt/tool; echo n > /opt/tool/new; echo s > ~/session";
    let task = lab.task().args(["--pull", "never", "--image", "kept:1", "--user", "root", "--keep"]);
    let first = id(task.sh(script).ended_as("succeeded", 0));
    lab.brig(["image", "rm", "kept:1"]).succeeded();
    assert!(lab.brig(["image", "prune"]).succeeded().stdout.contains("in use"));
    let run = resume(&lab, &first, "cat /etc/new ~/session; ls /opt/tool; ls /etc/group 2>&1 | grep -c such");
    assert!(run.ended_as("succeeded", 0).stderr.contains("new\ns\nnew\n1\n"), "{run:#?}");
    lab.assert_clean();
}

#[test]
fn kill_loses_no_more_than_the_running_attempt() {
    let Some(lab) = Lab::user() else { return };
    let task = lab.task().args(["--keep"]).start_sh("echo lost > file; echo ready; sleep 300");
    task.wait_for("ready");
    task.signal(Signal::KILL);
    task.finish();
    lab.reap();
    lab.brig(["task", "resume", &lab.ids()[0]]).refused(125, &["nothing was kept"]);
    let script = "head -c 4M /dev/urandom > data; sha256sum data > sum";
    let mut holder = id(lab.task().args(["--keep"]).sh(script).ended_as("succeeded", 0));
    let began = Instant::now();
    holder = id(&resume(&lab, &holder, "sha256sum -c sum"));
    let (whole, mut random) = (began.elapsed(), Random(SEED));
    let image = |id: &str| lab.store().join("tasks").join(id).join("workspace.img");
    for _ in 0..crate::crash::kills(20) {
        let begun = lab.start(["task", "resume", &holder, "--", "sha256sum", "-c", "sum"]);
        std::thread::sleep(random.below(whole));
        begun.signal(Signal::KILL);
        begun.finish();
        lab.reap();
        if !image(&holder).exists() {
            holder = lab.ids().into_iter().find(|id| image(id).exists()).expect("a task has the files");
        }
    }
    resume(&lab, &holder, "sha256sum -c sum").ended_as("succeeded", 0);
    lab.assert_clean();
}
