//! What a root of ours begins with, kept: folders, links, small files and device nodes that are the same for each sandbox are made once, in a directory of the
//! store, and shown read-only. Made anew in memory, and taken apart with it, they were a twentieth of a start (docs/decisions/0005-start-path.md).
//!
//! A directory is named by a hash of all that is made in it, and never changed afterwards. Nobody inside can write it: it is read-only there, and the owner of
//! all of it is an administrator that no process of a sandbox is. Where it cannot be made or shown (no room, a file system that does not show other owners),
//! the root is made in memory as before.

use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::mounts::disk::Workshop;
use crate::mounts::disk::volatile::Workplace;
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

/// What their names begin with. Counted up when what is made of the same parts changes.
const PREFIX: &str = "root-v1-";
/// More are not kept: a machine has one for each of its states and of a few options.
const MOST: usize = 64;
/// The folder that devices are in.
const DEV: &str = "/dev";
/// The folder under the process file system, which is empty and so what covers other folders.
const EMPTY: &str = "proc";

/// What is at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What<'step> {
    /// A folder of this mode.
    Folder(u32),
    Link(&'step Path),
    /// A file with this content, of this mode.
    File(&'step [u8], u32),
    /// A file with the content of one of the host, of this mode.
    Copy(&'step Path, Version, u32),
    /// A character device, for all.
    Device(u32, u32),
}

/// The directory with what the steps of `file_system` make, made if it is not there; `None` where the root is of another kind or nothing can be kept.
pub(crate) fn of(workshop: &Workshop, file_system: &FileSystem) -> Option<PathBuf> {
    if file_system.root != Root::Kept {
        return None;
    }
    let parts = parts(&file_system.steps)?;
    let mut hasher = DefaultHasher::new(); // of another release of Rust it may be another one: then another directory is made
    parts.iter().for_each(|(at, what)| (at.as_os_str(), what).hash(&mut hasher));
    let path = workshop.templates.join(format!("{PREFIX}{:016x}", hasher.finish()));
    if rustix::fs::stat(&path).is_err() {
        keep(workshop, &path, &parts).ok()?;
    }
    Some(path)
}

/// What steps make that are the same for each sandbox, with the folders above and the places of mounts; `None` if one of them changes what is there, or needs
/// more than a place.
fn parts(steps: &[Step]) -> Option<Vec<(PathBuf, What<'_>)>> {
    let mut all: Vec<(PathBuf, What<'_>)> = Vec::with_capacity(64);
    let memory = in_memory(steps);
    for step in steps.iter().filter(|step| !is_below(&memory, step)) {
        let (at, what) = match step {
            Step::Directory { at, mode, .. } => (at, What::Folder(*mode)),
            Step::Symlink { at, target } => (at, What::Link(target)),
            Step::File { at, content, mode } => (at, What::File(content, *mode)),
            Step::Copy { from, version, at, mode } => (at, What::Copy(from, *version, *mode)),
            Step::Bind { source: Source::Root(_), .. } => continue, // over what is there already
            Step::Bind { source: Source::Host(source), at, .. } => {
                // In init a hierarchy of cgroups can be out of sight by the time that an error is explained. Each of them is a folder.
                let is_folder = rustix::fs::stat(source)
                    .map_or(true, |found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
                (at, if is_folder { What::Folder(0o755) } else { What::File(&[], 0o644) })
            }
            Step::Proc { at } => (at, What::Folder(0o555)),
            Step::Bind { at, .. }
            | Step::Overlay { at, .. }
            | Step::Pts { at }
            | Step::Secrets { at, .. }
            | Step::Tmpfs { at, .. } => (at, What::Folder(0o755)),
            Step::Devices => {
                for Device { name, major, minor } in &DEVICES {
                    add(&mut all, &Path::new(DEV).join(name), What::Device(*major, *minor))?;
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

/// The memory file systems of the steps, whose content is one sandbox's. The devices are kept: their file system is shown as it is.
fn in_memory(steps: &[Step]) -> Vec<&Path> {
    let memory = steps.iter().filter_map(|step| match step {
        Step::Tmpfs { at, .. } => Some(at.as_path()),
        _ => None,
    });
    memory.filter(|at| !at.starts_with(DEV)).collect()
}

/// Whether a step makes something in one of these file systems.
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
        | Step::Proc { at }
        | Step::Pts { at }
        | Step::Freeze { at, .. }
        | Step::Nest { at, .. } => at,
        Step::Devices => return false,
    };
    memory.iter().any(|folder| at != folder.as_ref() && at.starts_with(folder))
}

/// Adds a part after the folders above it. Two parts at one path, or one below a link, are not kept.
fn add<'step>(all: &mut Vec<(PathBuf, What<'step>)>, at: &Path, what: What<'step>) -> Option<()> {
    let known = |all: &[(PathBuf, What<'_>)], at: &Path| {
        // Letter by letter: paths of ours have one form, and their comparison by components takes longer than all else here.
        all.iter().find(|(path, _)| path.as_os_str() == at.as_os_str()).map(|(_, what)| matches!(what, What::Folder(_)))
    };
    if let Some(above) = crate::mounts::resolve::above(at) {
        match known(all, above) {
            None => add(all, above, What::Folder(0o755))?,
            Some(is_folder) => is_folder.then_some(())?,
        }
    }
    if known(all, at).is_some() {
        return None;
    }
    all.push((at.to_owned(), what));
    Some(())
}

/// The mounts that are read-only when a kept root is shown: it and its devices.
fn is_frozen(at: &Path) -> bool {
    at == Path::new("/") || at == Path::new(DEV)
}

/// Makes the directory where nobody looks for it, and gives it its name when it is whole. Of two that make it at once, the first one's stays.
fn keep(workshop: &Workshop, path: &Path, parts: &[(PathBuf, What<'_>)]) -> Result<()> {
    let step = || format!("keep the root `{}`", path.display());
    files::create_directories(&workshop.templates, 0o700)?;
    files::create_directories(&workshop.live, 0o700)?;
    let names = fs::read_dir(&workshop.templates).failing(Kind::Store, step)?.filter_map(|entry| entry.ok());
    if names.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)).count() >= MOST {
        return Err(Error::new(Kind::Store, "there are too many of them").doing(step()));
    }
    let unfinished = Workplace::make(&workshop.live).failing(Kind::Store, step)?;
    let tree = unfinished.path().join("root");
    make(&tree, parts).failing(Kind::Store, step)?;
    fs::rename(&tree, path).or_else(|cause| if path.is_dir() { Ok(()) } else { Err(cause) }).failing(Kind::Store, step)
}

/// Makes all parts below `tree`, and waits until they are on the disk: one that a power cut made of empty files would be shown to every sandbox.
fn make(tree: &Path, parts: &[(PathBuf, What<'_>)]) -> std::io::Result<()> {
    let whole = [(PathBuf::from("/"), What::Folder(0o755))];
    let owner = if weaken::is_off("kept-owner") { 1000 } else { 0 };
    // Not resolved: there is nothing below it but what is made here, and no part is below a link.
    let place = |at: &Path| tree.join(at.strip_prefix("/").unwrap_or(at));
    for (at, what) in whole.iter().chain(parts) {
        let place = place(at);
        let mode = match *what {
            What::Folder(mode) => fs::create_dir(&place).map(|()| Some(mode)),
            What::Link(target) => symlink(target, &place).map(|()| None),
            What::File(content, mode) => fs::write(&place, content).map(|()| Some(mode)),
            What::Copy(from, _, mode) => fs::write(&place, fs::read(from)?).map(|()| Some(mode)),
            What::Device(major, minor) => {
                let (kind, number) = (FileType::CharacterDevice, makedev(major, minor));
                mknodat(CWD, &place, kind, Mode::empty(), number)?;
                Ok(Some(0o666))
            }
        }?;
        lchown(&place, Some(owner), Some(owner))?; // a directory may hand its group on
        if let Some(mode) = mode {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))?; // whatever the caller's umask says
        }
    }
    // When all that is in them is there. Links and devices are nothing but names.
    let has_content = |what: &What<'_>| matches!(what, What::Folder(_) | What::File(..) | What::Copy(..));
    let mut kept = whole.iter().chain(parts).filter(|(_, what)| has_content(what));
    kept.try_for_each(|(at, _)| File::open(place(at))?.sync_all())
}

/// A kept root, shown.
pub(super) struct Kept {
    /// The directory.
    pub tree: PathBuf,
    root: OwnedFd,
    /// Folders of it that are covered by memory of the sandbox.
    memory: Vec<PathBuf>,
}

impl Kept {
    /// Shows the directory read-only, as a detached mount. An error means that its file system cannot show it as the sandbox's.
    pub(super) fn show(tree: &Path, mapping: Option<&OwnedFd>, steps: &[Step]) -> Result<Kept> {
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
        Ok(Kept { tree: tree.to_owned(), root, memory })
    }

    /// The root's mount.
    pub(super) fn root(&self) -> Result<OwnedFd> {
        self.root.try_clone().failing(Kind::Mount, || "keep the root open")
    }

    /// Whether this step is done when the root is shown.
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

    /// The mount for the folder of the devices, read-only, where `at` is that folder. The root must be attached.
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

    /// An empty folder that nobody can write, as what covers others. The root must be attached (until kernel 6.15), and no process file system in it.
    pub(super) fn empty(&self) -> Result<OwnedFd> {
        let empty = clone_tree(self.root.as_fd(), Path::new(EMPTY))?;
        restrict(&empty, Attributes::KERNEL)?;
        Ok(empty)
    }

    /// What to do about an error, if it is one because somebody has removed a part of the directory.
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
        FileSystem { root: Root::Kept, scratch, steps, masked: Vec::new(), read_only: Vec::new() }
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
            ("/a", What::Folder(0o755)),
            ("/a/b", What::Folder(0o755)),
            ("/a/b/folder", What::Folder(0o755)),
            ("/a/b/file", What::File(b"", 0o644)),
            ("/proc", What::Folder(0o555)),
            ("/run", What::Folder(0o700)),
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
        keep(&workshop, &tree, &parts(&steps()).unwrap()).unwrap(); // as the later one of two would
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
