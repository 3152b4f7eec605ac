//! The file system of a container, as an ordered list of steps. Making the list needs no system call.

use super::resources::Rates;
use crate::sys::mount as bits;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// User 0 of the container (the only mapped id, if there is one).
    Administrator,
    User,
}

/// As the builder of the root sees them. The machine's root builds with ids of the initial user namespace, an ordinary
/// user with those of the sandbox's user namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// How a tree's owners appear in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// As in the mount.
    Stored,
    /// Id n of the files becomes id n of the container.
    Inside,
    /// Files of this host owner belong to the container's user; all others are as with `Inside`.
    Users {
        /// User id on the host.
        uid: u32,
        /// Group id on the host.
        gid: u32,
    },
}

/// `MOUNT_ATTR_*` bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(pub u64);

impl Attributes {
    /// The minimum for every mount in a sandbox but a root with set-uid programs.
    pub(crate) const WRITABLE: Attributes = Attributes(bits::NOSUID | bits::NODEV);
    /// Set-uid programs have their effect, in the sandbox's user namespace.
    pub(crate) const ROOT_INSIDE: Attributes = Attributes(bits::NODEV);
    pub(crate) const READ_ONLY: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::RDONLY);
    /// For /dev itself, which must have devices.
    pub(crate) const DEVICES: Attributes = Attributes(bits::NOSUID | bits::NOEXEC);
    /// For the kernel's own file systems.
    pub(crate) const KERNEL: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::NOEXEC);

    pub(crate) const fn read_only(self) -> Attributes {
        Attributes(self.0 | bits::RDONLY)
    }

    /// In a config.json.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        [(bits::RDONLY, "ro"), (bits::NOSUID, "nosuid"), (bits::NODEV, "nodev"), (bits::NOEXEC, "noexec")]
            .into_iter()
            .filter_map(move |(bit, word)| (self.0 & bit != 0).then_some(word))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A host path, opened by init while it can reach the host.
    Host(PathBuf),
    /// A path of the unfinished root, made by an earlier step.
    Root(PathBuf),
    /// A directory of the capped scratch file system, relative to its root.
    Scratch(&'static str),
    /// A copy of a host file in a directory of the scratch file system, which the command's user owns. Init opens the
    /// file while it can reach the host.
    Copied {
        /// The file.
        from: PathBuf,
        /// The directory.
        to: &'static str,
    },
}

/// Bytes that messages, records and debug output must not show.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(pub Vec<u8>);

impl Drop for Hidden {
    /// Later forks, such as an agent's first process, get no copy.
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} hidden bytes", self.0.len())
    }
}

/// Folders of the scratch file system for overlays of mounts below a workspace, each with `upper` and `work`. Further
/// mounts are hidden.
pub(crate) const SUBMOUNTS: [&str; 8] =
    ["mount-0", "mount-1", "mount-2", "mount-3", "mount-4", "mount-5", "mount-6", "mount-7"];

/// Like [`SUBMOUNTS`], for mounts of host folders.
pub(crate) const MOUNTS: [&str; 16] = [
    "host-0", "host-1", "host-2", "host-3", "host-4", "host-5", "host-6", "host-7", "host-8", "host-9", "host-10",
    "host-11", "host-12", "host-13", "host-14", "host-15",
];

/// Like [`SUBMOUNTS`], for changes above read-only volumes.
pub(crate) const VOLUMES: [&str; 8] =
    ["volume-0", "volume-1", "volume-2", "volume-3", "volume-4", "volume-5", "volume-6", "volume-7"];

/// More than agents use, and a small part of the machine's 4096 (kernel.pty.max).
pub(crate) const MOST_TERMINALS: u32 = 128;

/// The version of a host file's content, without a read: every change of the content changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    /// Bytes.
    pub size: u64,
    /// Last change of the content, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Last change of the inode, which programs cannot set.
    pub changed: (i64, i64),
}

/// `at` is absolute in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// If it is missing.
    Directory { at: PathBuf, mode: u32, owner: Owner },
    /// An existing link stays.
    Symlink { at: PathBuf, target: PathBuf },
    /// With brig's content.
    File { at: PathBuf, content: Vec<u8>, mode: u32 },
    /// Reads a small host file only when it makes the copy.
    Copy { from: PathBuf, version: Version, at: PathBuf, mode: u32 },
    /// Follows links. A missing or empty file is made with `missing` before the change, or not at all.
    Amend { at: PathBuf, change: Change, missing: Option<Vec<u8>>, mode: u32 },
    /// Limited in bytes and inodes.
    Tmpfs { at: PathBuf, bytes: u64, inodes: u64, mode: u32, owner: Owner, attributes: Attributes },
    /// A memory file system with one file for each secret. Only the command's user can read them, and no process inside
    /// can write. The supervisor gets its directory, and may change and remove files later.
    Secrets { at: PathBuf, files: Vec<(String, Hidden)> },
    /// One file or directory, without its submounts.
    Bind { source: Source, at: PathBuf, attributes: Attributes, shown: Shown },
    /// Copy-on-write: `lower` is never written, changes go to `<changes>/upper` of the scratch file system. Files of
    /// `lower` that are `hidden` are not in the view.
    Overlay {
        lower: PathBuf,
        changes: &'static str,
        at: PathBuf,
        attributes: Attributes,
        shown: Shown,
        hidden: HiddenFiles,
    },
    /// The mount of a volume, with its number among those that the sandbox got. With `changes` it is the lower layer of
    /// a copy-on-write view. Id n of the files becomes id n of the container. `points` are places of later mounts in
    /// it: through the mapping no file can be made.
    Volume {
        number: usize,
        at: PathBuf,
        attributes: Attributes,
        changes: Option<&'static str>,
        points: Vec<MountPoint>,
    },
    /// A procfs of the container's PID namespace.
    Proc { at: PathBuf },
    /// At most [`MOST_TERMINALS`], with `ptmx` for every user.
    Pts { at: PathBuf },
    /// Default nodes, in the existing tmpfs at /dev.
    Devices,
    /// The mount at `at` is read-only from here on.
    Freeze { at: PathBuf, attributes: Attributes },
    /// A whole root below this one, for another runtime: its steps stay inside it, whatever its links. Each pair of
    /// `points` gives it an empty mount point at the first path. The kind is that of the file at the second path of
    /// this root. `/` means a mount of the runtime itself. `program` must exist after all mounts.
    Nest { at: PathBuf, root: Root, steps: Vec<Step>, points: Vec<(PathBuf, PathBuf)>, program: Program },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint {
    /// Below the top of the volume.
    pub path: PathBuf,
    /// Else a file.
    pub is_directory: bool,
    /// Owner of new directories that lead to it, as ids of the container.
    pub owner: Ids,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub name: String,
    /// Absolute: the first that can be executed counts.
    pub places: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Append(Vec<u8>),
    Replace(Vec<u8>),
}

/// The root at `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// An empty tmpfs, filled by the steps.
    Empty,
    /// An empty tmpfs that is not written after the steps. Many sandboxes have equal results, so it may be kept.
    Kept,
    /// A host directory under a copy-on-write layer.
    Overlay { lower: PathBuf, shown: Shown },
    /// An image's layers under a copy-on-write layer.
    Layers(Layers),
    /// A host tree that was copied for this container only, under a copy-on-write layer. Its files get the container's
    /// ids in place, for file systems without id mapping.
    Copy(PathBuf),
    /// An image's layers, copied into memory, under a copy-on-write layer: for file systems that overlayfs refuses. The
    /// container's memory limit counts the copy, which ends with the container's mounts.
    Gathered(Layers),
    /// The steps change the view of the container's mount namespace, and the process does not enter a root.
    Host,
}

/// In overlayfs's own form; together they are a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The host directory that contains all of them.
    pub directory: PathBuf,
    /// Paths in it, topmost first: plain names, never through a symlink.
    pub names: Vec<String>,
    pub shown: Shown,
    pub mode: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    pub backing: Backing,
    pub bytes: u64,
    pub inodes: u64,
    pub rates: Rates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// An ext4 image on a loop device; needs privilege.
    Image,
    /// Memory, charged to the container's own limit.
    Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    pub root: Root,
    /// Attributes of the root's mount, if it is copy-on-write.
    pub attributes: Attributes,
    pub scratch: Scratch,
    pub steps: Vec<Step>,
    /// Paths that read as empty: files get /dev/null, directories an empty read-only one.
    pub masked: Vec<PathBuf>,
    pub read_only: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Below /dev.
    pub name: &'static str,
    pub major: u32,
    pub minor: u32,
}

/// See runtime-spec, "Default Devices".
pub(crate) const DEVICES: [Device; 6] = [
    Device { name: "null", major: 1, minor: 3 },
    Device { name: "zero", major: 1, minor: 5 },
    Device { name: "full", major: 1, minor: 7 },
    Device { name: "random", major: 1, minor: 8 },
    Device { name: "urandom", major: 1, minor: 9 },
    Device { name: "tty", major: 5, minor: 0 },
];

/// Files of a folder that a sandbox does not show, as patterns of `.gitignore`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenFiles {
    /// From `--hide`.
    pub flags: Vec<String>,
    /// From the folder's `.brigignore`.
    pub lines: Vec<String>,
}

impl HiddenFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.flags.is_empty() && self.lines.is_empty()
    }
}
