//! A place for one test: its own store and files, and the proof at the end that nothing else is left of it.

use super::host::Remains;
use super::{Run, Started, Task, program};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// One test's store and files. Dropping it asserts that no process, cgroup, mount, loop device or stray file of its
/// tasks is left.
pub struct Lab {
    directory: tempfile::TempDir,
}

/// Whether this run of the tests is root's.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[path = "../../support/mounts.rs"]
mod mounts;
pub use mounts::changed_mounts;
#[path = "../../support/skip.rs"]
mod skipping;
pub use skipping::skip;

impl Lab {
    /// For a test that root and an ordinary user run.
    pub fn new() -> Lab {
        let directory = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
        Lab { directory }
    }

    /// For a test that needs root.
    pub fn root() -> Option<Lab> {
        if is_root() {
            return Some(Lab::new());
        }
        skip("needs root");
        None
    }

    /// For a test of what an ordinary user has.
    pub fn user() -> Option<Lab> {
        if !is_root() {
            return Some(Lab::new());
        }
        skip("needs an ordinary user");
        None
    }

    /// The lab's own directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The store of its tasks; it does not exist before the first one.
    pub fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    /// Makes a directory in the lab.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Copies the program under test into the lab, which other users may enter afterwards.
    pub fn program_for_others(&self) -> PathBuf {
        let program = self.path().join("brig");
        std::fs::copy(super::program_under_test(), &program).unwrap();
        for path in [self.path(), &program] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        program
    }

    /// A folder that a sandbox can show at its own path; the lab's own are below `/tmp`, where a sandbox has its own
    /// files.
    pub fn own_path() -> Option<tempfile::TempDir> {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| !home.starts_with("/tmp"));
        let places = ["/srv", "/opt", "/mnt"].into_iter().map(PathBuf::from).chain(home);
        let mut builder = tempfile::Builder::new();
        let made = places.filter_map(|place| builder.prefix("brig-test-").tempdir_in(place).ok()).next();
        if made.is_none() {
            skip("needs a writable folder outside of /tmp");
        }
        made
    }

    /// Makes a file in the lab, and the directories that it needs.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Makes a static program of C in the lab at `name`, such as `work/attack`; show it with `--dir`.
    pub fn compile(&self, name: &str, source: &str) -> PathBuf {
        program::compile(&self.path().join(name), source)
    }

    /// Begins a `brig task run`.
    pub fn task(&self) -> Task<'_> {
        Task::new(self)
    }

    /// Begins a command of brig.
    pub fn command<Argument: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = Argument>) -> Task<'_> {
        Task::bare(self, arguments)
    }

    /// Runs `brig` with these arguments on this lab's store.
    pub fn brig<Argument: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = Argument>) -> Run {
        Task::bare(self, arguments).finish()
    }

    /// Runs the weakened build with these arguments and with this protection switched off.
    pub fn weakened<Argument: AsRef<OsStr>>(
        &self,
        protection: &str,
        arguments: impl IntoIterator<Item = Argument>,
    ) -> Run {
        Task::bare(self, arguments).weakened(protection).finish()
    }

    /// Starts `brig` with these arguments on this lab's store.
    pub fn start<Argument: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = Argument>) -> Started {
        Task::bare(self, arguments).start()
    }

    /// Runs a shell script in a running task, with this input.
    pub fn exec_with_input(&self, id: &str, input: String, script: &str) -> Run {
        Task::bare(self, ["task", "exec", "-i", id, "--", "sh", "-c", script]).input(input).finish()
    }

    pub fn start_with_input<Argument: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = Argument>,
        input: String,
    ) -> Started {
        Task::bare(self, arguments).input(input).start()
    }

    /// Attaches to a running task from its first output on, with this input.
    pub fn attach_with_input(&self, id: &str, input: String) -> Run {
        Task::bare(self, ["task", "attach", "--replay", id]).input(input).finish()
    }

    /// What the next command of a user does first: remove what dead supervisors left.
    pub fn reap(&self) {
        self.brig(["task", "ls"]).succeeded();
    }

    /// The ids of its tasks, oldest first.
    pub fn ids(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.store().join("tasks")) else { return Vec::new() };
        let mut ids: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        ids.sort_by_key(|id| id[4..].to_owned()); // random letters, then the time
        ids
    }

    /// Reaps until nothing is left. A child that a killed supervisor forked at its end holds its locks until it runs.
    pub fn assert_reaped(&self) {
        super::eventually("the next command removes what is left", || {
            self.reap();
            Remains::of(self).is_empty()
        });
        self.assert_clean();
    }

    /// Asserts that nothing is left, now.
    pub fn assert_clean(&self) {
        let left = Remains::settled(self);
        if !left.is_empty() {
            left.remove(); // later tests would find it
            panic!("left behind: {left:#?}");
        }
        // A test beside this one may have killed a brig a moment ago, and reaps soon; what stays is ours.
        let mut leaks = self.brig(["doctor", "--leaks"]);
        for _ in 0..50 {
            if leaks.status == Some(0) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            leaks = self.brig(["doctor", "--leaks"]);
        }
        assert!(leaks.status == Some(0) && leaks.stdout.is_empty(), "leaks: {leaks:#?}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Remains::of(self).remove();
        } else {
            self.assert_clean();
        }
    }
}
