//! Artifacts: requested files come out with their digests, and no other file, whatever their names.

use crate::support::{Lab, Run, skip};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The receipt's part about artifacts.
#[track_caller]
fn artifacts(run: &Run) -> Value {
    let part = run.receipt()["artifacts"].clone();
    assert!(part.is_object(), "{run:#?}");
    part
}

#[track_caller]
fn folder(run: &Run) -> PathBuf {
    PathBuf::from(artifacts(run)["path"].as_str().unwrap_or_else(|| panic!("no artifacts: {run:#?}")))
}

fn paths(run: &Run) -> Vec<String> {
    let files = artifacts(run)["files"].clone();
    files.as_array().unwrap().iter().map(|each| each["path"].as_str().unwrap().to_owned()).collect()
}

/// Path and reason of everything that was refused.
fn refused(run: &Run) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let refused = artifacts(run)["refused"].clone();
    refused.as_array().unwrap().iter().map(|each| (text(&each["path"]), text(&each["why"]))).collect()
}

/// Asserts that nothing came out, and why.
#[track_caller]
fn only_refused(run: &Run, expected: &[(&str, &str)]) {
    run.ended_as("succeeded", 0);
    let expected: Vec<_> = expected.iter().map(|(path, why)| ((*path).to_owned(), (*why).to_owned())).collect();
    assert_eq!(refused(run), expected, "{run:#?}");
    assert_eq!(artifacts(run)["files"], json!([]), "{run:#?}");
    assert!(artifacts(run)["path"].is_null(), "{run:#?}");
}

fn digest(path: &Path) -> String {
    let sum = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8_lossy(&sum.stdout).split(' ').next().unwrap().to_owned()
}

#[test]
fn what_was_asked_for_comes_out_with_its_digest_and_nothing_else() {
    let lab = Lab::new();
    lab.file("work/reports/old.txt", "not changed\n");
    lab.file("work/reports/both.txt", "before\n");
    lab.file("work/reports/gone.txt", "gone\n");
    let script = "echo '{}' >result.json; mkdir -p reports/a; echo new >reports/a/new.txt; echo after >>reports/both.txt; rm reports/gone.txt; \
                  echo private >private; printf 'a\\0b' >reports/blob; chmod 4755 reports/blob; mkdir .git; echo x >.git/config";
    let work = lab.path().join("work");
    let run = lab
        .task()
        .args(["--artifact", "result.json", "--artifact", "reports/**", "--artifact", "none/*.log", "--dir"])
        .args([&work])
        .sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(paths(&run), ["reports/a/new.txt", "reports/blob", "reports/both.txt", "result.json"], "{run:#?}");
    assert_eq!(artifacts(&run)["unmatched"], json!(["none/*.log"]));
    assert_eq!(refused(&run), []);
    let folder = folder(&run);
    assert!(folder.starts_with(lab.store()), "{}", folder.display());
    for each in artifacts(&run)["files"].as_array().unwrap() {
        let path = folder.join(each["path"].as_str().unwrap());
        assert_eq!(each["sha256"], digest(&path), "{each}");
        assert_eq!(each["size"], path.metadata().unwrap().len());
    }
    assert_eq!(fs::read_to_string(folder.join("reports/both.txt")).unwrap(), "before\nafter\n");
    assert_eq!(fs::metadata(folder.join("reports/blob")).unwrap().permissions().mode() & 0o7777, 0o755);
    let show = lab.brig(["task", "show", &lab.ids()[0]]);
    assert!(
        show.stdout.contains("reports/a/new.txt") && show.stdout.contains("nothing fits `none/*.log`"),
        "{show:#?}"
    );
}

#[test]
fn a_folder_of_the_users_gets_them_and_nothing_in_it_is_ever_overwritten() {
    let lab = Lab::new();
    let out = lab.path().join("new/out");
    let task = || lab.task().args(["--artifact", "**", "--artifacts-dir"]).args([&out]);
    let run = task().sh("mkdir -p a/b; echo x >a/b/c");
    run.ended_as("succeeded", 0);
    assert_eq!(folder(&run), out);
    assert_eq!(fs::read_to_string(out.join("a/b/c")).unwrap(), "x\n");
    let again = task().plain().sh("echo ran");
    again.refused(125, &["not empty", "out"]);
    assert!(!again.stderr.contains("ran"));
    lab.task().plain().args(["--artifacts-dir", "x"]).sh("true").refused(125, &["no artifact is named"]);
    lab.task().plain().args(["--artifact", "../x"]).sh("true").refused(125, &["`../x`", "out of the workspace"]);
    lab.task().plain().args(["--artifact", "/etc/passwd"]).sh("true").refused(125, &["absolute"]);
    let profile = lab.file("p.toml", "artifacts = [\"a/../../x\"]\n");
    lab.task()
        .plain()
        .args(["--profile".as_ref(), profile.as_os_str()])
        .sh("true")
        .refused(125, &["p.toml", "a/../../x"]);
    assert_eq!(lab.ids().len(), 1);
}

#[test]
fn a_link_to_a_file_of_the_host_is_not_followed() {
    let lab = Lab::new();
    let secret = lab.file("secret", "of the host\n");
    let script = format!("ln -s {} result.json", secret.display());
    only_refused(&lab.task().args(["--artifact", "result.json"]).sh(&script), &[("result.json", "link")]);
    only_refused(
        &lab.task().args(["--artifact", "*"]).sh("ln -s /etc/shadow a; ln -s /proc/self/root b"),
        &[("a", "link"), ("b", "link")],
    );
}

#[test]
fn a_folder_on_the_way_that_became_a_link_is_not_followed() {
    let lab = Lab::new();
    lab.file("host/result.json", "of the host\n");
    lab.file("work/out/result.json", "the user's own\n");
    let host = lab.path().join("host");
    let work = lab.path().join("work");
    let script = format!("rm -r out; ln -s {} out", host.display());
    let run = lab.task().args(["--artifact", "out/result.json", "--dir"]).args([&work]).sh(&script);
    only_refused(&run, &[("out", "link")]);
    let run = lab.task().args(["--artifact", "a/b/c/x"]).sh("mkdir -p a/b; ln -s /etc a/b/c");
    only_refused(&run, &[("a/b/c", "link")]);
}

#[test]
fn a_fifo_or_socket_is_neither_opened_nor_waited_for() {
    let lab = Lab::new();
    let script = "mkfifo result.json; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'";
    let run = lab.task().args(["--artifact", "*"]).sh(script);
    only_refused(&run, &[("result.json", "fifo"), ("s", "socket")]);
    assert!(run.used("wall_seconds") < 20.0);
}

#[test]
fn ten_gigabytes_stop_at_the_limit_without_a_byte_copied() {
    let lab = Lab::new();
    let run = lab.task().args(["--artifact", "*"]).sh("truncate -s 10G result.json; echo small >b");
    run.ended_as("succeeded", 0);
    assert_eq!(refused(&run), [("result.json".to_owned(), "too_large".to_owned())]);
    assert_eq!(paths(&run), ["b"]);
    // The limit counts all together. A file that would exceed it is left out whole.
    let task = || lab.task().args(["--artifact", "*", "--artifact-bytes", "100k"]);
    let run = task().sh("head -c 60000 /dev/zero >a; head -c 60000 /dev/urandom >b; head -c 1000 /dev/zero >c");
    assert_eq!(paths(&run), ["a", "c"], "{run:#?}");
    assert_eq!(refused(&run), [("b".to_owned(), "too_large".to_owned())]);
    // Holes stay holes.
    let run = lab.task().args(["--artifact", "*"]).sh("truncate -s 200M hole; echo end >>hole");
    let copy = folder(&run).join("hole").metadata().unwrap();
    assert!(copy.len() > 200 << 20 && copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
}

#[test]
fn every_name_of_a_hard_link_counts_and_is_a_file_of_its_own() {
    let lab = Lab::new();
    lab.file("work/base", "the user's\n");
    let work = lab.path().join("work");
    let script = "ln base linked; echo agent >>linked; head -c 40000 /dev/urandom >a; ln a b; ln a c";
    let run = lab.task().args(["--artifact", "*", "--artifact-bytes", "100k", "--dir"]).args([&work]).sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(refused(&run), [("c".to_owned(), "too_large".to_owned())], "{run:#?}");
    assert_eq!(fs::read_to_string(work.join("base")).unwrap(), "the user's\n");
    for name in ["a", "b", "linked"] {
        assert_eq!(folder(&run).join(name).metadata().unwrap().nlink(), 1, "{name}");
    }
}

#[test]
fn names_that_are_no_text_come_out_as_they_are_and_are_told_in_plain_letters() {
    let lab = Lab::new();
    let script =
        "printf x >\"$(printf 'a\\377b')\"; printf y >\"$(printf 'c\\nd')\"; printf z >\"$(printf 'e\\033[2Jf')\"";
    let run = lab.task().args(["--artifact", "*"]).sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(paths(&run), ["a\\xffb", "c\\x0ad", "e\\x1b[2Jf"], "{run:#?}");
    let name = std::ffi::OsStr::from_bytes(b"a\xffb");
    assert_eq!(fs::read(folder(&run).join(name)).unwrap(), b"x");
    let show = lab.brig(["task", "show", &lab.ids()[0]]).stdout;
    assert!(!show.contains('\x1b'), "{show:?}");
}

#[test]
fn secrets_are_hidden_in_text_and_keep_back_what_is_none() {
    let lab = Lab::new();
    let file = lab.file("token", "correct-horse-battery-staple");
    let script = "echo \"a $(cat /run/secrets/T) z\" >text; cp text .hidden; (printf 'x\\0'; cat /run/secrets/T) >blob; printf 'x\\0y' >clean; \
                  base64 /run/secrets/T >coded";
    let run = lab.task().args(["--artifact", "*", "--secret", &format!("T=file:{}", file.display())]).sh(script);
    run.ended_as("succeeded", 0);
    assert_eq!(refused(&run), [("blob".to_owned(), "secret".to_owned())]);
    assert_eq!(paths(&run), [".hidden", "clean", "coded", "text"]);
    assert_eq!(fs::read_to_string(folder(&run).join("text")).unwrap(), "a [redacted:T] z\n");
    assert!(fs::read_to_string(folder(&run).join("coded")).unwrap().starts_with("[redacted:T]"));
    let text = &artifacts(&run)["files"][3];
    assert_eq!((&text["path"], &text["redactions"]), (&json!("text"), &json!(1)));
    assert_eq!(text["sha256"], digest(&folder(&run).join("text")));
}

#[test]
fn what_is_in_git_never_comes_out_as_a_file() {
    let lab = Lab::new();
    let run = lab
        .task()
        .args(["--artifact", "**"])
        .sh("mkdir -p .git/hooks sub/.git; echo x >.git/hooks/post-checkout; echo x >sub/.git/config; echo y >y");
    run.ended_as("succeeded", 0);
    assert_eq!(paths(&run), ["y"]);
    assert_eq!(refused(&run), [(".git".to_owned(), "git".to_owned()), ("sub/.git".to_owned(), "git".to_owned())]);
    lab.task().plain().args(["--artifact", ".git/config"]).sh("true").refused(125, &["`.git`"]);
}

#[test]
fn what_a_limit_ended_still_hands_over_its_artifacts() {
    let lab = Lab::new();
    let run = lab.task().args(["--artifact", "half", "--wall", "1s"]).sh("echo half >half; sleep 60");
    run.ended_as("timeout", 124);
    assert_eq!(paths(&run), ["half"]);
}

#[test]
fn a_device_in_the_workspace_is_not_opened() {
    let Some(lab) = Lab::root() else { return };
    // Only the host's root can make one there; the agent's attempts are refused (escape::kernel).
    lab.directory("work");
    if !Command::new("mknod").arg(lab.path().join("work/zero")).args(["c", "1", "5"]).status().unwrap().success() {
        return skip("no device node can be made here");
    }
    // A changed mode copies it up.
    let work = lab.path().join("work");
    let run = lab.task().args(["--artifact", "*", "--dir"]).args([&work]).sh("touch -d 2001-01-01 zero; echo x >x");
    run.ended_as("succeeded", 0);
    assert_eq!(paths(&run), ["x"], "{run:#?}");
}
