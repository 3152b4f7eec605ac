//! What the image tests share: a scratch directory, layouts from make.py, the binary, and listings for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "../support/skip.rs"]
mod skipping;
pub use skipping::skip;

/// A directory of one test, gone with it.
pub struct Scratch(tempfile::TempDir);

/// What a run of the binary gave.
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

/// Prints the counted line, and returns whether the test must be skipped.
pub fn skipped(needed: &str, there: bool) -> bool {
    if !there {
        skip(&format!("needs {needed}"));
    }
    !there
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn has(program: &str) -> bool {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status().unwrap().success()
}

pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image").join(name)
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::Builder::new().prefix("brig-image-").tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A layout of make.py.
    pub fn layout(&self, case: &str, argument: &str) -> String {
        let path = self.path(&format!("layout-{case}-{}", argument.len().min(20)));
        let made = Command::new("python3").arg(script("make.py")).args([case, &path, argument]).status().unwrap();
        assert!(made.success(), "make.py {case}");
        path
    }

    /// Runs `brig image --store STORE …`.
    pub fn image(&self, arguments: &[&str]) -> Ran {
        self.weakened("", arguments)
    }

    /// The same with protections switched off, which only a build with the feature `weakened` does.
    pub fn weakened(&self, protections: &str, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
        command.args(["image", "--store", &self.path("store")]).args(arguments).env("BRIG_WEAKEN", protections);
        run(&mut command)
    }

    /// A file that no image may touch, in a separate directory.
    pub fn canary(&self) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path("canary");
        std::fs::create_dir(&path).unwrap();
        for (name, text) in [("file", "precious"), ("passwd", "canary:x:4242:0::/:/bin/sh\n")] {
            let file = format!("{path}/{name}");
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        path
    }

    /// What became of it.
    pub fn canary_is_whole(&self) -> Result<(), String> {
        let listed = list(&self.path("canary"), &["nodirtimes"]);
        let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        let modes = listed.lines().all(|line| line.contains("0o40700") || line.contains("0o100600"));
        let text = std::fs::read_to_string(self.path("canary/file")).unwrap_or_default();
        let whole = names == ["'.'", "'file'", "'passwd'"] && modes && text == "precious";
        if whole { Ok(()) } else { Err(listed) }
    }
}

impl Ran {
    /// The run must have gone well.
    pub fn good(self) -> Ran {
        assert_eq!(self.status, 0, "{}", self.err);
        self
    }

    /// The run must have been refused for the right reason.
    pub fn refused(self, reason: &str) -> Ran {
        assert_eq!(self.status, 125, "{} {}", self.out, self.err);
        assert!(self.err.contains(reason), "wanted `{reason}` in: {}", self.err);
        self
    }
}

pub fn run(command: &mut Command) -> Ran {
    let start = Instant::now();
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        status: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
        took: start.elapsed(),
    }
}

/// A tree as text: names, modes, owners, sizes, times, contents, attributes, links.
pub fn list(path: &str, options: &[&str]) -> String {
    let listed = Command::new("python3").arg(script("list.py")).arg(path).args(options).output().unwrap();
    assert!(listed.status.success(), "list {path}: {}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// Fails with the lines that differ.
pub fn assert_same(one: &str, other: &str, what: &str) {
    if one != other {
        let only = |a: &str, b: &str| {
            a.lines().filter(|line| !b.lines().any(|other| other == *line)).collect::<Vec<_>>().join("\n")
        };
        panic!("{what}:\n< {}\n> {}", only(one, other), only(other, one));
    }
}

/// Kills at random moments of each kind; BRIG_TEST_KILLS=100 asks for more, which takes minutes.
pub fn kills() -> u32 {
    std::env::var("BRIG_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// The command, quiet.
pub fn brig(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    command.args(["image", "--quiet", "--store", &scratch.path("store")]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts, waits a moment that is another each time, kills.
pub fn kill_somewhere(mut command: Command, round: u32, longest: Duration) {
    let mut child = command.spawn().unwrap();
    // Spread evenly over the run by steps of the golden ratio: no two moments alike.
    let share = (f64::from(round) * 0.618_034).fract();
    std::thread::sleep(longest.mul_f64(share));
    child.kill().and_then(|()| child.wait()).unwrap();
}

/// What crashed processes have left in the store.
pub fn left_over(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path("store/temporary")).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".brig-"))
        .collect()
}
