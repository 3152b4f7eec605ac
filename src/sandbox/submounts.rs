//! Mounts below the host's folders that a sandbox shows.
//!
//! Bind mounts and overlays lack the mounts below their folder. Each is shown read-only at its place, or a note names
//! it. For an ordinary user a folder comes only with all mounts below it (mount_namespaces(7): covered paths stay
//! covered). So init copies the whole tree, and covers what must not be shown.
//!
//! In the workspace they are read-only overlays: through a bind mount the agent could reach the host's sockets and
//! FIFOs.

use super::profile::CHANGES;
use crate::error::{Error, Kind, Result};
use crate::host::{MountEntry, can_be_mapped, is_off};
use crate::spec::root::HiddenFiles;
use crate::spec::root::{Attributes, MOUNTS, Owner, SUBMOUNTS, Shown, Source, Step};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// File systems with files on a disk or in memory. The kernel's (proc, sysfs, cgroup) lead to more than files. Those of
/// another process or machine (FUSE, NFS, 9p, autofs) can block init and observe the agent's reads.
const SHOWN: [&str; 17] = [
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "ntfs3", "overlay",
    "squashfs", "tmpfs", "vfat", "xfs", "zfs",
];
/// Mounts there are not below a shown folder.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Containers with a graphics card have some fifty below `/usr`.
const MOST: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Submounts {
    /// Differences in the caller's folders.
    pub notes: Vec<String>,
    /// Differences in the system's folders.
    pub hints: Vec<String>,
    /// Open until init has them: steps name the descriptors, so that no path is resolved again.
    held: Vec<OwnedFd>,
    /// By device number: whether a sandbox of the machine's root can show it.
    mappable: BTreeMap<(u32, u32), bool>,
    /// Overlays below the caller's folders.
    overlays: usize,
}

pub(super) fn add(steps: &mut Vec<Step>, mounts: &[MountEntry], is_privileged: bool) -> Result<Submounts> {
    let mut found = Submounts::default();
    let is_kernel = |point: &Path| KERNEL.iter().any(|folder| point.starts_with(folder));
    let mounts: Vec<_> =
        mounts.iter().filter(|mount| mount.point != Path::new("/") && !is_kernel(&mount.point)).collect();
    if mounts.is_empty() {
        return Ok(found);
    }
    let mut all = Vec::with_capacity(steps.len());
    for step in steps.drain(..) {
        let shown = match &step {
            Step::Bind { source: Source::Host(path), at, attributes, shown }
                if *attributes == Attributes::READ_ONLY && is_folder_of(path, *shown, &mounts) =>
            {
                Some(Folder { path: path.clone(), at: at.clone(), shown: *shown, is_workspace: false, hides: false })
            }
            Step::Overlay { lower, at, changes, shown, hidden, .. }
                if *changes == CHANGES || MOUNTS.contains(changes) =>
            {
                let hides = !hidden.is_empty();
                Some(Folder { path: lower.clone(), at: at.clone(), shown: *shown, is_workspace: true, hides })
            }
            Step::Bind { source: Source::Host(path), at, shown: shown @ Shown::Users { .. }, .. } => {
                Some(Folder { path: path.clone(), at: at.clone(), shown: *shown, is_workspace: true, hides: false })
            }
            _ => None,
        };
        all.push(step);
        if let Some(folder) = shown {
            found.below(&folder, &mounts, is_privileged, &mut all)?;
        }
    }
    *steps = all;
    Ok(found)
}

/// Whether a mount can be below a shown path. System paths have no links; a caller's path is resolved.
fn is_folder_of(path: &Path, shown: Shown, mounts: &[&MountEntry]) -> bool {
    matches!(shown, Shown::Users { .. }) || mounts.iter().any(|mount| is_below(&mount.point, path))
}

fn is_below(point: &Path, folder: &Path) -> bool {
    point != folder && point.starts_with(folder)
}

struct Folder {
    path: PathBuf,
    at: PathBuf,
    shown: Shown,
    /// The host's sockets in the workspace and in mounts of the caller's must be out of reach.
    is_workspace: bool,
    /// Whether files are hidden: those of a mount below would not be.
    hides: bool,
}

impl Submounts {
    /// Adds parents first, in the table's order.
    fn below(
        &mut self,
        folder: &Folder,
        mounts: &[&MountEntry],
        is_privileged: bool,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        let Ok(real) = std::fs::canonicalize(&folder.path) else { return Ok(()) }; // init reports it with a better message
        let below: Vec<_> = mounts.iter().filter(|mount| is_below(&mount.point, &real)).collect();
        if let (Some(first), true, false) = (below.first(), folder.is_workspace, is_privileged) {
            return Err(Error::new(Kind::Workspace, format!("`{}` is another file system, and without root a folder with mounts below it cannot be shown copy-on-write", first.point.display()))
                .doing(format!("use the folder `{}`", real.display()))
                .hint("name a folder without mounts below it, unmount it, or run brig as root"));
        }
        let mut count = 0;
        for mount in below {
            let Ok(relative) = mount.point.strip_prefix(&real) else { continue };
            let (at, name) = (folder.at.join(relative), mount.point.display());
            let is_shown = SHOWN.contains(&mount.kind.as_str()) || is_off("submount-kinds");
            let open = open_below(&folder.path, relative);
            match (is_privileged, is_shown, open) {
                // Another mount covers it.
                (_, true, Ok(open)) if mount_number(open.as_fd()) != Some(mount.id) => {}
                (true, true, Ok(_)) if folder.hides => {
                    self.note(folder, format!("`{name}` is another file system and is not shown: files are hidden"));
                }
                (true, true, Ok(_)) if (folder.is_workspace && self.overlays == SUBMOUNTS.len()) || count == MOST => {
                    self.note(folder, format!("`{name}` is another file system and is not shown: there are too many"));
                }
                (true, true, Ok(open)) if self.is_mappable(open.as_fd()) => {
                    let is_directory = file_type(open.as_fd()) == FileType::Directory;
                    if folder.is_workspace && !is_directory {
                        self.note(folder, format!("`{name}` is a mounted file and is not shown"));
                        continue;
                    }
                    if folder.is_workspace {
                        self.note(folder, format!("`{name}` is another file system: it is read-only in the sandbox"));
                    }
                    let source = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
                    self.held.push(open);
                    let overlay =
                        SUBMOUNTS.get(self.overlays).filter(|_| folder.is_workspace && !is_off("submount-overlay"));
                    self.overlays += usize::from(folder.is_workspace);
                    count += 1;
                    steps.push(match overlay {
                        Some(changes) => Step::Overlay {
                            lower: source,
                            changes,
                            at,
                            attributes: Attributes::READ_ONLY,
                            shown: folder.shown,
                            hidden: HiddenFiles::default(),
                        },
                        None => Step::Bind {
                            source: Source::Host(source),
                            at,
                            attributes: Attributes::READ_ONLY,
                            shown: folder.shown,
                        },
                    });
                }
                (true, true, _) => {
                    let why = "it cannot show its files with other owners";
                    self.note(
                        folder,
                        format!("`{name}` is another file system ({}) and is not shown: {why}", mount.kind),
                    );
                }
                (true, false, _) => {
                    self.note(folder, format!("`{name}` is another file system ({}) and is not shown", mount.kind));
                }
                // Shown with the folder itself.
                (false, true, _) => {}
                (false, false, open) => {
                    self.note(folder, format!("`{name}` is another file system ({}) and is not shown", mount.kind));
                    let is_directory = open.map_or(true, |open| file_type(open.as_fd()) == FileType::Directory);
                    steps.push(cover(at, is_directory));
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, folder: &Folder, text: String) {
        let is_callers = matches!(folder.shown, Shown::Users { .. });
        if is_callers { &mut self.notes } else { &mut self.hints }.push(text);
    }

    fn is_mappable(&mut self, place: BorrowedFd<'_>) -> bool {
        let Ok(status) = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::empty()) else { return false };
        let device = (status.stx_dev_major, status.stx_dev_minor);
        *self.mappable.entry(device).or_insert_with(|| can_be_mapped(place))
    }
}

/// Returns an O_PATH. Follows no link: the folder may be an agent's.
fn open_below(folder: &Path, below: &Path) -> rustix::io::Result<OwnedFd> {
    let top = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(top, below, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), plain)
}

fn mount_number(place: BorrowedFd<'_>) -> Option<u64> {
    statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok().map(|found| found.stx_mnt_id)
}

/// Sends no request to a FUSE or network server. Without an answer it is a directory, the usual case.
fn file_type(place: BorrowedFd<'_>) -> FileType {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(place, "", flags, StatxFlags::TYPE)
        .map_or(FileType::Directory, |found| FileType::from_raw_mode(u32::from(found.stx_mode)))
}

/// Uses an empty folder, or a null device that cannot be opened.
fn cover(at: PathBuf, is_directory: bool) -> Step {
    let attributes = Attributes::KERNEL.read_only();
    match is_directory {
        true => Step::Tmpfs { at, bytes: 4096, inodes: 2, mode: 0o555, owner: Owner::Administrator, attributes },
        false => Step::Bind { source: Source::Host("/dev/null".into()), at, attributes, shown: Shown::Stored },
    }
}
