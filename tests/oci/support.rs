//! A bundle with a busybox root, its commands, and the proof that nothing remains of it.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A bundle, a directory for records, and a unique name.
pub struct Lab {
    directory: tempfile::TempDir,
    /// The config.json, which every command writes again.
    pub config: Value,
    /// The container's name.
    pub id: String,
    /// The protection that is switched off, if any.
    pub weakened: Option<&'static str>,
}

/// The result of our command.
#[derive(Debug)]
pub struct Done {
    /// Its exit status; 128 and more for a signal.
    pub status: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

#[path = "../support/mounts.rs"]
mod mounts;
pub use mounts::changed_mounts;
#[path = "../support/skip.rs"]
mod skipping;
pub use skipping::skip;

impl Lab {
    /// For root, on a machine with a static busybox.
    pub fn new() -> Option<Lab> {
        if !rustix::process::geteuid().is_root() {
            skip("needs root");
            return None;
        }
        let Some(busybox) = busybox() else {
            skip("needs busybox-static");
            return None;
        };
        // Engines make sockets below it, whose names have at most 107 bytes (unix(7)): with longer ones Podman waits
        // for half a minute at each command.
        let place = std::env::temp_dir();
        let place = if place.as_os_str().len() > "/var/tmp".len() { PathBuf::from("/tmp") } else { place };
        let directory = tempfile::Builder::new().prefix("brig-oci-").tempdir_in(place).unwrap();
        let root = directory.path().join("rootfs");
        for name in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        // By another process: a copy of our own could be busy while a child of another test has it open.
        assert!(Command::new("cp").arg(&busybox).arg(root.join("bin/busybox")).status().unwrap().success());
        let listed = Command::new(&busybox).arg("--list").output().unwrap();
        for name in String::from_utf8(listed.stdout).unwrap().lines().filter(|name| *name != "busybox") {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        std::fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
            .unwrap();
        let written = program().args(["spec", "--bundle"]).arg(directory.path()).status().unwrap();
        assert!(written.success());
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(directory.path().join("config.json")).unwrap()).unwrap();
        config["process"]["terminal"] = json!(false);
        config["root"]["readonly"] = json!(false);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!("t{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Some(Lab { directory, config, id, weakened: None })
    }

    /// The bundle's directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A path below the container's root, on the host.
    pub fn root(&self, path: &str) -> PathBuf {
        self.path().join("rootfs").join(path.trim_start_matches('/'))
    }

    /// Sets the container's program and arguments.
    pub fn args(&mut self, args: &[&str]) -> &mut Lab {
        self.config["process"]["args"] = json!(args);
        self
    }

    /// Sets a line of shell as its program.
    pub fn sh(&mut self, line: &str) -> &mut Lab {
        self.args(&["/bin/sh", "-c", line])
    }

    /// Adds a namespace.
    pub fn namespace(&mut self, kind: &str) -> &mut Lab {
        self.config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": kind}));
        self
    }

    /// Removes a namespace.
    pub fn without(&mut self, kind: &str) -> &mut Lab {
        self.config["linux"]["namespaces"].as_array_mut().unwrap().retain(|each| each["type"] != kind);
        self
    }

    /// Adds a mount.
    pub fn mount(&mut self, destination: &str, kind: &str, source: &str, options: &[&str]) -> &mut Lab {
        let mount = json!({"destination": destination, "type": kind, "source": source, "options": options});
        self.config["mounts"].as_array_mut().unwrap().push(mount);
        self
    }

    /// Removes a mount.
    pub fn unmount(&mut self, destination: &str) -> &mut Lab {
        self.config["mounts"].as_array_mut().unwrap().retain(|each| each["destination"] != destination);
        self
    }

    /// Gives the container a user namespace that maps its root to another id.
    pub fn user_namespace(&mut self) -> &mut Lab {
        self.namespace("user");
        let map = json!([{"containerID": 0, "hostID": 700_000, "size": 65_536}]);
        self.config["linux"]["uidMappings"] = map.clone();
        self.config["linux"]["gidMappings"] = map;
        self
    }

    /// Switches one protection off. `None` skips the test with a message: this build cannot switch it off.
    pub fn weaken(&mut self, name: &'static str) -> Option<&mut Lab> {
        if !cfg!(feature = "weakened") {
            skip("the control needs --features weakened");
            return None;
        }
        self.weakened = Some(name);
        Some(self)
    }

    /// A static program of the container's, made from C.
    pub fn compile(&self, name: &str, text: &str) -> Option<()> {
        let source = self.path().join(format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        let made = self.root(&format!("/bin/{name}"));
        let built = Command::new("cc").args(["-static", "-o"]).arg(&made).arg(&source).status();
        if built.is_ok_and(|status| status.success()) {
            return Some(());
        }
        skip("needs a C compiler and a static C library");
        None
    }

    /// A command of brig's on this lab's records.
    pub fn command(&self, arguments: &[&str]) -> Command {
        std::fs::write(self.path().join("config.json"), self.config.to_string()).unwrap();
        let mut command = program();
        command
            .arg("--root")
            .arg(self.path().join("records"))
            .args(arguments)
            .current_dir(self.path())
            .stdin(Stdio::null());
        if let Some(name) = self.weakened {
            command.env("BRIG_WEAKEN", name);
        }
        command
    }

    /// Runs a command to its end.
    pub fn brig(&self, arguments: &[&str]) -> Done {
        finish(&mut self.command(arguments))
    }

    /// Runs a command with this lab's container after the verb and its options.
    pub fn on(&self, arguments: &[&str]) -> Done {
        self.brig(&[arguments, &[&self.id]].concat())
    }

    /// `brig run` in the foreground.
    pub fn run(&self) -> Done {
        self.on(&["run"])
    }

    /// `brig create`, without our streams, which the container keeps open.
    pub fn create(&self) -> Done {
        let log = self.path().join("create.log");
        let mut command = self.command(&["--log", log.to_str().unwrap(), "create", &self.id]);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        let err = std::fs::read_to_string(&log).unwrap_or_default();
        Done { status: status.code().unwrap(), out: String::new(), err }
    }

    /// Creates and starts it.
    pub fn start(&self) {
        self.create().succeeded();
        self.on(&["start"]).succeeded();
    }

    /// `brig exec` of a line of shell.
    pub fn exec(&self, line: &str) -> Done {
        self.brig(&["exec", &self.id, "/bin/sh", "-c", line])
    }

    /// The status of the container.
    pub fn status(&self) -> String {
        self.state()["status"].as_str().unwrap().to_owned()
    }

    /// Its whole state.
    pub fn state(&self) -> Value {
        let done = self.on(&["state"]);
        done.succeeded();
        serde_json::from_str(&done.out).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.weakened = None;
        let deleted = self.brig(&["delete", "--force", &self.id]);
        if std::thread::panicking() {
            return;
        }
        deleted.succeeded();
        let records = self.path().join("records");
        let left: Vec<_> = std::fs::read_dir(records)
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        assert!(left.is_empty(), "records are left: {left:?}");
        let groups = finish(Command::new("find").args(["/sys/fs/cgroup", "-name", &self.id])).out;
        assert!(groups.is_empty(), "groups are left: {groups}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.path().to_str().unwrap();
        assert!(!mounts.contains(ours), "mounts of the host were made: {mounts}");
    }
}

impl Done {
    /// Panics unless it succeeded.
    pub fn succeeded(&self) -> &Done {
        assert_eq!(self.status, 0, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// Panics unless it failed with these words.
    pub fn failed_with(&self, words: &str) -> &Done {
        assert_ne!(self.status, 0, "it did not fail: {}", self.out);
        assert!(self.err.contains(words), "`{words}` is not in: {}", self.err);
        self
    }
}

/// Runs a command of brig's at a new terminal, in a line of shell between other words.
pub fn in_terminal(lab: &Lab, arguments: &[&str], before: &str, after: &str) -> Done {
    let command = lab.command(arguments);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut script = Command::new("timeout");
    script.args(["60", "script", "-qec", &format!("{before}{}{after}", words.join(" ")), "/dev/null"]);
    script.current_dir(lab.path()).stdin(Stdio::null());
    script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    finish(&mut script)
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Done {
    use std::os::unix::process::ExitStatusExt;
    let Output { status, stdout, stderr } = command.output().unwrap();
    Done {
        status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// The program under test.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_brig"))
}

/// A busybox that needs no libraries.
pub fn busybox() -> Option<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists())
}

/// Waits until `condition` holds; panics with `what` after ten seconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
