//! `brig task diff`, `export` and `apply` of some paths.

use super::{folder, id, names, read, repository};
use crate::support::Lab;

const WORK: &str = "mkdir -p new/deep && echo n >new/deep/n && echo two >>file && rm gone && echo lock >Cargo.lock";

#[test]
fn only_the_given_paths_are_shown_exported_and_applied_and_the_rest_later() {
    let lab = Lab::new();
    let folder = folder(&lab);
    lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh(WORK).ended_as("succeeded", 0);
    let id = id(&lab);
    let stat = lab.brig(["task", "diff", &id, "--stat", "--exclude", "*.lock", "--", "file", "new", "*.lock"]);
    let listed: Vec<_> = stat.succeeded().stdout.lines().skip(1).map(str::trim_end).collect();
    assert_eq!(listed, ["modified  file", "added     new", "added     new/deep", "added     new/deep/n"]);
    let diff = lab.brig(["task", "diff", &id, "--", "new/deep/n"]);
    assert_eq!(diff.succeeded().stdout.matches("diff --git").count(), 1, "{diff:#?}");
    assert!(diff.stdout.contains("b/new/deep/n"), "{diff:#?}");
    assert!(diff.stderr.contains("3 other changes are not in the patch"), "{diff:#?}");
    let export = lab.brig(["task", "export", &id, "--exclude", "new", "--exclude", "gone"]);
    assert_eq!(export.succeeded().stdout.matches("diff --git").count(), 2, "{export:#?}");

    // A new file comes with its folders.
    let first = lab.brig(["task", "apply", &id, "--", "new/deep/n"]);
    assert!(first.succeeded().stderr.contains("3 other changes are not selected"), "{first:#?}");
    assert_eq!(
        (names(&folder), read(folder.join("new/deep/n"))),
        (vec!["file".into(), "gone".into(), "new".into()], "n\n".into())
    );
    let second = lab.brig(["task", "apply", &id, "--exclude", "*.lock", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&second.succeeded().stdout).unwrap();
    assert_eq!((&told["changed"], &told["already"]), (&serde_json::json!(["file", "gone"]), &3.into()), "{told:#}");
    assert_eq!(told["not_selected"], 1);
    lab.brig(["task", "apply", &id]).succeeded();
    assert_eq!(names(&folder), ["Cargo.lock", "file", "new"]);
}

#[test]
fn a_path_that_matches_nothing_and_a_conflict_leave_all_as_it_is() {
    let lab = Lab::new();
    let folder = folder(&lab);
    lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh(WORK).ended_as("succeeded", 0);
    let id = id(&lab);
    for verb in [&["diff", &id][..], &["diff", &id, "--stat"], &["apply", &id], &["export", &id, "--patch"]] {
        let run = lab.brig([&["task"][..], verb, &["--", "file", "fiel", "src/*.c"]].concat());
        run.refused(125, &["`fiel`, `src/*.c` match no change"]);
        assert!(run.stdout.is_empty() && run.stderr.contains("--stat") && run.stderr.contains("E-USAGE"), "{run:#?}");
    }
    lab.brig(["task", "export", &id, "--bundle", "--", "file"]).refused(125, &["a bundle has whole commits"]);
    assert_eq!(names(&folder), ["file", "gone"]);
    // Only selected paths are checked; others stay.
    lab.file("work/file", "the user's\n");
    lab.brig(["task", "apply", &id, "--", "file", "new"]).refused(125, &["`file` was changed"]);
    assert_eq!(names(&folder), ["file", "gone"], "all or nothing");
    lab.brig(["task", "apply", &id, "--", "new"]).succeeded();
    assert_eq!((names(&folder).len(), read(folder.join("file"))), (3, "the user's\n".into()));
}

#[test]
fn a_file_with_a_secret_that_is_left_out_keeps_nothing_from_export() {
    let lab = Lab::new();
    let folder = repository(&lab);
    lab.file("token", "a-very-secret-value-0123456789");
    let secret = format!("TOKEN=file:{}", lab.path().join("token").display());
    let task = lab.task().args(["--secret", &secret, "--dir"]).args([&folder]);
    task.sh("cat /run/secrets/TOKEN >dump; echo x >code").ended_as("succeeded", 0);
    let id = id(&lab);
    lab.brig(["task", "export", &id, "--patch"]).refused(125, &["a secret is in the changed file `dump`"]);
    lab.brig(["task", "export", &id, "--patch", "--", "dump"]).refused(125, &["a secret is in the changed file"]);
    let export = lab.brig(["task", "export", &id, "--patch", "--exclude", "dump"]);
    assert!(export.succeeded().stdout.contains("b/code") && !export.stdout.contains("secret-value"), "{export:#?}");
}

#[test]
fn a_file_that_was_edited_while_the_agent_ran_is_named_and_the_rest_is_applied_without_it() {
    let lab = Lab::new();
    let folder = folder(&lab);
    let task = lab.task().args(["--dir".as_ref(), folder.as_os_str()]);
    let task = task.start_sh("echo agent >>file; echo code >code; echo ready; sleep 2");
    task.wait_for("ready");
    lab.file("work/file", "zero\none\n");
    task.finish().ended_as("succeeded", 0);
    let id = id(&lab);
    let diff = lab.brig(["task", "diff", &id]);
    assert!(diff.succeeded().stderr.contains("`file` was edited while the agent ran"), "{diff:#?}");
    let refused = lab.brig(["task", "apply", &id, "--merge"]);
    refused.refused(125, &["`file` was edited while the agent ran"]);
    assert!(
        refused.stderr.contains("--exclude '/file'") && refused.stderr.contains("--into DIR --force"),
        "{refused:#?}"
    );
    assert_eq!(names(&folder), ["file", "gone"]);
    lab.brig(["task", "apply", &id, "--exclude", "/file"]).succeeded();
    assert_eq!((read(folder.join("code")), read(folder.join("file"))), ("code\n".into(), "zero\none\n".into()));
    // What the task began with, in another folder.
    lab.file("copy/file", "one\n");
    let into = lab.path().join("copy");
    let words = ["task", "apply", &id, "--force", "--into", into.to_str().unwrap(), "--", "file"];
    lab.brig(words).succeeded();
    assert_eq!(read(into.join("file")), "one\nagent\n");
}
