//! Carries out a [`Plan`]: one short function a step, all on descriptors.
//!
//! Runs in init, in a mount namespace of its own, with the privilege to mount there: the machine's root before it enters
//! the sandbox's user namespace, or an ordinary user inside it.

use super::cover::cover;
use super::disk::Pending;
use super::folder::Folder;
use super::plan::{Ids, Plan};
use super::resolve;
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::spec::root::{Attributes, DEVICES, Device, Layers, Root, Shown, Source, Step};
use crate::sys::mount::{self as bits, MountAttr, set_attributes};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_change, move_mount, open_tree,
};
use rustix::process::umask;
use std::cell::{Cell, OnceCell};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What [`build`] made: the root to enter and, for the supervisor, the scratch file system's own root.
pub(crate) struct Built {
    /// The new root, a mount.
    pub root: OwnedFd,
    /// The root directory of the scratch file system, readable.
    pub scratch: OwnedFd,
    /// The directory of the secrets, writable; `None` where there are none.
    pub secrets: Option<OwnedFd>,
}

/// Builds the whole root below the plan's stage.
pub(crate) fn build(mut plan: Plan) -> Result<Built> {
    // Nothing of what follows may reach the host (invariant: nothing is ever mounted in the host's mount namespace).
    if !weaken::is_off("propagation") {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .failing(Kind::Mount, || "make all mounts private")?;
    }
    let stage = tmpfs(1 << 20, 256, 0o700, plan.administrator, Attributes::KERNEL)?;
    attach_to_host(&stage, &plan.stage)?;
    let disk = Cell::new(plan.disk.take());
    let mut builder = Builder {
        scratch: OnceCell::new(),
        secrets: Cell::new(None),
        disk,
        stage,
        plan: &plan,
        folder: Folder::default(),
    };
    let root = builder.root(&plan.file_system.root)?;
    if plan.file_system.root == Root::Empty {
        builder.folder = Folder::of_empty(root.as_fd());
    }
    if plan.file_system.root != Root::Host {
        let place = resolve::directory(builder.stage.as_fd(), Path::new("/root"), 0o755)?.0;
        attach(&root, place.as_fd()).doing(|| "attach the new root")?;
    }
    let steps = &plan.file_system.steps;
    // What is left from here on begins with a wait for the disk.
    let (first, rest) = steps.split_at(steps.iter().position(needs_scratch).unwrap_or(steps.len()));
    first.iter().try_for_each(|step| builder.step(root.as_fd(), step))?;
    let covers_first = !rest.iter().any(is_proc);
    if covers_first {
        cover(root.as_fd(), &plan)?;
    }
    rest.iter().try_for_each(|step| builder.step(root.as_fd(), step))?;
    if !covers_first {
        cover(root.as_fd(), &plan)?;
    }
    if steps.iter().any(is_proc) {
        proc_is_proc(root.as_fd())?;
    }
    builder.scratch()?;
    let secrets = builder.secrets.take();
    let scratch = builder.scratch.into_inner();
    let scratch = scratch.ok_or_else(|| Error::new(Kind::Internal, "the scratch file system was never attached"))?;
    Ok(Built { root, scratch, secrets })
}

fn is_proc(step: &Step) -> bool {
    matches!(step, Step::Proc { .. })
}

fn needs_scratch(step: &Step) -> bool {
    matches!(step, Step::Overlay { .. } | Step::Bind { source: Source::Scratch(_), .. } | Step::Nest { .. })
}

struct Builder<'plan> {
    stage: OwnedFd,
    scratch: OnceCell<OwnedFd>,
    secrets: Cell<Option<OwnedFd>>,
    disk: Cell<Option<Pending>>,
    plan: &'plan Plan,
    folder: Folder,
}

impl Builder<'_> {
    /// What a root begins with, as a detached mount; the host's own is where it is.
    fn root(&self, root: &Root) -> Result<OwnedFd> {
        match root {
            Root::Empty => tmpfs(4 << 20, 4096, 0o755, self.plan.administrator, Attributes::WRITABLE),
            Root::Overlay { lower, shown } => self.over(lower, *shown),
            Root::Layers(layers) => self.layers(layers),
            Root::Copy(tree) => self.over(tree, Shown::Stored),
            Root::Gathered(layers) => self.gathered(layers),
            Root::Host => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open("/", flags, Mode::empty()).failing(Kind::Mount, || "open the root")
            }
        }
    }

    /// A root over a tree that is never written.
    fn over(&self, lower: &Path, shown: Shown) -> Result<OwnedFd> {
        let root = self.overlay(lower, "root", shown, self.plan.administrator)?;
        restrict(&root, Attributes::WRITABLE)?;
        Ok(root)
    }

    fn step(&self, root: BorrowedFd<'_>, step: &Step) -> Result<()> {
        if matches!(step, Step::Secrets { .. } | Step::Proc { .. } | Step::Nest { .. }) {
            self.folder.forget(); // they mount in ways of their own
        }
        let folder = &self.folder;
        match step {
            Step::Directory { at, mode, owner } => {
                let (directory, new) = folder.directory(root, at, *mode)?;
                if new { own(directory.as_fd(), "", self.plan.ids(*owner)) } else { Ok(()) }
            }
            Step::Symlink { at, target } => folder.with(root, at, |folder, name| link(folder, name, target)),
            Step::File { at, content, mode } => {
                let owner = self.plan.administrator;
                folder.with(root, at, |folder, name| write(folder, name, at, (content, *mode), owner))
            }
            Step::Amend { at, change, missing, mode } => {
                super::amend::amend(root, at, change, missing.as_deref(), *mode, self.plan.administrator)
            }
            Step::Tmpfs { at, bytes, inodes, mode, owner, attributes } => {
                let made = tmpfs(*bytes, *inodes, *mode, self.plan.ids(*owner), *attributes)?;
                attach(&made, folder.directory(root, at, 0o755)?.0.as_fd())
            }
            Step::Bind { source, at, attributes, shown } => {
                let tree = self.tree(source)?;
                restrict_mapped(&tree, *attributes, self.plan.mapping(*shown))?;
                attach(&tree, folder.target(root, at, resolve::file_type(&tree)?)?.as_fd())
            }
            .doing(|| format!("mount `{}`", at.display())),
            Step::Overlay { lower, changes, at, attributes, shown } => {
                let made = self.overlay(lower, changes, *shown, self.plan.user)?;
                restrict(&made, *attributes)?;
                attach(&made, folder.directory(root, at, 0o755)?.0.as_fd())
            }
            Step::Secrets { at, files } => {
                let made = super::secrets::make(self.stage.as_fd(), root, at, files, self.plan.user)?;
                self.secrets.set(Some(made));
                Ok(())
            }
            Step::Proc { at } => attach(&proc()?, real_directory(root, at)?.as_fd()),
            Step::Pts { at } => attach(&pts()?, folder.directory(root, at, 0o755)?.0.as_fd()),
            Step::Devices => devices(root, self.plan.administrator),
            Step::Freeze { at, attributes } => restrict(&resolve::open(root, at)?, *attributes),
            Step::Nest { at, root: nested, steps, points, program } => {
                // A runtime in a user namespace cannot make an empty root read-only that has attributes already: they are locked, and it would have
                // to name them (gVisor does not). Devices and set-uid files of its own have no effect there anyway.
                let made = match nested {
                    Root::Empty => tmpfs(4 << 20, 4096, 0o755, self.plan.administrator, Attributes::default())?,
                    other => self.root(other)?,
                };
                attach(&made, resolve::directory(root, at, 0o755)?.0.as_fd())
                    .doing(|| "attach the root of the other runtime's container")?;
                steps.iter().try_for_each(|step| self.step(made.as_fd(), step))?;
                points.iter().try_for_each(|(point, like)| {
                    let kind = resolve::file_type(resolve::open(root, like)?)?;
                    resolve::target(made.as_fd(), point, kind).map(|_| ())
                })?;
                super::program::check(root, made.as_fd(), points, program, self.plan.user)
            }
        }
    }

    /// The root of the scratch file system. It is brought to `<stage>/scratch` when the first step needs it, and so made in the
    /// meantime.
    fn scratch(&self) -> Result<BorrowedFd<'_>> {
        if let Some(scratch) = self.scratch.get() {
            return Ok(scratch.as_fd());
        }
        let size = self.plan.file_system.scratch;
        let mounted = match self.disk.take() {
            Some(disk) => disk.wait(self.plan.user)?,
            None => tmpfs(size.bytes, size.inodes, 0o755, self.plan.administrator, Attributes::WRITABLE)?,
        };
        let place = resolve::directory(self.stage.as_fd(), Path::new("/scratch"), 0o700)?.0;
        attach(&mounted, place.as_fd()).doing(|| "attach the scratch file system")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&mounted, ".", flags, Mode::empty())
            .failing(Kind::Mount, || "open the scratch file system")?;
        Ok(self.scratch.get_or_init(|| root).as_fd())
    }

    /// A detached copy of one mount.
    fn tree(&self, source: &Source) -> Result<OwnedFd> {
        match source {
            Source::Host(path) => clone_tree(CWD, path),
            Source::Scratch(name) => {
                let (directory, _) = resolve::directory(self.scratch()?, Path::new(name), 0o700)?;
                own(directory.as_fd(), "", self.plan.user)?;
                clone_tree(directory.as_fd(), Path::new(""))
            }
        }
    }

    /// Mounts the layers of an image copy-on-write, as the root.
    fn layers(&self, layers: &Layers) -> Result<OwnedFd> {
        self.upper("root", self.plan.administrator)?;
        let made = super::layers::mount(self.stage.as_fd(), layers, "root", self.plan)?;
        as_root(made, layers)
    }

    /// Copies the layers of an image into memory and mounts the copy copy-on-write, as the root.
    fn gathered(&self, layers: &Layers) -> Result<OwnedFd> {
        let tree = super::layers::gather(layers, self.plan)?;
        restrict(&tree, Attributes::READ_ONLY)?;
        as_root(self.over_tree(&tree, "the copied image", "root", self.plan.administrator)?, layers)
    }

    /// The directories of the scratch file system for what an overlay changes.
    fn upper(&self, changes: &str, owner: Ids) -> Result<()> {
        for part in ["upper", "work"] {
            let path = format!("{changes}/{part}");
            let (directory, _) = resolve::directory(self.scratch()?, Path::new(&path), 0o755)?;
            own(directory.as_fd(), "", owner)?;
        }
        Ok(())
    }

    /// Mounts `lower` copy-on-write. Its layers get names below the stage, since mount(2) takes overlay layers by path, and before
    /// 6.15 only from mounts that are attached in this namespace.
    fn overlay(&self, lower: &Path, changes: &str, shown: Shown, owner: Ids) -> Result<OwnedFd> {
        let tree = clone_tree(CWD, lower)?;
        restrict_mapped(&tree, Attributes::READ_ONLY, self.plan.mapping(shown))?;
        self.over_tree(&tree, &lower.display().to_string(), changes, owner)
    }

    fn over_tree(&self, tree: &OwnedFd, name: &str, changes: &str, owner: Ids) -> Result<OwnedFd> {
        let below = format!("lower-{changes}");
        let place = resolve::directory(self.stage.as_fd(), Path::new(&below), 0o700)?.0;
        attach(tree, place.as_fd()).doing(|| "stage the lower layer")?;
        self.upper(changes, owner)?;
        let marks = if self.plan.user_xattr { "userxattr," } else { "" };
        let options = format!(
            "{marks}volatile,xino=off,lowerdir={below},upperdir=scratch/{changes}/upper,workdir=scratch/{changes}/work\0"
        );
        let data = std::ffi::CStr::from_bytes_with_nul(options.as_bytes())
            .map_err(|_| Error::new(Kind::Internal, "overlay options with a NUL"))?;
        let view = format!("view-{changes}");
        resolve::directory(self.stage.as_fd(), Path::new(&view), 0o700)?;
        // mount(2) resolves relative layer paths from the working directory.
        rustix::process::fchdir(&self.stage).failing(Kind::Mount, || "enter the stage")?;
        let advice = "overlayfs must be there (`modprobe overlay`; for an ordinary user kernel 5.11 or newer) and must take the folder's file system as a lower layer";
        let flags = MountFlags::from_bits_retain(kept(bits::NODEV | bits::NOSUID) as u32); // the same bits as MS_*
        mount("overlay", view.as_str(), "overlay", flags, data)
            .failing(Kind::Mount, || format!("mount `{name}` copy-on-write"))
            .hint(|| advice)?;
        let made = clone_tree(self.stage.as_fd(), Path::new(&view))?;
        rustix::mount::unmount(view.as_str(), rustix::mount::UnmountFlags::DETACH)
            .failing(Kind::Mount, || "detach the view from the stage")?;
        Ok(made)
    }
}

/// What layers became, as a root: with the attributes of one, and the mode that the image says.
fn as_root(made: OwnedFd, layers: &Layers) -> Result<OwnedFd> {
    restrict(&made, Attributes::WRITABLE)?;
    let mode = Mode::from_raw_mode(layers.mode & 0o7777);
    rustix::fs::chmodat(&made, ".", mode, AtFlags::empty()).failing(Kind::Mount, || "give the root its mode")?;
    Ok(made)
}

/// A detached tmpfs of at most `bytes` and `inodes`; 0 is no limit.
pub(super) fn tmpfs(bytes: u64, inodes: u64, mode: u32, owner: Ids, attributes: Attributes) -> Result<OwnedFd> {
    labelled_tmpfs(bytes, inodes, mode, owner, attributes, "")
}

/// The same with a SELinux context, unless that is empty.
pub(super) fn labelled_tmpfs(
    bytes: u64,
    inodes: u64,
    mode: u32,
    owner: Ids,
    attributes: Attributes,
    label: &str,
) -> Result<OwnedFd> {
    let options = [
        ("size", bytes.to_string()),
        ("nr_inodes", inodes.to_string()),
        ("mode", format!("{mode:o}")),
        ("uid", owner.uid.to_string()),
        ("gid", owner.gid.to_string()),
        ("context", label.to_owned()),
    ];
    let count = options.len() - usize::from(label.is_empty());
    new_file_system("tmpfs", &options[..count], attributes)
}

/// Shows each process only those that it may look into: never pid 1, whose command line is that of brig on the host.
fn proc() -> Result<OwnedFd> {
    let hidden = [("hidepid", "4".to_owned())]; // "ptraceable", proc(5); of this mount alone since kernel 5.8
    let options: &[_] = if weaken::is_off("hidepid") { &[] } else { &hidden };
    new_file_system("proc", options, Attributes::KERNEL).hint(|| {
        "inside another container /proc may be covered by mounts, and the kernel then refuses a new one: run where /proc is whole"
    })
}

/// Links of a hostile root can lead a later mount over /proc; the masks would then cover nothing (CVE-2019-16884).
fn proc_is_proc(root: BorrowedFd<'_>) -> Result<()> {
    let place = resolve::open(root, Path::new("/proc"))?;
    let found = rustix::fs::fstatfs(&place).failing(Kind::Mount, || "read the type of `/proc`")?;
    if found.f_type == rustix::fs::PROC_SUPER_MAGIC {
        return Ok(());
    }
    Err(Error::new(Kind::Mount, "another mount covers `/proc`")
        .hint("the root file system has a link to /proc where a folder of the sandbox must be: replace it by a folder"))
}

fn pts() -> Result<OwnedFd> {
    let options = [("ptmxmode", "0666".to_owned()), ("mode", "0620".to_owned())];
    new_file_system("devpts", &options, Attributes(bits::NOSUID | bits::NOEXEC))
}

/// Makes a file system with the new mount API (kernel 5.2) and returns it as a detached mount.
pub(super) fn new_file_system(name: &str, options: &[(&str, String)], attributes: Attributes) -> Result<OwnedFd> {
    let step = || format!("make a `{name}` file system");
    let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).failing(Kind::Mount, step)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, value.as_str())
            .failing(Kind::Mount, || format!("set `{key}={value}` of a `{name}` file system"))?;
    }
    fsconfig_create(&context).failing(Kind::Mount, step)?;
    let flags = MountAttrFlags::from_bits_retain(kept(attributes.0) as u32);
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).failing(Kind::Mount, step)
}

/// Copies one mount (not those below it) as a detached tree.
pub(super) fn clone_tree(directory: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags).failing(Kind::Mount, || format!("take the tree `{}`", path.display())).map_err(|error| {
        match error.errno() {
            // In a user namespace what a mount covers must stay covered (mount_namespaces(7)).
            Some(libc::EINVAL) => error.hint("something is mounted below it, and without root it cannot be shown apart: name a folder without mounts below"),
            _ => error,
        }
    })
}

/// Attaches a detached tree over the place that `target` names.
pub(crate) fn attach(tree: &OwnedFd, target: BorrowedFd<'_>) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).failing(Kind::Mount, || "attach a mount")
}

fn attach_to_host(tree: &OwnedFd, path: &Path) -> Result<()> {
    move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .failing(Kind::Mount, || format!("attach the stage at `{}`", path.display()))
}

/// Adds attributes to one mount.
pub(super) fn restrict(tree: &OwnedFd, attributes: Attributes) -> Result<()> {
    restrict_mapped(tree, attributes, None)
}

/// Adds attributes and, if asked, an id mapping to one detached mount. mount_setattr(2), `MOUNT_ATTR_IDMAP` (5.12).
pub(super) fn restrict_mapped(tree: &OwnedFd, attributes: Attributes, idmap: Option<&OwnedFd>) -> Result<()> {
    use std::os::fd::AsRawFd;
    let mut wanted = MountAttr { set: kept(attributes.0), ..MountAttr::default() };
    if let Some(userns) = idmap {
        wanted.set |= bits::IDMAP;
        wanted.userns = userns.as_raw_fd() as u64;
    }
    set_attributes(tree.as_fd(), c"", false, &wanted)
        .failing(Kind::Mount, || "set the attributes of a mount")
        .hint(|| match idmap {
            Some(_) => "the file system under this path cannot show other owners (idmapped mounts: ext4, xfs, btrfs, tmpfs from 6.3; not NFS, FUSE or 9p): put it on one that can",
            None => "brig needs mount_setattr(2), kernel 5.12 or newer",
        })
}

/// The attributes without those that a test has switched off.
fn kept(attributes: u64) -> u64 {
    [("nosuid", bits::NOSUID), ("nodev", bits::NODEV), ("read-only-mounts", bits::RDONLY)]
        .into_iter()
        .filter(|(name, _)| weaken::is_off(name))
        .fold(attributes, |all, (_, bit)| all & !bit)
}

/// A path that must be a true directory of the root, never reached through a symlink (CVE-2019-19921, CVE-2023-28642).
pub(super) fn real_directory(root: BorrowedFd<'_>, at: &Path) -> Result<OwnedFd> {
    let (parent, name) = resolve::parent(root, at)?;
    match rustix::fs::mkdirat(&parent, name.as_path(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno).failing(Kind::Mount, || format!("make `{}` in the root", at.display())),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent, name.as_path(), flags, Mode::empty())
        .failing(Kind::Mount, || format!("open `{}`, which must be a true directory of the root", at.display()))
}

pub(super) fn own(directory: BorrowedFd<'_>, name: &str, owner: Ids) -> Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    rustix::fs::chownat(directory, name, Some(uid), Some(gid), flags)
        .failing(Kind::Mount, || format!("give a file of the root to user {}", owner.uid))
}

pub(super) fn symlink(root: BorrowedFd<'_>, at: &Path, target: &Path) -> Result<()> {
    let (directory, name) = resolve::parent(root, at)?;
    link(directory.as_fd(), &name, target)
}

fn link(directory: BorrowedFd<'_>, name: &Path, target: &Path) -> Result<()> {
    match rustix::fs::symlinkat(target, directory, name) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno).failing(Kind::Mount, || format!("make the link `{}`", name.display())),
    }
}

/// Writes a file of ours. What the image has under that name is removed, never followed (CVE-2025-24965).
pub(super) fn file(root: BorrowedFd<'_>, at: &Path, content: &[u8], mode: u32, owner: Ids) -> Result<()> {
    let (directory, name) = resolve::parent(root, at)?;
    write(directory.as_fd(), &name, at, (content, mode), owner)
}

fn write(directory: BorrowedFd<'_>, name: &Path, at: &Path, (content, mode): (&[u8], u32), owner: Ids) -> Result<()> {
    let step = || format!("write `{}` in the root", at.display());
    let open = || rustix::fs::openat(directory, name, resolve::NEW_FILE, Mode::from_raw_mode(mode));
    let file = match open() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty()).failing(Kind::Mount, step)?;
            open()
        }
        other => other,
    }
    .failing(Kind::Mount, step)?;
    own(file.as_fd(), "", owner)?;
    std::fs::File::from(file).write_all(content).failing(Kind::Mount, step)
}

/// The default devices: made where we may, else the host's own nodes bound onto empty files (in a user namespace mknod is refused).
fn devices(root: BorrowedFd<'_>, owner: Ids) -> Result<()> {
    let dev = real_directory(root, Path::new("/dev"))?;
    let before = umask(Mode::empty()); // they are for all
    let made = DEVICES.iter().try_for_each(|device| make_device(dev.as_fd(), device, owner));
    umask(before);
    made
}

fn make_device(dev: BorrowedFd<'_>, device: &Device, owner: Ids) -> Result<()> {
    let (name, number) = (device.name, rustix::fs::makedev(device.major, device.minor));
    match rustix::fs::mknodat(dev, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number) {
        Ok(()) => own(dev, name, owner),
        Err(Errno::PERM) => {
            let tree = clone_tree(CWD, &Path::new("/dev").join(name))?;
            // A device can be written through a read-only mount; its mode and owner, which are the host's, cannot be changed.
            restrict(&tree, Attributes::DEVICES.read_only())?;
            attach(&tree, resolve::target(dev, Path::new(name), FileType::RegularFile)?.as_fd())
        }
        Err(errno) => Err(errno).failing(Kind::Mount, || format!("make the device `{name}`")),
    }
}
