//! The file system that a container sees, as an ordered list of steps. Making one needs no system call.

use super::resources::Rates;
use crate::sys::mount as bits;
use std::path::PathBuf;

/// Who owns what is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// User 0 of the container (where only one id is mapped: that one).
    Administrator,
}

/// A numeric owner, as the process that builds the root sees it. The machine's root builds with ids of the initial user namespace. An ordinary user
/// builds in the sandbox's user namespace, with its ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Whose a tree of files looks inside the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// As the mount has it.
    Stored,
    /// Id n of the files as id n of the container.
    Inside,
    /// Files of this owner of the host as the container's user's own, all others as with `Inside`.
    Users {
        /// User id on the host.
        uid: u32,
        /// Group id on the host.
        gid: u32,
    },
}

/// Mount attributes that hold for one mount, as `MOUNT_ATTR_*` bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(pub u64);

impl Attributes {
    /// `nosuid,nodev`: what everything in a sandbox gets at the least.
    pub(crate) const WRITABLE: Attributes = Attributes(bits::NOSUID | bits::NODEV);
    /// `ro,nosuid,nodev`.
    pub(crate) const READ_ONLY: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::RDONLY);
    /// `nosuid,noexec`: for /dev itself, which must have devices.
    pub(crate) const DEVICES: Attributes = Attributes(bits::NOSUID | bits::NOEXEC);
    /// `nosuid,nodev,noexec`: for the kernel's own file systems.
    pub(crate) const KERNEL: Attributes = Attributes(bits::NOSUID | bits::NODEV | bits::NOEXEC);

    /// The same and read-only.
    pub(crate) const fn read_only(self) -> Attributes {
        Attributes(self.0 | bits::RDONLY)
    }

    /// The words for them in a config.json.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        [(bits::RDONLY, "ro"), (bits::NOSUID, "nosuid"), (bits::NODEV, "nodev"), (bits::NOEXEC, "noexec")]
            .into_iter()
            .filter_map(move |(bit, word)| (self.0 & bit != 0).then_some(word))
    }
}

/// Where the tree of a bind mount or a layer comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A path of the host, opened by init before the host goes out of sight.
    Host(PathBuf),
    /// A path of the root that is being built, where an earlier step has made it.
    Root(PathBuf),
    /// A directory of the capped scratch file system, relative to its root.
    Scratch(&'static str),
}

/// Bytes that no message, record or debugging output shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(pub Vec<u8>);

impl Drop for Hidden {
    /// What is forked later, such as the first process of an agent's sandbox, has no copy of them.
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} hidden bytes", self.0.len())
    }
}

/// The folders of the scratch file system for the overlays of mounts below a workspace, each with `upper` and `work`; more mounts are not shown.
pub(crate) const SUBMOUNTS: [&str; 8] =
    ["mount-0", "mount-1", "mount-2", "mount-3", "mount-4", "mount-5", "mount-6", "mount-7"];

/// How many pseudo-terminals a sandbox has at once: more than agents use, and a small part of the machine's 4096 (kernel.pty.max), which all share.
pub(crate) const MOST_TERMINALS: u32 = 128;

/// Which content a file of the host has, without a look at it: whatever changes the content changes this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    /// Bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of the content.
    pub modified: (i64, i64),
    /// The same of the last change of anything, which programs cannot set.
    pub changed: (i64, i64),
}

/// One step of the building; `at` is absolute as the container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A directory, if it is not there.
    Directory { at: PathBuf, mode: u32, owner: Owner },
    /// A symbolic link; one that is there already stays.
    Symlink { at: PathBuf, target: PathBuf },
    /// A small file of our own.
    File { at: PathBuf, content: Vec<u8>, mode: u32 },
    /// A copy of a small file of the host, which is read only when the copy is made.
    Copy { from: PathBuf, version: Version, at: PathBuf, mode: u32 },
    /// A change of a file that the root may have, at the end of whatever links are there. Where there is none, or an empty one, it is made with
    /// `missing` in front of it, and without that nothing is.
    Amend { at: PathBuf, change: Change, missing: Option<Vec<u8>>, mode: u32 },
    /// A memory file system, limited in bytes and inodes.
    Tmpfs { at: PathBuf, bytes: u64, inodes: u64, mode: u32, owner: Owner, attributes: Attributes },
    /// A memory file system of its own with one file for each secret, which only the command's user can read and nobody inside can write. Its
    /// directory is handed to the supervisor, who may change and remove files later.
    Secrets { at: PathBuf, files: Vec<(String, Hidden)> },
    /// A bind mount of one file or directory, without the mounts below it.
    Bind { source: Source, at: PathBuf, attributes: Attributes, shown: Shown },
    /// A copy-on-write view: `lower` is never written, changes go to `<changes>/upper` of the scratch file system.
    Overlay { lower: PathBuf, changes: &'static str, at: PathBuf, attributes: Attributes, shown: Shown },
    /// The process file system of the container's PID namespace.
    Proc { at: PathBuf },
    /// Own pseudo-terminals, [`MOST_TERMINALS`] of them, with `ptmx` for everybody.
    Pts { at: PathBuf },
    /// The default device nodes, made in a tmpfs that is at /dev already.
    Devices,
    /// From here on nothing of the mount at `at` can be written.
    Freeze { at: PathBuf, attributes: Attributes },
    /// A whole root below this one, for another runtime: its steps cannot leave it, whatever links it has. It has a mount point at the first path of
    /// each of `points`, empty and of the kind of what is at the second path of this root; `/` stands for what the runtime makes
    /// itself. `program` must be there once all of it is mounted.
    Nest { at: PathBuf, root: Root, steps: Vec<Step>, points: Vec<(PathBuf, PathBuf)>, program: Program },
}

/// A program that a root must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// As it was named.
    pub name: String,
    /// Where it may be, absolute: the first that can be executed is it.
    pub places: Vec<PathBuf>,
}

/// What becomes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This is added at its end.
    Append(Vec<u8>),
    /// It has this and nothing else.
    Replace(Vec<u8>),
}

/// What is at `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// An empty tmpfs, filled by the steps.
    Empty,
    /// The same, of which nothing is written once the steps are done, and what they make is the same for many sandboxes: it may be kept from one to the next.
    Kept,
    /// A directory of the host under a copy-on-write layer.
    Overlay { lower: PathBuf, shown: Shown },
    /// The layers of an image under a copy-on-write layer.
    Layers(Layers),
    /// A tree of the host that was made for this container alone, under a copy-on-write layer: its files are given to the container's ids
    /// where they are, for file systems that cannot show them so.
    Copy(PathBuf),
    /// The layers of an image, copied into memory and under a copy-on-write layer: for file systems that no overlay takes as a layer. The
    /// container's memory limit counts the copy, and it goes with the container's mounts.
    Gathered(Layers),
    /// The host's own, as it is: the steps change what its mount namespace shows there, and nothing is entered.
    Host,
}

/// Directories in overlayfs's own form, which together are a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The directory of the host in which all of them are.
    pub directory: PathBuf,
    /// Their paths in it, topmost first: of plain names, never through a symlink.
    pub names: Vec<String>,
    /// Whose their files look.
    pub shown: Shown,
    /// The mode of the root itself.
    pub mode: u32,
}

/// The one file system under everything writable, whose size is the disk limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// What it is made of.
    pub backing: Backing,
    /// Bytes of data.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// How fast it may be read and, apart, written.
    pub rates: Rates,
}

/// What a scratch file system is made of.
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
    /// What the root itself is.
    pub root: Root,
    /// What everything writable is on.
    pub scratch: Scratch,
    /// What is made in the root, in this order.
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

/// The device nodes that every container has (runtime-spec, "Default Devices").
pub(crate) const DEVICES: [Device; 6] = [
    Device { name: "null", major: 1, minor: 3 },
    Device { name: "zero", major: 1, minor: 5 },
    Device { name: "full", major: 1, minor: 7 },
    Device { name: "random", major: 1, minor: 8 },
    Device { name: "urandom", major: 1, minor: 9 },
    Device { name: "tty", major: 5, minor: 0 },
];
