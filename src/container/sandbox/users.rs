//! A sandbox's ranges of host ids, user namespaces, and owners of file trees.

use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{Bounds, DIRECTORY, Walk, WalkStep};
use crate::host::subordinate_range;
use crate::ns::{self, Helper, IdMap, Mapped, Maps, Range};
use crate::process::UserNamespace;
use crate::spec::root::{FileSystem, Ids, Root, Shown, Step as Make};
use crate::spec::{Confinement, Container};
use crate::sys::weaken;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chmodat, chownat, openat, statat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// For a runtime in its cell: gVisor makes one for each of its processes.
const NESTED: u32 = 16;

/// As seen by the process that builds the root.
fn ids(range: Option<&Range>, uid: u32, gid: u32) -> Ids {
    let base = range.filter(|_| !weaken::is_off("user-namespace")).map_or(0, |range| range.base);
    Ids { uid: base + uid, gid: base + gid }
}

pub(super) struct Users {
    pub namespace: UserNamespace,
    pub administrator: Ids,
    pub user: Ids,
    pub mappings: Vec<(Shown, OwnedFd)>,
    pub user_xattr: bool,
    pub range: Option<Range>,
    pub is_single: bool,
    /// Made ahead.
    pub network: Option<OwnedFd>,
    /// Children that are ending.
    pub helpers: Vec<Helper>,
}

impl Users {
    /// For the machine's root: a private range of host ids, and trees of files through idmapped mounts.
    pub(super) fn of_root(spec: &Container, range: Range) -> Result<Users> {
        let (base, size) = (range.base, Range::SIZE);
        let line = vec![IdMap { inside: 0, outside: base, size }];
        let maps = Maps { uid: line.clone(), gid: line };
        let step = || "map the sandbox's ids";
        let is_cell = matches!(spec.confinement, Confinement::Cell { .. });
        let Mapped { userns: inside, helper } =
            ns::mapped_above(&maps, if is_cell { NESTED } else { 0 }).doing(step)?;
        let copy = || {
            inside
                .try_clone()
                .map_err(|cause| Error::os(Kind::UserNamespace, cause).doing("keep a user namespace open"))
        };
        let mut mappings = Vec::new();
        let mut helpers = vec![helper];
        for shown in shown(spec) {
            let userns = match shown {
                Shown::Stored => continue,
                Shown::Inside => copy()?,
                Shown::Users { uid, gid } if (uid, gid) == (spec.command.uid, spec.command.gid) => copy()?,
                Shown::Users { uid, gid } => {
                    let maps = Maps {
                        uid: ns::swapped(base, size, uid, spec.command.uid),
                        gid: ns::swapped(base, size, gid, spec.command.gid),
                    };
                    let Mapped { userns, helper } = ns::mapped(&maps).doing(|| "map the owner of the workspace")?;
                    helpers.push(helper);
                    userns
                }
            };
            mappings.push((shown, userns));
        }
        Ok(Users {
            namespace: UserNamespace::Entered(inside),
            administrator: Ids { uid: base, gid: base },
            user: ids(Some(&range), spec.command.uid, spec.command.gid),
            mappings,
            user_xattr: false,
            range: Some(range),
            is_single: false,
            // Only now: the namespace is nearly ready. An earlier wait slowed down the user namespace.
            network: ns::ahead::network().filter(|_| !is_cell),
            helpers,
        })
    }

    /// For the machine's root without a mapping.
    pub(super) fn callers(spec: &Container) -> Users {
        let ids = Ids { uid: spec.command.uid, gid: spec.command.gid };
        Users {
            namespace: UserNamespace::Callers,
            administrator: ids,
            user: ids,
            mappings: Vec::new(),
            user_xattr: false,
            range: None,
            is_single: true,
            network: None,
            helpers: Vec::new(),
        }
    }

    /// For an ordinary user: our one id is the sandbox user's.
    pub(super) fn own(spec: &Container) -> Users {
        let map = |inside, outside| vec![IdMap { inside, outside, size: 1 }];
        let ids = Ids { uid: spec.command.uid, gid: spec.command.gid };
        Users {
            namespace: UserNamespace::Born(Maps {
                uid: map(ids.uid, rustix::process::geteuid().as_raw()),
                gid: map(ids.gid, rustix::process::getegid().as_raw()),
            }),
            administrator: ids,
            user: ids,
            mappings: Vec::new(),
            user_xattr: true,
            range: None,
            is_single: true,
            network: None,
            helpers: Vec::new(),
        }
    }

    /// For an ordinary user's root inside: id 0 is our own, the others are subordinate ids (subuid(5)), which
    /// newuidmap(1) maps.
    pub(super) fn subordinate(spec: &Container) -> Result<Users> {
        let map = |file, own| -> Result<Vec<IdMap>> {
            let (outside, count) = subordinate_range(file).doing(|| "be root inside")?;
            let others = IdMap { inside: 1, outside, size: count.min(Range::SIZE - 1) };
            Ok(vec![IdMap { inside: 0, outside: own, size: 1 }, others])
        };
        let maps = Maps {
            uid: map("/etc/subuid", rustix::process::geteuid().as_raw())?,
            gid: map("/etc/subgid", rustix::process::getegid().as_raw())?,
        };
        let user = Ids { uid: spec.command.uid, gid: spec.command.gid };
        let namespace = UserNamespace::Mapped(maps);
        Ok(Users { namespace, administrator: Ids::default(), user, is_single: false, ..Users::own(spec) })
    }
}

/// The root, or that of another runtime's container in it, if it is a copy.
pub(super) fn copy_of(file_system: &FileSystem) -> Option<&Path> {
    let nested = file_system.steps.iter().filter_map(|step| match step {
        Make::Nest { root, .. } => Some(root),
        _ => None,
    });
    std::iter::once(&file_system.root).chain(nested).find_map(|root| match root {
        Root::Copy(tree) => Some(tree.as_path()),
        _ => None,
    })
}

/// Every mapping of owners in the spec, once.
fn shown(spec: &Container) -> Vec<Shown> {
    let of_root = |root: &Root| match root {
        Root::Overlay { shown, .. } => Some(*shown),
        Root::Layers(layers) => Some(layers.shown),
        Root::Empty | Root::Kept | Root::Copy(_) | Root::Gathered(_) | Root::Host => None,
    };
    let steps = spec.file_system.steps.iter().filter_map(|step| match step {
        Make::Bind { shown, .. } | Make::Overlay { shown, .. } => Some(*shown),
        Make::Volume { .. } => Some(Shown::Inside),
        Make::Nest { root, .. } => of_root(root),
        _ => None,
    });
    of_root(&spec.file_system.root).into_iter().chain(steps).fold(Vec::new(), |mut all, each| {
        if !all.contains(&each) {
            all.push(each);
        }
        all
    })
}

/// `overflowuid` (proc_sys_kernel(5)): the owner of files with an unmapped id, as with an idmapped mount.
const OVERFLOW_ID: u32 = 65_534;

/// Owner n becomes id n above `base`. Only brig can enter the tree's directory, and no process runs in it yet.
pub(super) fn shift_owners(tree: &Path, base: u32) -> Result<()> {
    let step = || format!("give `{}` to the sandbox", tree.display());
    let top = openat(CWD, tree, DIRECTORY, Mode::empty()).failing(Kind::Store, step)?;
    let mut walk = Walk::through(top, Bounds::NONE, ()).failing(Kind::Store, step)?;
    while let Some(next) = walk.next().failing(Kind::Store, step)? {
        let WalkStep::Entry(kind) = next else { continue };
        let shown = || format!("{}: `{}`", step(), walk.name().to_string_lossy().escape_debug());
        walk.side(0).and_then(|directory| give_one(directory, walk.name(), base)).failing(Kind::Store, shown)?;
        if kind == FileType::Directory {
            walk.descend(()).failing(Kind::Store, step)?;
        }
    }
    walk.side(0).and_then(|directory| give_one(directory, c".", base)).failing(Kind::Store, step)
}

fn give_one(directory: BorrowedFd<'_>, name: &CStr, base: u32) -> std::result::Result<(), Errno> {
    let status = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Another name of this file came earlier.
    if status.st_uid >= base {
        return Ok(());
    }
    let shifted = |id: u32| base + if id < Range::SIZE { id } else { OVERFLOW_ID };
    let (uid, gid) = (Uid::from_raw(shifted(status.st_uid)), Gid::from_raw(shifted(status.st_gid)));
    chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    // chown(2) clears the set-id bits; a link has none.
    if status.st_mode & 0o6000 != 0 && FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
        chmodat(directory, name, Mode::from_raw_mode(status.st_mode & 0o7777), AtFlags::empty())?;
    }
    Ok(())
}
