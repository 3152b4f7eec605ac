//! A filter that denies one system call, for each call of x86-64: `run` and `exec` of brig fail only if those of runc
//! fail too.
//!
//! If a call may kill the process without harm, neither runtime makes it under the filter. So the other two answers are
//! tried only if that one fails. `BRIG_EACH_CALL_ALL=1` tries all three for each call. `BRIG_BIN` names the shipped
//! program to test.

use crate::beside::has_runc;
use crate::support::{Lab, finish, skip};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The table of numbers; the first column is x86-64.
const TABLE: &str = include_str!("../../src/seccomp/syscalls.in");
/// The number of calls in parallel.
const THREADS: usize = 2;
/// The results of a denied call. The first shows whether the call is made at all.
const ANSWERS: [(&str, Option<u32>); 3] =
    [("SCMP_ACT_KILL_PROCESS", None), ("SCMP_ACT_ERRNO", Some(1)), ("SCMP_ACT_ERRNO", Some(38))];

fn names() -> Vec<&'static str> {
    let line = |line: &'static str| {
        let (name, numbers) = line.trim().strip_prefix("(\"")?.split_once("\", [")?;
        (!numbers.starts_with("NO")).then_some(name)
    };
    TABLE.lines().filter_map(line).collect()
}

fn filter(name: &str, (action, errno): (&str, Option<u32>)) -> Value {
    let mut rule = json!({"names": [name], "action": action});
    if let Some(errno) = errno {
        rule["errnoRet"] = json!(errno);
    }
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]})
}

/// Whether a command of a runtime succeeds in time: Go's scheduler may wait forever if a call is denied.
fn ends_well(lab: &Lab, program: &str, records: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "30", program, "--root"]).arg(lab.path().join(records)).args(arguments);
    command.current_dir(lab.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

fn by_brig(lab: &Lab, arguments: &[&str]) -> bool {
    let program = std::env::var("BRIG_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_brig").into());
    ends_well(lab, &program, "records", arguments)
}

fn by_runc(lab: &Lab, arguments: &[&str]) -> bool {
    ends_well(lab, "runc", "runc", arguments)
}

/// A container of an ordinary user with groups and without HOME.
fn lab() -> Option<Lab> {
    let mut lab = Lab::new()?;
    let user = json!({"uid": 1000, "gid": 1000, "additionalGids": [1000, 7]});
    lab.config["process"]["user"] = user;
    lab.config["process"]["noNewPrivileges"] = json!(false);
    lab.args(&["/bin/busybox", "true"]);
    Some(lab)
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).unwrap();
}

/// Tries each call with a lab for each thread.
fn each(ours: fn(&mut Lab) -> bool, theirs: fn(&mut Lab) -> bool, prepare: fn(&mut Lab)) {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("needs x86-64");
    }
    if !has_runc() || lab().is_none() {
        return;
    }
    let names = names();
    assert!(names.len() > 350, "{}", names.len());
    let all = std::env::var("BRIG_EACH_CALL_ALL").is_ok();
    let (next, wrong, needed) = (Mutex::new(names.into_iter()), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut lab = lab().unwrap();
                prepare(&mut lab);
                loop {
                    let Some(name) = next.lock().unwrap().next() else { return };
                    for (index, answer) in ANSWERS.into_iter().enumerate() {
                        lab.config["linux"]["seccomp"] = filter(name, answer);
                        if ours(&mut lab) {
                            if index == 0 && !all {
                                break;
                            }
                        } else {
                            needed.lock().unwrap().push(format!("{name} {answer:?}"));
                            if theirs(&mut lab) {
                                wrong.lock().unwrap().push(format!("{name} {answer:?}"));
                            }
                        }
                    }
                }
            });
        }
    });
    let (wrong, needed) = (wrong.into_inner().unwrap(), needed.into_inner().unwrap());
    println!("brig needs: {}", needed.join(", "));
    assert!(wrong.is_empty(), "runc does without these, and brig does not: {}", wrong.join(", "));
    assert!(needed.iter().any(|each| each.starts_with("execve ")), "a filter that denies execve(2) was not in force");
}

#[test]
fn run_needs_no_call_that_runc_does_not_need() {
    each(
        |lab| {
            write(&lab.path().join("config.json"), &lab.config);
            by_brig(lab, &["run", &lab.id])
        },
        |lab| {
            let done = by_runc(lab, &["run", &lab.id]);
            by_runc(lab, &["delete", "--force", &lab.id]);
            done
        },
        |_| {},
    );
}

/// Under brig one container runs, and its recorded configuration is changed: `exec` reads the filter from there.
#[test]
fn exec_needs_no_call_that_runc_does_not_need() {
    each(
        |lab| {
            write(&lab.path().join("records").join(&lab.id).join("config.json"), &lab.config);
            by_brig(lab, &["exec", "--process", "process.json", &lab.id])
        },
        |lab| {
            let mut config = lab.config.clone();
            // Its own program gets the filter with its last call before execve.
            config["process"]["noNewPrivileges"] = json!(true);
            write(&lab.path().join("config.json"), &config);
            let done = by_runc(lab, &["run", "--detach", &lab.id])
                && by_runc(lab, &["exec", "--process", "process.json", &lab.id]);
            by_runc(lab, &["delete", "--force", &lab.id]);
            done
        },
        |lab| {
            let mut process = lab.config["process"].clone();
            process["args"] = json!(["/bin/busybox", "true"]);
            write(&lab.path().join("process.json"), &process);
            lab.args(&["/bin/sleep", "1000"]).start();
            let config = std::fs::read_to_string(lab.path().join("records").join(&lab.id).join("config.json"));
            assert!(config.unwrap().contains("/bin/sleep"), "the record has no configuration");
            finish(&mut lab.command(&["state", &lab.id])).succeeded();
        },
    );
}
