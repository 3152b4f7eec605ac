//! Bad input: one clear line on what failed, a hint, our exit status, and nothing made.

use crate::support::{Lab, Task};
use std::os::unix::fs::PermissionsExt;

/// Runs a task that must be refused before anything is made.
#[track_caller]
fn refused(lab: &Lab, task: Task<'_>, words: &[&str]) {
    let before = lab.ids();
    let run = task.plain().sh("echo started");
    run.refused(125, words);
    assert!(!run.stdout.contains("started"), "{run:#?}");
    assert_eq!(lab.ids(), before, "a task was made: {run:#?}");
    assert!(!lab.store().exists(), "a store was made: {run:#?}");
}

#[test]
fn a_size_a_time_or_a_count_that_does_not_parse_is_named_with_its_flag() {
    let lab = Lab::new();
    let check = |flag: &str, value: &str, words: &[&str]| refused(&lab, lab.task().args([flag, value]), words);
    check("--memory", "lots", &["`lots`", "`memory`"]);
    check("--memory", "-1", &["`-1`", "`memory`"]);
    check("--memory", "1k", &["`1k`", "`memory`", "least"]);
    check("--disk", "1 potato", &["`1 potato`", "`disk`"]);
    check("--disk", "0", &["`0`", "`disk`"]);
    check("--wall", "soon", &["`soon`", "`wall`"]);
    check("--idle", "0s", &["`0s`", "`idle`"]);
    check("--cpu-time", "5", &["`5`", "`cpu_time`"]);
    check("--cpus", "nan", &["`nan`", "`cpus`"]);
    check("--cpus", "0", &["`0`", "`cpus`"]);
    check("--pids", "1.5", &["`1.5`", "`pids`"]);
    check("--inodes", "1", &["`1`", "`inodes`"]);
    check("--open-files", "99999999999999999999", &["`open_files`"]);
    check("--output-bytes", "", &["``", "`output_bytes`"]);
    check("--swap", "x", &["`x`", "`swap`"]);
    check("--io-bps", "1", &["`1`", "`io_bps`", "least"]);
    check("--io-iops", "0", &["`0`", "`io_iops`"]);
}

#[test]
fn a_flag_that_would_say_nothing_is_refused() {
    let lab = Lab::new();
    lab.file("work/file", "");
    lab.directory("root/bin");
    let of_a_repository = [
        &["--ref", "v2"][..],
        &["--depth", "1"],
        &["--filter", "blob:none"],
        &["--submodules"],
        &["--lfs"],
        &["--git-from", "example.org"],
        &["--git-credential", "env:NOPE"],
        &["--git-ssh-key", "env:NOPE"],
        &["--git-known-hosts", "nope"],
        &["--git-ca", "nope"],
        &["--git-address", "10.0.0.1"],
        &["--push-branch", "b"],
    ];
    for words in of_a_repository {
        refused(&lab, lab.task().args(["--dir", "work"]).args(words), &[words[0], "repository"]);
        refused(&lab, lab.task().args(["--empty"]).args(words), &[words[0], "repository"]);
    }
    let of_an_image =
        [["--user", "root"], ["--entrypoint", "/bin/echo"], ["--stop-signal", "INT"], ["--pull", "always"]];
    for words in of_an_image {
        refused(&lab, lab.task().args(["--rootfs", "root"]).args(words), &[words[0], "an image"]);
    }
    refused(&lab, lab.task().args(["--pull", "never"]), &["--pull", "an image"]);
    refused(&lab, lab.task().args(["--learn", "--detach"]), &["--learn", "--detach"]);
    lab.brig(["agent", "claude", "--learn", "--detach"]).refused(125, &["--learn", "--detach"]);
}

#[test]
fn a_size_is_refused_that_no_disk_image_can_have() {
    let lab = Lab::new();
    refused(&lab, lab.task().args(["--disk", "7E"]), &["`7E`", "`disk`", "most"]);
    refused(&lab, lab.task().args(["--inodes", "9000000000"]), &["`inodes`", "most"]);
}

#[test]
fn more_open_files_than_the_kernel_gives_is_refused() {
    let lab = Lab::new();
    refused(&lab, lab.task().args(["--open-files", "4000000000"]), &["`open_files`", "4000000000"]);
}

#[test]
fn an_unknown_flag_or_verb_exits_with_125_and_not_with_what_could_be_the_commands() {
    let lab = Lab::new();
    for words in [&["task", "run", "--no-such-flag", "--", "true"][..], &["task", "walk"], &["no-such-verb"], &[]] {
        let run = lab.brig(words);
        assert_eq!(run.status, Some(125), "{words:?}: {run:#?}");
        assert!(!run.stderr.is_empty() && run.stdout.is_empty(), "{words:?}: {run:#?}");
    }
    let check = |words: &[&str], hint: &str| {
        let run = lab.brig(words);
        assert!(
            run.status == Some(125) && run.stderr.contains("hint:  ") && run.stderr.contains(hint),
            "{words:?}: {run:#?}"
        );
    };
    for (verb, hint) in [
        ("top", "`brig task top ID`"),
        ("tag", "`brig image tag NAME NEW`"),
        ("save", "`brig image save NAME`"),
        ("restart", "`brig task resume ID`"),
        ("history", "`brig image inspect NAME`"),
    ] {
        check(&[verb, "x"], hint);
    }
    check(&["task", "run", "--empty", "--backend", "runsc", "--", "true"], "oci:/path/to/runtime");
    let run = lab.brig(["task", "run", "--memroy", "1G", "--", "true"]);
    assert!(run.stderr.contains("--memroy") && run.stderr.contains("--memory"), "{run:#?}");
    assert!(!lab.store().exists());
}

#[test]
fn no_command_and_an_empty_one_are_refused() {
    let lab = Lab::new();
    lab.brig(["task", "run", "--empty"]).refused(125, &["command"]);
    lab.brig(["task", "run", "--empty", "--"]).refused(125, &["command"]);
    lab.task().plain().run([""]).refused(127, &["command"]);
    assert!(!lab.store().exists());
}

#[test]
fn a_workspace_that_is_a_file_missing_or_not_readable_is_refused() {
    let lab = Lab::new();
    let file = lab.file("file", "");
    let path = |name: &str| lab.path().join(name).into_os_string();
    let dir = |at: &std::ffi::OsStr| lab.task().args(["--dir".as_ref(), at]);
    refused(&lab, dir(file.as_os_str()), &["workspace", "file`", "folder"]);
    refused(&lab, dir(&path("missing")), &["workspace", "missing`", "No such file"]);
    let repo = |at: &std::ffi::OsStr| lab.task().args(["--repo".as_ref(), at]);
    refused(&lab, repo(&path("missing")), &["repository", "missing`", "No such file"]);
    lab.directory("plain");
    refused(&lab, repo(&path("plain")), &["repository", "plain`", "not a git repository"]);
    refused(&lab, repo("http://example.org/x.git".as_ref()), &["http://example.org/x.git", "plain http"]);
    let rootfs = |at: &std::ffi::OsStr| lab.task().args(["--rootfs".as_ref(), at]);
    refused(&lab, rootfs(&path("missing")), &["root file system", "missing`"]);
    refused(&lab, rootfs(file.as_os_str()), &["root file system", "file`"]);
    if !crate::support::is_root() {
        let closed = lab.directory("closed");
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
        refused(&lab, dir(closed.as_os_str()), &["closed`", "Permission denied"]);
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    }
}

#[test]
fn workspaces_contradict_each_other() {
    let lab = Lab::new();
    let work = lab.directory("work");
    let run = lab.task().plain().args(["--empty", "--dir"]).args([work]).sh("true");
    assert_eq!(run.status, Some(125), "{run:#?}");
    assert!(run.stderr.contains("--empty") && run.stderr.contains("--dir"), "{run:#?}");
    let run = lab.task().plain().args(["--ref", "main"]).sh("true");
    assert_eq!(run.status, Some(125), "{run:#?}");
    assert!(run.stderr.contains("--repo"), "{run:#?}");
}

#[test]
fn a_profile_with_a_fault_is_refused_with_the_place_of_the_fault() {
    let lab = Lab::new();
    let check = |text: &str, words: &[&str]| {
        let profile = lab.file("profile.toml", text);
        let words: Vec<_> = ["profile.toml`"].iter().chain(words).copied().collect();
        let run = lab.task().plain().args(["--profile"]).args([profile]).sh("true");
        assert_eq!(run.status, Some(125), "{run:#?}");
        let errors: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && words.iter().all(|word| errors[0].contains(word)), "{words:?}: {run:#?}");
        assert!(run.stderr.contains("code:  E-PROFILE"), "{run:#?}");
        assert!(run.stderr.contains("hint:  "), "{run:#?}");
        assert!(!lab.store().exists());
    };
    check("[limits]\nmemory = \"1G\"\n\nnetwrok = \"none\"\n", &["netwrok"]);
    check("\nrootfss = \"/\"\n", &["line 2", "rootfss"]);
    check("[limits]\nmemroy = \"1G\"\n", &["memroy"]);
    check("[limits]\nmemory = \"lots\"\n", &["`lots`", "`memory`"]);
    check("[limits]\nmemory = true\n", &["limits.memory", "boolean"]);
    check("[limits]\nmemory = [1]\n", &["limits.memory", "array"]);
    check("limits = 5\n", &["line 1", "limits"]);
    check("[env]\nNAME = 5\n", &["line 2"]);
    check("grace = \"a while\"\n", &["grace"]);
    check("[exit_codes]\nneeds_input = [0]\n", &["needs_input", "0"]);
    check("[exit_codes]\nneeds_input = [300]\n", &["line 2"]);
    check("[exit_codes]\nretryable = [4]\nneeds_input = [4]\n", &["4 means `retryable`", "`needs_input`"]);
    check("allow_degraded = [\"seccomp\"]\n", &["seccomp"]);
    check("not toml", &["line 1"]);
    check("[limits]\nmemory = \"1G\"\nmemory = \"2G\"\n", &["line 3", "memory"]);
    check("[env]\n\"A=B\" = \"x\"\n", &["A=B"]);
    check("[limits]\nmemory = \"64M\"\ncpu-time = \"5s\"\n", &["cpu-time"]);
    let run = lab.task().plain().args(["--profile", "/no/such/profile.toml"]).sh("true");
    run.refused(125, &["/no/such/profile.toml`", "No such file"]);
}

#[test]
fn a_profile_that_contradicts_itself_is_refused() {
    let lab = Lab::new();
    let check = |text: &str, words: &[&str]| {
        let profile = lab.file("profile.toml", text);
        refused(&lab, lab.task().args(["--profile"]).args([profile]), words);
    };
    check("[limits]\nwall = \"10s\"\nidle = \"1m\"\n", &["`idle`", "`wall`"]);
    check("[limits]\nwall = \"10s\"\ncpus = 2\ncpu_time = \"1h\"\n", &["`cpu_time`", "`wall`"]);
}

#[test]
fn what_may_be_missing_is_a_closed_list() {
    let lab = Lab::new();
    refused(&lab, lab.task().args(["--allow-degraded", "seccomp"]), &["`seccomp`"]);
    refused(&lab, lab.task().args(["--allow-degraded", "wall"]), &["`wall`"]);
}

#[test]
fn a_terminal_without_a_terminal_is_refused() {
    let lab = Lab::new();
    refused(&lab, lab.task().args(["--tty"]), &["--tty", "terminal"]);
}

#[test]
fn a_store_that_cannot_be_made_is_refused() {
    let lab = Lab::new();
    let file = lab.file("file", "");
    let run = lab.brig([
        "task".as_ref(),
        "--store".as_ref(),
        file.as_os_str(),
        "run".as_ref(),
        "--".as_ref(),
        "true".as_ref(),
    ]);
    run.refused(125, &["file"]);
    let inside = lab.path().join("file/below");
    let run = lab.brig(["task".as_ref(), "--store".as_ref(), inside.as_os_str(), "ls".as_ref()]);
    assert_eq!(run.status, Some(125), "{run:#?}");
}
