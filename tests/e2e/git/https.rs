//! Repositories behind https: real nginx with TLS and a password before git-http-backend, reached by a courier through
//! the gateway.

use super::server::{Host, PASSWORD, PLAIN, TLS};
use super::{COMMIT, host, push, refused};
use crate::support::{Lab, Run};
use crate::terminal::Keyboard;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Asserts that a task had no sandbox, that its error line has these words, and that the password is not in it.
#[track_caller]
pub fn not_prepared(lab: &Lab, run: &Run, words: &[&str]) {
    refused(run, words);
    assert_nowhere(&lab.store(), PASSWORD);
    assert!(!format!("{run:?}").contains(PASSWORD), "{run:#?}");
}

/// Asserts that no file below a folder has these words.
#[track_caller]
pub fn assert_nowhere(folder: &Path, words: &str) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        // The templates of disks are empty file systems of ten gigabytes.
        if kind.is_dir() && !path.ends_with("templates") {
            assert_nowhere(&path, words);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            assert!(!bytes.windows(words.len()).any(|each| each == words.as_bytes()), "{} tells it", path.display());
        }
    }
}

#[test]
fn a_repository_is_cloned_worked_on_and_pushed_back() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let before = host(&remote, "git for-each-ref");
    let run =
        far.known_task(&lab, &url).args(["--push-branch", "agent/fix"]).sh(&format!("git log --format=%s; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("two\none\n"), "{run:#?}");
    let receipt = run.receipt();
    assert_eq!(push(&run)["state"], "pushed", "{receipt:#}");
    assert_eq!(host(&remote, "git rev-parse agent/fix"), receipt["commit_out"].as_str().unwrap());
    assert_eq!(
        host(&remote, "git log -1 --format='%an %s' agent/fix; git show agent/fix:file"),
        "agent the agent was here\ntwo\nmore"
    );
    assert_eq!(host(&remote, "git update-ref -d refs/heads/agent/fix; git for-each-ref"), before);
    // The agent had no access, although its couriers had.
    assert_eq!(receipt["egress"]["rows"], serde_json::json!([]), "{receipt:#}");
    let rows = receipt["couriers"]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["host"] == "a.test" && row["allowed"] == true), "{receipt:#}");
    let reached = rows.iter().find(|row| row["port"].is_u64()).unwrap();
    let bytes = |name: &str| reached[name].as_u64().unwrap();
    assert!(bytes("sent_bytes") > 500 && bytes("received_bytes") > 500 && bytes("count") >= 3, "{receipt:#}");
    assert!(far.served().contains("a.test 200 me POST /app.git/git-receive-pack"), "{}", far.served());
    assert_nowhere(&lab.store(), PASSWORD);
    // A second task updates the mirror: only new objects come.
    host(
        &lab.path().join("seed"),
        "git -C . checkout -q main; echo three >file; git commit -qam three; git push -q ../host/repositories/app.git main",
    );
    let packs = || {
        fs::read_dir(lab.store().join("mirrors")).unwrap().filter(|each| each.as_ref().unwrap().path().is_dir()).count()
    };
    let second = far.known_task(&lab, &url).sh("git log --format=%s");
    second.ended_as("succeeded", 0);
    assert!(second.stderr.contains("three\ntwo\none\n"), "{second:#?}");
    assert_eq!(packs(), 1, "one mirror");
}

/// git-init(1), `--object-format`: the default of git 3.
#[test]
fn a_repository_with_sha_256_is_worked_on_and_pushed_here_and_by_https() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    fs::remove_dir_all(&remote).unwrap();
    fs::create_dir(&remote).unwrap();
    let seed = lab.directory("other-seed");
    host(&seed, "git init -q --object-format=sha256 -b main .; echo one >file; git add .; git commit -qm one");
    host(&seed, "echo two >file; git commit -qam two; git branch other HEAD~1");
    host(&remote, "git clone -q --bare ../../../other-seed .");
    let script = format!("git fsck --strict; git log --format=%s; {COMMIT}");
    let of_path = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "here"]).sh(&script);
    let url = far.url("app.git");
    let of_url = far.known_task(&lab, &url).args(["--push-branch", "there"]).sh(&script);
    for (run, branch) in [(of_path, "here"), (of_url, "there")] {
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains("two\none\n"), "{run:#?}");
        assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
        let commit = run.receipt()["commit_out"].as_str().unwrap().to_owned();
        assert_eq!((commit.len(), host(&remote, &format!("git rev-parse {branch}"))), (64, commit.clone()));
    }
    // The mirror takes what is new, whatever this git makes by default.
    host(&seed, "echo three >file; git commit -qam three; git push -q ../host/repositories/app.git main");
    let second = far.known_task(&lab, &url).sh("git log --format=%s");
    second.ended_as("succeeded", 0);
    assert!(second.stderr.contains("three\ntwo\none\n"), "{second:#?}");
}

/// The packs of the newest checkout or mirror in a folder of the store, with their inodes.
pub(super) fn packs(lab: &Lab, folder: &str, below: &str) -> Vec<(String, u64)> {
    let tops = fs::read_dir(lab.store().join(folder)).unwrap().map(|each| each.unwrap().path());
    let newest = tops.filter(|path| path.is_dir()).max_by_key(|path| fs::metadata(path).unwrap().created().unwrap());
    let files = fs::read_dir(newest.unwrap().join(below)).unwrap().map(|each| each.unwrap());
    let mut all: Vec<_> =
        files.map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().ino())).collect();
    all.sort();
    all
}

#[test]
fn a_checkout_shares_the_packs_of_its_mirror_unless_that_has_more() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let secret = host(&remote, "echo secret | git hash-object -w --stdin");
    let tree = host(&remote, &format!("printf '100644 blob {secret}\tsecret\n' | git mktree"));
    let author = "-c user.name=x -c user.email=x@y";
    let commit = host(&remote, &format!("git {author} commit-tree -m secret {tree} | tee /dev/stderr"));
    host(&remote, &format!("git update-ref refs/heads/withdrawn {commit}"));
    let look = "git fsck --strict && git branch -r && git status --porcelain && git count-objects -v | grep ^count";
    let run = far.known_task(&lab, &url).sh(look);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("origin/main") && run.stderr.contains("origin/withdrawn"), "{run:#?}");
    assert!(run.stderr.ends_with("count: 0\n"), "{run:#?}");
    let of_base = packs(&lab, "bases", ".git/objects/pack");
    assert!(of_base.iter().any(|(name, _)| name.ends_with(".pack")), "{of_base:?}");
    assert_eq!(of_base, packs(&lab, "mirrors", "objects/pack"), "stored once");
    // What the agent does to its own packs, the store does not see.
    let attack =
        "chmod -R u+w .git/objects && for f in .git/objects/pack/*; do echo x > $f; done; git fsck || echo broken";
    assert!(far.known_task(&lab, &url).sh(attack).stderr.contains("broken"));
    far.known_task(&lab, &url).sh("git fsck --strict").ended_as("succeeded", 0);
    // The mirror keeps a commit that the remote has withdrawn; a new checkout does not get it.
    host(&remote, "git update-ref -d refs/heads/withdrawn");
    let seed = lab.path().join("seed");
    let add = |name: &str| {
        let words = "git push -q ../host/repositories/app.git main";
        host(&seed, &format!("git checkout -q main; echo {name} > file; git commit -qam {name}; {words}"));
    };
    add("three");
    let run = far
        .known_task(&lab, &url)
        .sh(&format!("git fsck --strict; git log -1 --format=%s; git cat-file -e {secret} || echo absent"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("three\n") && run.stderr.ends_with("absent\n"), "{run:#?}");
    assert_ne!(packs(&lab, "bases", ".git/objects/pack"), packs(&lab, "mirrors", "objects/pack"));
    add("four");
    let weak = far.known_task(&lab, &url).weakened("mirror-packs");
    assert!(!weak.sh(&format!("git cat-file -e {secret} || echo absent")).stderr.contains("absent"));
}

#[test]
fn the_head_of_a_remote_is_taken_also_if_no_branch_has_it() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let subject = "git log -1 --format=%s";
    assert!(far.known_task(&lab, &url).sh(subject).stderr.ends_with("two\n"));
    host(&remote, "git update-ref --no-deref HEAD main~1");
    assert!(far.known_task(&lab, &url).sh(subject).stderr.ends_with("one\n"));
}

#[test]
fn a_wrong_credential_is_one_clear_line_without_it() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let with = |credential: &str| {
        far.task(&lab, &url).env("WRONG", credential).args(["--git-credential", "env:WRONG"]).sh("echo ran")
    };
    let run = with(&format!("you:{PASSWORD}"));
    not_prepared(&lab, &run, &["fetch the repository", &url, "does not take the credential"]);
    not_prepared(&lab, &with("me:not.the.password"), &["does not take the credential"]);
    not_prepared(&lab, &with(&format!("{PASSWORD}-token")), &["does not take the credential"]);
    not_prepared(&lab, &far.task(&lab, &url).sh("echo ran"), &["asks for a credential"]);
    assert!(!far.served().contains(" 200 "), "{}", far.served());
    not_prepared(&lab, &far.known_task(&lab, &far.url("none.git")).sh("echo ran"), &["the repository does not exist"]);
    not_prepared(&lab, &far.known_task(&lab, &url).args(["--ref", "nowhere"]).sh("echo ran"), &["has no `nowhere`"]);
    let closed = format!("https://a.test:9/{}", "app.git");
    not_prepared(&lab, &far.known_task(&lab, &closed).sh("echo ran"), &["does not answer"]);
}

#[test]
fn an_unknown_certificate_is_not_trusted() {
    let lab = Lab::new();
    let Some(mut far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let other = lab.path().join("other.pem");
    host(
        lab.path(),
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=a.test -addext subjectAltName=DNS:a.test -keyout other.key -out other.pem 2>/dev/null",
    );
    far.ca = other;
    let run = far.known_task(&lab, &url).sh("echo ran");
    not_prepared(&lab, &run, &["certificate is not to be trusted"]);
    assert!(!far.served().contains("me "), "{}", far.served());
}

#[test]
fn a_name_that_leads_to_a_private_address_is_refused_until_that_is_named() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let credential = format!("file:{}", far.credential.display());
    let strict = |url: &str| far.strict_task(&lab, url).args(["--git-credential", &credential]);
    let run = strict(&far.url("app.git")).sh("echo ran");
    not_prepared(&lab, &run, &["`a.test` leads to 127.", "loopback"]);
    assert!(run.receipt()["error"]["hint"].as_str().unwrap().contains("--git-address"), "{run:#?}");
    let wrong = strict(&far.url("app.git")).args(["--git-address", "127.0.0.1"]).sh("echo ran");
    not_prepared(&lab, &wrong, &["`a.test` leads to 127.", "loopback"]);
    assert_eq!(far.served(), "");
    strict(&far.url("app.git")).weakened("egress-rebinding").sh("cat file").ended_as("succeeded", 0);
    // An address in the URL is allowed by the URL.
    let address = far.world.address;
    for url in [format!("https://{address}:{TLS}/app.git"), format!("http://{address}:{PLAIN}/app.git")] {
        let run = strict(&url).sh("cat file");
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains("two"), "{run:#?}");
    }
}

#[test]
fn a_courier_reaches_its_host_at_its_port_and_nothing_that_the_server_sends_it_to() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    // Another name of the repository on the same host is the same host.
    far.known_task(&lab, &far.url("renamed/app.git")).sh("cat file").ended_as("succeeded", 0);
    let away = |path: &str| far.known_task(&lab, &far.url(path));
    let sent = |path: &str, words: &[&str]| {
        let run = away(path).sh("echo ran");
        not_prepared(&lab, &run, words);
    };
    sent("away/app.git", &["the remote sends to `b.test`"]);
    sent("plain/app.git", &["another protocol"]);
    sent("port/app.git", &["8443"]);
    sent("address/app.git", &["192.0.2.7"]);
    sent("metadata/app.git", &["169.254.169.254"]);
    let served = far.served();
    assert!(!served.contains("b.test"), "{served}");
    // Without the rules the other host is reached; the credential still goes to the first one only.
    let run = away("away/app.git").weakened("egress-names,egress-rules,egress-rebinding").sh("echo ran");
    assert_eq!(run.outcome(), "prepare_failed", "{run:#?}");
    assert!(far.served().contains("b.test 401 - "), "{}", far.served());
    assert!(!far.served().contains("b.test 200 "), "{}", far.served());
}

/// Resumes a task's command that waits for `/tmp/go`. The task may end before the answer, so nothing is asserted.
fn go(lab: &Lab, id: &str) {
    lab.brig(["task", "exec", id, "--", "touch", "/tmp/go"]);
}

#[test]
fn what_the_remote_refuses_loses_nothing() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    let remote = far.repository(&lab, "app.git");
    let url = far.url("app.git");
    let before = host(&remote, "git for-each-ref");
    let to = |branch: &str| far.known_task(&lab, &url).args(["--push-branch", branch]);
    let refused = |run: &Run, words: &[&str]| {
        run.ended_as("push_failed", 125);
        let receipt = run.receipt();
        let message = receipt["error"]["message"].as_str().unwrap();
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` in: {message}"));
        assert_eq!(receipt["push"]["state"], "failed");
        let commit = receipt["commit_out"].as_str().unwrap();
        let heads = host(lab.path(), &format!("git bundle list-heads {}", receipt["push"]["bundle"].as_str().unwrap()));
        assert!(heads.starts_with(commit), "{heads}");
        let id = lab.ids().pop().unwrap();
        assert!(lab.brig(["task", "diff", &id]).stdout.contains("+more"), "the workspace is kept");
        assert_nowhere(&lab.store(), PASSWORD);
        assert_eq!(host(&remote, "git for-each-ref"), before);
    };
    super::refused(&to("main").sh("echo ran"), &["push to `main`", "default branch"]);
    // A server's own rule.
    let hook = remote.join("hooks/pre-receive");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\necho rule 7 says no >&2\nexit 1\n").unwrap();
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    refused(&to("x").sh(COMMIT), &["the remote refused", "rule 7 says no"]);
    fs::remove_file(&hook).unwrap();
    // A credential that may read and not write.
    host(&remote, "git config http.receivepack false");
    refused(&to("x").sh(COMMIT), &["the remote refused", "403"]);
    host(&remote, "git config --unset http.receivepack");
    // The branch moves while the agent works.
    let started = to("moved").start_sh(&format!("echo ready; until [ -e /tmp/go ]; do sleep 0.05; done; {COMMIT}"));
    started.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    host(&remote, "git update-ref refs/heads/moved $(git commit-tree -m elsewhere -p main main^{tree})");
    go(&lab, &id);
    let run = started.finish();
    host(&remote, "git update-ref -d refs/heads/moved");
    refused(&run, &["not based on"]);
    // The remote disappears after the work.
    let started = to("x").start_sh(&format!("echo ready; until [ -e /tmp/go ]; do sleep 0.05; done; {COMMIT}"));
    started.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    let away = lab.path().join("away.git");
    fs::rename(&remote, &away).unwrap();
    go(&lab, &id);
    let run = started.finish();
    fs::rename(&away, &remote).unwrap();
    refused(&run, &["the repository does not exist"]);
    // And the whole host.
    let started = to("x").start_sh(&format!("echo ready; until [ -e /tmp/go ]; do sleep 0.05; done; {COMMIT}"));
    started.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    drop(far);
    go(&lab, &id);
    refused(&started.finish(), &["push `"]);
}

#[test]
fn progress_of_a_clone_is_on_the_terminal_while_it_comes() {
    let lab = Lab::new();
    let Some(far) = Host::new(&lab) else { return };
    far.repository(&lab, "app.git");
    let task = far.known_task(&lab, &far.url("app.git")).plain();
    let mut keyboard = Keyboard::start(task.command_for(["echo", "ran"]));
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    keyboard.wait_for("ran");
    let screen = keyboard.screen();
    let (before, after) = screen.split_once("ran").unwrap();
    // A line that is written over, and cleared before the command's first word.
    assert!(before.contains("\r\x1b[Kbrig: remote: "), "{screen:?}");
    assert!(before.ends_with("\r\x1b[K") && !after.contains("remote: "), "{screen:?}");
}
