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

use crate::support::{Lab, Run, Task, is_root};
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
}

/// Shortens the tables.
pub const fn attack(words: &'static str, stopped: &'static str, without: &'static str) -> Attack {
    Attack { words, stopped, without }
}

/// What the attacker said: its first line.
#[track_caller]
pub fn answer(run: &Run) -> String {
    run.stderr.lines().next().unwrap_or_else(|| panic!("no answer: {run:#?}")).to_owned()
}

/// Runs every attack twice: on the build under test, where it must be stopped, and on the weakened one, where it must
/// succeed.
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
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs a command on the host and returns what it printed.
#[track_caller]
pub fn host(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    assert!(done.status.success(), "{program}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
