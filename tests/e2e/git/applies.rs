//! `brig task apply` to the working tree of a `--repo`, and to a named folder.

use super::{host, refused, task};
use crate::support::Lab;
use std::path::{Path, PathBuf};

/// A repository whose files the user alone may read.
fn private(lab: &Lab) -> PathBuf {
    let work = lab.directory("work");
    let files =
        "umask 077; printf '1\\n2\\n3\\n4\\n5\\n' > file; echo a > run; chmod +x run; echo a > tool; echo a > gone";
    host(&work, &format!("{files}; git init -q -b main .; git add .; git commit -qm one"));
    work
}

fn id(lab: &Lab) -> String {
    lab.ids().pop().unwrap()
}

fn modes(folder: &Path) -> String {
    host(folder, "stat -c %a file run tool new")
}

const WORK: &str = "sed -i s/5/five/ file; echo b >> run; chmod +x tool; echo b > new; rm gone";

#[test]
fn apply_to_a_checkout_with_another_umask_keeps_the_permissions() {
    let lab = Lab::new();
    let work = private(&lab);
    task(&lab, &work, &[], WORK).ended_as("succeeded", 0);
    host(&work, "chmod +x file");
    lab.brig(["task", "apply", &id(&lab)]).refused(125, &["`file` was changed"]);
    host(&work, "chmod -x file");
    lab.brig(["task", "apply", &id(&lab)]).succeeded();
    assert_eq!(modes(&work), "600\n700\n711\n644");
    assert_eq!(
        host(&work, "git diff --summary; git ls-files -do"),
        "delete mode 100644 gone\n mode change 100644 => 100755 tool\nnew\ngone"
    );
    assert_eq!(host(&work, "tail -n 1 file run"), "==> file <==\nfive\n\n==> run <==\nb");
    let again = lab.brig(["task", "apply", &id(&lab)]);
    assert!(again.succeeded().stderr.contains("0 changed") && again.stderr.contains("5 as they"), "{again:#?}");
}

#[test]
fn apply_to_a_named_folder_keeps_the_permissions_and_to_the_tasks_own_compares_them() {
    let lab = Lab::new();
    let work = private(&lab);
    host(&work, "git -C .. clone -q work copy; chmod 644 file; chmod 755 run");
    lab.task().args(["--dir".as_ref(), work.as_os_str()]).sh(WORK).ended_as("succeeded", 0);
    host(&work, "chmod 600 file");
    lab.brig(["task", "apply", &id(&lab)]).refused(125, &["`file` was changed"]);
    let copy = lab.path().join("copy");
    host(&copy, "chmod 640 file; chmod 750 run");
    lab.brig(["task", "apply", &id(&lab), "--into", copy.to_str().unwrap()]).succeeded();
    assert_eq!(modes(&copy), "640\n750\n755\n644");
}

#[test]
fn edits_of_different_lines_of_a_repository_are_merged() {
    let lab = Lab::new();
    let work = private(&lab);
    task(&lab, &work, &[], WORK).ended_as("succeeded", 0);
    let file = |text: &str| std::fs::write(work.join("file"), text).unwrap();
    file("one\n2\n3\n4\n5\n");
    assert!(lab.brig(["task", "apply", &id(&lab)]).refused(125, &["`file` was changed"]).stderr.contains("--merge"));
    lab.brig(["task", "apply", &id(&lab), "--merge"]).succeeded();
    assert_eq!(host(&work, "cat file"), "one\n2\n3\n4\nfive");
    assert_eq!(modes(&work), "600\n700\n711\n644");
    file("1\n2\n3\n4\nsix\n");
    lab.brig(["task", "apply", &id(&lab), "--merge"]).refused(125, &["`file` was changed in the same lines"]);
}

#[test]
fn repository_with_the_objects_of_another_one_is_refused_and_the_hint_mends_it() {
    let lab = Lab::new();
    let work = private(&lab);
    host(&work, "git clone -q --shared . ../shared");
    let shared = lab.path().join("shared");
    let run = task(&lab, &shared, &[], "true");
    refused(&run, &["has objects of another one"]);
    assert!(run.receipt()["error"]["hint"].as_str().unwrap().contains("git repack -ad"), "{run:#?}");
    host(&shared, "git repack -qad; rm .git/objects/info/alternates");
    task(&lab, &shared, &[], "grep 5 file").ended_as("succeeded", 0);
}
