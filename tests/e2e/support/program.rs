//! Programs of C for what a shell cannot do, and the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program under test: `BRIG_BIN`, or the one that cargo has just built.
pub fn brig() -> PathBuf {
    std::env::var_os("BRIG_BIN").map_or_else(|| env!("CARGO_BIN_EXE_brig").into(), PathBuf::from)
}

/// The same with the feature `weakened`: `BRIG_WEAKENED_BIN`, or built now in a separate target directory.
pub(super) fn weakened() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/weakened");
        let done = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--features", "weakened", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(done.unwrap().success(), "the weakened build");
        target.join("debug/brig")
    };
    std::env::var_os("BRIG_WEAKENED_BIN").map_or_else(|| BUILT.get_or_init(build).clone(), PathBuf::from)
}

pub(super) fn compile(path: &Path, source: &str) -> PathBuf {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = path.with_extension("c");
    std::fs::write(&text, source).unwrap();
    let done =
        Command::new("cc").args(["-O1", "-static", "-pthread", "-w", "-o"]).arg(path).arg(&text).output().unwrap();
    assert!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::remove_file(&text).unwrap();
    path.to_path_buf()
}
