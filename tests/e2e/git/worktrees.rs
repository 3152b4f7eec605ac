//! `--repo` at folders whose `.git` is a file: worktrees and submodules.

use super::{COMMIT, host, push, refused, task};
use crate::support::Lab;
use std::fs;
use std::path::PathBuf;

/// A repository with a worktree beside it on the branch `side`, one commit ahead.
fn with_worktree(lab: &Lab) -> (PathBuf, PathBuf) {
    let (main, tree) = (lab.directory("main"), lab.path().join("tree"));
    host(
        &main,
        "git init -q -b main .; echo one > file; git add .; git commit -qm one; git worktree add -q ../tree -b side",
    );
    host(&tree, "echo two > file; git commit -qam two");
    (main, tree)
}

#[test]
fn a_worktree_is_its_repository_at_its_own_branch() {
    let lab = Lab::new();
    let (main, tree) = with_worktree(&lab);
    let show = "cat file; git log --format=%s; git branch -r";
    let run = task(&lab, &tree, &[], show);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("two\ntwo\none\n  origin/main\n  origin/side\n"), "{run:#?}");
    let run = task(&lab, &tree, &["--ref", "main"], show);
    assert!(run.stderr.contains("one\none\n  origin/main\n"), "{run:#?}");
    host(&tree, "git checkout -q --detach main");
    let run = task(&lab, &tree, &["--push-branch", "agent/fix"], &format!("cat file; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("one\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    assert_eq!(host(&main, "git log --format=%s agent/fix"), "the agent was here\none");
}

#[test]
fn a_submodule_is_named_by_its_repository() {
    let lab = Lab::new();
    let (source, above) = (lab.directory("source"), lab.directory("above"));
    host(&source, "git init -q -b main .; echo one > file; git add .; git commit -qm one");
    host(&above, "git init -q .; git -c protocol.file.allow=always submodule --quiet add ../source sub");
    refused(&task(&lab, &above.join("sub"), &[], "true"), &["`.git` is a file that names a repository elsewhere"]);
    let run = task(&lab, &above.join(".git/modules/sub"), &[], "cat file");
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr.lines().next(), Some("one"), "{run:#?}");
}

/// The file may be an agent's work.
#[test]
fn a_file_that_names_another_repository_shows_none_of_it() {
    let lab = Lab::new();
    let (_, tree) = with_worktree(&lab);
    let liar = lab.directory("liar");
    fs::copy(tree.join(".git"), liar.join(".git")).unwrap();
    refused(&task(&lab, &liar, &[], "cat file"), &["names a repository elsewhere"]);
    let run = lab.task().weakened("worktree-mutual").args(["--repo".as_ref(), liar.as_os_str()]).sh("cat file");
    assert!(run.stderr.contains("two"), "without the guard: {run:#?}");
}
