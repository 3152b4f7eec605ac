//! Repositories: commits come out by their ids, to a branch or a file, and nothing in the agent's `.git` runs on the
//! host.

mod applies;
mod bounds;
mod hostile;
mod https;
mod large;
mod options;
mod pushes;
mod server;
mod ssh;
mod story;
mod submodules;
mod worktrees;

use crate::support::{Lab, Run, is_root};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a script on the host, without a user's git settings.
fn host(directory: &Path, script: &str) -> String {
    let done = Command::new("sh")
        .args(["-euc", script])
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([
            ("GIT_AUTHOR_NAME", "host"),
            ("GIT_AUTHOR_EMAIL", "host@localhost"),
            ("GIT_COMMITTER_NAME", "host"),
            ("GIT_COMMITTER_EMAIL", "host@localhost"),
        ])
        .output()
        .unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A bare repository with two commits on `main`, and one on `other`.
fn bare(lab: &Lab) -> PathBuf {
    let path = lab.directory("remote.git");
    let work = lab.directory("seed");
    host(
        &work,
        "git init -q -b main .; echo one >file; git add .; git commit -qm one; echo two >file; git commit -qam two; git branch other HEAD~1",
    );
    host(&path, "git clone -q --bare ../seed .");
    path
}

/// Commits of an agent.
const COMMIT: &str =
    "echo more >>file; echo new >new; git add -A; git commit -qm 'the agent was here'; git rev-parse HEAD";

fn task(lab: &Lab, remote: &Path, more: &[&str], script: &str) -> Run {
    lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(more).sh(script)
}

/// Asserts that a task had no sandbox, and that its one error line has these words and advice.
#[track_caller]
fn refused(run: &Run, words: &[&str]) {
    run.ended_as("prepare_failed", 125);
    let receipt = run.receipt();
    let message = receipt["error"]["message"].as_str().unwrap();
    words.iter().for_each(|word| assert!(message.contains(word), "`{word}` in: {message}"));
    assert!(!message.contains('\n') && receipt["error"]["hint"].is_string(), "{receipt:#}");
}

fn push(run: &Run) -> Value {
    run.receipt()["push"].clone()
}

/// From 64 MiB of packs on.
#[test]
fn a_large_repository_of_this_machine_gets_a_mirror_that_takes_only_what_is_new() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let seed = lab.path().join("seed");
    host(&seed, "head -c 70000000 /dev/urandom > large; git add .; git -c core.compression=0 commit -qm large");
    host(&seed, "git push -q ../remote.git main; git -C ../remote.git repack -adq");
    let look = "git fsck --strict && git log --format=%s && git branch -r && git status --porcelain";
    let run = task(&lab, &remote, &[], look);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("large\ntwo\none\n  origin/main\n  origin/other\n"), "{run:#?}");
    let of_base = || https::packs(&lab, "bases", ".git/objects/pack");
    let first = of_base();
    assert_eq!(first, https::packs(&lab, "mirrors", "objects/pack"), "stored once");
    host(&seed, "echo three > file; git commit -qam three; git push -q ../remote.git main");
    // No branch leads to this one.
    let unnamed = host(&remote, "git commit-tree -p main -m unnamed main^{tree}");
    for (more, newest) in [(vec![], "three\n"), (vec!["--ref", &unnamed], "unnamed\nthree\n")] {
        let run = task(&lab, &remote, &more, look);
        run.ended_as("succeeded", 0);
        assert!(run.stderr.contains(&format!("{newest}large\ntwo\none\n")), "{run:#?}");
        let now = of_base();
        assert!(now.len() > first.len() && first.iter().all(|pack| now.contains(pack)), "{first:?} {now:?}");
    }
}

#[test]
fn the_agents_commits_are_pushed_to_the_branch_and_nothing_else_is() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let before = host(&remote, "git for-each-ref");
    let run = task(
        &lab,
        &remote,
        &["--push-branch", "agent/fix"],
        &format!("{COMMIT}; git branch stray; git tag stray-tag; git gc -q; echo not-committed >>file"),
    );
    run.ended_as("succeeded", 0);
    let receipt = run.receipt();
    assert_eq!(push(&run)["state"], "pushed", "{receipt:#}");
    let commit = receipt["commit_out"].as_str().unwrap();
    assert_ne!(receipt["commit_in"], receipt["commit_out"]);
    assert_eq!(host(&remote, "git rev-parse agent/fix"), commit);
    assert_eq!(
        host(&remote, "git log -1 --format='%an %s' agent/fix; git show agent/fix:file"),
        "agent the agent was here\ntwo\nmore"
    );
    assert_eq!(host(&remote, "git update-ref -d refs/heads/agent/fix; git for-each-ref"), before);
    assert!(Path::new(push(&run)["bundle"].as_str().unwrap()).exists());
}

#[test]
fn identity_and_settings_come_from_the_profile() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let profile = lab.file(
        "p.toml",
        "[git]\nname = \"Robot\"\nemail = \"robot@example.org\"\nsettings = { \"commit.cleanup\" = \"verbatim\" }\n[push]\nbranch = \"robot/x\"\n",
    );
    let run =
        task(&lab, &remote, &["--profile", profile.to_str().unwrap()], &format!("git config commit.cleanup; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("verbatim"), "{run:#?}");
    assert_eq!(host(&remote, "git log -1 --format='%an <%ae>' robot/x"), "Robot <robot@example.org>");
}

#[test]
fn a_second_push_goes_on_from_the_first_and_none_is_needed_without_commits() {
    let lab = Lab::new();
    let remote = bare(&lab);
    task(&lab, &remote, &["--push-branch", "a"], COMMIT).ended_as("succeeded", 0);
    let on = task(&lab, &remote, &["--ref", "a", "--push-branch", "a"], "echo again >>file; git commit -qam again");
    on.ended_as("succeeded", 0);
    assert_eq!(host(&remote, "git rev-list --count a"), "4");
    for script in ["true", "git checkout -q HEAD~1", "echo only a file >x"] {
        let none = task(&lab, &remote, &["--push-branch", "b"], script);
        none.ended_as("succeeded", 0);
        assert_eq!(push(&none)["state"], "nothing_new", "{script}: {none:#?}");
    }
    assert_eq!(host(&remote, "git branch --list b"), "");
}

#[test]
fn what_must_not_be_pushed_is_not_and_the_commits_are_in_a_file() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let refused = |run: &Run, words: &str| {
        run.ended_as("push_failed", 125);
        let receipt = run.receipt();
        let message = receipt["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{words}: {message}");
        assert_eq!(receipt["push"]["state"], "failed");
        assert_eq!(receipt["retryable"], true);
        let bundle = receipt["push"]["bundle"].as_str().unwrap();
        let commit = receipt["commit_out"].as_str().unwrap();
        let seed = lab.path().join("seed");
        host(
            &seed,
            &format!(
                "git fetch -q {bundle} 'refs/heads/*:refs/saved/*'; [ $(git for-each-ref --format='%(objectname)' refs/saved) = {commit} ]; git for-each-ref --format='delete %(refname)' refs/saved | git update-ref --stdin"
            ),
        );
    };
    let before = host(&remote, "git for-each-ref");
    // The default branch is known before the work begins.
    let run = task(&lab, &remote, &["--push-branch", "main"], "echo ran");
    self::refused(&run, &["push to `main`", "default branch"]);
    assert!(!run.stderr.contains("ran"), "{run:#?}");
    // The branch has a commit that the agent's is not based on.
    refused(
        &task(&lab, &remote, &["--ref", "other", "--push-branch", "moved"], &{
            host(&remote, "git branch moved main");
            COMMIT.to_owned()
        }),
        "not based on",
    );
    host(&remote, "git branch -D moved");
    assert_eq!(host(&remote, "git for-each-ref"), before);
    // The remote's own hook refuses.
    let hook = lab.file("remote.git/hooks/pre-receive", "#!/bin/sh\necho rule 7 says no >&2\nexit 1\n");
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    refused(&task(&lab, &remote, &["--push-branch", "x"], COMMIT), "refused");
    assert_eq!(host(&remote, "git for-each-ref"), before);
    // Allowed by name, the default branch is like any other.
    fs::remove_file(hook).unwrap();
    task(&lab, &remote, &["--push-branch", "main", "--push-default-branch"], COMMIT).ended_as("succeeded", 0);
    assert_eq!(host(&remote, "git rev-list --count main"), "3");
}

#[test]
fn a_remote_that_is_gone_when_the_work_is_done_loses_nothing() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let started = lab
        .task()
        .args(["--repo".as_ref(), remote.as_os_str()])
        .args(["--push-branch", "x"])
        .start_sh(&format!("echo ready; sleep 0.5; {COMMIT}"));
    started.wait_for("ready");
    fs::rename(&remote, lab.path().join("away.git")).unwrap();
    let run = started.finish();
    run.ended_as("push_failed", 125);
    let bundle = PathBuf::from(push(&run)["bundle"].as_str().unwrap());
    assert!(bundle.exists(), "{run:#?}");
    assert!(lab.brig(["task", "diff", &lab.ids()[0]]).stdout.contains("+more"), "the workspace is kept");
}

#[test]
fn push_into_a_repository_that_was_exchanged_is_refused() {
    let run = |weakened: bool| {
        let lab = Lab::new();
        let remote = bare(&lab);
        let task = lab.task().args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "x"]);
        let task = if weakened { task.weakened("push-identity") } else { task };
        let started = task.start_sh(&format!("echo ready; sleep 1; {COMMIT}"));
        started.wait_for("ready");
        host(lab.path(), "mv remote.git away.git; git clone -q --bare seed remote.git");
        let run = started.finish();
        (run, host(&remote, "git branch --list x"))
    };
    let (refused, branch) = run(false);
    refused.ended_as("push_failed", 125);
    let message = refused.receipt()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("another folder than the one that was cloned"), "{message}");
    assert_eq!(branch, "");
    // The attack: without the comparison the other repository has the commits.
    let (run, branch) = run(true);
    run.ended_as("succeeded", 0);
    assert_eq!(branch, "x");
}

#[test]
fn commits_in_a_folder_are_exported_and_apply_names_them() {
    let lab = Lab::new();
    bare(&lab);
    let seed = lab.path().join("seed");
    let run = lab.task().args(["--dir".as_ref(), seed.as_os_str()]).sh(&format!(
        "git config --global user.name a; git config --global user.email a@b; git config --global safe.directory '*'; git checkout -qb topic; {COMMIT}"
    ));
    run.ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    assert_eq!(run.receipt()["commit_in"], host(&seed, "git rev-parse main"));
    let file = lab.path().join("out.bundle");
    lab.brig(["task", "export", &id, "--bundle", "-o", file.to_str().unwrap()]).succeeded();
    host(&seed, "git fetch -q ../out.bundle refs/heads/topic:refs/heads/from-task");
    assert_eq!(host(&seed, "git rev-parse from-task"), run.receipt()["commit_out"]);
    assert_eq!(host(&seed, "git log -1 --format=%s from-task"), "the agent was here");
    let applied = lab.brig(["task", "apply", &id]);
    applied.succeeded();
    assert!(applied.stderr.contains(&format!("brig task export {id} --bundle")), "{applied:#?}");
    let counted = applied.stderr.lines().any(|line| line.ends_with("changes in `.git` left out"));
    assert!(counted && !applied.stdout.contains(".git"), "{applied:#?}");
}

#[test]
fn commits_of_a_folder_are_the_agents_also_when_the_user_moves_its_head() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let seed = lab.path().join("seed");
    let task = lab.task().args(["--dir".as_ref(), seed.as_os_str()]).start_sh(&format!(
        "git config --global user.name a; git config --global user.email a@b; git config --global safe.directory '*'; {COMMIT}; echo ready; sleep 1"
    ));
    task.wait_for("ready");
    let private = "git checkout -qb private; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m private";
    host(&seed, private);
    let run = task.finish();
    run.ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let receipt = run.receipt();
    assert_eq!(receipt["commit_in"], host(&seed, "git rev-parse main"));
    let ours = receipt["commit_out"].as_str().unwrap();
    let file = lab.path().join("out.bundle");
    lab.brig(["task", "export", &id, "--bundle", "-o", file.to_str().unwrap()]).succeeded();
    assert_eq!(host(&seed, "git bundle list-heads ../out.bundle"), format!("{ours} refs/heads/main"));
    let push = ["task", "push", &id, "--push-to", remote.to_str().unwrap(), "--push-branch", "agent/fix"];
    lab.brig(push).succeeded();
    assert_eq!(host(&remote, "git rev-parse agent/fix"), ours);
    assert_eq!(host(&remote, "git log --format=%s agent/fix | grep -c private || true"), "0");
}

#[test]
fn a_task_whose_commits_are_handed_out_is_not_removed() {
    let lab = Lab::new();
    let remote = bare(&lab);
    task(&lab, &remote, &[], COMMIT).ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    lab.brig(["task", "export", &id, "--bundle", "-o", lab.path().join("a").to_str().unwrap()]).succeeded();
    let lock = std::fs::File::open(lab.store().join("tasks").join(&id).join("export.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    lab.brig(["task", "rm", &id]).refused(125, &["are being pushed or exported"]);
    drop(lock);
    lab.brig(["task", "rm", &id]).succeeded();
}

#[test]
fn commits_of_a_folder_are_not_exported_over_another_of_its_name() {
    let lab = Lab::new();
    bare(&lab);
    let (seed, moved) = (lab.path().join("seed"), lab.path().join("moved"));
    let run = lab.task().args(["--dir".as_ref(), seed.as_os_str()]).sh(&format!(
        "git config --global user.name a; git config --global user.email a@b; git config --global safe.directory '*'; {COMMIT}"
    ));
    run.ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    std::fs::rename(&seed, &moved).unwrap();
    host(lab.path(), "git clone -q moved seed");
    let export = |name: &str| {
        let words = ["task", "export", &id, "--bundle", "-o"].map(OsString::from);
        words.into_iter().chain([lab.path().join(name).into_os_string()])
    };
    lab.brig(export("refused")).refused(125, &["another folder"]);
    // Without the check, commits of another folder at that path are taken.
    lab.weakened("changes-folder", export("weakened")).succeeded();
    std::fs::remove_dir_all(&seed).unwrap();
    std::fs::rename(&moved, &seed).unwrap();
    lab.brig(export("bundle")).succeeded();
}

#[test]
fn the_work_of_a_failed_attempt_is_in_a_file_and_not_pushed() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let run = task(&lab, &remote, &["--push-branch", "x"], &format!("{COMMIT}; exit 4"));
    run.ended_as("failed", 4);
    assert_eq!(push(&run)["state"], "not_tried");
    assert!(Path::new(push(&run)["bundle"].as_str().unwrap()).exists());
    assert_eq!(host(&remote, "git branch --list x"), "");
}

#[test]
fn commits_and_changes_are_exported_to_files() {
    let lab = Lab::new();
    let remote = bare(&lab);
    task(&lab, &remote, &[], &format!("git checkout -qb topic; {COMMIT}; echo dirty >>file")).ended_as("succeeded", 0);
    let id = lab.ids().pop().unwrap();
    let seed = lab.path().join("seed");
    let bundle = lab.path().join("out.bundle");
    lab.brig(["task", "export", &id, "--bundle", "-o", bundle.to_str().unwrap()]).succeeded();
    host(&seed, "git fetch -q ../out.bundle refs/heads/topic:refs/heads/topic");
    assert_eq!(host(&seed, "git log -1 --format=%s topic"), "the agent was here");
    let patch = lab.path().join("out.patch");
    lab.brig(["task", "export", &id, "--patch", "-o", patch.to_str().unwrap()]).succeeded();
    host(&seed, "git apply ../out.patch; [ -e new ]; tail -n 1 file | grep -q dirty");
    lab.brig(["task", "export", &id, "--patch", "-o", patch.to_str().unwrap()]).refused(125, &["out.patch"]);
    let none = task(&lab, &remote, &[], "true");
    none.ended_as("succeeded", 0);
    lab.brig(["task", "export", &lab.ids().pop().unwrap(), "--bundle", "-o", "/dev/null/x"])
        .refused(125, &["/dev/null/x"]);
}

/// Every way for git's files to make it run a program, in the agent's script. `$1` is the program.
const TRAPS: &str = r#"
mkdir -p .git/hooks .git/info
for hook in pre-commit post-commit pre-push post-checkout post-merge post-index-change reference-transaction pre-receive update post-receive fsmonitor-watchman pre-auto-gc post-rewrite sendemail-validate; do
    cp "$1" .git/hooks/$hook; chmod +x .git/hooks/$hook
done
git config core.fsmonitor "$1"; git config core.sshCommand "$1"; git config core.pager "$1"; git config core.editor "$1"
git config core.hooksPath "$PWD/.git/hooks"; git config core.askPass "$1"; git config core.gitProxy "$1"; git config core.alternateRefsCommand "$1"
git config credential.helper "!$1"; git config gpg.program "$1"; git config commit.gpgSign true; git config diff.external "$1"
git config filter.trap.clean "$1"; git config filter.trap.smudge "$1"; git config filter.trap.process "$1"; git config filter.trap.required true
git config diff.trap.textconv "$1"; git config diff.trap.command "$1"; git config merge.trap.driver "$1"
git config uploadpack.packObjectsHook "$1"; git config receive.procReceiveRefs refs; git config remote.origin.uploadpack "$1"; git config remote.origin.receivepack "$1"
git config remote.origin.url "ext::$1"; git config protocol.allow always; git config protocol.ext.allow always; git config url."ext::$1".insteadOf file:///
git config alias.rev-parse "!$1"; git config alias.bundle "!$1"; git config include.path "$PWD/.git/more"
printf '* filter=trap diff=trap merge=trap\n' > .git/info/attributes; cp .git/info/attributes .gitattributes
printf '[submodule "s"]\n\tpath = s\n\turl = ext::%s\n\tupdate = !%s\n' "$1" "$1" > .gitmodules
mkdir -p .git/modules/s/hooks; cp "$1" .git/modules/s/hooks/post-checkout
"#;

#[test]
fn nothing_that_the_agent_leaves_in_its_repository_runs_on_the_host() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let witness = lab.path().join("witness");
    fs::create_dir(lab.path().join("open")).unwrap();
    let trap = lab.file("open/trap", format!("#!/bin/sh\necho \"$0 $*\" >>{}\nexit 0\n", witness.display()));
    fs::set_permissions(&trap, PermissionsExt::from_mode(0o755)).unwrap();
    let script = format!(
        "{COMMIT}; printf '#!/bin/sh\\ntouch /workspace/x\\n' >/tmp/trap; set -- {}; {}",
        trap.display(),
        TRAPS.replace("cp \"$1\"", "cp /tmp/trap")
    );
    let run = task(&lab, &remote, &["--push-branch", "agent/trap"], &script);
    run.ended_as("succeeded", 0);
    assert_eq!(push(&run)["state"], "pushed", "{run:#?}");
    let id = lab.ids().pop().unwrap();
    lab.brig(["task", "diff", &id]).succeeded();
    lab.brig(["task", "export", &id, "--bundle", "-o", lab.path().join("b").to_str().unwrap()]).succeeded();
    lab.brig(["task", "export", &id, "--patch", "-o", lab.path().join("p").to_str().unwrap()]).succeeded();
    assert!(!witness.exists(), "{}", fs::read_to_string(&witness).unwrap());
    // The traps are real: one harmless git command on the host in that tree runs them.
    let copy = lab.directory("copy");
    let base = run.receipt()["changes"]["base"].as_str().unwrap().to_owned();
    let changes = run.receipt()["changes"]["path"].as_str().unwrap().to_owned();
    host(
        &copy,
        &format!(
            "cp -r {base}/. . && cp -r {changes}/files/. . && chmod -R u+rwX . && git -c safe.directory='*' status >/dev/null 2>&1 || true"
        ),
    );
    assert!(witness.exists(), "the control: git on the host runs what the agent left");
    // Runnable files are listed.
    let runnable = run.receipt()["changes"]["runnable"].to_string();
    assert!(runnable.contains(".git/config") && runnable.contains(".git/hooks/pre-commit"), "{runnable}");
}

#[test]
fn objects_that_lead_elsewhere_or_are_broken_are_not_taken() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let refused = |script: &str, words: &str| {
        let run = task(&lab, &remote, &["--push-branch", "x"], script);
        run.ended_as("push_failed", 125);
        let message = run.receipt()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(words), "{script}: {message}");
        assert_eq!(host(&remote, "git branch --list x"), "", "{script}");
    };
    // Alternates are not followed: the commit's objects are not in the store.
    refused(
        &format!(
            "{COMMIT}; mv .git/objects /tmp/objects; mkdir -p .git/objects/info; echo /tmp/objects >.git/objects/info/alternates; git log -1"
        ),
        "not in the workspace",
    );
    // An object that does not match its name.
    refused(
        &format!(
            "{COMMIT}; tree=$(git rev-parse HEAD:new); file=.git/objects/$(echo $tree | cut -c1-2)/$(echo $tree | cut -c3-); chmod u+w $file; \
                  other=$(git rev-parse HEAD:file); cp .git/objects/$(echo $other | cut -c1-2)/$(echo $other | cut -c3-) $file"
        ),
        "git ended",
    );
    // One that is missing.
    refused(
        &format!(
            "{COMMIT}; blob=$(git rev-parse HEAD:new); rm -f .git/objects/$(echo $blob | cut -c1-2)/$(echo $blob | cut -c3-)"
        ),
        "git ended",
    );
    refused("rm -rf .git; ln -s /etc .git", "`.git`");
    refused("echo 'ref: refs/../../../../../etc/passwd' >.git/HEAD", "not a reference");
    // A tree with a name that would be `.git` where it is checked out (CVE-2014-9390).
    let evil = "blob=$(echo evil | git hash-object -w --stdin); tree=$(printf '100644 blob %s\\t.GIT\\n' $blob | git mktree); \
         git update-ref HEAD $(git commit-tree $tree -p HEAD -m evil)";
    refused(evil, "git ended");
    // Also by Debian's older git, which fetches unchecked objects from a bundle.
    if is_root() && Path::new("/usr/local/bin/git").exists() && Path::new("/usr/bin/git").exists() {
        let older = "mount --bind /usr/bin/git /usr/local/bin/git && exec \"$@\"";
        let task = lab.task().by(["unshare", "--mount", "sh", "-c", older, "sh"]);
        let run = task.args(["--repo".as_ref(), remote.as_os_str()]).args(["--push-branch", "x"]).sh(evil);
        run.ended_as("push_failed", 125);
        assert_eq!(host(&remote, "git branch --list x"), "");
    }
}

#[test]
fn packs_that_have_nothing_to_do_with_the_commits_do_not_stop_their_push() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let shallow = "git init -q /tmp/other; git -C /tmp/other commit -q --allow-empty -m a; \
                   git -C /tmp/other commit -q --allow-empty -m b; git fetch -q --depth 1 file:///tmp/other HEAD";
    let broken = "printf PACK > .git/objects/pack/pack-0123456789012345678901234567890123456789.pack";
    for (number, plant) in [shallow, broken].into_iter().enumerate() {
        // This branch was in the way of a reference that brig made.
        let branch = format!("base/{number}");
        let run = task(&lab, &remote, &["--push-branch", &branch], &format!("{plant}; {COMMIT}"));
        run.ended_as("succeeded", 0);
        assert_eq!(push(&run)["state"], "pushed", "{:#}", run.receipt());
        assert_eq!(host(&remote, &format!("git rev-parse {branch}")), run.receipt()["commit_out"].as_str().unwrap());
    }
}

#[test]
fn push_to_a_repository_of_this_machine_leaves_its_objects_and_worktrees_alone() {
    let lab = Lab::new();
    let remote = bare(&lab);
    host(
        &remote,
        "git config gc.auto 10; git config gc.autoDetach false; git worktree add -q --detach ../tree main; \
         touch -d '1 year ago' worktrees/tree/index worktrees/tree/gitdir worktrees/tree; \
         for i in $(seq 900); do echo $i | git hash-object -w --stdin; done > /dev/null",
    );
    let before = host(&remote, "git count-objects");
    let run = task(&lab, &remote, &["--push-branch", "x"], COMMIT);
    run.ended_as("succeeded", 0);
    assert!(remote.join("worktrees/tree").exists(), "the worktree is gone");
    let count = |text: &str| text.split(' ').next().unwrap().parse::<u32>().unwrap();
    assert!(count(&host(&remote, "git count-objects")) >= count(&before), "a cleaner ran in the courier");
}

#[test]
fn a_large_shallow_repository_of_this_machine_is_cloned() {
    let lab = Lab::new();
    bare(&lab);
    let seed = lab.path().join("seed");
    host(&seed, "head -c 70000000 /dev/urandom > large; git add .; git -c core.compression=0 commit -qm large");
    let shallow = lab.path().join("shallow");
    host(lab.path(), &format!("git clone -q --depth 1 file://{} shallow", seed.display()));
    let run = task(&lab, &shallow, &["--push-branch", "x"], &format!("git log --format=%s; {COMMIT}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("large\n"), "{run:#?}");
    assert_eq!(push(&run)["state"], "pushed");
}

#[test]
fn what_is_asked_for_wrongly_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let remote = remote.to_str().unwrap();
    let check = |words: &[&str], expected: &[&str]| {
        lab.task().plain().args(words).sh("echo ran").refused(125, expected);
    };
    check(&["--repo", remote, "--push-branch", "a..b"], &["`a..b`"]);
    check(&["--repo", "ext::sh -c x"], &["run programs"]);
    check(&["--repo", "https://me:secret@host/x"], &["credential in a URL"]);
    check(&["--repo", "http://example.org/x"], &["plain http"]);
    check(&["--repo", "git://example.org/x"], &["`git`"]);
    let profile = lab.file("p.toml", "[push]\nbranch = \"x\"\n");
    check(&["--profile", profile.to_str().unwrap()], &["only commits of a clone are pushed"]);
    assert_eq!(lab.ids(), [] as [&str; 0]);
}

/// Makes the bare repository `path` with 30,000 files, each with its line repeated as `lines` returns.
fn of_many_files(lab: &Lab, path: &Path, lines: impl Fn(usize) -> usize) {
    let mut stream = String::from("commit refs/heads/main\ncommitter a <a@b> 1 +0000\ndata 3\nbig\n");
    for number in 0..30_000 {
        let text = format!("file {number}\n").repeat(lines(number));
        stream += &format!("M 644 inline d{}/e{}/f{number}\ndata {}\n{text}\n", number % 100, number % 10, text.len());
    }
    let stream = lab.file("stream", stream);
    host(path, &format!("git init -q --bare -b main . && git fast-import --quiet <{}", stream.display()));
}

/// How many seconds a task took to have its workspace.
fn prepared_in(run: &Run) -> f64 {
    let receipt = run.receipt();
    let steps = receipt["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == "prepare").unwrap()["seconds"].as_f64().unwrap()
}

#[test]
fn a_repository_of_tens_of_thousands_of_files_is_checked_out_once() {
    let lab = Lab::new();
    let path = lab.directory("big.git");
    of_many_files(&lab, &path, |_| 1);
    let first = task(&lab, &path, &[], "find . -name .git -prune -o -type f -print | wc -l");
    first.ended_as("succeeded", 0);
    assert!(first.stderr.contains("30000"), "{first:#?}");
    let second = task(&lab, &path, &["--push-branch", "x"], &format!("rm -r d7; {COMMIT}"));
    second.ended_as("succeeded", 0);
    assert_eq!(host(&path, "git ls-tree -r x | wc -l"), "29702");
    assert!(prepared_in(&second) * 3.0 < prepared_in(&first), "{} after {}", prepared_in(&second), prepared_in(&first));
}

/// Git takes the index of the base for the one of the files that the sandbox sees: with another owner, and copied.
#[test]
fn git_reads_no_file_again_in_a_fresh_workspace() {
    let lab = Lab::new();
    let remote = bare(&lab);
    let seed = lab.path().join("seed");
    // A file as new as the index is read again, and not counted.
    host(
        &seed,
        "git checkout -q .; touch -d '1 minute ago' *; ln -s file link; git add .; git commit -qm link; git status",
    );
    host(&seed, "git push -q ../remote.git main; sleep 1.1; touch .git/index");
    let stale = "git diff-files --name-only | wc -l; git config core.checkStat; git status --porcelain";
    let run = task(&lab, &remote, &[], stale);
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr, "0\nminimal\n", "{run:#?}");
    let run = lab.task().args(["--dir".as_ref(), seed.as_os_str()]).sh(stale);
    run.ended_as("succeeded", 0);
    assert_eq!(run.stderr, "0\nminimal\n", "{run:#?}");
}
