//! Secrets: their delivery, change and revocation while the command runs; their values are nowhere else.

use crate::support::{Lab, Task, eventually, processes_of};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const VALUE: &str = "correct-horse-battery-staple";

/// Every file below `path` that contains one of the values in one of its forms.
fn files_with(path: &Path, values: &[&str]) -> Vec<String> {
    use base64::Engine;
    let mut found = Vec::new();
    let mut open = vec![path.to_path_buf()];
    let mut needles: Vec<Vec<u8>> = Vec::new();
    for value in values {
        needles.push(value.as_bytes().to_vec());
        needles.push(value.bytes().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect());
        needles.push(base64::engine::general_purpose::STANDARD_NO_PAD.encode(value).as_bytes()[..20].to_vec());
    }
    while let Some(path) = open.pop() {
        // Disk templates are empty file systems, gigabytes of holes, that no task has written.
        if path.is_symlink() || path.file_name().is_some_and(|name| name == "templates") {
            continue;
        }
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let content = fs::read(&path).unwrap_or_default();
        if needles.iter().any(|needle| content.windows(needle.len()).any(|each| each == needle)) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_secret_is_a_file_that_only_the_command_reads_and_no_process_writes() {
    let lab = Lab::new();
    let file = lab.file("token", format!("{VALUE}\n"));
    let run = lab.task().plain().args(["--secret", &format!("TOKEN=file:{}", file.display())]).sh(
        "cd /run/secrets && stat -c '%n %a %U' . TOKEN && wc -c <TOKEN && for what in 'echo x >TOKEN' 'rm -f TOKEN' 'echo x >new' 'chmod 777 TOKEN'; do \
         sh -c \"$what\" 2>/dev/null && echo \"could: $what\"; done; findmnt -no FSTYPE,OPTIONS /run/secrets 2>/dev/null || grep /run/secrets /proc/self/mounts; env | grep -c TOKEN",
    );
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(&lines[..3], [". 700 agent", "TOKEN 400 agent", "28"], "{run:#?}");
    assert!(lines[3].contains("tmpfs") && lines[3].contains("ro,") && lines[3].contains("noexec"), "{run:#?}");
    assert_eq!(lines[4], "0", "{run:#?}");
}

#[test]
fn a_variable_of_the_caller_and_the_output_of_a_command_are_secrets_too() {
    let lab = Lab::new();
    let run = lab
        .task()
        .plain()
        .env("MINE", VALUE)
        .args(["-e", "MINE", "-e", "PLAIN=public", "--secret", "KEY=cmd:echo another-secret-value"])
        .sh("echo $MINE $PLAIN; cat /run/secrets/KEY; echo; printf %s $MINE | base64; printf $MINE | od -An -tx1 | tr -d ' \\n'");
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(&lines[..2], ["[redacted:MINE] public", "[redacted:KEY]"], "{run:#?}");
    // The last base64 letter includes padding bits, and reveals nothing.
    assert!(lines[2].starts_with("[redacted:MINE]") && lines[2].len() < 22, "{run:#?}");
    assert_eq!(lines[3], "[redacted:MINE]", "{run:#?}");
    assert!(!run.stdout.contains(VALUE));
}

#[test]
fn the_value_is_in_no_argument_record_receipt_log_or_file_of_the_store() {
    let lab = Lab::new();
    let file = lab.file("secret/token", VALUE);
    let second = "second-secret-value-of-a-variable";
    let task = lab
        .task()
        .env("MINE", second)
        .args(["-e", "MINE", "--secret", &format!("TOKEN=file:{}", file.display())])
        .start_sh(
            "cat /run/secrets/TOKEN; echo $MINE; cat /run/secrets/TOKEN >/dev/stderr; echo ready; sleep 3; exit 5",
        );
    task.wait_for("ready");
    let ours = processes_of(&lab);
    assert!(!ours.is_empty());
    for (pid, line) in &ours {
        assert!(!line.contains(VALUE) && !line.contains(second), "{line}");
        // The caller's own variable is visible anyway; the file's value must not be in any environment.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains(VALUE));
    }
    assert_eq!(files_with(&lab.store(), &[VALUE, second]), [] as [&str; 0], "while it runs");
    let run = task.finish();
    run.ended_as("failed", 5);
    assert!(!run.stderr.contains(VALUE) && !run.stdout.contains(VALUE) && !run.stderr.contains(second), "{run:#?}");
    let receipt = run.receipt();
    assert_eq!(receipt["redactions"], 3, "{receipt:#}");
    assert_eq!(receipt["secrets"][0]["name"], "MINE");
    assert_eq!(receipt["secrets"][1]["exposure"], "file");
    assert_eq!(files_with(&lab.store(), &[VALUE, second]), [] as [&str; 0], "afterwards");
    let log = lab.brig(["task", "logs", &lab.ids()[0]]).stdout;
    assert_eq!(log.matches("[redacted:TOKEN]").count(), 2, "{log}");
}

#[test]
fn a_secret_that_is_written_letter_by_letter_does_not_come_out() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    let script = "import sys,time\nfor c in open('/run/secrets/TOKEN').read():\n sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.01)\nprint('.')";
    let run =
        lab.task().plain().args(["--secret", &format!("TOKEN=file:{}", file.display())]).run(["python3", "-c", script]);
    assert_eq!(run.stdout, "[redacted:TOKEN].\n", "{run:#?}");
}

#[test]
fn a_file_that_is_replaced_on_the_host_is_replaced_inside_and_hidden_too() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    let task = lab.task().args(["--secret", &format!("TOKEN=file:{}", file.display())]).start_sh(
        "cp /run/secrets/TOKEN old; echo ready; while cmp -s old /run/secrets/TOKEN; do sleep 0.05; done; stat -c '%a %U' /run/secrets/TOKEN; cat /run/secrets/TOKEN; echo; cat old",
    );
    task.wait_for("ready");
    let new = lab.file("token.new", "the-next-value-of-the-token\n");
    fs::rename(new, &file).unwrap();
    let run = task.finish();
    run.ended_as("succeeded", 0);
    assert!(run.stderr.ends_with("400 agent\n[redacted:TOKEN]\n[redacted:TOKEN]"), "{run:#?}");
    assert_eq!(run.receipt()["secrets"][0]["replaced"], 1);
}

#[test]
fn a_fifo_gives_one_value_and_does_not_stop_the_supervisor() {
    let lab = Lab::new();
    let fifo = lab.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::write(fifo, VALUE)
    });
    let secret = format!("TOKEN=file:{}", fifo.display());
    let run = lab.task().args(["--secret", &secret, "--wall", "3s"]).sh("cat /run/secrets/TOKEN; sleep 30");
    writer.join().unwrap().unwrap();
    run.ended_as("timeout", 124);
    assert!(run.stderr.contains("[redacted:TOKEN]"), "{run:#?}");
}

/// A task with the file as the secret TOKEN, and the caller's variable MINE.
fn with_both<'lab>(lab: &'lab Lab, file: &Path) -> Task<'lab> {
    lab.task().env("MINE", "a-variable-of-the-caller").args([
        "-e",
        "MINE",
        "--secret",
        &format!("TOKEN=file:{}", file.display()),
    ])
}

#[test]
fn a_revoked_secret_is_gone_at_once_and_stays_gone() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    let task = with_both(&lab, &file)
        .start_sh("echo ready; while [ -e /run/secrets/TOKEN ]; do sleep 0.02; done; echo gone; sleep 0.7; ls /run/secrets | wc -l");
    task.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    lab.brig(["task", "revoke", &id, "NOPE"]).refused(125, &["`NOPE`", "MINE, TOKEN"]);
    lab.brig(["task", "revoke", &id, "MINE"]).refused(125, &["`MINE`", "variable"]);
    lab.brig(["task", "revoke", &id, "TOKEN"]).succeeded();
    lab.file("token", "a-value-that-comes-too-late");
    eventually("the command sees it", || task.output().contains("gone"));
    let run = task.finish();
    run.ended_as("succeeded", 0);
    assert!(run.stderr.ends_with("gone\n0\n"), "{run:#?}");
    assert_eq!(run.receipt()["secrets"][1]["revoked"], true);
    lab.brig(["task", "revoke", &id, "TOKEN"]).refused(125, &["has ended"]);
}

#[test]
fn what_cannot_be_a_secret_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let short = lab.file("short", "12345\n");
    let check = |words: &[&str], expected: &[&str]| {
        lab.task().plain().args(words).sh("echo ran").refused(125, expected);
    };
    check(&["--secret", "T=hunter2-hunter2"], &["not a source of a secret"]);
    check(&["--secret", "T=env:NO_SUCH_VARIABLE"], &["`T`", "`NO_SUCH_VARIABLE` is not set"]);
    check(&["--secret", "T=file:/nowhere/x"], &["`T`", "No such file"]);
    check(&["--secret", &format!("T=file:{}", short.display())], &["shorter than 6 bytes"]);
    check(&["--secret", "T=cmd:exit 1"], &["`T`", "exit status: 1"]);
    check(&["--secret", "T=cmd:echo abcdefgh", "--secret", "T=cmd:echo abcdefgh"], &["two secrets `T`"]);
    let profile = lab.file("p.toml", "[secrets.T]\nsource = \"env:HOME\"\nexpose = \"broker\"\n");
    check(&["--profile", profile.to_str().unwrap()], &["the broker must know for which host"]);
    assert_eq!(lab.ids(), [] as [&str; 0]);
}

#[test]
fn a_profile_exposes_secrets_as_files_and_as_variables() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let profile = format!(
        "[secrets.A]\nsource = \"file:{}\"\n[secrets.B]\nsource = \"cmd:echo value-of-b\"\nexpose = \"env\"\n",
        file.display()
    );
    let profile = lab.file("p.toml", profile);
    let run = lab
        .task()
        .plain()
        .args(["--profile".as_ref(), profile.as_os_str()])
        .sh("wc -c </run/secrets/A; echo ${#B} $B; ls /run/secrets");
    assert_eq!(run.stdout, "28\n10 [redacted:B]\nA\n", "{run:#?}");
}

#[test]
fn what_is_run_in_a_task_says_no_secret_either() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    let task = with_both(&lab, &file).start_sh("echo ready; while [ ! -e stop ]; do sleep 0.05; done");
    task.wait_for("ready");
    let id = lab.ids().pop().unwrap();
    let exec =
        |flags: &[&str], script: &str| lab.brig([&["task", "exec"], flags, &[&id, "--", "sh", "-c", script]].concat());
    let run = exec(&[], "cat /run/secrets/TOKEN; echo; echo \"a $MINE\" >&2; base64 </run/secrets/TOKEN");
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), "a [redacted:MINE]\n"), "{run:#?}");
    assert!(run.stdout.starts_with("[redacted:TOKEN]\n[redacted:TOKEN]"), "{run:#?}");
    let split = "python3 -c 'import sys,time\nfor c in open(\"/run/secrets/TOKEN\").read(): sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.01)'";
    assert_eq!(exec(&[], split).stdout, "[redacted:TOKEN]");
    // A new value is redacted before it is readable.
    let replaced = lab.start(["task", "exec", &id, "--", "sh", "-c", "echo begun; while grep -q correct /run/secrets/TOKEN; do :; done; cat /run/secrets/TOKEN; echo .; cat /run/secrets/TOKEN"]);
    replaced.wait_for("begun");
    let new = lab.file("token.new", "the-next-value-of-the-token\n");
    fs::rename(new, &file).unwrap();
    assert_eq!(replaced.finish().stdout, "begun\n[redacted:TOKEN].\n[redacted:TOKEN]");
    // --raw returns the bytes unchanged.
    assert_eq!(exec(&["--raw"], "cat /run/secrets/TOKEN").stdout, "the-next-value-of-the-token");
    assert_eq!(exec(&[], "printf '\\000\\377x'; exit 7").status, Some(7));
    // The sandbox ends as soon as the file exists, and may kill the process that made it (137).
    let _ = exec(&[], "touch stop");
    task.finish().ended_as("succeeded", 0);
    assert_eq!(files_with(&lab.store(), &[VALUE, "the-next-value-of-the-token"]), [] as [&str; 0]);
}

#[test]
fn a_changed_file_with_a_secret_is_named() {
    let lab = Lab::new();
    let file = lab.file("token", VALUE);
    let run = lab
        .task()
        .plain()
        .args(["--secret", &format!("TOKEN=file:{}", file.display())])
        .sh("mkdir a; cp /run/secrets/TOKEN a/copy; base64 /run/secrets/TOKEN >coded; echo fine >other");
    run.succeeded();
    assert!(run.stderr.contains("a secret is in the changed file a/copy") && !run.stderr.contains("other"), "{run:#?}");
    let shown = lab.brig(["task", "show", "--json", &lab.ids()[0]]);
    assert_eq!(shown.receipt()["changes"]["secrets"], serde_json::json!(["a/copy", "coded"]));
    // --with-secrets exports it.
    let patch = lab.path().join("patch");
    let export = ["task", "export", &lab.ids()[0], "--patch", "-o", patch.to_str().unwrap()];
    lab.brig(export).refused(125, &["a secret is in the changed file `a/copy` and 1 more"]);
    assert!(!patch.exists());
    lab.brig(export.iter().chain(&["--with-secrets"])).succeeded();
    assert!(std::fs::read_to_string(&patch).unwrap().contains(VALUE));
}
