//! `--volume`, `--cache`, `--home` and `brig volume`: files that outlive tasks.

use crate::crash::{Random, SEED, kills};
use crate::hosted;
use crate::support::{Image, Lab, Run, Task, eventually};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

fn with<'lab>(lab: &'lab Lab, words: &[&str]) -> Task<'lab> {
    lab.task().args(words)
}

fn fill(lab: &Lab, name: &str, script: &str) -> Run {
    lab.brig(["volume", "fill", name, "--json", "--", "sh", "-c", script])
}

fn show(lab: &Lab, name: &str) -> Value {
    serde_json::from_str(&lab.brig(["volume", "show", name, "--json"]).succeeded().stdout).unwrap()
}

/// What a task reads of the volume.
fn content(lab: &Lab, name: &str, file: &str) -> String {
    let run = with(lab, &["--volume", &format!("{name}:/v:ro")]).run(["cat", &format!("/v/{file}")]);
    run.ended_as("succeeded", 0).stderr.clone()
}

#[test]
fn files_of_a_volume_outlive_their_task_and_have_its_user() {
    let lab = Lab::new();
    let run = with(&lab, &["--volume", "data:/srv/data"])
        .sh("echo one > /srv/data/file; mkdir /srv/data/sub; grep -c '/srv/data rw,nosuid,nodev' /proc/self/mountinfo");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "1\n");
    let receipt = run.receipt();
    assert_eq!((&receipt["volumes"][0]["name"], &receipt["volumes"][0]["access"]), (&"data".into(), &"rw".into()));
    // Another task has another range of ids.
    let run = with(&lab, &["--volume", "data:/other"])
        .sh("cd /other; stat -c '%u %g %n' . file sub; echo two >> file; chmod 600 file; cat file");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "1000 1000 .\n1000 1000 file\n1000 1000 sub\none\ntwo\n");
    let run = with(&lab, &["--volume", "data:/v:ro"]).sh("cat /v/file; touch /v/new; echo x >> /v/file");
    assert_eq!(run.stderr.matches("Read-only file system").count(), 2, "{run:#?}");
    assert!(run.stderr.starts_with("one\ntwo\n"), "{run:#?}");
    let row = show(&lab, "data");
    assert!(row["filled"] == true && row["used_by"].as_array().unwrap().is_empty(), "{row}");
}

#[test]
fn one_task_writes_a_volume_or_many_read_it() {
    let lab = Lab::new();
    with(&lab, &["--volume", "data:/v"]).sh("echo one > /v/file").ended_as("succeeded", 0);
    let writer = with(&lab, &["--volume", "data:/v", "--name", "writer"]).start_sh("echo begun; sleep 60");
    writer.wait_for("begun");
    let id = lab.ids().pop().unwrap();
    for words in [["--volume", "data:/v"], ["--volume", "data:/v:ro"], ["--cache", "data:/v"], ["--home", "data"]] {
        let run = with(&lab, &words).plain().run(["true"]);
        run.refused(125, &["use the volume `data`", "in use by the task", &id]);
        assert!(run.stderr.contains(&format!("brig task stop {id}")), "{run:#?}");
    }
    lab.brig(["volume", "rm", "data"]).refused(125, &["in use by the task", &id]);
    lab.brig(["volume", "fill", "data", "--", "true"]).refused(125, &["in use by the task", &id]);
    assert_eq!(show(&lab, "data")["used_by"][0]["access"], "rw");
    lab.brig(["task", "kill", "writer"]).succeeded();
    writer.finish();
    // Its mount ends a moment after the task: the next one waits for it.
    let readers: Vec<_> = ["--volume=data:/v:ro", "--cache=data:/v", "--volume=data:/v:ro"]
        .map(|word| with(&lab, &[word]).start_sh("cat /v/file; echo begun; sleep 60"))
        .into();
    readers.iter().for_each(|reader| reader.wait_for("begun"));
    assert_eq!(show(&lab, "data")["used_by"].as_array().unwrap().len(), 3);
    with(&lab, &["--volume", "data:/v"]).plain().run(["true"]).refused(125, &["in use by the tasks"]);
    readers.iter().for_each(|reader| reader.signal(Signal::TERM));
    readers.into_iter().for_each(|reader| drop(reader.finish()));
    // On a build without the lock a second writer is let in.
    let writer = with(&lab, &["--volume", "data:/v"]).weakened("volume-lock").start_sh("echo begun; sleep 60");
    writer.wait_for("begun");
    with(&lab, &["--volume", "data:/v"]).weakened("volume-lock").run(["true"]).ended_as("succeeded", 0);
    writer.signal(Signal::TERM);
    writer.finish();
}

#[test]
fn a_volume_has_caps_of_its_own() {
    let lab = Lab::new();
    lab.brig(["volume", "create", "small", "--size", "32M", "--inodes", "200"]).succeeded();
    let row = show(&lab, "small");
    assert_eq!((&row["bytes"], &row["inodes"], &row["filled"]), (&(32 << 20).into(), &200.into(), &false.into()));
    let run = with(&lab, &["--volume", "small:/v"]).sh(
        "dd if=/dev/zero of=/v/large bs=1M count=64 2>&1 | grep -o 'No space left'; stat -c %s /v/large; rm /v/large; \
         n=0; while true > /v/$n; do n=$((n + 1)); done 2> /dev/null; echo files $n; dd if=/dev/zero of=/tmp/other bs=1M count=40 2> /dev/null && echo own disk",
    );
    let out = &run.ended_as("succeeded", 0).stderr;
    let lines: Vec<_> = out.lines().collect();
    let [full, bytes, files, other] = lines[..] else { panic!("{run:#?}") };
    assert_eq!((full, other), ("No space left", "own disk"));
    let number = |text: &str| text.trim_start_matches("files ").parse::<u64>().unwrap();
    assert!((28 << 20..=32 << 20).contains(&number(bytes)), "{out}");
    assert!((150..=200).contains(&number(files)), "{out}");
    for (flag, value) in [("--size", "1M"), ("--inodes", "3"), ("--size", "100P")] {
        lab.brig(["volume", "create", "other", flag, value]).refused(125, &["a volume cannot have"]);
    }
    assert!(!lab.store().join("volumes/other").exists());
}

#[test]
fn a_new_volume_begins_with_the_images_files_at_its_target() {
    let Some(lab) = Lab::root() else { return };
    let mut image = Image::new(&lab, "tool");
    let below = image.layer("--owner=0 --group=0");
    std::fs::create_dir_all(below.join("srv/data/sub")).unwrap();
    std::fs::write(below.join("srv/data/sub/kept"), "kept\n").unwrap();
    std::fs::write(below.join("srv/data/removed"), "removed\n").unwrap();
    let above = image.layer("--owner=1001 --group=1002");
    std::fs::create_dir_all(above.join("srv/data")).unwrap();
    std::fs::write(above.join("srv/data/.wh.removed"), "").unwrap();
    std::fs::write(above.join("srv/data/own"), "own\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", above.join("srv/data/link")).unwrap();
    image.load();
    let words = ["--image", "tool:1", "--user", "me", "--volume", "data:/srv/data"];
    let script = "cd /srv/data && find . | while read f; do stat -c '%u %g %n' $f; done";
    let run = with(&lab, &words).sh(&format!("{script}; cat sub/kept own; echo new > new; rm sub/kept own"));
    let mut owners: Vec<_> = run.stderr.lines().collect();
    owners.sort_unstable();
    let expected = ["0 0 ./sub", "0 0 ./sub/kept", "1001 1002 .", "1001 1002 ./link", "1001 1002 ./own", "kept", "own"];
    assert!(owners[..7] == expected && run.stderr.contains("sub/kept"), "{run:#?}");
    // Only once: what a task removed stays away.
    let run = with(&lab, &words).sh("cd /srv/data && ls && cat new");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "link\nnew\nsub\nnew\n");
    // A cap that is too small leaves a volume without files.
    let image = Image::new(&lab, "large").file("srv/data/file", &"x".repeat(40 << 20), 0o644);
    image.load();
    lab.brig(["volume", "create", "small", "--size", "32M"]).succeeded();
    let run = with(&lab, &["--image", "large:1", "--volume", "small:/srv/data"]).run(["true"]);
    let error = run.ended_as("prepare_failed", 125).receipt()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("No space left"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("brig volume create small"), "{error}");
    assert_eq!(show(&lab, "small")["filled"], false);
}

#[test]
fn a_home_keeps_logins_also_where_a_kept_task_goes_on() {
    let lab = Lab::new();
    let run = with(&lab, &["--home", "me"]).sh("echo token > ~/.login; stat -c '%u %a' ~; echo $HOME");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "1000 700\n/home/agent\n");
    assert_eq!(run.receipt()["home"], "me");
    Image::new(&lab, "tool").file("home/me/.profile", "of the image\n", 0o644).load();
    let words = ["--image", "tool:1", "--user", "me", "--home", "me"];
    let run = with(&lab, &words).sh("cat ~/.login; echo $HOME; echo more >> ~/.login 2> /dev/null || echo refused");
    // Another user cannot enter the home.
    assert!(run.stderr.contains("/home/me"), "{run:#?}");
    let mount = format!("{}:/home/me/.config/tool", lab.file("tool", "of the host\n").display());
    let words =
        ["--image", "tool:1", "--user", "me", "--home", "other", "--volume", "cache:/home/me/.a/b", "--mount", &mount];
    let run = with(&lab, &words).sh("cat ~/.profile; echo x > ~/.a/b/x; cat ~/.config/tool; stat -c %u ~/.a");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "of the image\nof the host\n1001\n");
    let kept = with(&lab, &["--home", "me", "--keep"]).sh("echo work > work; echo session > ~/.session");
    let id = kept.ended_as("succeeded", 0).receipt()["id"].as_str().unwrap().to_owned();
    let run = lab.brig(["task", "resume", &id, "--json", "--", "sh", "-c", "cat work ~/.session ~/.login"]);
    assert!(run.stderr.contains("work\nsession\ntoken\n"), "{run:#?}");
    // A kept task without its volume begins nothing.
    let id = lab.ids().pop().unwrap();
    lab.brig(["volume", "rm", "me"]).succeeded();
    let run = lab.brig(["task", "resume", &id, "--", "true"]);
    assert!(run.stderr.contains("no volume `me` exists"), "{run:#?}");
    assert!(!lab.store().join("volumes/me").exists());
    let run = with(&lab, &["--home", "x", "--at", "/home"]).plain().run(["true"]);
    run.refused(125, &["the sandbox has its own `/home/agent`"]);
}

#[test]
fn a_task_cannot_poison_a_cache() {
    let lab = Lab::new();
    let attack = "echo poison > /c/file; rm -rf /c/sub; echo new > /c/new; chmod 777 /c; cat /c/file";
    let begin = "echo clean > /volume/file; mkdir /volume/sub; echo $BRIG_VOLUME";
    assert!(fill(&lab, "npm", begin).ended_as("succeeded", 0).stderr.contains("/volume"));
    let tasks: Vec<_> = (0..3).map(|_| with(&lab, &["--cache", "npm:/c"]).start_sh(attack)).collect();
    for task in tasks {
        assert!(task.finish().ended_as("succeeded", 0).stderr.ends_with("poison\n"));
    }
    let seen = with(&lab, &["--cache", "npm:/c"]).sh("cat /c/file; ls /c");
    assert_eq!(seen.ended_as("succeeded", 0).stderr, "clean\nfile\nsub\n");
    // The writes count against the task's disk.
    let run = with(&lab, &["--cache", "npm:/c", "--disk", "32M"]).sh("dd if=/dev/zero of=/c/large bs=1M count=64");
    assert!(run.stderr.contains("No space left"), "{run:#?}");
    // Without the private layer the next task has the poison.
    with(&lab, &["--cache", "npm:/c"]).weakened("cache-layer").sh(attack).ended_as("succeeded", 0);
    assert_eq!(content(&lab, "npm", "file"), "poison\n");
}

#[test]
fn a_fill_replaces_the_files_when_it_has_succeeded() {
    let lab = Lab::new();
    fill(&lab, "npm", "echo one > /volume/file").ended_as("succeeded", 0);
    let reader = with(&lab, &["--cache", "npm:/c"])
        .start_sh("echo begun; while [ ! -e /tmp/go ]; do sleep 0.05; done; cat /c/file");
    reader.wait_for("begun");
    let id = lab.ids().pop().unwrap();
    fill(&lab, "npm", "cat /volume/file; echo two > /volume/file; exit 3").ended_as("failed", 3);
    assert_eq!(content(&lab, "npm", "file"), "one\n");
    let at =
        lab.brig(["volume", "fill", "npm:/at/place", "--json", "--", "sh", "-c", "echo two > $BRIG_VOLUME/file; pwd"]);
    at.ended_as("succeeded", 0);
    assert_eq!(content(&lab, "npm", "file"), "two\n");
    lab.brig(["task", "exec", &id, "--", "touch", "/tmp/go"]).succeeded();
    assert!(reader.finish().ended_as("succeeded", 0).stderr.ends_with("one\n"), "it keeps the earlier files");
    // Two fills of one volume: the second one does not begin.
    let first = lab.start(["volume", "fill", "npm", "--", "sh", "-c", "echo begun; sleep 60"]);
    first.wait_for("begun");
    lab.brig(["volume", "fill", "npm", "--", "true"]).refused(125, &["in use by the task"]);
    first.signal(Signal::TERM);
    first.finish();
    assert_eq!(content(&lab, "npm", "file"), "two\n");
}

#[test]
fn task_that_writes_a_volume_is_refused_while_it_is_filled() {
    let lab = Lab::new();
    with(&lab, &["--volume", "data:/v"]).sh("echo one > /v/file").ended_as("succeeded", 0);
    let filling = lab.start(["volume", "fill", "data", "--", "sh", "-c", "echo begun; sleep 60"]);
    filling.wait_for("begun");
    let id = lab.ids().pop().unwrap();
    // The fill replaces the files at its end: what the task writes would be lost.
    for words in [["--volume", "data:/v"], ["--home", "data"]] {
        let run = with(&lab, &words).plain().run(["true"]);
        run.refused(125, &["use the volume `data`", &format!("in use by the task `{id}`")]);
        assert!(run.stderr.contains(&format!("brig task wait {id}")), "{run:#?}");
    }
    for word in ["--volume=data:/v:ro", "--cache=data:/v"] {
        let run = with(&lab, &[word]).run(["cat", "/v/file"]);
        assert_eq!(run.ended_as("succeeded", 0).stderr, "one\n");
    }
    filling.signal(Signal::TERM);
    filling.finish();
    with(&lab, &["--volume", "data:/v"]).run(["cat", "/v/file"]).ended_as("succeeded", 0);
}

#[test]
fn kill_at_any_moment_of_a_fill_leaves_the_earlier_files_or_the_new_ones() {
    let lab = Lab::new();
    fill(&lab, "npm", "echo 0 0 > /volume/file").ended_as("succeeded", 0);
    let began = Instant::now();
    fill(&lab, "npm", "echo 0 0 > /volume/file").ended_as("succeeded", 0);
    let whole = began.elapsed().mul_f64(1.2);
    let mut random = Random(SEED);
    let (kills, mut replaced, mut current) = (kills(20), 0, "0 0\n".to_owned());
    for round in 1..=kills {
        let script = format!("echo {round} > /volume/file; sleep 0.02; echo {round} {round} > /volume/file");
        let task = lab.start(["volume", "fill", "npm", "--", "sh", "-c", &script]);
        std::thread::sleep(random.below(whole));
        task.signal(Signal::KILL);
        task.finish();
        let seen = content(&lab, "npm", "file");
        assert!(seen == current || seen == format!("{round} {round}\n"), "round {round}: {seen}");
        replaced += usize::from(seen != current);
        current = seen;
        lab.assert_reaped();
    }
    assert!(replaced < kills, "every fill ended before its kill");
}

#[test]
fn kill_at_any_moment_of_a_first_use_or_a_write_leaves_a_volume_that_can_be_used() {
    let lab = Lab::new();
    Image::new(&lab, "tool").file("srv/data/file", &"x".repeat(4 << 20), 0o644).load();
    let mut random = Random(SEED);
    for round in 0..kills(20) {
        let name = format!("v{}", round / 4);
        let words = ["--image".to_owned(), "tool:1".to_owned(), "--volume".to_owned(), format!("{name}:/srv/data")];
        let task = lab.task().args(&words).start_sh("n=0; while :; do n=$((n + 1)); echo $n > /srv/data/$n; done");
        std::thread::sleep(random.below(Duration::from_millis(400)));
        task.signal(Signal::KILL);
        task.finish();
        let script = "stat -c %s /srv/data/file && echo after > /srv/data/after && cat /srv/data/after";
        let run = lab.task().args(&words).sh(script);
        assert_eq!(run.ended_as("succeeded", 0).stderr, format!("{}\nafter\n", 4 << 20), "round {round}");
        // A reader replays a journal too.
        let task = lab.task().args(&words).start_sh("echo begun; while :; do echo x > /srv/data/x; done");
        task.wait_for("begun");
        task.signal(Signal::KILL);
        task.finish();
        assert_eq!(content(&lab, &name, "after"), "after\n", "round {round}");
    }
    lab.assert_reaped();
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&*lab.store().to_string_lossy()));
}

#[test]
fn an_exported_volume_is_imported_with_owners_holes_and_links() {
    let Some(lab) = Lab::root() else { return };
    let script = "cd /v && mkdir sub && echo one > sub/file && ln sub/file hard && ln -s /etc/passwd link && chmod 640 hard && \
                  truncate -s 5G holes && echo end >> holes && mkfifo fifo && chmod 711 .";
    with(&lab, &["--volume", "data:/v"]).sh(script).ended_as("succeeded", 0);
    let archive = lab.path().join("data.tar");
    let word = archive.to_str().unwrap();
    let run = lab.brig(["volume", "export", "data", "--output", word]);
    assert!(run.succeeded().stderr.contains("1 file was left out"), "{run:#?}");
    assert!(std::fs::metadata(&archive).unwrap().len() < 1 << 20);
    lab.brig(["volume", "import", "copy", word, "--size", "64M", "--inodes", "500"]).succeeded();
    let list = "cd /v && stat -c '%n %u %g %a %s %h' . sub sub/file hard holes && readlink link && tail -c 4 holes";
    let run = with(&lab, &["--volume", "copy:/v:ro"]).sh(list);
    let expected = ". 1000 1000 711 4096 3\nsub 1000 1000 755 4096 2\nsub/file 1000 1000 640 4 2\nhard 1000 1000 640 4 2\n\
                    holes 1000 1000 644 5368709124 1\n/etc/passwd\nend\n";
    assert_eq!(run.ended_as("succeeded", 0).stderr, expected);
    // An archive of any tar program, and one that is hostile.
    let tree = lab.file("tree/a/file", "of tar\n");
    let tree = tree.parent().unwrap().parent().unwrap();
    let tar = |name: &str, words: &[&str]| {
        let archive = lab.path().join(name);
        let done = std::process::Command::new("tar").arg("-cPf").arg(&archive).args(words).current_dir(tree).status();
        assert!(done.unwrap().success());
        archive.to_str().unwrap().to_owned()
    };
    let plain = tar("plain.tar", &["--owner=7", "--group=8", "."]);
    lab.brig(["volume", "import", "plain", &plain]).succeeded();
    let run = with(&lab, &["--volume", "plain:/v:ro"]).sh("stat -c '%u %g' /v/a/file; cat /v/a/file");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "7 8\nof tar\n");
    lab.brig(["volume", "import", "plain", &plain]).refused(125, &["there is a volume `plain` already"]);
    let climbing = tar("climbing.tar", &["--transform=s,^,../../,", "a/file"]);
    lab.brig(["volume", "import", "bad", &climbing]).refused(125, &["leads out of the archive"]);
    let foreign = tar("foreign.tar", &["--owner=70000", "--group=8", "."]);
    lab.brig(["volume", "import", "bad", &foreign]).refused(125, &["70000"]);
    lab.file("tree/a/large", vec![1; 40 << 20]);
    let large = tar("large.tar", &["."]);
    lab.brig(["volume", "import", "bad", &large, "--size", "32M"]).refused(125, &["No space left"]);
    assert!(!lab.store().join("volumes/bad").exists());
    assert_eq!(std::fs::read_dir(lab.store().join("live")).unwrap().count(), 0);
}

#[test]
fn volumes_are_listed_removed_and_pruned() {
    let lab = Lab::new();
    for name in ["b", "a"] {
        lab.brig(["volume", "create", name]).succeeded();
    }
    lab.brig(["volume", "create", "a"]).refused(125, &["there is a volume `a` already"]);
    assert_eq!(lab.brig(["volume", "ls", "-q"]).succeeded().stdout, "a\nb\n");
    lab.brig(["volume", "rm", "a", "c"]).refused(125, &["no volume `c` exists"]);
    assert_eq!(lab.brig(["volume", "ls", "-q"]).succeeded().stdout, "a\nb\n", "a wrong name removes nothing");
    lab.brig(["volume", "rm", "a"]).succeeded();
    with(&lab, &["--home", "kept", "--keep"]).run(["true"]).ended_as("succeeded", 0);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(lab.brig(["volume", "prune"]).status, Some(125));
    assert_eq!(lab.brig(["volume", "prune", "--older-than", "1h"]).succeeded().stdout.matches('\n').count(), 1);
    assert!(lab.brig(["volume", "prune", "--older-than", "0s", "--dry-run"]).succeeded().stdout.contains('b'));
    lab.brig(["volume", "prune", "--older-than", "0s"]).succeeded();
    assert_eq!(lab.brig(["volume", "ls", "-q"]).succeeded().stdout, "kept\n", "a kept task goes on with it");
}

#[test]
fn what_is_wrong_with_a_volume_is_one_line_and_begins_nothing() {
    let lab = Lab::new();
    let host = lab.directory("host");
    let mount = format!("{}:/x/y", host.display());
    for (words, expected) in [
        (&["--volume", "data"][..], "an absolute target"),
        (&["--volume", "../data:/v"], "not a name of a volume"),
        (&["--volume", "/srv:/v"], "not a name of a volume"),
        (&["--volume", "data:v"], "not an absolute path"),
        (&["--volume", "data:/v:cow"], "the modes are ro and rw"),
        (&["--cache", "data:/v:ro"], "a cache has none"),
        (&["--home", "a/b"], "not a name of a volume"),
        (&["--volume", "data:/proc/v"], "nothing can be mounted in `/proc`"),
        (&["--volume", "data:/v/../../etc"], "without `..`"),
        (&["--volume", "data:/"], "would cover"),
        (&["--volume", "data:/workspace/x"], "the workspace"),
        (&["--volume", "data:/home/agent"], "would cover"),
        (&["--volume", "data:/usr/local/x"], "read-only"),
        (&["--volume", "data:/v", "--cache", "data:/w"], "mounted twice"),
        (&["--volume", "data:/v", "--volume", "other:/v/w"], "overlaps the volume at `/v`"),
        (&["--volume", "data:/x", "--mount", &mount], "overlaps the mount at `/x/y`"),
        (&["--backend", "local", "--volume", "data:/v"], "no place for volumes"),
    ] {
        with(&lab, words).plain().run(["true"]).refused(125, &[expected]);
    }
    assert!(lab.ids().is_empty() && !lab.store().join("volumes").exists());
    for word in ["--volume=data:/v:ro", "--cache=data:/v"] {
        with(&lab, &[word]).plain().run(["true"]).refused(125, &["no volume `data` exists"]);
        lab.brig(["volume", "create", "data"]);
        with(&lab, &[word]).plain().run(["true"]).refused(125, &["it has no files yet"]);
        lab.brig(["volume", "rm", "data"]).succeeded();
    }
}

#[test]
fn hosted_mode_gives_the_volumes_of_its_list_alone() {
    let Some(lab) = Lab::root() else { return };
    let rules = format!("{}volumes = [\"data\"]\n", hosted::HOSTED);
    let run = |flags: &[&str]| {
        let words = [&["task", "run"], flags, &["--", "true"]].concat();
        hosted::brig(&lab, &rules, &words)
    };
    for flags in [["--volume", "other:/v"], ["--cache", "other:/v"], ["--home", "other"]] {
        run(&flags).refused(125, &["hosted mode", "the volume `other` is not in the list"]);
    }
    for words in
        [&["volume", "create", "other"][..], &["volume", "rm", "other"], &["volume", "fill", "other", "--", "true"]]
    {
        hosted::brig(&lab, &rules, words).refused(125, &["hosted mode", "`other`"]);
    }
    run(&["--volume", "data:/v"]).succeeded();
    run(&["--home", "data"]).succeeded();
    let weak = hosted::weakened(&lab, &rules, "hosted-volumes").args(["--volume", "other:/v"]);
    weak.run(["true"]).ended_as("succeeded", 0);
}

#[test]
fn a_set_user_id_program_and_a_link_in_a_volume_lead_nowhere() {
    let Some(lab) = Lab::root() else { return };
    Image::new(&lab, "tool").load();
    let words = ["--image", "tool:1", "--root-inside", "--volume", "data:/v"];
    let run = with(&lab, &words)
        .sh("cp /bin/busybox /v/id; chown 0:0 /v/id; chmod 4755 /v/id; stat -c '%u %a' /v/id; ln -s /etc /v/etc");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "0 4755\n");
    let run = with(&lab, &["--image", "tool:1", "--user", "me", "--volume", "data:/v"]).sh("/v/id -u");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "1001\n");
    // A link of an agent in a home does not lead a later mount out of it.
    with(&lab, &["--home", "me"]).sh("ln -s /etc ~/.cache").ended_as("succeeded", 0);
    let words = ["--home", "me", "--volume", "data:/home/agent/.cache/x"];
    let run = with(&lab, &words).run(["true"]);
    let error = run.ended_as("start_failed", 125).receipt()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("a link in the volume leads elsewhere"), "{error}");
    let run = with(&lab, &words).weakened("volume-links").sh("ls /etc/x");
    assert!(run.ended_as("succeeded", 0).stderr.contains("id\n"), "{run:#?}");
    eventually("the mounts end", || lab.brig(["volume", "rm", "me", "data"]).status == Some(0));
}

#[test]
fn a_volume_of_an_ordinary_user_is_replaced_at_the_end_of_each_task_that_wrote_it() {
    let Some(lab) = Lab::user() else { return };
    Image::new(&lab, "tool").file("srv/data/file", "of the image\n", 0o644).load();
    let words = ["--image", "tool:1", "--volume", "data:/srv/data"];
    let script = "cd /srv/data && cat file && echo closed > closed && chmod 000 closed && mkdir shut && echo in > shut/in \
                  && chmod 500 shut && ln file second && ln -s /etc/passwd link && mkfifo fifo && truncate -s 5G holes \
                  && chmod 711 . && exit 1";
    assert_eq!(with(&lab, &words).sh(script).ended_as("failed", 1).stderr, "of the image\n");
    let list = "cd /v && stat -c '%n %u %a %s %h' . file second closed shut/in holes && readlink link && ls fifo";
    let run = with(&lab, &["--volume", "data:/v:ro"]).sh(list);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert!(lines[0].starts_with(". 1000 711 "), "{run:#?}");
    assert_eq!(
        lines[1..5],
        ["file 1000 644 13 2", "second 1000 644 13 2", "closed 1000 0 7 1", "shut/in 1000 644 3 1"]
    );
    assert_eq!(lines[5..7], ["holes 1000 644 5368709120 1", "/etc/passwd"]);
    assert!(lines[7].contains("fifo"), "a FIFO is left out: {run:#?}");
    // The archive is that of an export.
    let archive = lab.path().join("data.tar");
    let word = archive.to_str().unwrap();
    let run = lab.brig(["volume", "export", "data", "--output", word]);
    assert!(run.succeeded().stderr.contains("1 file was left out"), "{run:#?}");
    assert!(std::fs::metadata(&archive).unwrap().len() < 1 << 20);
    lab.brig(["volume", "import", "copy", word, "--size", "16M", "--inodes", "64"]).succeeded();
    assert_eq!(content(&lab, "copy", "shut/in"), "in\n");
    // More than the caps of the volume, and more than a task has room for.
    lab.file("tree/large", vec![1; 40 << 20]);
    let tar = |name: &str, words: &[&str]| {
        let archive = lab.path().join(name);
        let tree = lab.path().join("tree");
        let done = std::process::Command::new("tar").arg("-cPf").arg(&archive).args(words).current_dir(tree).status();
        assert!(done.unwrap().success());
        archive.to_str().unwrap().to_owned()
    };
    let large = tar("large.tar", &["."]);
    let run = lab.brig(["volume", "import", "bad", &large, "--size", "32M"]);
    run.refused(125, &["more bytes"]);
    assert!(run.stderr.contains("larger --size"), "{run:#?}");
    let climbing = tar("climbing.tar", &["--transform=s,^,../../,", "large"]);
    lab.brig(["volume", "import", "bad", &climbing]).refused(125, &["leads out of the archive"]);
    assert!(!lab.store().join("volumes/bad").exists());
    lab.brig(["volume", "import", "large", &large]).succeeded();
    let run = with(&lab, &["--volume", "large:/v", "--disk", "32M"]).run(["true"]);
    let error = run.ended_as("start_failed", 125).receipt()["error"].clone();
    assert!(error["hint"].as_str().unwrap().contains("--disk"), "{error}");
    let run = with(&lab, &["--image", "tool:1", "--volume", "data:/v", "--root-inside"]).plain().run(["true"]);
    run.refused(125, &["use the volume `data`", "one owner"]);
    assert!(run.stderr.contains("leave --root-inside out"), "{run:#?}");
    assert_eq!(std::fs::read_dir(lab.store().join("live")).unwrap().count(), 0);
    lab.assert_clean();
}

#[test]
fn a_volume_of_root_and_one_of_an_ordinary_user_are_not_mistaken_for_each_other() {
    let Some(lab) = Lab::root() else { return };
    let store = lab.directory("store");
    std::os::unix::fs::chown(&store, Some(54_321), Some(54_321)).unwrap();
    lab.file("tree/file", "of the user\n");
    let script = "tar -C tree -c . | setpriv --reuid 54321 --regid 54321 --clear-groups \"$1\" volume --store store import data -";
    let done = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(lab.program_for_others())
        .current_dir(lab.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let words = ["`data`", "an ordinary user made it in this store, in another form"];
    let refused = |run: Run| {
        run.refused(125, &words);
        assert!(run.stderr.contains("export it there, and import it"), "{run:#?}");
    };
    for flags in [["--volume", "data:/v"], ["--volume", "data:/v:ro"], ["--cache", "data:/v"], ["--home", "data"]] {
        refused(with(&lab, &flags).plain().run(["true"]));
    }
    for verb in [&["export", "data"][..], &["rm", "data"], &["fill", "data", "--", "true"]] {
        refused(lab.brig([&["volume"], verb].concat()));
    }
    assert!(store.join("volumes/data/files.tar").exists());
}
