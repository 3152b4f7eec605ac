//! Names the commit for `brig --version` where the caller of cargo does not: `cargo install --path .` in a clone.
//!
//! rootfs/binary sets BRIG_COMMIT itself, which rebuilds the program alone. A development build has no commit, so that
//! a commit rebuilds nothing. Without git or outside of a clone the version has no commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var_os("PROFILE").is_some_and(|profile| profile == "release");
    if !is_release || std::env::var_os("BRIG_COMMIT").is_some() {
        return;
    }
    // A source tree within another repository is not that repository's commit.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").and_then(|path| Path::new(&path).canonicalize().ok());
    if here.is_none() || git(&["rev-parse", "--show-toplevel"]).map(Into::into) != here {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    println!("cargo::rustc-env=BRIG_COMMIT_OF_CLONE={commit}");
    // The second file gets a line with each commit of a branch.
    for name in ["HEAD", "logs/HEAD"] {
        match git(&["rev-parse", "--git-path", name]) {
            Some(path) if Path::new(&path).exists() => println!("cargo::rerun-if-changed={path}"),
            _ => {}
        }
    }
}

/// The output of a git command without the end of its line.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim_end().to_owned())
}
