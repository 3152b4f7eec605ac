//! Where a command works: folders and repositories that are never written, and roots of the user's own.

use crate::support::{Lab, is_root, skip};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every name below `path` with all that a person could see change: mode, owner, times but for the last access,
/// content.
fn digest(path: &Path) -> Vec<String> {
    let mut rows = Vec::new();
    let mut open = vec![path.to_path_buf()];
    while let Some(path) = open.pop() {
        let status = fs::symlink_metadata(&path).unwrap();
        let content = if status.is_symlink() {
            fs::read_link(&path).unwrap().to_string_lossy().into_owned()
        } else if status.is_file() {
            format!("{:?}", fs::read(&path).unwrap_or_default())
        } else {
            open.extend(fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()));
            String::new()
        };
        rows.push(format!(
            "{} {:o} {}:{} {} {} {}.{} {}.{} {content}",
            path.display(),
            status.mode(),
            status.uid(),
            status.gid(),
            status.nlink(),
            status.len(),
            status.mtime(),
            status.mtime_nsec(),
            status.ctime(),
            status.ctime_nsec(),
        ));
    }
    rows.sort();
    rows
}

/// A folder with something of every kind.
fn make_tree(lab: &Lab, name: &str) -> PathBuf {
    let work = lab.directory(name);
    lab.file(&format!("{name}/README"), "read me\n");
    lab.file(&format!("{name}/src/deep/er/main.c"), "int main;\n");
    let script = lab.file(&format!("{name}/run.sh"), "#!/bin/sh\necho ran\n");
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let secret = lab.file(&format!("{name}/private"), "only mine\n");
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    symlink("README", work.join("link")).unwrap();
    symlink("/etc/passwd", work.join("link-out")).unwrap();
    fs::hard_link(work.join("README"), work.join("hard")).unwrap();
    lab.directory(&format!("{name}/empty"));
    work
}

/// Does everything to the workspace that can be done to a tree.
const RAMPAGE: &str = "set -e; cat private >/dev/null; ./run.sh; echo more >> README; rm -r src; mkdir src; echo new > src/new; mv run.sh moved.sh; \
    chmod 777 private; touch -d 2001-01-01 private; ln -s x newlink; rm link hard; mkdir -p a/b/c; echo x > a/b/c/d; rmdir empty; \
    echo through > link-out 2>/dev/null || true; ls -a; find . -type f -exec sh -c 'echo overwritten > \"$1\"' x {} \\;";

#[test]
fn a_folder_is_shown_copy_on_write_and_never_written() {
    let lab = Lab::new();
    let work = make_tree(&lab, "work");
    let before = digest(&work);
    let run = lab.task().args(["--dir"]).args([&work]).sh(RAMPAGE);
    run.ended_as("succeeded", 0);
    assert!(run.stderr.contains("ran\n") && run.stderr.contains("moved.sh"), "{run:#?}");
    assert_eq!(digest(&work), before);
    // Each attempt begins with the tree as it is.
    let run = lab.task().args(["--dir"]).args([&work]).sh("cat README; ls empty");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "read me\n");
}

#[test]
fn a_folder_of_an_ordinary_user_is_the_sandbox_users_own() {
    let Some(lab) = Lab::root() else { return };
    let work = make_tree(&lab, "work");
    let chown = Command::new("chown").args(["-hR", "4321:4321"]).arg(&work).status().unwrap();
    assert!(chown.success());
    let before = digest(&work);
    let run = lab.task().args(["--dir"]).args([&work]).sh(&format!("stat -c '%U %n' README; {RAMPAGE}"));
    run.ended_as("succeeded", 0);
    assert!(run.stderr.starts_with("agent README\n"), "{run:#?}");
    assert_eq!(digest(&work), before);
}

#[test]
fn a_relative_folder_is_meant_from_where_the_caller_is() {
    let lab = Lab::new();
    lab.file("work/here", "");
    let mut command = lab.task().plain().args(["--dir", "work"]).command_for(["ls"]);
    let output = command.current_dir(lab.path()).output().unwrap();
    assert_eq!(output.stdout, b"here\n", "{output:?}");
}

#[test]
fn an_empty_workspace_is_writable_and_gone_afterwards() {
    let lab = Lab::new();
    let run = lab
        .task()
        .plain()
        .sh("pwd; ls -a; echo x > file; mkdir -p ~/a /tmp/b; echo y > ~/a/file; echo z > /tmp/b/file; cat file");
    assert_eq!(run.succeeded().stdout, "/workspace\n.\n..\nx\n");
    let run = lab.task().plain().sh("ls -A . ~ /tmp");
    assert!(!run.succeeded().stdout.contains("file"), "{run:#?}");
}

/// A root with a static busybox; `None` without one on this machine.
fn busybox_root(lab: &Lab) -> Option<PathBuf> {
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() {
        skip("needs busybox-static");
        return None;
    }
    let root = lab.directory("rootfs");
    for name in ["bin", "etc", "tmp", "proc", "dev", "root", "var/lib"] {
        lab.directory(&format!("rootfs/{name}"));
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "rm", "mkdir", "id", "touch"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    lab.file("rootfs/etc/issue", "a root of my own\n");
    Some(root)
}

#[test]
fn a_root_of_the_users_own_is_used_and_never_written() {
    let lab = Lab::new();
    let Some(root) = busybox_root(&lab) else { return };
    if is_root() {
        // Whatever its owner, it looks the same inside.
        let chown = Command::new("chown").args(["-hR", "4321:4321"]).arg(&root).status().unwrap();
        assert!(chown.success());
    }
    let before = digest(&root);
    let script = "cat /etc/issue; ls -d /usr 2>&1; echo x > /workspace/x; echo h > ~/h; echo t > /tmp/t; cat ~/h /tmp/t; ls /dev/null";
    let run = lab.task().plain().args(["--rootfs"]).args([&root]).sh(script);
    let lines: Vec<_> = run.succeeded().stdout.lines().collect();
    assert_eq!(lines[0], "a root of my own", "{run:#?}");
    assert!(lines[1].contains("No such file"), "the host's /usr is not there: {run:#?}");
    assert_eq!(lines[2..], ["h", "t", "/dev/null"], "{run:#?}");
    assert_eq!(digest(&root), before);
}

#[test]
fn a_root_that_the_command_may_write_is_copy_on_write() {
    let lab = Lab::new();
    let Some(root) = busybox_root(&lab) else { return };
    fs::set_permissions(root.join("var/lib"), PermissionsExt::from_mode(0o777)).unwrap();
    let before = digest(&root);
    let run = lab.task().plain().args(["--rootfs"]).args([&root]).sh("echo new > /var/lib/new && cat /var/lib/new");
    assert_eq!(run.succeeded().stdout, "new\n");
    assert_eq!(digest(&root), before);
}

/// A git repository with two commits on `main` and a branch `other`.
fn make_repository(lab: &Lab) -> PathBuf {
    let path = lab.directory("repository");
    lab.file("repository/file", "one\n");
    let script = "set -e; git init -q -b main .; git add .; git commit -qm one; git checkout -qb other; echo other > file; git commit -qam other; \
                  git checkout -q main; echo two > file; git commit -qam two; git tag v2";
    let done = Command::new("sh")
        .args(["-c", script])
        .current_dir(&path)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@b"),
            ("GIT_COMMITTER_NAME", "a"),
            ("GIT_COMMITTER_EMAIL", "a@b"),
        ])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    path
}

#[test]
fn a_repository_is_cloned_at_the_reference_and_never_written() {
    let lab = Lab::new();
    let repository = make_repository(&lab);
    let before = digest(&repository);
    let url = format!("file://{}", repository.display());
    let check = |words: &[&str], expected: &str| {
        let run = lab
            .task()
            .args(words)
            .sh("cat file; git log --oneline | wc -l; git status --short; echo dirty > file; git commit -qam x");
        run.ended_as("succeeded", 0);
        assert!(run.stderr.ends_with(expected), "{words:?}: {run:#?}");
        assert_eq!(run.receipt()["commit_in"].as_str().unwrap().len(), 40);
    };
    let path = repository.to_str().unwrap();
    check(&["--repo", path], "two\n2\n");
    check(&["--repo", &url, "--ref", "other"], "other\n2\n");
    check(&["--repo", path, "--ref", "v2"], "two\n2\n");
    check(&["--repo", path, "--ref", "main~1"], "one\n1\n");
    assert_eq!(digest(&repository), before);
}

#[test]
fn a_repository_that_only_its_owner_may_read_is_cloned() {
    let Some(lab) = Lab::root() else { return };
    let repository = make_repository(&lab);
    let script = "chmod -R go= . && chown -hR 4321:4321 .";
    assert!(Command::new("sh").args(["-c", script]).current_dir(&repository).status().unwrap().success());
    lab.task().args(["--repo"]).args([&repository]).sh("cat file && echo x > file").ended_as("succeeded", 0);
}

#[test]
fn a_reference_that_does_not_exist_is_prepare_failed_and_says_so() {
    let lab = Lab::new();
    let repository = make_repository(&lab);
    let run =
        lab.task().args(["--repo".as_ref(), repository.as_os_str(), "--ref".as_ref(), "no-such".as_ref()]).sh("true");
    run.ended_as("prepare_failed", 125);
    let error = run.receipt()["error"]["message"].as_str().unwrap().to_owned();
    assert!(error.contains("`no-such`"), "{error}");
    let run = lab
        .task()
        .args(["--repo".as_ref(), repository.as_os_str(), "--ref".as_ref(), "--upload-pack=x".as_ref()])
        .sh("true");
    assert_eq!(run.status, Some(125), "{run:#?}");
}

#[test]
fn a_repository_that_is_hostile_runs_nothing_on_the_host() {
    let lab = Lab::new();
    let repository = make_repository(&lab);
    let witness = lab.path().join("witness");
    let touch = format!("#!/bin/sh\ntouch {}\n", witness.display());
    for hook in ["post-checkout", "pre-commit", "post-commit", "reference-transaction"] {
        let path = lab.file(&format!("repository/.git/hooks/{hook}"), &touch);
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let hook = lab.file("hook", &touch);
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    let config = format!(
        "\n[core]\n\tfsmonitor = {0}\n\tsshCommand = {0}\n\tpager = {0}\n[uploadpack]\n\tpackObjectsHook = {0}\n[filter \"x\"]\n\tsmudge = {0}\n",
        hook.display()
    );
    let mut file = fs::OpenOptions::new().append(true).open(repository.join(".git/config")).unwrap();
    std::io::Write::write_all(&mut file, config.as_bytes()).unwrap();
    let run = lab.task().args(["--repo"]).args([&repository]).sh("cat file");
    run.ended_as("succeeded", 0);
    assert!(!witness.exists());
}

#[test]
fn what_the_default_root_begins_with_is_kept_and_where_it_cannot_be_it_is_in_memory() {
    let Some(lab) = Lab::root() else { return };
    let templates = lab.store().join("templates");
    let kept = || {
        let entries = fs::read_dir(&templates).into_iter().flatten().map(|entry| entry.unwrap());
        entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.starts_with("root-"))
    };
    // What a command can see of its root, and what its root is.
    let look = || {
        let script = "for path in / /etc /etc/* /dev /dev/* /home /root /run /var /var/tmp /workspace; do stat -c '%n %A %u:%g %t:%T %N' $path; done; \
                      cat /etc/passwd /etc/hosts /etc/hostname; echo x > /dev/null; touch /x /dev/x; ls -ld /proc/acpi | cut -c 1-10; \
                      ls -A /proc/acpi; while read -r _ _ _ _ at rest; do [ $at = / ] && echo root ${rest##* - }; done < /proc/self/mountinfo; true";
        let run = lab.task().plain().sh(&format!("({script}) 2>&1"));
        assert_eq!(run.status, Some(0), "{run:#?}");
        let (lines, root): (Vec<_>, Vec<_>) =
            run.stdout.lines().map(str::to_owned).partition(|line| !line.starts_with("root "));
        (lines, root)
    };
    let (first, shown) = look();
    let names: Vec<_> = kept().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(!shown[0].starts_with("root tmpfs"), "{shown:?}");
    assert_eq!(look(), (first.clone(), shown));
    assert!(kept().eq(names.iter().cloned()));
    // A state of the machine that has more of them than are kept.
    fs::remove_dir_all(templates.join(&names[0])).unwrap();
    for number in 0..64 {
        fs::create_dir(templates.join(format!("root-v1-{number}"))).unwrap();
    }
    let (in_memory, shown) = look();
    assert!(shown[0].starts_with("root tmpfs"), "{shown:?}");
    // In memory links, and folders that are only there for what is in them, are nobody's.
    let in_memory: Vec<_> = in_memory.iter().map(|line| line.replace(" 65534:65534 ", " 0:0 ")).collect();
    let first: Vec<_> = first.iter().map(|line| line.replace(" 65534:65534 ", " 0:0 ")).collect();
    assert_eq!(in_memory, first, "the same root");
    assert_eq!(kept().count(), 64);
}

#[test]
fn a_kept_root_that_has_lost_a_part_is_named_with_what_to_do_about_it() {
    let Some(lab) = Lab::root() else { return };
    lab.task().sh("true").ended_as("succeeded", 0);
    let templates = lab.store().join("templates");
    let kept = || {
        let mut entries = fs::read_dir(&templates).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("root-")).unwrap()
    };
    for part in ["proc", "usr", "etc", "dev/pts", "workspace"] {
        let (tree, lost) = (kept(), kept().join(part));
        fs::remove_dir_all(&lost).unwrap();
        let run = lab.task().plain().sh("true");
        assert_eq!(run.status, Some(125), "{part}: {run:#?}");
        let advice = format!("`{}` has lost its `/{part}`: remove that folder", tree.display());
        assert!(run.stderr.contains(&advice), "{part}: {}", run.stderr);
        fs::remove_dir_all(&tree).unwrap();
        lab.task().sh("true").ended_as("succeeded", 0);
    }
}

/// A folder outside of `/tmp` with something beside it, and below it what has absolute paths in it.
fn make_own_path() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = Lab::own_path()?;
    let work = fs::canonicalize(folder.path()).unwrap().join("parent/work");
    fs::create_dir_all(work.join("bin")).unwrap();
    fs::create_dir_all(work.join("../sibling")).unwrap();
    fs::write(folder.path().join("secret"), "private").unwrap();
    // As a virtual environment has it: a link to the interpreter, and programs that name the link.
    let interpreter = work.join("bin/python");
    symlink("/bin/sh", &interpreter).unwrap();
    fs::write(work.join("bin/tool"), format!("#!{}\necho tool ran\n", interpreter.display())).unwrap();
    fs::set_permissions(work.join("bin/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    Some((folder, work))
}

#[test]
fn a_folder_is_at_its_own_path_and_nothing_of_the_host_is_beside_it() {
    let lab = Lab::new();
    let Some((folder, work)) = make_own_path() else { return };
    let before = digest(folder.path());
    let script = "pwd; cd /workspace; pwd -P; bin/tool; ls -A ..; ls -A ../..; touch ../x ../../x ../../../x 2>/dev/null && echo wrote; \
                  echo new > new; cd /; echo more >> /workspace/new; echo h > ~/h; cat /workspace/new ~/h";
    let run = lab.task().args(["--dir"]).args([&work]).sh(script);
    run.ended_as("succeeded", 0);
    let at = work.display();
    assert_eq!(run.stderr, format!("{at}\n{at}\ntool ran\nwork\nparent\nnew\nmore\nh\n"), "{run:#?}");
    assert_eq!(run.receipt()["workspace_at"], work.to_str().unwrap());
    assert_eq!(digest(folder.path()), before);
    let id = lab.ids().remove(0);
    let diff = lab.brig(["task", "diff", &id]).succeeded().stdout.clone();
    assert!(diff.contains("+++ b/new\n") && !diff.contains("parent"), "{diff}");
    lab.brig(["task", "apply", &id]).succeeded();
    assert_eq!(fs::read_to_string(work.join("new")).unwrap(), "new\nmore\n");
}

#[test]
fn a_workspace_is_where_at_says_and_the_command_where_workdir_says() {
    let lab = Lab::new();
    let work = lab.file("work/sub/file", "text\n");
    let work = work.parent().unwrap().parent().unwrap();
    let check = |words: &[&str], expected: &str| {
        let run = lab.task().args(["--dir"]).args([work]).args(words).sh("pwd; cat /workspace/sub/file");
        assert_eq!(run.ended_as("succeeded", 0).stderr, format!("{expected}\ntext\n"), "{words:?}: {run:#?}");
    };
    check(&[], "/workspace"); // the lab is below /tmp
    check(&["-w", "sub"], "/workspace/sub");
    for at in ["/src", "/home/user/deep/er", "/root/project", "/var/lib/project"] {
        check(&["--at", at], at);
        check(&["--at", at, "-w", "sub"], &format!("{at}/sub"));
        check(&["--at", at, "-w", "/usr"], "/usr");
    }
    let run =
        lab.task().plain().args(["--empty", "--at", "/a/b", "-w", ".."]).sh("pwd; echo x > b/x; cat /workspace/x");
    assert_eq!(run.succeeded().stdout, "/a\nx\n", "{run:#?}");
    let run = lab.task().plain().args(["--empty", "-w", "/no/such"]).sh("true");
    assert!(run.refused(125, &["/no/such"]).stderr.contains("`--workdir DIR`"), "{run:#?}");
    for at in
        ["/usr/x", "/etc", "/proc/x", "/tmp/x", "/", "/home", "/home/agent/x", "/workspace/x", "/a/../etc", "relative"]
    {
        let run = lab.task().args(["--dir"]).args([work]).args(["--at", at]).sh("true");
        run.refused(125, &["show the workspace at", at]);
    }
    let local = "isolation,disk,inodes,network";
    let run = lab.task().args(["--backend", "local", "--allow-degraded", local, "--at", "/src"]).sh("true");
    run.refused(125, &["`local`", "start folder"]);
}

#[test]
fn a_root_of_the_users_own_with_something_at_the_path_keeps_it() {
    let lab = Lab::new();
    let Some(root) = busybox_root(&lab) else { return };
    let Some((_folder, work)) = make_own_path() else { return };
    let run = || lab.task().args(["--rootfs"]).args([&root]).args(["--dir"]).args([&work]).sh("pwd; ls -A");
    assert_eq!(run().ended_as("succeeded", 0).stderr, format!("{}\nbin\n", work.display()));
    let there = root.join(work.strip_prefix("/").unwrap());
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    fs::write(&there, "a file of the root").unwrap();
    assert_eq!(run().ended_as("succeeded", 0).stderr, "/workspace\nbin\n");
}

#[test]
fn workspaces_below_one_folder_share_one_kept_root() {
    let Some(lab) = Lab::root() else { return };
    for name in ["a", "b", "c/d"] {
        let at = format!("/home/user/{name}");
        let run = lab.task().args(["--empty", "--at", &at]).sh("pwd; ls -A /home/user; touch /home/x 2>&1");
        assert!(run.ended_as("failed", 1).stderr.starts_with(&at), "{run:#?}");
        assert!(run.stderr.contains("Read-only file system"), "{run:#?}");
    }
    let entries = fs::read_dir(lab.store().join("templates")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(entries.filter(|name| name.to_str().unwrap().starts_with("root-")).count(), 1);
}

/// Runs git as nobody's configuration has it.
fn git(folder: &Path, script: &str) {
    let names = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(names.map(|name| (name, "a@b")));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_worktree_has_its_repository_beside_it_read_only() {
    let lab = Lab::new();
    let Some((folder, work)) = make_own_path() else { return };
    let main = folder.path().join("main");
    fs::create_dir(&main).unwrap();
    git(
        &main,
        "git init -q -b main .; echo one > file; git add .; git commit -qm first; git worktree add -q ../tree -b side",
    );
    let tree = fs::canonicalize(folder.path().join("tree")).unwrap();
    fs::write(main.join("private"), "of the main tree").unwrap();
    let before = digest(folder.path());
    let script = "git log --format=%s; git branch --show-current; echo two > file; git diff --stat | tail -1; ls -A ../main; \
                  touch ../main/.git/x 2>&1 | grep -o 'Read-only file system'";
    let run = lab.task().args(["--dir"]).args([&tree]).sh(script);
    let expected = "first\nside\n 1 file changed, 1 insertion(+), 1 deletion(-)\n.git\nRead-only file system\n";
    assert_eq!(run.ended_as("succeeded", 0).stderr, expected, "{run:#?}");
    assert_eq!(digest(folder.path()), before);
    let run = lab.task().plain().args(["--dir"]).args([&tree]).args(["--explain"]).sh("true");
    assert!(run.succeeded().stdout.contains("a commit fails in it: for commits use --repo"), "{run:#?}");
    // A worktree that is shown elsewhere has it at the path that its file names.
    let run = lab.task().args(["--dir"]).args([&tree]).args(["--at", "/src"]).sh("git log --format=%s");
    assert_eq!(run.ended_as("succeeded", 0).stderr, "first\n", "{run:#?}");
    drop(work);
}

#[test]
fn a_folder_of_a_repository_has_the_rules_above_it_and_a_note() {
    let lab = Lab::new();
    let Some((folder, work)) = make_own_path() else { return };
    let sub = folder.path().join("sub");
    fs::create_dir(&sub).unwrap();
    git(folder.path(), "git init -q .; echo '*.log' > .gitignore; echo one > sub/kept.log; git add -f sub");
    let run = lab.task().args(["--dir"]).args([&sub]).sh("echo two | tee -a kept.log new.log code > all; rm all");
    let changes = &run.succeeded().receipt()["changes"];
    let counts = ["added", "modified", "ignored"].map(|name| changes[name].as_u64().unwrap());
    assert_eq!((counts, &changes["first_ignored"][0]), ([1, 1, 1], &"new.log".into()), "{changes:#}");
    let run = lab.task().plain().args(["--dir"]).args([&sub]).args(["--explain"]).sh("true");
    assert!(run.succeeded().stdout.contains("git does not work inside"), "{run:#?}");
    drop(work);
}

#[test]
fn a_profile_says_where_the_workspace_is_and_where_the_command_starts() {
    let lab = Lab::new();
    let work = lab.directory("work/sub");
    let work = work.parent().unwrap();
    let profile = lab.file("profile.toml", "at = \"/src\"\nworkdir = \"sub\"\nstream_json = true\n");
    let task = || lab.task().args(["--profile"]).args([&profile]).args(["--dir"]).args([work]);
    let run = task().plain().sh("pwd; readlink /workspace");
    assert_eq!(run.succeeded().stdout, "/src/sub\n/src\n");
    // Flags go before the profile.
    assert_eq!(task().plain().args(["--at", "/a", "-w", "."]).sh("pwd").succeeded().stdout, "/a\n");
    let run = task().sh("echo '{\"step\":1}'");
    let id = run.receipt()["id"].as_str().unwrap().to_owned();
    assert!(lab.brig(["task", "events", &id]).succeeded().stdout.contains("\"event\":\"progress\""));
    let profile = lab.file("wrong.toml", "at = \"/etc/x\"\n");
    lab.task().args(["--profile"]).args([&profile]).args(["--empty"]).sh("true").refused(125, &["/etc/x"]);
}
