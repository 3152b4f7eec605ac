//! `--hide` and `.brigignore`: files of a folder that are not in its sandbox and never in its changes.

use crate::support::{Image, Lab, Run, Task};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

const SECRET: &str = "correct-horse-battery";

/// A lab with a folder that has secrets under names that patterns hide, and under another name of one of them.
fn lab() -> (Lab, PathBuf) {
    let lab = Lab::new();
    for name in [".env", "config/.env", "config/deep/server.pem", "secrets/token", "linked.pem"] {
        lab.file(&format!("work/{name}"), format!("{SECRET}\n"));
    }
    for name in ["main.rs", "config/open", "config/deep/open", "other/open"] {
        lab.file(&format!("work/{name}"), "open\n");
    }
    lab.file("work/.brigignore", "# keys\n*.pem\nsecrets/\n");
    let work = lab.path().join("work");
    std::fs::hard_link(work.join("linked.pem"), work.join("other/name")).unwrap();
    std::os::unix::fs::symlink(".env", work.join("link")).unwrap();
    std::fs::set_permissions(work.join("config"), PermissionsExt::from_mode(0o750)).unwrap();
    (lab, work)
}

fn task(lab: &Lab) -> Task<'_> {
    lab.task().args(["--dir".as_ref(), lab.path().join("work").as_os_str()]).args(["--hide", ".env"])
}

/// Everything that a command can do to the layers of its folder.
const ATTACK: &str = r#"
look() { find . -name '*' -type f -exec cat {} + 2>/dev/null; cat .env config/.env link other/name secrets/token linked.pem; ls -aR; }
look
cat /workspace/.env /proc/self/cwd/.env /proc/$$/cwd/config/.env
ln .env hard; ln -P linked.pem hard2; mv .env moved; mv secrets moved2; cp -a config copy; cat copy/.env copy/deep/server.pem
chmod 777 config config/deep; touch config/deep/x; look
mv config renamed; cat renamed/.env renamed/deep/server.pem
rm -rf config; mkdir -p config/deep secrets; cat config/.env config/deep/server.pem secrets/token
touch .env secrets/token; rm -f .env secrets/token; rmdir secrets; cat .env secrets/token
mknod .env c 0 0; rm -f .env; ln -s /etc/hostname .env; rm -f .env
rm -rf other; mkdir other; look
python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name in ("config", "other", "."):
    for key in ("user.overlay.opaque", "trusted.overlay.opaque", "user.overlay.redirect", "trusted.overlay.redirect"):
        try: os.setxattr(name, key, b"/" if "redirect" in key else b"n")
        except OSError: pass
for flags in (1, 2, 4):
    libc.syscall(316, -100, b".env", -100, b"exchanged", flags)
for name in (".env", "config/.env", "exchanged", "other/name", "linked.pem"):
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH):
        try:
            found = os.open(name, flags)
            print(name, os.read(os.open("/proc/self/fd/%d" % found, os.O_RDONLY), 100))
        except OSError: pass
END
look
cat /proc/self/mountinfo; true
"#;

#[test]
fn hidden_files_are_reached_by_no_path() {
    let (lab, work) = lab();
    let run = task(&lab).sh(ATTACK);
    run.ended_as("succeeded", 0);
    assert!(!run.stderr.contains(SECRET) && run.stderr.contains("open\n"), "{run:#?}");
    assert!(std::fs::read_to_string(work.join(".env")).unwrap().contains(SECRET));
    let weak = task(&lab).weakened("hidden-files").sh("cat .env config/.env secrets/token");
    assert_eq!(weak.stderr.matches(SECRET).count(), 3, "{weak:#?}");
    let weak = task(&lab).weakened("hidden-links").sh("cat other/name");
    assert!(weak.stderr.contains(SECRET), "{weak:#?}");
}

/// Root inside has the capabilities of a container, and reads each shown file whatever its mode.
#[test]
fn hidden_files_are_not_reached_by_root_inside() {
    let Some(_) = Lab::root() else { return };
    let (lab, _) = lab();
    Image::new(&lab, "base").load();
    let inside = |task: Task<'_>| task.args(["--root-inside", "--image", "base:1"]).sh(ATTACK);
    let run = inside(task(&lab));
    assert!(!run.stderr.contains(SECRET) && run.stderr.contains("open\n"), "{run:#?}");
    assert_eq!(run.receipt()["root_inside"], true);
    let weak = inside(task(&lab).weakened("hidden-files"));
    assert!(weak.stderr.contains(SECRET), "{weak:#?}");
}

#[test]
fn folders_above_hidden_files_look_as_they_are() {
    let (lab, work) = lab();
    let script = "stat -c '%n %a %u %Y' config config/deep other; ls -A . config config/deep secrets";
    let run = task(&lab).sh(script);
    let status = |name: &str| std::fs::metadata(work.join(name)).unwrap();
    for name in ["config", "config/deep", "other"] {
        let (mode, time) = (status(name).mode() & 0o7777, status(name).mtime());
        assert!(run.stderr.contains(&format!("{name} {mode:o} 1000 {time}\n")), "{name}: {run:#?}");
    }
    assert!(run.stderr.contains(".brigignore\nconfig\nlink\nmain.rs\nother\n"), "{run:#?}");
    assert!(run.stderr.contains("config:\ndeep\nopen\n") && run.stderr.contains("'secrets': No such file"), "{run:#?}");
}

/// What a task of these words left, as diff and receipt show it.
fn changes(lab: &Lab, run: &Run) -> (String, serde_json::Value) {
    let receipt = run.receipt();
    let id = receipt["id"].as_str().unwrap();
    let stat = lab.brig(["task", "diff", id, "--stat"]);
    let diff = lab.brig(["task", "diff", id, "--binary"]);
    (format!("{}{}", stat.stdout, diff.stdout), receipt["changes"].clone())
}

/// A command that replaces, makes and deletes what is hidden, and changes one open file.
const CHANGE: &str = "echo of the agent > .env; mkdir secrets; echo new > secrets/token; rm -rf other; mkdir other; echo new > other/name; \
                      rm -rf config; echo changed > main.rs";

#[test]
fn hidden_files_are_in_no_diff_and_stay_when_changes_are_applied() {
    let (lab, work) = lab();
    let run = task(&lab).sh(CHANGE);
    run.ended_as("succeeded", 0);
    let (diff, receipt) = changes(&lab, &run);
    assert!(diff.contains("changed") && diff.contains("config/open"), "{diff}");
    for words in [SECRET, ".env", "secrets", "other/name", "server.pem"] {
        assert!(!diff.contains(words), "{words}: {diff}");
    }
    assert!(receipt["not_taken"].to_string().contains("hides this name"), "{receipt:#}");
    let id = run.receipt()["id"].as_str().unwrap().to_owned();
    let applied = lab.brig(["task", "apply", &id]);
    assert_eq!(applied.status, Some(0), "{applied:#?}");
    assert_eq!(std::fs::read_to_string(work.join("main.rs")).unwrap(), "changed\n");
    for name in [".env", "config/.env", "config/deep/server.pem", "secrets/token", "linked.pem", "other/name"] {
        assert!(std::fs::read_to_string(work.join(name)).unwrap().contains(SECRET), "{name}");
    }
    assert!(!work.join("config/open").exists());
}

#[test]
fn changes_without_the_guard_show_what_is_hidden() {
    let (lab, _) = lab();
    let run = task(&lab).weakened("hidden-changes").sh(CHANGE);
    let (diff, _) = changes(&lab, &run);
    assert!(diff.contains(SECRET) && diff.contains("server.pem"), "{diff}");
}

#[test]
fn a_kept_workspace_hides_the_same_files_when_it_goes_on() {
    let Some(_) = Lab::root() else { return };
    let (lab, work) = lab();
    let run = task(&lab).args(["--keep"]).sh("cat .env; echo kept > file");
    let id = run.ended_as("succeeded", 0).receipt()["id"].as_str().unwrap().to_owned();
    std::fs::write(work.join("config/new.pem"), SECRET).unwrap();
    let run =
        lab.brig(["task", "resume", &id, "--", "sh", "-c", "cat file .env config/.env secrets/token config/new.pem"]);
    assert!(run.stdout.contains("kept\n") && !run.stdout.contains(SECRET), "{run:#?}");
    lab.brig(["task", "prune", "--workspaces", "--older-than", "0s"]).succeeded();
}

#[test]
fn a_file_system_below_a_folder_with_hidden_files_is_not_shown() {
    let Some(_) = Lab::root() else { return };
    let (lab, work) = lab();
    let work = work.display();
    // Under the mount is a hidden file too.
    let script = format!(
        "set -e; mkdir {work}/data; echo {SECRET} > {work}/data/under.pem; mount -t tmpfs none {work}/data; \
         echo {SECRET} > {work}/data/x.pem; chmod 777 {work}/data; exec \"$@\""
    );
    let task = task(&lab).by(["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
    let run = task.sh("cat data/*; ls -A data");
    assert!(!run.stderr.contains(SECRET) && run.stderr.contains("is not shown: files are hidden"), "{run:#?}");
}

#[test]
fn a_folder_with_credentials_has_a_note_and_wrong_patterns_are_refused() {
    let (lab, work) = lab();
    let folder = || lab.task().plain().args(["--dir".as_ref(), work.as_os_str()]);
    let run = folder().args(["--explain"]).sh("true");
    assert!(run.stdout.contains("the agent can read `.env`") && run.stdout.contains("--hide '.env'"), "{run:#?}");
    let run = folder().args(["--explain", "--hide", ".env"]).sh("true");
    assert!(!run.stdout.contains("the agent can read") && run.stdout.contains("*.pem"), "{run:#?}");
    task(&lab).args(["--hide", "[z-a]"]).sh("true").refused(125, &["--hide", "[z-a]"]);
    lab.task().args(["--hide", ".env"]).sh("true").refused(125, &["--hide", "works on none"]);
    lab.file("around/work/.env", SECRET);
    let around = lab.path().join("around").display().to_string();
    let words = ["--dir", &format!("{around}/work"), "--hide", ".env", "--mount", &format!("{around}:/x")];
    lab.task().args(words).sh("true").refused(125, &["`/x` too"]);
    std::fs::write(work.join(".brigignore"), "ok\n[z-a]\n").unwrap();
    folder().sh("true").refused(125, &[".brigignore", "pattern 2"]);
    assert_eq!(lab.ids().len(), 0);
}
