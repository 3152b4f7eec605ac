//! Formats an empty disk image, with at most the requested number of inodes.
//!
//! ext4 gives each group of 128 MiB the same number of inodes, at least 16. Empty files in a directory that sandboxes
//! cannot see use up the excess.

use super::Size;
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use rustix::fs::ftruncate;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Added to the cap so that inodes do not use up data blocks.
const INODE_BYTES: u64 = 256;
const BLOCK_BYTES: u64 = 4096;
const INODES_PER_BLOCK: u64 = BLOCK_BYTES / INODE_BYTES;
/// The bytes that one bitmap block covers.
const GROUP_BYTES: u64 = 8 * BLOCK_BYTES * BLOCK_BYTES;
/// The accepted shortfall of inodes, as a divisor. Fewer inodes are better than an image with files, which costs every
/// start.
const NOT_MISSED: u64 = 64;

/// In every new image: the first file in a fresh ext4 costs 1 to 2 ms to read its tables.
pub(super) const DIRECTORIES: [(&str, u32); 9] = [
    ("home", 0o700),
    ("tmp", 0o700),
    ("files", 0o755),
    ("workspace", 0o755),
    ("workspace/upper", 0o755),
    ("workspace/work", 0o755),
    ("root", 0o755),
    ("root/upper", 0o755),
    ("root/work", 0o755),
];

/// Every sandbox shows these.
pub(super) const USUAL: [&str; 2] = ["home", "tmp"];

pub(crate) const VOLUME_FILES: &str = "files";

#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    directories: &'static [(&'static str, u32)],
    is_journaled: bool,
}

/// No journal: a sandbox's disk does not outlive a crash, or a checkpoint copies it after a sync.
pub(super) const SCRATCH: Form = Form { directories: &DIRECTORIES, is_journaled: false };
pub(super) const VOLUME: Form = Form { directories: &[(VOLUME_FILES, 0o755)], is_journaled: true };

/// `verity` turns off large folios (kernel 6.16), since `ext4_should_enable_large_folio` excludes it. With these ext4
/// refuses a write of up to a megabyte as a whole if it does not fit. A full disk would have half a megabyte free. No
/// file uses fs-verity.
const FEATURES: [&str; 6] =
    ["^resize_inode", "^metadata_csum", "uninit_bg", "^sparse_super", "sparse_super2", "verity"];

/// `EXT4_GOOD_OLD_FIRST_INO`.
const RESERVED: u64 = 11;
/// MiB: ext4's smallest, or one that lets many writers wait less.
const JOURNAL: [u64; 2] = [4, 32];
/// The data from which on an image has the larger journal.
const LARGE: u64 = 1 << 30;

impl Form {
    /// In MiB.
    fn journal(self, size: Size) -> u64 {
        if self.is_journaled { JOURNAL[usize::from(size.bytes >= LARGE)] } else { 0 }
    }
}

/// Those that are not the sandbox's files.
pub(super) const OWN_INODES: u64 = RESERVED + DIRECTORIES.len() as u64;

/// Inodes come in whole blocks of each group: the size of a step, and the most steps below the limit.
fn inode_steps(size: Size, form: Form) -> (u64, u64) {
    let step = image_bytes(size, form).div_ceil(GROUP_BYTES) * INODES_PER_BLOCK;
    let wanted = size.inodes + RESERVED + form.directories.len() as u64;
    (step, wanted / step)
}

/// Below the limit if that is near enough, else above it.
fn requested(size: Size, form: Form) -> u64 {
    let (step, steps) = inode_steps(size, form);
    let (wanted, below) = (size.inodes + RESERVED + form.directories.len() as u64, steps * step);
    if wanted - below <= size.inodes / NOT_MISSED { below } else { below + step }
}

pub(super) fn is_of(size: Size, bytes: u64, inodes: u64) -> bool {
    let (step, steps) = inode_steps(size, SCRATCH);
    let near = step + size.inodes / NOT_MISSED;
    bytes == image_bytes(size, SCRATCH) && inodes.abs_diff(steps * step) <= near
}

/// Data, inode table, journal, and ext4's reserve: a fiftieth of the whole, at most 4096 blocks
/// (`ext4_calculate_resv_clusters`).
fn image_bytes(size: Size, form: Form) -> u64 {
    let used = size.bytes + size.inodes * INODE_BYTES + (form.journal(size) << 20);
    let kept = (used / 49).min(4096 * BLOCK_BYTES);
    (used + kept).div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

pub(super) fn format(path: &Path, size: Size, form: Form) -> Result<()> {
    let tree = Tree::make(path.with_extension("tree"), form)?;
    make(path, size, form, &tree.0)?;
    let excess = free_inodes(path)?.saturating_sub(size.inodes);
    if excess == 0 {
        return Ok(());
    }
    tree.fill(excess)?;
    make(path, size, form, &tree.0)
}

/// Copies owners, links, attributes and holes. Excess inodes get no empty files, so the image has fewer than the limit.
pub(super) fn fill(path: &Path, size: Size, tree: &Path) -> Result<()> {
    let (step, steps) = inode_steps(size, SCRATCH);
    if steps == 0 {
        let words = format!("a disk of this size has at least {step} files, and `--inodes` is {}", size.inodes);
        return Err(Error::new(Kind::Usage, words).hint("give more --inodes or a smaller --disk"));
    }
    run(path, size, SCRATCH, tree, steps * step)
}

fn make(path: &Path, size: Size, form: Form, tree: &Path) -> Result<()> {
    run(path, size, form, tree, requested(size, form))
}

fn run(path: &Path, size: Size, form: Form, tree: &Path, inodes: u64) -> Result<()> {
    let step = || format!("format the disk image `{}`", path.display());
    let file = File::create(path).failing(Kind::Disk, step)?;
    ftruncate(&file, image_bytes(size, form)).failing(Kind::Disk, step)?;
    let journal = if form.is_journaled { "has_journal" } else { "^has_journal" };
    let mut command = tool("mke2fs");
    command
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-L", "brig", "-G", "128"])
        .args(["-O", &format!("{journal},{}", FEATURES.join(","))])
        // A start copies every backup, and a sparse file reads as zeroes.
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,num_backup_sb=0"])
        .args(["-N", &inodes.to_string()])
        .arg("-d")
        .arg(tree);
    if form.is_journaled {
        command.args(["-J", &format!("size={}", form.journal(size))]);
    }
    let output =
        command.arg(path).env("MKE2FS_SYNC", "0").output().map_err(|cause| {
            Error::os(Kind::Disk, cause).doing("run `mke2fs`").doing(step()).hint("install e2fsprogs")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Error::new(Kind::Disk, format!("mke2fs ended with {}: {words}", output.status))
        .doing(step())
        .hint("give a larger --disk (4 MiB at the least) or fewer --inodes"))
}

/// A program of e2fsprogs.
pub(super) fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env_clear().env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// `s_free_inodes_count` of the superblock, 1024 bytes into the image (ext4 wiki, "The Super Block").
fn free_inodes(image: &Path) -> Result<u64> {
    const AT: u64 = 1024 + 0x10;
    let step = || format!("read the superblock of `{}`", image.display());
    let mut count = [0; 4];
    File::open(image).failing(Kind::Disk, step)?.read_exact_at(&mut count, AT).failing(Kind::Disk, step)?;
    Ok(u32::from_le_bytes(count).into())
}

/// Removed when dropped.
struct Tree(PathBuf);

impl Tree {
    fn make(at: PathBuf, form: Form) -> Result<Tree> {
        let tree = Tree(at);
        form.directories.iter().try_for_each(|(name, mode)| files::create_directories(&tree.0.join(name), *mode))?;
        Ok(tree)
    }

    fn fill(&self, count: u64) -> Result<()> {
        let inside = self.0.join(".unused");
        let step = || format!("make `{}`", inside.display());
        std::fs::create_dir(&inside).failing(Kind::Disk, step)?;
        (1..count)
            .try_for_each(|number| File::create(inside.join(number.to_string())).failing(Kind::Disk, step).map(|_| ()))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The next template of this size reuses the names of leftover files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_at_most_the_inodes_that_were_asked_for_and_hardly_less() {
        let directory = tempfile::tempdir().unwrap();
        let check = |bytes: u64, inodes: u64, form| {
            let path = directory.path().join("image");
            format(&path, Size { bytes, inodes, synchronous: false }, form).unwrap();
            let free = free_inodes(&path).unwrap();
            assert!(free <= inodes && free >= inodes - inodes / NOT_MISSED, "{bytes} {inodes}: {free}");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        };
        check(10 << 30, 1_000_000, SCRATCH);
        check(10 << 30, 256, SCRATCH);
        check(10 << 30, 2000, SCRATCH);
        check(16 << 20, 1_000_000, SCRATCH);
        check(4 << 20, 64, SCRATCH);
        check(10 << 30, 1_000_000, VOLUME);
        check(16 << 20, 64, VOLUME);
    }
}
