//! The words that Docker, containerd, Podman and Kubernetes map to an exit status or a hint: brig prints them where
//! runc does.

use crate::beside::{has_runc, run_by_runc};
use crate::support::{Lab, finish};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

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
            // runc 1.1.15 calls a directory a directory. Engines give both the status 126.
            let knows = done.err.contains(words) || name == "a directory" && done.err.contains("is a directory");
            assert!(done.status != 0 && knows || name == "a broken program", "{name}: {}", done.err);
        }
    }
}

#[test]
fn a_memory_limit_below_what_init_needs_is_named() {
    // runc 1.1 on v1 sets the limit after its init has started threads, and reports that.
    let Some(mut lab) = Lab::new() else { return };
    lab.config["linux"]["resources"]["memory"] = json!({"limit": 4096});
    lab.run().failed_with("container init was OOM-killed (memory limit too low?)");
}

#[test]
fn a_memory_policy_that_is_unknown_is_refused_in_words_of_runc() {
    // runc 1.1 does not have it yet.
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
        // The engine's log has the message as JSON; standard error has plain text.
        let done = lab.brig(&["--log", log.to_str().unwrap(), "--log-format", "json", "run", &lab.id]);
        assert_eq!(done.err.matches("with \"quotes\"\nand lines").count(), 1, "{}", done.err);
        let text = std::fs::read_to_string(&log).unwrap();
        let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(line["msg"].as_str().unwrap().matches("with \"quotes\"\nand lines").count(), 1, "{line}");
    }
    // Terminal control characters are never passed on: a hook inside the container may print anything.
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
    let has_runc = has_runc();
    let Some(mut lab) = Lab::new() else { return };
    lab.args(&["/bin/sleep", "100"]);
    lab.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO"}],
    });
    let log = lab.path().join("log");
    let of_start = ["nsexec container setup", "child process in init()"];
    let completion = "init: closing the pipe to signal completion";
    // The newer runc's own lines are the first two of each.
    let of_create =
        [&["runc exeseal: using /proc/self/exe clone", "seccomp filter flags: 2", completion], &of_start[..]].concat();
    let of_exec = [
        &["runc exeseal: using /proc/self/exe clone", "nsexec: affinity: 0x1", "setns_init: about to exec"],
        &of_start[..],
    ]
    .concat();
    for format in ["text", "json"] {
        let options = ["--debug", "--log", log.to_str().unwrap(), "--log-format", format];
        let level = if format == "json" { r#""level":"debug""# } else { "level=debug" };
        let logged = |mut command: Command, lines: &[&str]| {
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
            assert!(status.success(), "{command:?}: {}", std::fs::read_to_string(&log).unwrap());
            let text = std::fs::read_to_string(&log).unwrap();
            std::fs::remove_file(&log).unwrap();
            for line in lines {
                assert!(text.lines().any(|each| each.contains(line) && each.contains(level)), "{line}: {text}");
            }
        };
        // The output of this machine's runc, without the lines of newer ones.
        let by_runc = |arguments: &[&str], lines: &[&str]| {
            let mut command = Command::new("runc");
            command.arg("--root").arg(lab.path().join("runc")).args(options).args(arguments);
            command.current_dir(lab.path()).stdin(Stdio::null());
            // runc 1.1 has no flags of filters.
            let mut config = lab.config.clone();
            config["linux"]["seccomp"].as_object_mut().unwrap().remove("flags");
            std::fs::write(lab.path().join("config.json"), config.to_string()).unwrap();
            logged(command, lines);
        };
        for verb in [&["create"][..], &["run", "-d"]] {
            let arguments = [verb, &[&lab.id]].concat();
            logged(lab.command(&[&options[..], &arguments].concat()), &of_create);
            if has_runc {
                by_runc(&arguments, &of_create[2..]);
                by_runc(&["exec", &lab.id, "/bin/true"], &of_exec[2..]);
                finish(Command::new("runc").arg("--root").arg(lab.path().join("runc")).args(["delete", "-f", &lab.id]));
            }
            if verb == ["create"] {
                lab.on(&["delete", "--force"]).succeeded();
            }
        }
        let process = lab.path().join("process.json");
        let affinity = json!({"args": ["/bin/true"], "cwd": "/", "execCPUAffinity": {"initial": "0"}});
        std::fs::write(&process, affinity.to_string()).unwrap();
        let exec = ["exec", "--process", process.to_str().unwrap(), &lab.id];
        logged(lab.command(&[&options[..], &exec].concat()), &of_exec);
        lab.on(&["delete", "--force"]).succeeded();
    }
    // Without the flag none of this is printed.
    lab.args(&["/bin/true"]);
    assert_eq!(lab.run().succeeded().err, "");
}

/// The headings of a help text, in their order.
fn headings(out: &str) -> Vec<&str> {
    let is_heading = |line: &&str| {
        let name = line.strip_suffix(':').unwrap_or_default();
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b' ' || byte.is_ascii_digit())
    };
    out.lines().filter(is_heading).collect()
}

#[test]
fn every_verb_has_a_help_text_with_the_headings_of_runc() {
    let has_runc = has_runc();
    // Under this name without a verb, the request is for runc's text.
    let runc = tempfile::tempdir().unwrap();
    let runc = runc.path().join("runc");
    std::os::unix::fs::symlink(crate::support::program().get_program(), &runc).unwrap();
    let whole = finish(Command::new(&runc).arg("--help"));
    let whole = &whole.succeeded().out;
    assert!(whole.contains("runc - Open Container Initiative runtime\n"), "{whole}");
    assert_eq!(headings(whole), ["NAME:", "USAGE:", "VERSION:", "COMMANDS:", "GLOBAL OPTIONS:"]);
    let commands = whole.split("COMMANDS:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let verbs: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(verbs.len(), 17, "{commands}");
    for verb in verbs {
        for flag in ["-h", "--help"] {
            let done = finish(crate::support::program().args([verb, flag]));
            let out = &done.succeeded().out;
            for heading in ["NAME:", "USAGE:", "OPTIONS:"] {
                assert!(out.lines().any(|line| line == heading), "{verb} {flag}: {out}");
            }
            assert!(out.contains(&format!("{verb} - ")) && done.err.is_empty(), "{verb} {flag}: {out}");
            if has_runc {
                let theirs = finish(Command::new("runc").args([verb, flag]));
                // runc has no `OPTIONS` where there is but this one.
                let of_runc: Vec<_> = headings(&theirs.out).into_iter().filter(|each| *each != "OPTIONS:").collect();
                let ours: Vec<_> = headings(out).into_iter().filter(|each| *each != "OPTIONS:").collect();
                assert_eq!(ours, of_runc, "{verb} {flag}");
            }
        }
    }
}

#[test]
fn wrong_options_end_with_the_status_of_runc() {
    let Some(lab) = Lab::new() else { return };
    for words in [["--nope", "run", "x"], ["run", "--nope", "x"], ["exec", "--nope", "x"], ["state", "x", "--nope"]] {
        let ours = lab.brig(&words).status;
        assert_eq!(ours, 1, "{words:?}");
        if crate::beside::has_runc() {
            let mut runc = std::process::Command::new("runc");
            assert_eq!(finish(runc.args(["--root", "/nope"]).args(words)).status, ours, "{words:?}");
        }
    }
}
