//! The path of the workspace in a sandbox.
//!
//! A folder of the host has its own path inside: virtual environments, build trees and git worktrees contain absolute
//! paths. `/workspace` is a link to it. If the sandbox or its root uses that path, the folder is at `/workspace`.

use super::image::ImageRoot;
use super::{HOME, USER};
use crate::spec::root::{Attributes, Owner, Step};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::path::{Component, Path, PathBuf};

/// The path of a workspace without a path on the host; else the link to it.
pub(crate) const WORKSPACE: &str = "/workspace";
pub(crate) const SECRETS: &str = "/run/secrets";
/// Folders of every sandbox, with all below.
const RESERVED: [&str; 16] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/tmp",
    "/usr", "/var/tmp", HOME,
];
/// Longer than real paths; init makes a folder for each component.
const LONGEST: usize = 1024;
/// A link in the folder of [`parents`].
const LINK: &str = ".workspace";

/// Why a folder of the host cannot appear at `path` with this root.
pub(crate) fn conflict(path: &Path, rootfs: Option<&Path>, image: Option<&ImageRoot>) -> Option<String> {
    let is_plain = |path: &Path| {
        let mut components = path.components();
        let text = path.to_str().filter(|text| text.len() <= LONGEST && !text.contains(char::is_control));
        text.is_some()
            && components.next() == Some(Component::RootDir)
            && components.all(|part| matches!(part, Component::Normal(_)))
    };
    if path == Path::new(WORKSPACE) {
        return None;
    }
    if !is_plain(path) {
        return Some(format!("a place must be an absolute path of at most {LONGEST} bytes, without `..`"));
    }
    let collides = |other: &Path| path.starts_with(other) || other.starts_with(path);
    let of_image =
        image.iter().flat_map(|image| image.home.iter().chain(&image.volumes).chain(&image.working_directory));
    if let Some(own) = RESERVED.iter().chain([&WORKSPACE]).map(Path::new).find(|own| collides(own)) {
        return Some(format!("the sandbox has its own `{}`", own.display()));
    }
    if let Some(own) = of_image.into_iter().find(|own| own.starts_with(path)) {
        return Some(format!("the image has its own `{}`", own.display()));
    }
    let is_private = path.starts_with("/root") && image.map_or(USER, |image| image.uid) != 0;
    if is_private && (rootfs.is_some() || image.is_some()) {
        return Some("`/root` of its root file system is closed to the command's user".to_owned());
    }
    let layers = image.iter().flat_map(|image| image.layers.iter().map(|layer| image.directory.join(layer)));
    let mut roots = rootfs.map(Path::to_owned).into_iter().chain(layers);
    let occupied = roots.find_map(|root| [path, Path::new(WORKSPACE)].into_iter().find(|each| has(&root, each)));
    occupied.map(|own| format!("its root file system has its own `{}`", own.display()))
}

/// A link or a file on the way counts: the path would lead elsewhere.
fn has(root: &Path, path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    else {
        return true;
    };
    let below = path.strip_prefix("/").unwrap_or(path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    !matches!(openat2(root, below, flags, Mode::empty(), resolve), Err(Errno::NOENT))
}

/// The top folder of the parents; `None` without parents.
fn parents(at: &Path) -> Option<PathBuf> {
    let top = at.ancestors().filter(|above| *above != Path::new("/")).last()?;
    (top != at).then(|| top.to_owned())
}

/// A kept root has the workspace's parents in a small memory file system. So it serves every workspace below one folder
/// of `/`.
pub(super) fn before(at: &Path) -> Vec<Step> {
    let Some(parents) = parents(at) else { return Vec::new() };
    vec![
        Step::Tmpfs {
            at: parents.clone(),
            bytes: 64 << 10,
            inodes: at.components().count() as u64 + 8, // the link, a home beside it, and others
            mode: 0o755,
            owner: Owner::Administrator,
            attributes: Attributes::WRITABLE,
        },
        Step::Symlink { at: parents.join(LINK), target: at.to_owned() },
    ]
}

/// `None` if the workspace is there itself.
pub(super) fn link(at: &Path, is_kept: bool) -> Option<Step> {
    let target = parents(at).filter(|_| is_kept).map_or_else(|| at.to_owned(), |parents| parents.join(LINK));
    (at != Path::new(WORKSPACE)).then(|| Step::Symlink { at: WORKSPACE.into(), target })
}

pub(super) fn after(at: &Path) -> Option<Step> {
    parents(at).map(|at| Step::Freeze { at, attributes: Attributes::READ_ONLY })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_covers_nothing_of_the_sandbox() {
        let check = |path: &str, expected: Option<&str>| {
            let found = conflict(Path::new(path), None, None);
            assert!(
                expected.map_or(found.is_none(), |words| found.as_ref().is_some_and(|why| why.contains(words))),
                "{path}: {found:?}"
            );
        };
        for path in [
            "/home/user/project",
            "/srv/x",
            "/data",
            "/root/x",
            "/var/lib/x",
            "/opt/x",
            "/workspace",
            "/homeless",
            "/tmpfs/x",
        ] {
            check(path, None);
        }
        check("/home", Some("`/home/agent`"));
        check("/home/agent/x", Some("`/home/agent`"));
        check("/var", Some("`/var/tmp`"));
        check("/workspace/x", Some("`/workspace`"));
        for path in ["/usr/src/x", "/etc", "/proc/1", "/tmp/x", "/var/tmp/x", "/dev/shm/x", "/run/x"] {
            check(path, Some("its own"));
        }
        for path in ["", "/", "x", "/a/../b", "/a\nb"] {
            assert!(conflict(Path::new(path), None, None).is_some(), "{path:?}");
        }
        assert!(conflict(&Path::new("/srv").join("x".repeat(2000)), None, None).is_some());
    }

    #[test]
    fn a_place_covers_nothing_of_a_root_file_system() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("srv/app")).unwrap();
        std::fs::create_dir_all(root.path().join("home")).unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("data")).unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let check = |path: &str| conflict(Path::new(path), Some(root.path()), None).is_none();
        assert!(check("/srv/other") && check("/home/user/x") && check("/new"));
        for path in ["/srv", "/srv/app", "/data/x", "/file/x", "/root/x"] {
            assert!(!check(path), "{path}");
        }
        std::fs::create_dir(root.path().join("workspace")).unwrap();
        assert!(!check("/new"), "the link has no place");
    }

    #[test]
    fn a_workspace_without_parents_needs_no_memory() {
        assert!(before(Path::new("/data")).is_empty() && after(Path::new("/data")).is_none());
        assert!(before(Path::new(WORKSPACE)).is_empty() && link(Path::new(WORKSPACE), true).is_none());
        let target = |at: &str, is_kept| match link(Path::new(at), is_kept) {
            Some(Step::Symlink { target, .. }) => target,
            other => panic!("{other:?}"),
        };
        assert_eq!(target("/data", true), Path::new("/data"));
        assert_eq!(target("/home/user/x", true), Path::new("/home/.workspace"));
        assert_eq!(target("/home/user/x", false), Path::new("/home/user/x"));
    }
}
