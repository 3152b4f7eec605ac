//! Carries out a [`Plan`] in init, in a new mount namespace. Init is the machine's root before it enters the sandbox's
//! user namespace, or an ordinary user inside it.

mod amend;
mod folder;
mod layers;
mod mask;
mod plan;
mod program;
pub(crate) mod skeleton;
mod volume;

pub(crate) use plan::{PackedVolume, PendingVolume, Plan, Restore, VolumeFiles};

use super::cover::{Covers, mask, read_only};
use super::disk::Pending;
use super::mount::{
    attach, attach_to_host, clone_read_only, clone_tree, kept, new_file_system, restrict, restrict_all,
    restrict_mapped, tmpfs,
};
use super::write::{link, own, real_directory, write};
use super::{Built, device, pivot, resolve};
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::spec::root::HiddenFiles;
use crate::spec::root::{Attributes, Ids, Layers, MOST_TERMINALS, Root, Shown, Source, Step};
use crate::sys::mount as bits;
use crate::sys::weaken;
use folder::Folder;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use skeleton::KeptRoot;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub(super) fn build(plan: &mut Plan) -> Result<Built> {
    // Nothing is ever mounted in the host's mount namespace.
    if !weaken::is_off("propagation") {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .failing(Kind::Mount, || "make all mounts private")?;
    }
    let (disk, restore) = (Cell::new(plan.disk.take()), Cell::new(plan.restore.take()));
    let plan = &*plan;
    let mut builder = Builder {
        scratch: OnceCell::new(),
        volumes: RefCell::default(),
        secrets: Cell::new(None),
        disk,
        restore,
        stage: None,
        disk_mount: Cell::new(None),
        is_entered: false,
        plan,
        folder: Folder::default(),
        kept: plan
            .skeleton
            .as_ref()
            .and_then(|tree| KeptRoot::show(tree, plan.mapping(Shown::Inside), &plan.file_system.steps).ok()),
    };
    let built = builder.whole();
    built.map_err(|error| match &builder.kept {
        Some(kept) => kept.explain(&plan.file_system.steps, error),
        None => error,
    })
}

fn cover(root: BorrowedFd<'_>, plan: &Plan, covers: &mut Covers) -> Result<()> {
    for path in &plan.file_system.masked {
        mask(root, path, (plan.administrator, ""), covers)?;
    }
    plan.file_system.read_only.iter().try_for_each(|path| read_only(root, path))
}

fn is_proc(step: &Step) -> bool {
    matches!(step, Step::Proc { .. })
}

fn needs_scratch(step: &Step) -> bool {
    matches!(
        step,
        Step::Overlay { .. }
            | Step::Bind { source: Source::Scratch(_) | Source::Copied { .. }, .. }
            | Step::Volume { .. }
            | Step::Nest { .. }
    )
}

fn needs_stage(step: &Step) -> bool {
    matches!(step, Step::Overlay { .. } | Step::Volume { .. } | Step::Secrets { .. } | Step::Nest { .. })
}

struct Builder<'plan> {
    /// For paths during the build; `None` for a kept root without such steps.
    stage: Option<OwnedFd>,
    /// Host paths are then out of reach.
    is_entered: bool,
    scratch: OnceCell<OwnedFd>,
    /// The files of written volumes in memory, by their numbers.
    volumes: RefCell<BTreeMap<usize, OwnedFd>>,
    secrets: Cell<Option<OwnedFd>>,
    disk: Cell<Option<Pending>>,
    restore: Cell<Option<(OwnedFd, Restore)>>,
    disk_mount: Cell<Option<OwnedFd>>,
    plan: &'plan Plan,
    folder: Folder,
    kept: Option<KeptRoot>,
}

impl Builder<'_> {
    fn whole(&mut self) -> Result<Built> {
        let steps = &self.plan.file_system.steps;
        if self.kept.is_none() || steps.iter().any(needs_stage) {
            let stage = tmpfs(1 << 20, 256, 0o700, self.plan.administrator, Attributes::KERNEL)?;
            attach_to_host(&stage, &self.plan.stage)?;
            self.stage = Some(stage);
        }
        let root = self.root(&self.plan.file_system.root)?;
        if matches!(self.plan.file_system.root, Root::Empty | Root::Kept) && self.kept.is_none() {
            self.folder = Folder::of_empty(root.as_fd());
        }
        // Before it is attached, where the kernel can copy such a tree (6.15).
        let mut empty = self.kept.as_ref().and_then(|kept| kept.empty().ok());
        let copies_detached = empty.is_some();
        match (&self.stage, &self.kept) {
            _ if self.plan.file_system.root == Root::Host => {}
            (None, Some(kept)) => attach_to_host(&root, &kept.tree)?,
            _ => {
                let place = resolve::directory(self.stage()?, Path::new("/root"), 0o755)?.0;
                attach(&root, place.as_fd()).doing(|| "attach the new root")?;
            }
        }
        if !copies_detached {
            empty = self.kept.as_ref().map(KeptRoot::empty).transpose()?;
        }
        let mut covers = Covers::beginning_with(empty);
        // The remaining steps start with a wait for the disk.
        let (first, rest) = steps.split_at(steps.iter().position(needs_scratch).unwrap_or(steps.len()));
        first.iter().try_for_each(|step| self.step(root.as_fd(), step))?;
        let covers_first = !rest.iter().any(is_proc);
        if covers_first {
            cover(root.as_fd(), self.plan, &mut covers)?;
        }
        if copies_detached && self.stage.is_none() && rest.iter().all(|step| self.needs_no_host(step)) {
            pivot::enter(root.as_fd())?; // while the disk is not ready anyway
            self.is_entered = true;
        }
        rest.iter().try_for_each(|step| self.step(root.as_fd(), step))?;
        if !covers_first {
            cover(root.as_fd(), self.plan, &mut covers)?;
        }
        if steps.iter().any(is_proc) {
            proc_is_proc(root.as_fd())?;
        }
        self.scratch()?;
        let volumes = self.volumes.take().into_values().collect();
        let (secrets, is_entered) = (self.secrets.take(), self.is_entered);
        let scratch = self
            .scratch
            .take()
            .ok_or_else(|| Error::new(Kind::Internal, "the scratch file system was never attached"))?;
        Ok(Built { root, scratch: Some(scratch), volumes, secrets, is_entered, late: Vec::new() })
    }

    fn stage(&self) -> Result<BorrowedFd<'_>> {
        let missing = || Error::new(Kind::Internal, "the root is built without a stage");
        self.stage.as_ref().map(AsFd::as_fd).ok_or_else(missing)
    }

    fn needs_no_host(&self, step: &Step) -> bool {
        matches!(step, Step::Bind { source: Source::Scratch(_), .. })
            || self.kept.as_ref().is_some_and(|kept| kept.has(step))
    }

    /// A detached mount; the host's root stays in place.
    fn root(&self, root: &Root) -> Result<OwnedFd> {
        match root {
            Root::Empty | Root::Kept => match &self.kept {
                Some(kept) => kept.root(),
                None => tmpfs(4 << 20, 4096, 0o755, self.plan.administrator, Attributes::WRITABLE),
            },
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

    fn over(&self, lower: &Path, shown: Shown) -> Result<OwnedFd> {
        let tree = self.lower(lower, shown)?;
        let root = self.over_tree((&tree, ""), &lower.display().to_string(), "root", self.plan.administrator)?;
        restrict(&root, self.plan.file_system.attributes)?;
        Ok(root)
    }

    fn step(&self, root: BorrowedFd<'_>, step: &Step) -> Result<()> {
        if matches!(step, Step::Secrets { .. } | Step::Proc { .. } | Step::Nest { .. }) {
            self.folder.forget(); // these steps mount without the folder
        }
        if self.kept.as_ref().is_some_and(|kept| kept.has(step)) {
            return Ok(());
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
            Step::Copy { from, at, mode, .. } => {
                let content = std::fs::read(from).failing(Kind::Mount, || format!("read `{}`", from.display()))?;
                let owner = self.plan.administrator;
                folder.with(root, at, |folder, name| write(folder, name, at, (&content, *mode), owner))
            }
            Step::Amend { at, change, missing, mode } => {
                amend::amend(root, at, change, missing.as_deref(), *mode, self.plan.administrator)
            }
            Step::Tmpfs { at, bytes, inodes, mode, owner, attributes } => {
                let made = match self.kept.as_ref().and_then(|kept| kept.devices(at)) {
                    Some(devices) => devices?,
                    None => tmpfs(*bytes, *inodes, *mode, self.plan.ids(*owner), *attributes)?,
                };
                attach(&made, folder.directory(root, at, 0o755)?.0.as_fd())
            }
            Step::Bind { source, at, attributes, shown } => {
                let (tree, has_more) = match source {
                    Source::Host(path) if attributes.0 & bits::RDONLY != 0 => clone_read_only(path)?,
                    _ => (self.tree(root, source)?, false),
                };
                if has_more {
                    restrict_all(&tree, *attributes).doing(|| show(source))?;
                }
                restrict_mapped(&tree, *attributes, self.plan.mapping(*shown)).doing(|| show(source))?;
                attach(&tree, folder.target(root, at, resolve::file_type(&tree)?)?.as_fd())
            }
            .doing(|| format!("mount `{}`", at.display())),
            Step::Overlay { lower, changes, at, attributes, shown, hidden } => {
                let tree = self.lower(lower, *shown)?;
                let mask = self.mask(&tree, hidden, changes)?;
                let name = lower.display().to_string();
                let made = self.over_tree((&tree, &mask), &name, changes, self.plan.user)?;
                restrict(&made, *attributes)?;
                attach(&made, folder.directory(root, at, 0o755)?.0.as_fd())
            }
            Step::Volume { number, at, attributes, changes, points } => {
                let made = self.volume(*number, *attributes, *changes, points)?;
                attach(&made, folder.directory(root, at, 0o755)?.0.as_fd())
            }
            .doing(|| format!("mount the volume at `{}`", at.display())),
            Step::Secrets { at, files } => {
                let made = amend::mount_secrets(self.stage()?, root, at, files, self.plan.user)?;
                self.secrets.set(Some(made));
                Ok(())
            }
            Step::Proc { at } => attach(&proc()?, real_directory(root, at)?.as_fd()),
            Step::Pts { at } => attach(&pts()?, folder.directory(root, at, 0o755)?.0.as_fd()),
            Step::Devices => device::defaults(root, self.plan.administrator),
            Step::Freeze { at, attributes } => restrict(&resolve::open(root, at)?, *attributes),
            Step::Nest { at, root: nested, steps, points, program } => {
                // A runtime in a user namespace would have to repeat locked attributes to make an empty root read-only
                // (gVisor does not). Devices and setuid files in it have no effect anyway.
                let made = match nested {
                    Root::Empty | Root::Kept => {
                        tmpfs(4 << 20, 4096, 0o755, self.plan.administrator, Attributes::default())?
                    }
                    other => self.root(other)?,
                };
                attach(&made, resolve::directory(root, at, 0o755)?.0.as_fd())
                    .doing(|| "attach the root of the other runtime's container")?;
                steps.iter().try_for_each(|step| self.step(made.as_fd(), step))?;
                points.iter().try_for_each(|(point, like)| {
                    let kind = resolve::file_type(resolve::open(root, like)?)?;
                    resolve::target(made.as_fd(), point, kind).map(|_| ())
                })?;
                program::check(root, made.as_fd(), points, program, self.plan.user)
            }
        }
    }

    /// The first step that needs it attaches it at `<stage>/scratch`, without a stage at the stage's path. After the
    /// entry it stays detached.
    fn scratch(&self) -> Result<BorrowedFd<'_>> {
        if let Some(scratch) = self.scratch.get() {
            return Ok(scratch.as_fd());
        }
        let size = self.plan.file_system.scratch;
        let mounted = match self.disk.take() {
            Some(disk) => disk.wait(self.plan.user)?,
            None => {
                let made = tmpfs(size.bytes, size.inodes, 0o755, self.plan.administrator, Attributes::WRITABLE)?;
                if let Some((archive, restore)) = self.restore.take() {
                    let root = rustix::fs::openat(
                        &made,
                        ".",
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                        Mode::empty(),
                    );
                    restore(archive, root.failing(Kind::Mount, || "open the scratch file system")?.as_fd())?;
                }
                made
            }
        };
        match &self.stage {
            None if self.is_entered => {} // a copy of a detached mount: it stays open until all is built
            None => attach_to_host(&mounted, &self.plan.stage)?,
            Some(stage) => {
                let place = resolve::directory(stage.as_fd(), Path::new("/scratch"), 0o700)?.0;
                attach(&mounted, place.as_fd()).doing(|| "attach the scratch file system")?;
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&mounted, ".", flags, Mode::empty())
            .failing(Kind::Mount, || "open the scratch file system")?;
        self.disk_mount.set(Some(mounted));
        Ok(self.scratch.get_or_init(|| root).as_fd())
    }

    fn tree(&self, root: BorrowedFd<'_>, source: &Source) -> Result<OwnedFd> {
        match source {
            Source::Root(path) => clone_tree(resolve::open(root, path)?.as_fd(), Path::new("")),
            Source::Host(path) => clone_tree(CWD, path),
            Source::Copied { from, to } => {
                let (directory, _) = resolve::directory(self.scratch()?, Path::new(to), 0o700)?;
                let copy = amend::copy_file(from, directory.as_fd(), self.plan.user)?;
                clone_tree(copy.as_fd(), Path::new(""))
            }
            Source::Scratch(name) => {
                let (directory, _) = resolve::directory(self.scratch()?, Path::new(name), 0o700)?;
                own(directory.as_fd(), "", self.plan.user)?;
                if *name == "tmp" {
                    // For every user inside: the `_apt` of apt-get, and processes that enter as another user.
                    let mode = Mode::from_raw_mode(0o1777);
                    rustix::fs::chmodat(self.scratch()?, *name, mode, AtFlags::empty())
                        .failing(Kind::Mount, || "set the mode of `/tmp`")?;
                }
                clone_tree(directory.as_fd(), Path::new(""))
            }
        }
    }

    fn layers(&self, layers: &Layers) -> Result<OwnedFd> {
        self.upper("root", self.plan.administrator)?;
        let made = layers::mount(self.stage()?, layers, "root", self.plan)?;
        as_root(made, layers, self.plan.file_system.attributes)
    }

    fn gathered(&self, layers: &Layers) -> Result<OwnedFd> {
        let tree = layers::gather(layers, self.plan)?;
        restrict(&tree, Attributes::READ_ONLY)?;
        let made = self.over_tree((&tree, ""), "the copied image", "root", self.plan.administrator)?;
        as_root(made, layers, self.plan.file_system.attributes)
    }

    fn upper(&self, changes: &str, owner: Ids) -> Result<()> {
        for part in ["upper", "work"] {
            let path = format!("{changes}/{part}");
            let (directory, _) = resolve::directory(self.scratch()?, Path::new(&path), 0o755)?;
            own(directory.as_fd(), "", owner)?;
        }
        Ok(())
    }

    /// mount(2) takes paths of layers, and before 6.15 only of mounts that are attached in this namespace. So layers
    /// get names below the stage.
    fn over_tree(&self, (tree, mask): (&OwnedFd, &str), name: &str, changes: &str, owner: Ids) -> Result<OwnedFd> {
        let below = format!("lower-{changes}");
        let stage = self.stage()?;
        let place = resolve::directory(stage, Path::new(&below), 0o700)?.0;
        attach(tree, place.as_fd()).doing(|| "stage the lower layer")?;
        self.upper(changes, owner)?;
        let marks = if self.plan.user_xattr { "userxattr," } else { "" };
        let options = format!(
            "{marks}volatile,xino=off,lowerdir={mask}{below},upperdir=scratch/{changes}/upper,workdir=scratch/{changes}/work\0"
        );
        let data = std::ffi::CStr::from_bytes_with_nul(options.as_bytes())
            .map_err(|_| Error::new(Kind::Internal, "overlay options with a NUL"))?;
        let view = format!("view-{changes}");
        resolve::directory(stage, Path::new(&view), 0o700)?;
        // mount(2) resolves relative layer paths from the working directory.
        rustix::process::fchdir(stage).failing(Kind::Mount, || "enter the stage")?;
        let advice = "overlayfs must be there (`modprobe overlay`; for an ordinary user kernel 5.11 or newer) and must take the folder's file system as a lower layer";
        let flags = MountFlags::from_bits_retain(kept(bits::NODEV) as u32); // the same bit as MS_*; callers add theirs
        mount("overlay", view.as_str(), "overlay", flags, data)
            .failing(Kind::Mount, || format!("mount `{name}` copy-on-write"))
            .hint(|| advice)?;
        let made = clone_tree(stage, Path::new(&view))?;
        rustix::mount::unmount(view.as_str(), rustix::mount::UnmountFlags::DETACH)
            .failing(Kind::Mount, || "detach the view from the stage")?;
        Ok(made)
    }

    fn lower(&self, lower: &Path, shown: Shown) -> Result<OwnedFd> {
        let tree = clone_tree(CWD, lower)?;
        restrict_mapped(&tree, Attributes::READ_ONLY, self.plan.mapping(shown))
            .doing(|| format!("show `{}`", lower.display()))?;
        Ok(tree)
    }

    /// Returns the mask's part of `lowerdir`, empty if it hides none.
    fn mask(&self, tree: &OwnedFd, hidden: &HiddenFiles, changes: &str) -> Result<String> {
        if hidden.is_empty() || weaken::is_off("hidden-files") {
            return Ok(String::new());
        }
        let path = format!("{changes}/mask");
        let (layer, _) = resolve::directory(self.scratch()?, Path::new(&path), 0o755)?;
        let hides = mask::make(tree.as_fd(), hidden, layer.as_fd())?;
        Ok(if hides { format!("scratch/{path}:") } else { String::new() })
    }
}

fn as_root(made: OwnedFd, layers: &Layers, attributes: Attributes) -> Result<OwnedFd> {
    restrict(&made, attributes)?;
    let mode = Mode::from_raw_mode(layers.mode & 0o7777);
    rustix::fs::chmodat(&made, ".", mode, AtFlags::empty()).failing(Kind::Mount, || "give the root its mode")?;
    Ok(made)
}

/// A process sees only those that it may trace: never pid 1, whose command line is brig's on the host.
fn proc() -> Result<OwnedFd> {
    let hidden = [("hidepid", "4".to_owned())]; // "ptraceable", proc(5); of this mount alone since kernel 5.8
    let options: &[_] = if weaken::is_off("hidepid") { &[] } else { &hidden };
    new_file_system("proc", options, Attributes::KERNEL).hint(|| {
        "inside another container /proc may be covered by mounts, and the kernel then refuses a new one: run where /proc is whole"
    })
}

/// A hostile root's links can lead a later mount over /proc, so that the masks have no effect (CVE-2019-16884).
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
    let mut options = vec![("ptmxmode", "0666".to_owned()), ("mode", "0620".to_owned())];
    if !crate::sys::weaken::is_off("terminals") {
        options.push(("max", MOST_TERMINALS.to_string()));
    }
    new_file_system("devpts", &options, Attributes(bits::NOSUID | bits::NOEXEC))
}

fn show(source: &Source) -> String {
    match source {
        Source::Host(path) | Source::Root(path) => format!("show `{}`", path.display()),
        Source::Copied { from, .. } => format!("show a copy of `{}`", from.display()),
        Source::Scratch(name) => format!("show `{name}` of the scratch file system"),
    }
}
