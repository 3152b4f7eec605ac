//! The file system of a container, as an ordered list of steps. Making the list needs no system call.

use super::hidden::HiddenFiles;
use super::resources::Rates;
use crate::sys::mount as bits;
use std::path::PathBuf;

/// The owner of new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// User 0 of the container (the only mapped id, if there is one).
    Administrator,
    /// The command's user.
    User,
}

/// A numeric owner, as seen by the process that builds the root. The machine's root builds with ids of the initial user
/// namespace. An ordinary user builds in the sandbox's user namespace, with its ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The mapping of a tree's owners in the container.
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

/// Attributes of one mount, as `MOUNT_ATTR_*` bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(pub u64);

impl Attributes {
    /// `nosuid,nodev`: the minimum for every mount in a sandbox but a root with set-uid programs.
    pub(crate) const WRITABLE: Attributes = Attributes(bits::NOSUID | bits::NODEV);
    /// `nodev`: set-uid programs have their effect, in the sandbox's user namespace.
    pub(crate) const ROOT_INSIDE: Attributes = Attributes(bits::NODEV);
    /// `ro,nosuid,nodev`.
    pub(crate) const READ_ONLY: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::RDONLY);
    /// `nosuid,noexec`: for /dev itself, which must have devices.
    pub(crate) const DEVICES: Attributes = Attributes(bits::NOSUID | bits::NOEXEC);
    /// `nosuid,nodev,noexec`: for the kernel's own file systems.
    pub(crate) const KERNEL: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::NOEXEC);

    /// Adds `ro`.
    pub(crate) const fn read_only(self) -> Attributes {
        Attributes(self.0 | bits::RDONLY)
    }

    /// Their words in a config.json.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        [(bits::RDONLY, "ro"), (bits::NOSUID, "nosuid"), (bits::NODEV, "nodev"), (bits::NOEXEC, "noexec")]
            .into_iter()
            .filter_map(move |(bit, word)| (self.0 & bit != 0).then_some(word))
    }
}

/// The source of a bind mount or a layer.
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
    /// Later forks, such as the first process of an agent's sandbox, get no copy of them.
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} hidden bytes", self.0.len())
    }
}

/// The folders of the scratch file system for overlays of mounts below a workspace, each with `upper` and `work`.
/// Further mounts are hidden.
pub(crate) const SUBMOUNTS: [&str; 8] =
    ["mount-0", "mount-1", "mount-2", "mount-3", "mount-4", "mount-5", "mount-6", "mount-7"];

/// The folders of the scratch file system for the mounts of host folders, each with `upper` and `work`.
pub(crate) const MOUNTS: [&str; 16] = [
    "host-0", "host-1", "host-2", "host-3", "host-4", "host-5", "host-6", "host-7", "host-8", "host-9", "host-10",
    "host-11", "host-12", "host-13", "host-14", "host-15",
];

/// The folders of the scratch file system for the changes above read-only volumes, each with `upper` and `work`.
pub(crate) const VOLUMES: [&str; 8] =
    ["volume-0", "volume-1", "volume-2", "volume-3", "volume-4", "volume-5", "volume-6", "volume-7"];

/// The limit of terminals in a sandbox: more than agents use, and a small part of the machine's 4096 (kernel.pty.max).
pub(crate) const MOST_TERMINALS: u32 = 128;

/// The version of a host file's content, without a read: every change of the content changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of the content.
    pub modified: (i64, i64),
    /// Seconds and nanoseconds of the last change of the inode, which programs cannot set.
    pub changed: (i64, i64),
}

/// One step of the build; `at` is absolute in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A directory, if it is missing.
    Directory { at: PathBuf, mode: u32, owner: Owner },
    /// A symbolic link; an existing one stays.
    Symlink { at: PathBuf, target: PathBuf },
    /// A small file with our content.
    File { at: PathBuf, content: Vec<u8>, mode: u32 },
    /// A copy of a small host file, which is read only when the copy is made.
    Copy { from: PathBuf, version: Version, at: PathBuf, mode: u32 },
    /// A change of a file that the root may have, with links followed. A missing or empty file is made with `missing`
    /// before the change, or not at all.
    Amend { at: PathBuf, change: Change, missing: Option<Vec<u8>>, mode: u32 },
    /// A memory file system, limited in bytes and inodes.
    Tmpfs { at: PathBuf, bytes: u64, inodes: u64, mode: u32, owner: Owner, attributes: Attributes },
    /// A separate memory file system with one file for each secret. Only the command's user can read them, and no
    /// process inside can write. The supervisor gets its directory, and may change and remove files later.
    Secrets { at: PathBuf, files: Vec<(String, Hidden)> },
    /// A bind mount of one file or directory, without its submounts.
    Bind { source: Source, at: PathBuf, attributes: Attributes, shown: Shown },
    /// A copy-on-write view: `lower` is never written, changes go to `<changes>/upper` of the scratch file system.
    /// Files of `lower` that are `hidden` are not in the view.
    Overlay {
        lower: PathBuf,
        changes: &'static str,
        at: PathBuf,
        attributes: Attributes,
        shown: Shown,
        hidden: HiddenFiles,
    },
    /// The files of a volume, whose mount has this number among those that the sandbox got. With `changes` they are the
    /// lower layer of a copy-on-write view. Id n of the files becomes id n of the container.
    /// `points` are places of later mounts in it, made before: through the mapping no file can be made.
    Volume {
        number: usize,
        at: PathBuf,
        attributes: Attributes,
        changes: Option<&'static str>,
        points: Vec<MountPoint>,
    },
    /// The process file system of the container's PID namespace.
    Proc { at: PathBuf },
    /// Private terminals, at most [`MOST_TERMINALS`], with `ptmx` for every user.
    Pts { at: PathBuf },
    /// The default device nodes, in the existing tmpfs at /dev.
    Devices,
    /// Makes the mount at `at` read-only from here on.
    Freeze { at: PathBuf, attributes: Attributes },
    /// A whole root below this one, for another runtime: its steps stay inside it, whatever its links. Each pair of
    /// `points` gives it an empty mount point at the first path. The kind is that of the file at the second path of
    /// this root. `/` means a mount of the runtime itself. `program` must exist after all mounts.
    Nest { at: PathBuf, root: Root, steps: Vec<Step>, points: Vec<(PathBuf, PathBuf)>, program: Program },
}

/// A mount point in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint {
    /// Its path below the top of the volume.
    pub path: PathBuf,
    /// Whether it is a directory, else a file.
    pub is_directory: bool,
    /// The owner of new directories that lead to it, as ids of the container.
    pub owner: Ids,
}

/// A program that a root must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its name as given.
    pub name: String,
    /// Its possible absolute paths: the first that can be executed counts.
    pub places: Vec<PathBuf>,
}

/// A change of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Appends these bytes.
    Append(Vec<u8>),
    /// Replaces the content by these bytes.
    Replace(Vec<u8>),
}

/// The root at `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// An empty tmpfs, filled by the steps.
    Empty,
    /// An empty tmpfs that is not written after the steps. Their results are equal for many sandboxes, so it may be
    /// kept.
    Kept,
    /// A directory of the host under a copy-on-write layer.
    Overlay { lower: PathBuf, shown: Shown },
    /// The layers of an image under a copy-on-write layer.
    Layers(Layers),
    /// A host tree that was copied for this container only, under a copy-on-write layer. Its files get the container's
    /// ids in place, for file systems without id mapping.
    Copy(PathBuf),
    /// The layers of an image, copied into memory, under a copy-on-write layer: for file systems that overlayfs
    /// refuses. The container's memory limit counts the copy, and it ends with the container's mounts.
    Gathered(Layers),
    /// The host's root: the steps change its mount namespace's view, and the process does not enter a root.
    Host,
}

/// Directories in overlayfs's own form, which together are a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The host directory that contains all of them.
    pub directory: PathBuf,
    /// Their paths in it, topmost first: plain names, never through a symlink.
    pub names: Vec<String>,
    /// The mapping of their owners.
    pub shown: Shown,
    /// The mode of the root itself.
    pub mode: u32,
}

/// The one file system for all writes, whose size is the disk limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Its storage.
    pub backing: Backing,
    /// Bytes of data.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// The rates of reads and writes.
    pub rates: Rates,
}

/// The storage of a scratch file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// An ext4 image on a loop device; needs privilege.
    Image,
    /// Memory, charged to the container's own limit.
    Memory,
}

/// The whole file system, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// The root itself.
    pub root: Root,
    /// The attributes of its mount, if it is copy-on-write.
    pub attributes: Attributes,
    /// The file system for all writes.
    pub scratch: Scratch,
    /// The steps, in this order.
    pub steps: Vec<Step>,
    /// Paths that read as empty: files get /dev/null, directories an empty read-only one.
    pub masked: Vec<PathBuf>,
    /// Paths that become read-only.
    pub read_only: Vec<PathBuf>,
}

/// A device node of /dev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Name below /dev.
    pub name: &'static str,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// The device nodes of every container (runtime-spec, "Default Devices").
pub(crate) const DEVICES: [Device; 6] = [
    Device { name: "null", major: 1, minor: 3 },
    Device { name: "zero", major: 1, minor: 5 },
    Device { name: "full", major: 1, minor: 7 },
    Device { name: "random", major: 1, minor: 8 },
    Device { name: "urandom", major: 1, minor: 9 },
    Device { name: "tty", major: 5, minor: 0 },
];
