//! The kept start of a root: entries that are equal in each sandbox, made once in the store and mounted read-only. In
//! memory they took a twentieth of a start (docs/decisions/0005-start-path.md).
//!
//! The directory's name is a hash of its contents, which never change. Its owner is an id of no sandbox process, so no
//! process inside can write it. If it cannot be made or mounted (no room, no id mapping), the root is made in memory.

use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::mounts::disk::Workshop;
use crate::mounts::disk::volatile::WorkDirectory;
use crate::mounts::mount::{clone_tree, kept, restrict};
use crate::spec::root::{Attributes, DEVICES, Device, FileSystem, Root, Source, Step, Version};
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, FileType, Mode, makedev, mknodat, statat};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// Count it up when the contents for the same parts change.
const PREFIX: &str = "root-v1-";
/// A machine needs one for each of its states and of a few options.
const MOST: usize = 64;
const DEV: &str = "/dev";
/// The mount point of /proc is empty and so can cover other folders.
const EMPTY: &str = "proc";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part<'step> {
    Folder(u32),
    Link(&'step Path),
    File(&'step [u8], u32),
    /// A copy of a host file, with this mode.
    Copy(&'step Path, Version, u32),
    Device(u32, u32),
}

/// Made if missing. `None` if the root is of another kind or cannot be made.
pub(crate) fn of(workshop: &Workshop, file_system: &FileSystem) -> Option<PathBuf> {
    if file_system.root != Root::Kept {
        return None;
    }
    let parts = parts(&file_system.steps)?;
    // Another release of Rust may hash differently: it makes another directory.
    let mut hasher = DefaultHasher::new();
    parts.iter().for_each(|(at, what)| (at.as_os_str(), what).hash(&mut hasher));
    let path = workshop.templates.join(format!("{PREFIX}{:016x}", hasher.finish()));
    if rustix::fs::stat(&path).is_err() {
        keep(workshop, &path, &parts).ok()?;
    }
    Some(path)
}

/// `None` if a step changes an existing file, or needs more than a mount point.
fn parts(steps: &[Step]) -> Option<Vec<(PathBuf, Part<'_>)>> {
    let mut all: Vec<(PathBuf, Part<'_>)> = Vec::with_capacity(64);
    let memory = in_memory(steps);
    for step in steps.iter().filter(|step| !is_below(&memory, step)) {
        let (at, what) = match step {
            Step::Directory { at, mode, .. } => (at, Part::Folder(*mode)),
            Step::Symlink { at, target } => (at, Part::Link(target)),
            Step::File { at, content, mode } => (at, Part::File(content, *mode)),
            Step::Copy { from, version, at, mode } => (at, Part::Copy(from, *version, *mode)),
            Step::Bind { source: Source::Root(_), .. } => continue, // over an existing file
            Step::Bind { source: Source::Host(source), at, .. } => {
                // A cgroup hierarchy, always a folder, can be out of reach in init when an error is explained.
                let is_folder = rustix::fs::stat(source)
                    .map_or(true, |found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
                (at, if is_folder { Part::Folder(0o755) } else { Part::File(&[], 0o644) })
            }
            Step::Proc { at } => (at, Part::Folder(0o555)),
            Step::Bind { at, .. }
            | Step::Overlay { at, .. }
            | Step::Volume { at, .. }
            | Step::Pts { at }
            | Step::Secrets { at, .. }
            | Step::Tmpfs { at, .. } => (at, Part::Folder(0o755)),
            Step::Devices => {
                for Device { name, major, minor } in &DEVICES {
                    add(&mut all, &Path::new(DEV).join(name), Part::Device(*major, *minor))?;
                }
                continue;
            }
            Step::Freeze { at, .. } if is_frozen(at) || memory.iter().any(|each| *each == at) => continue,
            Step::Freeze { .. } | Step::Amend { .. } | Step::Nest { .. } => return None,
        };
        add(&mut all, at, what)?;
    }
    Some(all)
}

/// Without the devices: their kept file system is mounted.
fn in_memory(steps: &[Step]) -> Vec<&Path> {
    let memory = steps.iter().filter_map(|step| match step {
        Step::Tmpfs { at, .. } => Some(at.as_path()),
        _ => None,
    });
    memory.filter(|at| !at.starts_with(DEV)).collect()
}

fn is_below<Folder: AsRef<Path>>(memory: &[Folder], step: &Step) -> bool {
    let at = match step {
        Step::Directory { at, .. }
        | Step::Symlink { at, .. }
        | Step::File { at, .. }
        | Step::Copy { at, .. }
        | Step::Amend { at, .. }
        | Step::Tmpfs { at, .. }
        | Step::Secrets { at, .. }
        | Step::Bind { at, .. }
        | Step::Overlay { at, .. }
        | Step::Volume { at, .. }
        | Step::Proc { at }
        | Step::Pts { at }
        | Step::Freeze { at, .. }
        | Step::Nest { at, .. } => at,
        Step::Devices => return false,
    };
    memory.iter().any(|folder| at != folder.as_ref() && at.starts_with(folder))
}

/// After its parent folders. Refuses two parts at one path, or one below a link.
fn add<'step>(all: &mut Vec<(PathBuf, Part<'step>)>, at: &Path, what: Part<'step>) -> Option<()> {
    let known = |all: &[(PathBuf, Part<'_>)], at: &Path| {
        // By bytes: our paths have one form, and a comparison by components takes longer than the rest of this
        // function.
        all.iter().find(|(path, _)| path.as_os_str() == at.as_os_str()).map(|(_, what)| matches!(what, Part::Folder(_)))
    };
    if let Some(above) = crate::mounts::resolve::above(at) {
        match known(all, above) {
            None => add(all, above, Part::Folder(0o755))?,
            Some(is_folder) => is_folder.then_some(())?,
        }
    }
    if known(all, at).is_some() {
        return None;
    }
    all.push((at.to_owned(), what));
    Some(())
}

fn is_frozen(at: &Path) -> bool {
    at == Path::new("/") || at == Path::new(DEV)
}

/// Named when it is complete. Of two makers at once, the first one's stays.
fn keep(workshop: &Workshop, path: &Path, parts: &[(PathBuf, Part<'_>)]) -> Result<()> {
    let step = || format!("keep the root `{}`", path.display());
    files::create_directories(&workshop.templates, 0o700)?;
    files::create_directories(&workshop.live, 0o700)?;
    let names = fs::read_dir(&workshop.templates).failing(Kind::Store, step)?.filter_map(|entry| entry.ok());
    if names.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)).count() >= MOST {
        return Err(Error::new(Kind::Store, "there are too many of them").doing(step()));
    }
    let unfinished = WorkDirectory::make(&workshop.live).failing(Kind::Store, step)?;
    let tree = unfinished.path().join("root");
    make(&tree, parts).failing(Kind::Store, step)?;
    fs::rename(&tree, path).or_else(|cause| if path.is_dir() { Ok(()) } else { Err(cause) }).failing(Kind::Store, step)
}

/// Synced: after a power cut every sandbox would get empty files.
fn make(tree: &Path, parts: &[(PathBuf, Part<'_>)]) -> std::io::Result<()> {
    let whole = [(PathBuf::from("/"), Part::Folder(0o755))];
    let owner = if weaken::is_off("kept-owner") { 1000 } else { 0 };
    // No need to resolve: the tree has only these entries, and no part is below a link.
    let place = |at: &Path| tree.join(at.strip_prefix("/").unwrap_or(at));
    for (at, what) in whole.iter().chain(parts) {
        let place = place(at);
        let mode = match *what {
            Part::Folder(mode) => fs::create_dir(&place).map(|()| Some(mode)),
            Part::Link(target) => symlink(target, &place).map(|()| None),
            Part::File(content, mode) => fs::write(&place, content).map(|()| Some(mode)),
            Part::Copy(from, _, mode) => fs::write(&place, fs::read(from)?).map(|()| Some(mode)),
            Part::Device(major, minor) => {
                let (kind, number) = (FileType::CharacterDevice, makedev(major, minor));
                mknodat(CWD, &place, kind, Mode::empty(), number)?;
                Ok(Some(0o666))
            }
        }?;
        lchown(&place, Some(owner), Some(owner))?; // a directory may pass its group on
        if let Some(mode) = mode {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))?; // independent of the caller's umask
        }
    }
    // After all their contents. Links and devices have none to sync.
    let has_content = |what: &Part<'_>| matches!(what, Part::Folder(_) | Part::File(..) | Part::Copy(..));
    let mut kept = whole.iter().chain(parts).filter(|(_, what)| has_content(what));
    kept.try_for_each(|(at, _)| File::open(place(at))?.sync_all())
}

pub(super) struct KeptRoot {
    pub tree: PathBuf,
    root: OwnedFd,
    /// Its folders that a memory file system of the sandbox covers.
    memory: Vec<PathBuf>,
}

impl KeptRoot {
    /// An error means that the file system cannot map the owners.
    pub(super) fn show(tree: &Path, mapping: Option<&OwnedFd>, steps: &[Step]) -> Result<KeptRoot> {
        let step = || format!("show the kept root `{}`", tree.display());
        let mapping = mapping.ok_or_else(|| Error::new(Kind::Internal, "no mapping for it").doing(step()))?;
        let root = clone_tree(CWD, tree)?;
        let attributes = MountAttr {
            set: kept(bits::RDONLY | bits::NOSUID | bits::NODEV) | bits::NOATIME | bits::IDMAP,
            clear: bits::ATIME,
            userns: mapping.as_raw_fd() as u64,
            ..MountAttr::default()
        };
        set_attributes(root.as_fd(), c"", false, &attributes).failing(Kind::Mount, step)?;
        let memory = in_memory(steps).into_iter().map(Path::to_owned).collect();
        Ok(KeptRoot { tree: tree.to_owned(), root, memory })
    }

    pub(super) fn root(&self) -> Result<OwnedFd> {
        self.root.try_clone().failing(Kind::Mount, || "keep the root open")
    }

    pub(super) fn has(&self, step: &Step) -> bool {
        match step {
            _ if is_below(&self.memory, step) => false,
            Step::Directory { .. } | Step::Symlink { .. } | Step::File { .. } | Step::Copy { .. } | Step::Devices => {
                true
            }
            Step::Freeze { at, .. } => is_frozen(at),
            _ => false,
        }
    }

    /// Read-only, if `at` is the device folder. The root must be attached.
    pub(super) fn devices(&self, at: &Path) -> Option<Result<OwnedFd>> {
        let show = || {
            let dev = clone_tree(self.root.as_fd(), Path::new("dev"))?;
            let attributes =
                MountAttr { set: kept(Attributes::DEVICES.read_only().0), clear: bits::NODEV, ..MountAttr::default() };
            set_attributes(dev.as_fd(), c"", false, &attributes).failing(Kind::Mount, || "show the devices")?;
            Ok(dev)
        };
        (at == Path::new(DEV)).then(show)
    }

    /// Read-only, to cover other folders. The root must be attached (until kernel 6.15), and have no process file
    /// system.
    pub(super) fn empty(&self) -> Result<OwnedFd> {
        let empty = clone_tree(self.root.as_fd(), Path::new(EMPTY))?;
        restrict(&empty, Attributes::KERNEL)?;
        Ok(empty)
    }

    /// Adds a hint if a part of the directory has been removed.
    pub(super) fn explain(&self, steps: &[Step], error: Error) -> Error {
        let is_gone = |at: &Path| {
            let below = at.strip_prefix("/").unwrap_or(at);
            statat(&self.root, below, AtFlags::SYMLINK_NOFOLLOW).is_err()
        };
        let gone = parts(steps).unwrap_or_default().into_iter().map(|(at, _)| at).find(|at| is_gone(at));
        match gone {
            Some(at) => error.hint(format!(
                "`{}` has lost its `{}`: remove that folder, and the next start makes it anew",
                self.tree.display(),
                at.display()
            )),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::root::{Owner, Shown};

    fn folder(at: &str) -> Step {
        Step::Directory { at: at.into(), mode: 0o700, owner: Owner::Administrator }
    }

    fn file(at: &str, content: &str) -> Step {
        Step::File { at: at.into(), content: content.into(), mode: 0o640 }
    }

    fn link(at: &str) -> Step {
        Step::Symlink { at: at.into(), target: "usr/bin".into() }
    }

    fn kept(steps: Vec<Step>) -> FileSystem {
        use crate::spec::resources::Rates;
        use crate::spec::root::{Backing, Scratch};
        let scratch = Scratch { backing: Backing::Memory, bytes: 0, inodes: 0, rates: Rates::default() };
        FileSystem {
            root: Root::Kept,
            attributes: Attributes::WRITABLE,
            scratch,
            steps,
            masked: Vec::new(),
            read_only: Vec::new(),
        }
    }

    fn workshop(store: &Path) -> Workshop {
        Workshop { templates: store.join("templates"), live: store.join("live") }
    }

    #[test]
    fn folders_above_come_first_and_places_of_mounts_are_of_their_kind() {
        let show = |source: &str, at: &str| Step::Bind {
            source: Source::Host(source.into()),
            at: at.into(),
            attributes: Attributes::READ_ONLY,
            shown: Shown::Inside,
        };
        let steps = [
            show("/etc", "/a/b/folder"),
            show("/etc/passwd", "/a/b/file"),
            Step::Proc { at: "/proc".into() },
            folder("/run"),
        ];
        let expected = [
            ("/a", Part::Folder(0o755)),
            ("/a/b", Part::Folder(0o755)),
            ("/a/b/folder", Part::Folder(0o755)),
            ("/a/b/file", Part::File(b"", 0o644)),
            ("/proc", Part::Folder(0o555)),
            ("/run", Part::Folder(0o700)),
        ];
        let parts = parts(&steps).unwrap();
        assert_eq!(parts.iter().map(|(at, what)| (at.to_str().unwrap(), *what)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_would_be_another_root_than_in_memory_is_not_kept() {
        let freeze = |at: &str| Step::Freeze { at: at.into(), attributes: Attributes::READ_ONLY };
        for steps in [
            vec![file("/etc/a", "one"), file("/etc/a", "two")],
            vec![link("/bin"), file("/bin/sh", "")],
            vec![file("/etc", ""), file("/etc/passwd", "")],
            vec![freeze("/etc/ssl")],
            vec![Step::Amend {
                at: "/etc/hosts".into(),
                change: crate::spec::root::Change::Append(Vec::new()),
                missing: None,
                mode: 0o644,
            }],
        ] {
            assert_eq!(parts(&steps), None, "{steps:?}");
        }
        assert_eq!(parts(&[freeze("/"), freeze("/dev")]), Some(Vec::new()));
    }

    #[test]
    fn a_tree_is_made_once_whole_and_of_the_administrators() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("a_tree_is_made_once_whole_and_of_the_administrators: needs root");
            return;
        }
        use std::os::unix::fs::MetadataExt;
        let store = tempfile::tempdir().unwrap();
        let workshop = workshop(store.path());
        let steps = || vec![folder("/root"), file("/etc/hostname", "sandbox\n"), link("/bin"), Step::Devices];
        let tree = of(&workshop, &kept(steps())).unwrap();
        let look = |name: &str| {
            let found = fs::symlink_metadata(tree.join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), (0, 0), "{name}");
            (found.mode() & 0o177_777, found.rdev())
        };
        assert_eq!(look("."), (0o040_755, 0));
        assert_eq!(look("root"), (0o040_700, 0));
        assert_eq!(look("etc"), (0o040_755, 0));
        assert_eq!(look("etc/hostname"), (0o100_640, 0));
        assert_eq!(look("dev/null"), (0o020_666, makedev(1, 3)));
        assert_eq!(fs::read(tree.join("etc/hostname")).unwrap(), b"sandbox\n");
        assert_eq!(fs::read_link(tree.join("bin")).unwrap(), Path::new("usr/bin"));
        assert_eq!(fs::read_dir(&workshop.live).unwrap().count(), 0);

        let made = fs::metadata(&tree).unwrap().ino();
        assert_eq!(of(&workshop, &kept(steps())), Some(tree.clone()));
        assert_eq!(fs::metadata(&tree).unwrap().ino(), made, "the same one");
        keep(&workshop, &tree, &parts(&steps()).unwrap()).unwrap(); // as the later one of two makers would
        assert_eq!(fs::metadata(&tree).unwrap().ino(), made, "the first one stays");
        let others = [vec![file("/etc/hostname", "other\n")], vec![file("/etc/host", "name\n")]];
        assert!(others.map(|steps| of(&workshop, &kept(steps)).unwrap()).iter().all(|each| *each != tree));
    }

    #[test]
    fn changed_file_of_the_host_is_copied_to_another_tree() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("changed_file_of_the_host_is_copied_to_another_tree: needs root");
            return;
        }
        let store = tempfile::tempdir().unwrap();
        let workshop = workshop(store.path());
        let from = store.path().join("services");
        let tree = |content: &str, nanoseconds| {
            fs::write(&from, content).unwrap();
            let version = Version { size: content.len() as u64, modified: (0, 0), changed: (0, nanoseconds) };
            let copy = Step::Copy { from: from.clone(), version, at: "/etc/services".into(), mode: 0o644 };
            of(&workshop, &kept(vec![copy])).unwrap()
        };
        let (first, changed) = (tree("https", 1), tree("gopher", 2));
        assert_ne!(first, changed);
        assert_eq!(fs::read(first.join("etc/services")).unwrap(), b"https");
        assert_eq!(fs::read(changed.join("etc/services")).unwrap(), b"gopher");
        assert_eq!(tree("gopher", 2), changed);
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let store = tempfile::tempdir().unwrap();
        let workshop = workshop(store.path());
        for number in 0..MOST {
            fs::create_dir_all(workshop.templates.join(format!("{PREFIX}{number}"))).unwrap();
        }
        assert_eq!(of(&workshop, &kept(vec![folder("/root")])), None);
        let other = FileSystem { root: Root::Empty, ..kept(vec![folder("/root")]) };
        fs::remove_dir(workshop.templates.join(format!("{PREFIX}0"))).unwrap();
        assert_eq!(of(&workshop, &other), None, "a root that is one sandbox's own");
        assert_eq!(fs::read_dir(&workshop.templates).unwrap().count(), MOST - 1);
    }
}
