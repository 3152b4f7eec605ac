//! Groups and processes of a test, removed by their drop.

use crate::cgroup::controller::Controller;
use crate::cgroup::*;
use crate::error::Result;
use crate::spec::resources::Resources;
use rustix::event::poll;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use crate::sys::skip;

/// Reports a skip if not.
pub(super) fn needs_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&format!("{what}: needs root"));
    }
    is_root
}

/// Set in a second run of the tests: `user` or `legacy` (without a v2 tree).
const AGAIN: &str = "BRIG_TEST_CGROUP_AGAIN";

pub(super) fn is_first_run() -> bool {
    std::env::var_os(AGAIN).is_none()
}

/// As an ordinary user in `group`, or as the same user.
pub(super) fn run_again(group: Option<&Cgroup>, how: &str) -> (String, String) {
    // The user may not be able to read the build directory.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!("read go; exec {} cgroup::tests:: 2>&1", program.display()));
    command.env(AGAIN, how).env("RUST_BACKTRACE", "0").current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    if group.is_some() {
        command.uid(65534).gid(65534);
    }
    let mut child = command.spawn().unwrap();
    if let Some(group) = group {
        group.join(child.id() as i32).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let status = match output.status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit {}", output.status.code().unwrap()),
    };
    (status, String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) struct TestGroups {
    hierarchy: Hierarchy,
    id: String,
}

/// A new v1 group has no processors, so no process could join.
pub(super) fn make_group(path: &std::path::Path) {
    std::fs::create_dir(path).unwrap();
    for file in ["cpuset.cpus", "cpuset.mems"].iter().filter(|_| path.join("tasks").exists()) {
        if let Ok(value) = std::fs::read(path.parent().unwrap().join(file)) {
            std::fs::write(path.join(file), value).unwrap();
        }
    }
}

impl TestGroups {
    pub(super) fn new(name: &str) -> Option<TestGroups> {
        let mut hierarchy = Hierarchy::probe().unwrap();
        hierarchy.systemd = None; // it limits nothing, and is not delegated to users
        if std::env::var(AGAIN).is_ok_and(|how| how == "legacy") {
            hierarchy.v2 = None;
        }
        let refusals = hierarchy.refusals(Purpose::Task, &Resources::default()).unwrap();
        if let Some(refusal) = refusals.first() {
            skip(&format!("groups of `{name}`: needs root or a delegated group ({})", refusal.reason));
            return None;
        }
        Some(TestGroups { hierarchy, id: format!("test-{name}-{}", std::process::id()) })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    pub(super) fn without_v1(&mut self, controller: Controller) {
        self.hierarchy.v1.retain(|tree| !tree.controllers.has(controller));
    }

    pub(super) fn without_v2(&mut self) {
        self.hierarchy.v2 = None;
    }

    pub(super) fn has_devices(&self, as_v1: bool) -> bool {
        if as_v1 { self.hierarchy.is_v1(Controller::Devices) } else { self.hierarchy.v2.is_some() }
    }

    pub(super) fn try_create(&self, purpose: Purpose, limits: &Resources) -> Result<Cgroup> {
        Cgroup::create(&self.hierarchy, &CgroupPath::task(&self.id)?, purpose, limits)
    }

    pub(super) fn create(&self, purpose: Purpose, limits: &Resources) -> Cgroup {
        self.try_create(purpose, limits).unwrap()
    }

    pub(super) fn left(&self) -> Vec<PathBuf> {
        let found = record::leftovers(&self.hierarchy);
        found.into_iter().filter(|group| group.id == self.id).map(|group| group.path).collect()
    }
}

impl Drop for TestGroups {
    fn drop(&mut self) {
        let left = self.left();
        for path in &left {
            let mut processes = Vec::new();
            let _ = directory::Directory::open(path).and_then(|group| group.processes(&mut processes));
            for pid in processes.into_iter().filter_map(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for path in &left {
            let _ = directory::remove(path, directory::REMOVE_TRIES);
        }
    }
}

/// Killed and reaped when dropped.
pub(super) struct Child(std::process::Child);

impl Child {
    pub(super) fn spawn(group: &Cgroup, script: &str) -> Child {
        // The shell waits until it is in all groups.
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("read go; {script}"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        group.join(child.id() as i32).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        Child(child)
    }

    pub(super) fn id(&self) -> i32 {
        self.0.id() as i32
    }

    pub(super) fn wait(&mut self) -> String {
        let status = self.0.wait().unwrap();
        match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit {}", status.code().unwrap()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn has_event(notifier: &OomNotifier, limit: Duration) -> bool {
    poll(&mut [notifier.wait()], Some(&limit.try_into().unwrap())).unwrap() == 1
}

/// At most a minute: an emulated machine is slow.
pub(super) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < end, "a minute passed before {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn memory_file(group: &Cgroup) -> &'static str {
    if group.group(Controller::Memory).unwrap().is_v2 { "memory.max" } else { "memory.limit_in_bytes" }
}

/// Groups below a parent that the test made, removed with it.
pub(super) struct Removing(pub(super) Record);

impl Drop for Removing {
    fn drop(&mut self) {
        let group = Cgroup::open(&self.0).unwrap();
        let _ = group.kill();
        let _ = group.remove();
        for (_, path) in self.0.paths() {
            let _ = std::fs::remove_dir(path.parent().unwrap());
        }
    }
}
