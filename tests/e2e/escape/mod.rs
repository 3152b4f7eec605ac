//! Attacks on the sandbox from inside, each with the error that stops it. Each succeeds in a build without the named
//! protections. docs/security.md refers to these tests by name.

mod descriptors;
mod document;
mod files;
mod kernel;
mod namespaces;
mod ordinary;
mod privilege;
mod processes;
mod terminal;

use crate::support::{Lab, Run, Task, has_program, is_root, skip};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Limits that an ordinary user cannot enforce on a machine without a delegated cgroup.
pub const WITHOUT_GROUP: &str = "memory,swap,pids,cpus,cpu_time";

/// A task of the tests' user.
pub fn task(lab: &Lab) -> Task<'_> {
    let task = lab.task();
    if is_root() { task } else { task.args(["--allow-degraded", WITHOUT_GROUP]) }
}

/// The attacker, compiled once for all tests of a run and put into this lab's `work`, which is to be shown by `--dir`.
pub fn attacker(lab: &Lab) -> PathBuf {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    let compile = || std::fs::read(lab.compile("compiled", include_str!("attacker.c"))).unwrap();
    let path = lab.file("work/attacker", COMPILED.get_or_init(compile));
    executable(&path, 0o755);
    path.parent().unwrap().to_path_buf()
}

/// Sets a file's mode.
pub fn executable(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// An attack: its result inside, the protection that stops it, and the protections without which it succeeds.
pub struct Attack {
    pub words: &'static str,
    pub stopped: &'static str,
    /// Names for BRIG_WEAKEN. Empty where other protections, which brig cannot switch off, remain; the test has the
    /// reason.
    pub without: &'static str,
    /// Its result for a command that is root inside, if that differs.
    pub as_root: Option<&'static str>,
}

impl Attack {
    /// The result for a command that is root inside: `--root-inside`.
    pub const fn root_gets(self, result: &'static str) -> Attack {
        Attack { as_root: Some(result), ..self }
    }
}

/// Shortens the tables.
pub const fn attack(words: &'static str, stopped: &'static str, without: &'static str) -> Attack {
    Attack { words, stopped, without, as_root: None }
}

/// What the attacker said: its first line.
#[track_caller]
pub fn answer(run: &Run) -> String {
    run.stderr.lines().next().unwrap_or_else(|| panic!("no answer: {run:#?}")).to_owned()
}

/// Whether this user can have root inside: the machine's root, or a user with subordinate ids.
pub fn has_root_inside() -> bool {
    let has = |file: &str| {
        let user = std::env::var("USER").ok().or_else(|| Some(host("id", &["-un"]).trim().to_owned()));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| line.split(':').next() == user.as_deref())
    };
    let can = is_root() || (has("/etc/subuid") && has("/etc/subgid") && has_program("newuidmap"));
    if !can {
        skip("root inside needs subordinate ids");
    }
    can
}

/// Runs every attack twice: on the build under test, where it must be stopped, and on the weakened one, where it must
/// succeed. Then once more as root inside.
#[track_caller]
pub fn stopped(attacks: &[Attack]) {
    let lab = Lab::new();
    let work = attacker(&lab);
    let try_one = |task: Task<'_>, words: &str| {
        let command = ["/workspace/attacker"].into_iter().chain(words.split(' '));
        answer(&task.args(["--dir".as_ref(), work.as_os_str()]).run(command))
    };
    let mut wrong = Vec::new();
    for each in attacks {
        let got = try_one(task(&lab), each.words);
        if !each.stopped.split('|').any(|word| word == got) {
            wrong.push(format!("`{}`: {got}, expected {}", each.words, each.stopped));
        }
        if !each.without.is_empty() {
            let got = try_one(task(&lab).weakened(each.without), each.words);
            if got != "done" {
                wrong.push(format!("`{}` without {}: {got}, expected it to succeed", each.words, each.without));
            }
        }
    }
    let root = lab.directory("root-inside");
    for name in ["usr/bin/env", "etc/passwd", "etc/services", "bin/sh", "run/file", "home/agent/file"] {
        lab.file(&format!("root-inside/{name}"), "");
    }
    for each in attacks.iter().filter(|_| has_root_inside()) {
        let inside = task(&lab).args(["--root-inside", "--rootfs"]).args([&root]);
        let got = try_one(inside, each.words);
        let expected = each.as_root.unwrap_or(each.stopped);
        if !expected.split('|').any(|word| word == got) {
            wrong.push(format!("`{}` as root inside: {got}, expected {expected}", each.words));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs a command on the host and returns what it printed.
#[track_caller]
pub fn host(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    assert!(done.status.success(), "{program}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
