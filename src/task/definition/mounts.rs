//! The workspace's folder, the root, and the sources of `--mount` and `--ro`. Each is opened when it is checked, without
//! a link on its way. The sandbox uses that descriptor.

use super::hosted::real;
use super::receiver::Receiver;
use super::{Definition, WorkspaceSource, exposure};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{Bounds, DIRECTORY, Pinned, Walk, WalkStep};
use crate::sandbox::{Mount, MountMode};
use crate::task::store::Store;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, accessat, openat, stat, statat, statx};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Entries of a writable folder. The start looks at all of them.
const MOST: usize = 1_000_000;
/// The host runs or obeys files there: no task writes them.
const OBEYED: [&str; 8] = ["/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr"];
/// Set-user-ID and set-group-ID (chmod(2)).
const SET_ID: u32 = 0o6000;

/// Pins the folder of the workspace, the repository of its worktree, and the root. Another task that may
/// write above them could replace them by a link.
pub(crate) fn hold_folders(definition: &Definition, repository: Option<&Path>, pinned: &mut Pinned) -> Result<()> {
    let folder = match &definition.workspace {
        WorkspaceSource::Directory(folder) => Some(folder.as_path()),
        _ => None,
    };
    for path in [folder, repository, definition.sandbox.rootfs.as_deref()].into_iter().flatten() {
        hold_path(path, pinned, || format!("use `{}`", path.display()))?;
    }
    Ok(())
}

/// Hosted mode has pinned its own already.
fn hold_path(path: &Path, pinned: &mut Pinned, step: impl Fn() -> String) -> Result<()> {
    if pinned.has(path) {
        return Ok(());
    }
    let real =
        std::fs::canonicalize(path).failing(Kind::NotFound, &step).hint(|| "name a file or folder that exists")?;
    pinned.hold(path, (Path::new("/"), &real), PathBuf::new()).doing(step)
}

/// Pins the files of events, and the deepest existing folder for artifacts. With a writable mount above them, the task
/// could replace them by a link to another file of the host.
pub(crate) fn hold_outputs(definition: &Definition, pinned: &mut Pinned) -> Result<()> {
    let top = Path::new("/");
    for receiver in &definition.events {
        let Receiver::File(path) = receiver else { continue };
        // The folder of a link counts too: `append` refuses the link. A FIFO or a device is opened by its name, since no
        // writable mount may contain one.
        let is_other = path.symlink_metadata().is_ok_and(|status| !status.is_file() && !status.is_symlink());
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { continue };
        if let (false, false, Ok(real)) = (pinned.has(path), is_other, std::fs::canonicalize(folder)) {
            pinned.hold(path, (top, &real), name.into()).doing(|| format!("send events to `{}`", path.display()))?;
        }
    }
    if let Some(path) = definition.artifacts.directory.as_deref().filter(|path| !pinned.has(path)) {
        let step = || format!("use `{}` for artifacts", path.display());
        let found = std::path::absolute(path).ok().and_then(|path| real(&path));
        let (real, rest) = found.ok_or_else(|| {
            Error::new(Kind::Usage, "a part of the path is not a folder, or cannot be opened")
                .doing(step())
                .hint("name a folder that is empty, or a new one in a folder that exists")
        })?;
        pinned.hold(path, (top, &real), rest).doing(step)?;
    }
    Ok(())
}

/// Refuses sources that no task may have, and pins the others.
pub(crate) fn hold(definition: &Definition, store: &Store, pinned: &mut Pinned) -> Result<()> {
    for mount in &definition.sandbox.mounts {
        let source = mount.source.as_path();
        let step = || format!("mount `{mount}`");
        hold_path(source, pinned, step)?;
        let open = pinned.path(source);
        exposure::check_path(&open, step, store)?;
        if mount.mode == MountMode::Writable && is_obeyed(&open)? {
            return Err(Error::new(Kind::Usage, "the host runs or obeys files of this folder")
                .doing(step())
                .hint("mount it as `ro` or `cow`, or share a folder that is made for it"));
        }
        let status = stat(&open).failing(Kind::NotFound, step)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => {
                readable(&open, Access::READ_OK | Access::EXEC_OK).doing(step)?;
                if mount.mode == MountMode::Writable {
                    check_writable(&open, mount)?;
                }
            }
            FileType::RegularFile => {
                readable(&open, Access::READ_OK).doing(step)?;
                if mount.mode == MountMode::Writable && status.st_mode & SET_ID != 0 {
                    return Err(unsafe_to_write(mount, "it", "has a set-user-ID or set-group-ID bit"));
                }
            }
            _ => {
                return Err(Error::new(Kind::Usage, "it is neither a file nor a folder")
                    .doing(step())
                    .hint("name the folder of the program that listens there, or reach it by the network"));
            }
        }
    }
    Ok(())
}

fn is_obeyed(path: &Path) -> Result<bool> {
    let real = std::fs::canonicalize(path).failing(Kind::NotFound, || format!("open `{}`", path.display()))?;
    Ok(OBEYED.iter().any(|folder| real.starts_with(folder)))
}

fn readable(path: &Path, access: Access) -> Result<()> {
    accessat(CWD, path, access, AtFlags::EACCESS).map_err(|errno| {
        Error::os(Kind::Workspace, errno).hint("give yourself the right to read it, or name another one")
    })
}

/// Refuses files that lead to more than their content: programs that run as their owner, and the host's sockets, FIFOs
/// and devices.
fn check_writable(folder: &Path, mount: &Mount) -> Result<()> {
    let step = || format!("look through the folder of `{mount}`");
    let top: OwnedFd =
        openat(CWD, folder, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()).failing(Kind::Workspace, step)?;
    let bounds = Bounds { entries: MOST, ..Bounds::NONE };
    let mut walk = Walk::through(top, bounds, ()).failing(Kind::Workspace, step)?;
    let hint = || format!("share a smaller folder: at most {MOST} files are looked at");
    // Not the device: a subvolume of btrfs has its own, and is part of the mount.
    let own = statx(CWD, folder, AtFlags::empty(), StatxFlags::MNT_ID).failing(Kind::Workspace, step)?.stx_mnt_id;
    while let Some(next) = walk.next().failing(Kind::Workspace, step).hint(hint)? {
        let WalkStep::Entry(kind) = next else { continue };
        let shown = || format!("`{}`", walk.name().to_string_lossy().escape_debug());
        match kind {
            FileType::Directory => {
                let side = walk.side(0).failing(Kind::Workspace, step)?;
                let found = statx(side, walk.name(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID);
                if found.failing(Kind::Workspace, step)?.stx_mnt_id != own {
                    continue; // a mount below is shown read-only, or not at all
                }
                // A folder that brig may not read is closed to the command too.
                if let Err(stop) = walk.descend(()) {
                    let cause = std::io::Error::from(stop);
                    if cause.kind() != std::io::ErrorKind::PermissionDenied {
                        return Err(cause).failing(Kind::Workspace, step);
                    }
                }
            }
            FileType::Symlink => {}
            FileType::RegularFile => {
                let side = walk.side(0).failing(Kind::Workspace, step)?;
                let status = statat(side, walk.name(), AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Workspace, step)?;
                if status.st_mode & SET_ID != 0 {
                    return Err(unsafe_to_write(mount, &shown(), "has a set-user-ID or set-group-ID bit"));
                }
            }
            _ => return Err(unsafe_to_write(mount, &shown(), "is a socket, FIFO or device of the host")),
        }
    }
    Ok(())
}

fn unsafe_to_write(mount: &Mount, what: &str, why: &str) -> Error {
    Error::new(Kind::Usage, format!("{what} {why}"))
        .doing(format!("mount `{mount}`"))
        .hint("share a folder without it, or mount this one as `ro` or `cow`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mount: &str, store: &Store) -> Result<()> {
        let mut definition = Definition::new(vec!["true".into()]);
        definition.sandbox.mounts = vec![mount.parse().unwrap()];
        hold(&definition, store, &mut Pinned::default())
    }

    #[test]
    fn sources_of_the_system_and_of_the_store_are_refused_whatever_name_they_have() {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name).display().to_string();
        let store = Store::at(lab.path().join("store"));
        std::fs::create_dir_all(store.root().join("tasks")).unwrap();
        std::fs::write(store.root().join("tasks/record"), "").unwrap();
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        std::os::unix::fs::symlink(store.root().join("tasks"), at("to-store")).unwrap();
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (source, words) in [
            ("/".to_owned(), "folder of the system"),
            ("/etc".to_owned(), "folder of the system"),
            ("/proc/self".to_owned(), "folder of the system"),
            ("/dev/null".to_owned(), "folder of the system"),
            ("/sys/kernel".to_owned(), "folder of the system"),
            (at("link"), "folder of the system"),
            (at("missing"), "No such file"),
            (at("to-store"), "store of brig"),
            (at("store/tasks/record"), "store of brig"),
            (at(""), "store of brig"),
            (at("socket"), "neither a file nor a folder"),
        ] {
            let error = check(&format!("{source}:/x"), &store).unwrap_err();
            assert!(error.to_string().contains(words), "{source}: {error}");
        }
        std::fs::write(at("file"), "").unwrap();
        check(&format!("{}:/x", at("file")), &store).unwrap();
        check("/usr/share:/x", &store).unwrap();
        check("/usr/share:/x:cow", &store).unwrap();
        std::os::unix::fs::symlink("/usr/share", at("to-usr")).unwrap();
        for source in ["/usr/share".to_owned(), "/etc/ssl".to_owned(), at("to-usr")] {
            let error = check(&format!("{source}:/x:rw"), &store).unwrap_err();
            assert!(error.to_string().contains("runs or obeys"), "{source}: {error}");
        }
    }

    #[test]
    fn a_folder_with_more_than_files_is_not_shared_for_writing() {
        use std::os::unix::fs::PermissionsExt;
        let lab = tempfile::tempdir().unwrap();
        let store = Store::at(lab.path().join("store"));
        let folder = lab.path().join("work");
        std::fs::create_dir_all(folder.join("deep/er")).unwrap();
        let mount = format!("{}:/x:rw", folder.display());
        check(&mount, &store).unwrap();
        let file = folder.join("deep/er/tool");
        std::fs::write(&file, "").unwrap();
        for mode in [0o4755, 0o2755] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(check(&mount, &store).unwrap_err().to_string().contains("`tool` has a set-user-ID"));
        }
        std::fs::remove_file(&file).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(folder.join("deep/socket")).unwrap();
        assert!(check(&mount, &store).unwrap_err().to_string().contains("`socket` is a socket"));
        check(&mount.replace(":rw", ":cow"), &store).unwrap();
        drop(socket);
    }
}
