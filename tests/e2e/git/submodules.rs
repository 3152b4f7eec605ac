//! Submodules on request: couriers fetch them from the repository's own host and from named locations only.

use super::https::not_prepared;
use super::server::{Host, SSH, TLS};
use super::{COMMIT, host, push, refused};
use crate::support::{Lab, Task};
use std::path::{Path, PathBuf};

/// A bare repository with one commit, whose file contains `word`.
fn library(folder: &Path, name: &str, word: &str) -> PathBuf {
    host(
        folder,
        &format!(
            "git init -q -b main {name}.work; cd {name}.work; echo {word} >{word}; git add .; git commit -qm {word}; \
             git clone -q --bare . ../{name}; rm -rf ../{name}.work"
        ),
    );
    folder.join(name)
}

/// Commits to `main` of the bare repository: a link at `path` to the head of `to`, and its section in `.gitmodules`.
fn link(remote: &Path, to: &Path, path: &str, url: &str) {
    host(
        remote.parent().unwrap(),
        &format!(
            "git clone -q {0} link.work; cd link.work; git update-index --add --cacheinfo 160000,$(git -C {1} rev-parse HEAD),{path}; \
             printf '[submodule \"%s\"]\\n\\tpath = %s\\n\\turl = %s\\n' '{path}' '{path}' '{url}' >>.gitmodules; \
             git add .gitmodules; git commit -qm 'links {path}'; git push -q origin HEAD:main; cd ..; rm -rf link.work",
            remote.display(),
            to.display(),
        ),
    );
}

/// Reads everything that git reports about submodules.
const LOOK: &str = "cat sub/nearest; git submodule status --recursive; git status --short; git -C sub log --format=%s; git -C sub fsck --strict 2>&1";

fn local<'lab>(lab: &'lab Lab, remote: &Path) -> Task<'lab> {
    lab.task().args(["--submodules", "--repo", remote.to_str().unwrap()])
}

#[test]
fn submodules_come_over_https_from_the_own_host_and_from_a_named_one_without_the_credential() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let deep = library(&far.root, "deep.git", "deepest");
    let near = library(&far.root, "near.git", "nearest");
    link(&near, &deep, "inner/deep", "../deep.git");
    link(&remote, &near, "sub", "../near.git");
    let url = far.url("app.git");
    let run = far.known_task(&lab, &url).args(["--submodules"]).sh(&format!("{LOOK}; cat sub/inner/deep/deepest"));
    run.ended_as("succeeded", 0);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines[0], "nearest", "{run:#?}");
    assert!(lines[1].starts_with(' ') && lines[1].contains(" sub"), "{run:#?}");
    assert!(lines[2].starts_with(' ') && lines[2].contains(" sub/inner/deep"), "{run:#?}");
    assert_eq!(lines[3..5], ["links inner/deep", "nearest"], "nothing is changed, and the history is there: {run:#?}");
    assert_eq!(lines[5], "deepest");
    // A mirror of each; the second task contacts only the repository itself.
    let mirrors = || std::fs::read_dir(lab.store().join("mirrors")).unwrap().count();
    let (before, asked) = (mirrors(), far.served().matches("near.git").count());
    far.known_task(&lab, &url).args(["--submodules"]).sh("cat sub/nearest").ended_as("succeeded", 0);
    assert_eq!((mirrors(), far.served().matches("near.git").count()), (before, asked));
    // Without being asked for they stay away.
    let without = far.known_task(&lab, &url).sh("ls -A sub | wc -l");
    assert!(without.stderr.starts_with("0\n"), "{without:#?}");
    // Another host is not contacted until it is named, and never gets the credential, even if it asks for one.
    link(&remote, &near, "other", &format!("https://b.test:{TLS}/near.git"));
    let before = far.served().matches("b.test").count();
    let run = far.known_task(&lab, &url).args(["--submodules"]).sh("echo ran");
    not_prepared(&lab, &run, &["submodule `other`", &format!("`b.test:{TLS}`, which is not an allowed location")]);
    assert_eq!(far.served().matches("b.test").count(), before);
    let named = ["--submodules", "--git-from", &format!("b.test:{TLS}")];
    not_prepared(&lab, &far.known_task(&lab, &url).args(named).sh("echo ran"), &["asks for a credential"]);
    let served = far.served();
    assert!(served.contains("b.test 401 ") && !served.contains("b.test 200"), "{served}");
    assert!(!served.lines().any(|line| line.starts_with("b.test") && line.contains(" me ")), "{served}");
}

#[test]
fn a_submodule_comes_over_ssh_with_the_key_of_its_host() {
    let lab = Lab::new();
    let Some(far) = Host::with_ssh(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let near = library(&far.root, "near.git", "nearest");
    link(&remote, &near, "sub", "../near.git");
    let user = host(Path::new("/"), "id -un");
    let url = format!("ssh://{user}@a.test:{SSH}{}", remote.display());
    let run = super::ssh::task(&lab, &far, &url, "id", "known_hosts").args(["--submodules"]).sh(LOOK);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("nearest\n "), "{run:#?}");
}

#[test]
fn submodules_of_a_path_are_below_it_or_below_a_named_folder() {
    let lab = Lab::new();
    let remote = super::bare(&lab);
    let near = library(&lab.directory("more"), "near.git", "nearest");
    link(&remote, &near, "sub", "../more/near.git");
    refused(
        &local(&lab, &remote).sh("echo ran"),
        &["submodule `sub`", "more/near.git`, which is not an allowed location"],
    );
    let more = lab.path().join("more").display().to_string();
    let run = local(&lab, &remote).args(["--git-from", &more]).sh(LOOK);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("nearest\n "), "{run:#?}");
    let profile = lab.file("p.toml", "[git]\nsubmodules = true\nfrom = [\"./more\"]\n");
    let words = ["--repo", remote.to_str().unwrap(), "--profile", profile.to_str().unwrap()];
    let by_profile = lab.task().args(words).sh("cat sub/nearest");
    by_profile.ended_as("succeeded", 0);
    // A location that one task has named does not exist for the next.
    refused(&local(&lab, &remote).sh("echo ran"), &["which is not an allowed location"]);
    // A link of the file system is resolved first.
    let hidden = library(&lab.directory("hidden"), "x.git", "secret");
    std::os::unix::fs::symlink(&hidden, remote.join("inside.git")).unwrap();
    link(&remote, &hidden, "linked", "./inside.git");
    let run = local(&lab, &remote).args(["--git-from", &more]).sh("echo ran");
    refused(&run, &["submodule `linked`", "hidden/x.git`, which is not an allowed location"]);
}

#[test]
fn what_the_agent_does_in_a_submodule_is_seen_and_its_pointer_is_pushed() {
    let lab = Lab::new();
    let remote = super::bare(&lab);
    let near = library(&lab.directory("more"), "near.git", "nearest");
    link(&remote, &near, "sub", "../more/near.git");
    let script = format!("cd sub; echo changed >nearest; git commit -qam inside; git rev-parse HEAD; cd ..; {COMMIT}");
    let more = lab.path().join("more").display().to_string();
    let run = local(&lab, &remote).args(["--git-from", &more, "--push-branch", "agent/x"]).sh(&script);
    run.ended_as("succeeded", 0);
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    let inside = run.stderr.lines().next().unwrap();
    assert_eq!(push(&run)["left_behind"], serde_json::json!([format!("commit {inside} of the submodule sub")]));
    assert_eq!(host(&remote, "git rev-parse agent/x:sub"), inside);
    let diff = lab.brig(["task", "diff", run.receipt()["id"].as_str().unwrap()]).stdout;
    assert!(diff.contains("a/sub/nearest") && diff.contains("+changed"), "{diff}");
    // The submodule's own remote has nothing of it.
    assert_eq!(host(&near, "git rev-list --all --count"), "1");
}

#[test]
fn a_hostile_gitmodules_leads_nowhere() {
    let lab = Lab::new();
    let near = library(&lab.directory("more"), "near.git", "nearest");
    let mark = lab.path().join("mark");
    let program = lab.file("open-trap", format!("#!/bin/sh\ntouch {}\n", mark.display()));
    host(lab.path(), "chmod 755 open-trap");
    let trap = program.display();
    let check = |modules: &str, more: &str, words: &[&str]| {
        let source = lab.directory("source");
        host(
            &source,
            &format!(
                "git init -q -b main .; git config core.symlinks true; git update-index --add --cacheinfo 160000,$(git -C {} rev-parse HEAD),sub; \
                 printf '{modules}' >.gitmodules; git add .gitmodules; {more}\n git commit -qm hostile",
                near.display()
            ),
        );
        let more = lab.path().join("more").display().to_string();
        refused(&local(&lab, &source).args(["--git-from", &more]).sh("echo ran"), words);
        assert!(!mark.exists(), "{modules}");
        std::fs::remove_dir_all(&source).unwrap();
    };
    let entry = |name: &str, url: &str| format!("[submodule \"{name}\"]\\n\\tpath = sub\\n\\turl = \"{url}\"\\n");
    check(&entry("sub", &format!("ext::{trap}")), "", &["run programs"]);
    check(&entry("sub", &format!("-u{trap}")), "", &["it is not a URL"]);
    check(&entry("sub", &format!("--upload-pack={trap}")), "", &["it is not a URL"]);
    check(&entry("sub", "https://a.test/x\\\\nhost=b.test"), "", &["it is not a URL"]);
    check(&entry("sub", "../../../../../../../../../../etc"), "", &["leads out"]);
    check(&entry("sub", "/etc"), "", &["not a git repository"]);
    check(&entry("sub", "file:///etc"), "", &["not a git repository"]);
    check(&entry("sub", "https://b.test/x"), "", &["is not an allowed location"]);
    check(&entry("sub", "https://me:secret@b.test/x"), "", &["credential in a URL"]);
    check(&entry("../../hooks", "../more/near.git"), "", &["not a submodule name"]);
    check(&entry("a/../../../x", "../more/near.git"), "", &["not a submodule name"]);
    check("", "", &["not one entry"]);
    check("[submodule \"s\"]\\n\\tpath = sub\\n", "", &["no URL"]);
    // `.gitmodules` as a link, and a missing commit.
    check("x", "rm .gitmodules; ln -s /etc/passwd .gitmodules; git add .gitmodules", &["`.gitmodules` is not a file"]);
    check(
        &entry("sub", "../more/near.git"),
        "git update-index --cacheinfo 160000,$(git rev-parse --verify -q HEAD || printf %040d 1),sub",
        &["git ended"],
    );
    // One inside the other's repository.
    check(
        &(entry("a", "../more/near.git") + "[submodule \"a/hooks\"]\\n\\tpath = two\\n\\turl = ../more/near.git\\n"),
        &format!("git update-index --add --cacheinfo 160000,$(git -C {} rev-parse HEAD),two", near.display()),
        &["inside the one of"],
    );
    // brig never runs an update command. The error is git's own, which recognises the attack (CVE-2019-19604).
    check(&(entry("sub", "../more/near.git") + &format!("\\tupdate = !{trap}\\n")), "", &["git ended"]);
}

#[test]
fn submodules_without_end_are_refused() {
    let lab = Lab::new();
    let more = lab.directory("more");
    // Each links the one before it: seven deep.
    let mut last = library(&more, "m0.git", "zero");
    for number in 1..=7 {
        let next = library(&more, &format!("m{number}.git"), "other");
        link(&next, &last, "sub", &format!("../m{}.git", number - 1));
        last = next;
    }
    refused(&local(&lab, &last).args(["--git-from", more.to_str().unwrap()]).sh("echo ran"), &["more than 5 deep"]);
    let good = more.join("m5.git");
    let run = local(&lab, &good).args(["--git-from", more.to_str().unwrap()]).sh("cat sub/sub/sub/sub/sub/zero");
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("zero\n"), "{run:#?}");
}
