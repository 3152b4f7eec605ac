//! The words that Docker, containerd, Podman and Kubernetes map to an exit status or a hint: where runc says them, brig does.

use crate::beside::{has_runc, run_by_runc};
use crate::support::{Lab, finish};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// A bundle that fails, and words of its error.
type Case = (&'static str, fn(&mut Lab), &'static str);

fn set(lab: &mut Lab, pointer: &str, value: Value) {
    *lab.config.pointer_mut(pointer).unwrap() = value;
}

/// Adds a hook that fails.
fn hook(lab: &mut Lab, moment: &str) {
    let line = r#"printf 'with "quotes"\nand lines\n'; exit 3"#;
    lab.config["hooks"] = json!({moment: [{"path": "/bin/true"}, {"path": "/bin/sh", "args": ["sh", "-c", line]}]});
}

/// Errors of both runtimes.
const BOTH: [Case; 16] = [
    ("no program", |lab| _ = lab.args(&["/nope"]), "no such file or directory"),
    ("no program in PATH", |lab| _ = lab.args(&["nope"]), "executable file not found in $PATH"),
    ("a file without x", |lab| _ = lab.args(&["/etc/passwd"]), "permission denied"),
    ("a directory", |lab| _ = lab.args(&["/etc"]), "permission denied"),
    ("below a file", |lab| _ = lab.args(&["/etc/passwd/x"]), "not a directory"),
    (
        "a broken program",
        |lab| {
            std::fs::write(lab.root("/bin/broken"), "\x7fELF no").unwrap();
            std::fs::set_permissions(lab.root("/bin/broken"), PermissionsExt::from_mode(0o755)).unwrap();
            lab.args(&["/bin/broken"]);
        },
        "exec format error",
    ),
    ("no sysctl", |lab| lab.config["linux"]["sysctl"] = json!({"net.nope": "1"}), "no such file or directory"),
    (
        "a sysctl of the host's network",
        |lab| lab.without("network").config["linux"]["sysctl"] = json!({"net.ipv4.ip_forward": "1"}),
        "not allowed in host network namespace",
    ),
    ("a file on a directory", |lab| _ = lab.mount("/etc", "bind", "/etc/passwd", &["bind"]), "not a directory"),
    ("a directory on a file", |lab| _ = lab.mount("/etc/passwd", "bind", "/etc", &["bind"]), "not a directory"),
    ("no source", |lab| _ = lab.mount("/mnt", "bind", "/nope", &["bind"]), "no such file or directory"),
    ("no root", |lab| set(lab, "/root/path", json!("nope")), "no such file or directory"),
    ("a file as directory", |lab| set(lab, "/process/cwd", json!("/etc/passwd")), "not a directory"),
    (
        "a link at /proc",
        |lab| {
            std::fs::remove_dir(lab.root("/proc")).unwrap();
            std::os::unix::fs::symlink("/tmp", lab.root("/proc")).unwrap();
        },
        "must be mounted on ordinary directory",
    ),
    ("a hook fails", |lab| hook(lab, "createRuntime"), "hook #1: "),
    (
        "no hook",
        |lab| lab.config["hooks"] = json!({"createRuntime": [{"path": "/nope"}]}),
        "hook #0: fork/exec /nope: no such file or directory",
    ),
];

#[test]
fn errors_have_the_words_that_engines_map() {
    let by_runc = has_runc();
    for (name, change, words) in BOTH {
        let Some(mut lab) = Lab::new() else { return };
        lab.args(&["/bin/true"]);
        change(&mut lab);
        lab.run().failed_with(words);
        if by_runc {
            let Some(mut lab) = Lab::new() else { return };
            lab.args(&["/bin/true"]);
            change(&mut lab);
            let done = run_by_runc(&lab);
            assert!(done.status != 0 && done.err.contains(words) || name == "a broken program", "{name}: {}", done.err);
        }
    }
}

#[test]
fn a_memory_limit_below_what_init_needs_is_named() {
    // runc 1.1 on v1 sets the limit when its init has more already, and says that.
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 4096});
    lab.run().failed_with("container init was OOM-killed (memory limit too low?)");
}

#[test]
fn a_memory_policy_that_is_unknown_is_refused_in_words_of_runc() {
    // runc 1.1 does not know it yet.
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["memoryPolicy"] = json!({"mode": "MPOL_NOPE", "nodes": "0"});
    lab.run().failed_with(r#"invalid memory policy mode \"MPOL_NOPE\""#);
    lab.config["linux"]["memoryPolicy"] = json!({"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_NOPE"]});
    lab.run().failed_with(r#"invalid memory policy flag \"MPOL_F_NOPE\""#);
    lab.config["linux"]["memoryPolicy"] = json!({"mode": "MPOL_BIND", "nodes": "a"});
    lab.run().failed_with("invalid memory policy nodes");
}

#[test]
fn a_hooks_output_is_printed_once_and_as_it_is() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/true"]);
    let log = lab.path().join("log.json");
    for moment in ["createRuntime", "createContainer", "startContainer"] {
        hook(&mut lab, moment);
        // The engine's log has the message as JSON, standard error as it is.
        let done = lab.brig(&["--log", log.to_str().unwrap(), "--log-format", "json", "run", &lab.id]);
        assert_eq!(done.err.matches("with \"quotes\"\nand lines").count(), 1, "{}", done.err);
        let text = std::fs::read_to_string(&log).unwrap();
        let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(line["msg"].as_str().unwrap().matches("with \"quotes\"\nand lines").count(), 1, "{line}");
    }
    // What a terminal would obey is never passed on: a hook inside the container may print anything.
    let escape = json!([{"path": "/bin/sh", "args": ["sh", "-c", r"printf '\033]0;title\007'; exit 3"]}]);
    lab.config["hooks"] = json!({"startContainer": escape});
    let done = lab.brig(&["--log", log.to_str().unwrap(), "run", &lab.id]);
    assert!(done.err.contains("title") && !done.err.contains('\x1b'), "{:?}", done.err);
}

#[test]
fn capabilities_that_are_passed_over_are_warnings() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/true"]);
    lab.config["process"]["capabilities"] = json!({"bounding": ["CAP_KILL", "CAP_NOPE"], "effective": ["CAP_NOPE"], "permitted": ["CAP_KILL"], "ambient": ["CAP_KILL", "CAP_CHOWN"]});
    let done = lab.run();
    let err = &done.succeeded().err;
    assert_eq!(err.matches("ignoring unknown or unavailable capabilities: [CAP_NOPE]").count(), 1, "{err}");
    assert_eq!(err.matches("can't raise ambient capability CAP_CHOWN, CAP_KILL: operation").count(), 1, "{err}");
}

#[test]
fn debug_prints_the_lines_of_runc_that_tools_look_for() {
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/sleep", "100"]);
    lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}],
    });
    let log = lab.path().join("log");
    let lines = ["nsexec started", "seccomp filter flags: 2", "child process in init()"];
    for format in ["text", "json"] {
        let options = ["--debug", "--log", log.to_str().unwrap(), "--log-format", format];
        let mut command = lab.command(&[&options[..], &["run", "-d", &lab.id]].concat());
        assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        let text = std::fs::read_to_string(&log).unwrap();
        let level = if format == "json" { r#""level":"debug""# } else { "level=debug" };
        for line in lines {
            assert!(text.lines().any(|each| each.contains(line) && each.contains(level)), "{line}: {text}");
        }
        let process = lab.path().join("process.json");
        let affinity = json!({"args": ["/bin/true"], "cwd": "/", "execCPUAffinity": {"initial": "0"}});
        std::fs::write(&process, affinity.to_string()).unwrap();
        let done = lab.brig(&["--debug", "exec", "--process", process.to_str().unwrap(), &lab.id]);
        assert!(done.succeeded().err.contains("nsexec: affinity: 0x1"), "{}", done.err);
        lab.on(&["delete", "--force"]).succeeded();
        std::fs::remove_file(&log).unwrap();
    }
    // Without it nothing of this is printed.
    lab.args(&["/bin/true"]);
    assert_eq!(lab.run().succeeded().err, "");
}

#[test]
fn every_verb_has_a_help_text_with_the_headings_of_runc() {
    let verbs = [
        "create", "delete", "events", "exec", "features", "kill", "list", "pause", "ps", "resume", "run", "spec",
        "start", "state", "update",
    ];
    for verb in verbs {
        for flag in ["-h", "--help"] {
            let done = finish(crate::support::program().args([verb, flag]));
            let out = &done.succeeded().out;
            for heading in ["NAME:", "USAGE:", "OPTIONS:"] {
                assert!(out.lines().any(|line| line == heading), "{verb} {flag}: {out}");
            }
            assert!(out.contains(&format!("{verb} - ")) && done.err.is_empty(), "{verb} {flag}: {out}");
        }
    }
}
