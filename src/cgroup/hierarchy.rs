//! Which cgroup hierarchies this process sees, and where it is in each.
//!
//! In: `/proc/self/cgroup` and as much of `/proc/self/mountinfo` as holds them. Out: a [`Hierarchy`], picked once.
//! No path is assumed: a container's hierarchies may be mounted anywhere, and only in part.

use super::controller::{Controller, Controllers};
use super::create::Purpose;
use super::path::CgroupPath;
use crate::error::{Context, Error, Kind, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The hierarchy of v1 by which systemd tells services apart.
const SYSTEMD: &str = "name=systemd";

/// How the controllers are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// cgroup v2 alone.
    Unified,
    /// v1 controllers, and a v2 tree beside them that can kill and freeze.
    Hybrid,
    /// v1 controllers alone.
    Legacy,
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// What it controls. For v2 this is what its root offers, which is read when it is needed.
    pub(super) controllers: Controllers,
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// Our own group, as a path below the mount point; empty at its root.
    pub(super) own: String,
}

/// Every hierarchy that we can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(super) v1: Vec<Tree>,
    pub(super) v2: Option<Tree>,
    /// `name=systemd` of v1, which limits nothing: a systemd inside a container wants to find itself in it.
    pub(super) systemd: Option<Tree>,
}

/// One line of `/proc/self/cgroup`.
struct Membership {
    /// Empty for v2.
    names: Vec<String>,
    path: String,
}

impl Hierarchy {
    /// Looks at this machine as this process sees it. Reads two files, the second only as far as needed.
    pub(crate) fn probe() -> Result<Hierarchy> {
        let mut own = String::with_capacity(1024); // a file of /proc does not say how long it is
        File::open("/proc/self/cgroup")
            .and_then(|mut file| file.read_to_string(&mut own))
            .failing(Kind::Cgroup, || "read `/proc/self/cgroup`")
            .map_err(|error| error.hint("mount proc at /proc"))?;
        let file = File::open("/proc/self/mountinfo").failing(Kind::Cgroup, || "open `/proc/self/mountinfo`")?;
        // The kernel makes this file as it is read: a small buffer keeps us from paying for a thousand mounts.
        Hierarchy::from_parts(&own, BufReader::with_capacity(4096, file))
    }

    /// The same from the two files' text, pure but for what `mountinfo` reads.
    pub(super) fn from_parts(own: &str, mountinfo: impl BufRead) -> Result<Hierarchy> {
        let mut missing: Vec<Membership> = own.lines().filter_map(membership).collect();
        let mut found = Hierarchy { v1: Vec::new(), v2: None, systemd: None };
        for line in mountinfo.split(b'\n') {
            if missing.is_empty() {
                break;
            }
            let line = line.failing(Kind::Cgroup, || "read `/proc/self/mountinfo`")?;
            let Some(mount) = cgroup_mount(&String::from_utf8_lossy(&line)) else { continue };
            let matches = |each: &Membership| match &mount.options {
                None => each.names.is_empty(),
                Some(options) => !each.names.is_empty() && each.names.iter().all(|name| options.contains(name)),
            };
            let Some(at) = missing.iter().position(matches) else { continue };
            let member = missing.swap_remove(at);
            let tree = Tree {
                controllers: member.names.iter().filter_map(|name| Controller::from_v1(name)).collect(),
                mount: mount.point,
                own: below(&member.path, &mount.root),
            };
            match mount.options {
                None => found.v2 = Some(tree),
                Some(_) if member.names == [SYSTEMD] => found.systemd = Some(tree),
                // Any other named hierarchy is nobody's business of ours.
                Some(_) if tree.controllers.is_empty() => {}
                Some(_) => found.v1.push(tree),
            }
        }
        if found.v1.is_empty() && found.v2.is_none() {
            return Err(Error::new(Kind::Cgroup, "no cgroup file system is mounted")
                .doing("find the cgroup hierarchies")
                .hint("mount -t cgroup2 none /sys/fs/cgroup"));
        }
        found.v1.sort_by_key(|tree| tree.controllers.iter().next().map(|first| first as u8));
        Ok(found)
    }

    /// None, for a container that has no group of its own where no cgroup file system is in sight.
    pub(crate) fn absent() -> Hierarchy {
        Hierarchy { v1: Vec::new(), v2: None, systemd: None }
    }

    /// How the controllers are mounted.
    pub(crate) fn layout(&self) -> Layout {
        match (&self.v2, self.v1.is_empty()) {
            (Some(_), true) => Layout::Unified,
            (Some(_), false) => Layout::Hybrid,
            (None, _) => Layout::Legacy,
        }
    }

    /// The layout in words, for people: its name, the controllers of v1, and the place where groups of ours may be made on v2.
    pub(crate) fn words(&self) -> String {
        let v1 = || {
            let all = self.v1.iter().flat_map(|tree| tree.controllers.iter());
            all.map(Controller::name_v1).collect::<Vec<_>>().join(" ")
        };
        let v2 = |tree: &Tree| match tree.delegated() {
            Some(place) => {
                let offered = std::fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
                format!(
                    "{} offers {}",
                    place.display(),
                    if offered.trim().is_empty() { "no controller" } else { offered.trim() }
                )
            }
            None => format!("{} is not delegated to this user", tree.own_directory().display()),
        };
        match &self.v2 {
            Some(tree) if self.v1.is_empty() => format!("v2: {}", v2(tree)),
            Some(tree) => format!("hybrid: v1 {}; v2 {}", v1(), v2(tree)),
            None => format!("v1: {}", v1()),
        }
    }

    /// Whether `controller` is mounted as v1. What is not is v2's, if anybody's.
    pub(super) fn is_v1(&self, controller: Controller) -> bool {
        self.v1.iter().any(|tree| tree.controllers.has(controller))
    }

    /// Whether writes count for their writer only when they go to the disk at once: v1's io controller takes what the kernel's flusher writes
    /// later for the kernel's own (blkio-controller.rst, "Writeback").
    pub(crate) fn counts_only_synchronous_writes(&self) -> bool {
        self.is_v1(Controller::Io)
    }

    /// The v1 hierarchy of `controller`.
    pub(super) fn v1_of(&self, controller: Controller) -> Option<&Tree> {
        self.v1.iter().find(|tree| tree.controllers.has(controller))
    }
}

impl Hierarchy {
    /// Where a container's groups at `path` will be, or the caller's own without one: the name of each v1 hierarchy (empty for v2) and the directory.
    pub(crate) fn places(&self, path: Option<&CgroupPath>) -> Vec<(String, PathBuf)> {
        let place = |tree: &Tree| match path {
            Some(CgroupPath::Absolute(path)) => join(&tree.mount, path),
            Some(CgroupPath::Relative(path)) => join(&tree.own_directory(), path),
            Some(CgroupPath::Task(_)) | None => tree.own_directory(),
        };
        let v1 = self.v1.iter().flat_map(|tree| {
            let names = tree.controllers.iter().filter(|&each| Purpose::Container.optional().has(each));
            names.map(move |each| (each.name_v1().to_owned(), place(tree)))
        });
        let v2 = self.v2.iter().map(|tree| (String::new(), place(tree)));
        v2.chain(v1).chain(self.systemd.iter().map(|tree| ("systemd".to_owned(), place(tree)))).collect()
    }
}

impl Tree {
    /// Our own group's directory.
    pub(super) fn own_directory(&self) -> PathBuf {
        join(&self.mount, &self.own)
    }

    /// Where groups of ours may be made on v2: the root for root; for others the nearest group, from their own upwards,
    /// that is theirs and lies above their own, because a group with processes in it cannot give controllers to children
    /// (cgroup-v2.rst, "No Internal Process Constraint"). Their own is the last resort: its processes can be moved into
    /// a child first.
    pub(super) fn delegated(&self) -> Option<PathBuf> {
        if rustix::process::geteuid().is_root() && is_ours(&self.mount) {
            return Some(self.mount.clone());
        }
        let own = self.own_directory();
        let mut above = own.ancestors().skip(1).take_while(|path| path.starts_with(&self.mount));
        match above.find(|path| is_ours(path)) {
            Some(path) => Some(path.to_path_buf()),
            None => is_ours(&own).then_some(own),
        }
    }
}

/// Whether we may make children here and move processes between them (cgroup-v2.rst, "Delegation Containment").
pub(super) fn is_ours(directory: &Path) -> bool {
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    may(directory) && may(&directory.join("cgroup.procs"))
}

pub(super) fn join(directory: &Path, below: &str) -> PathBuf {
    if below.is_empty() { directory.to_path_buf() } else { directory.join(below) }
}

/// `ID:CONTROLLERS:PATH` (cgroups(7)).
fn membership(line: &str) -> Option<Membership> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (names, path) = (parts.next()?, parts.next()?);
    let names = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Some(Membership { names, path: path.to_owned() })
}

struct Mount {
    root: String,
    point: PathBuf,
    /// The super block's options for v1, which name its controllers; nothing for v2.
    options: Option<Vec<String>>,
}

/// A cgroup mount of one line of mountinfo (proc_pid_mountinfo(5)).
fn cgroup_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let options = match right.next()? {
        "cgroup2" => None,
        "cgroup" => Some(right.nth(1)?.split(',').map(str::to_owned).collect()),
        _ => return None,
    };
    let mut left = left.split(' ').skip(3);
    let (root, point) = (unescape(left.next()?), unescape(left.next()?));
    Some(Mount { root, point: PathBuf::from(point), options })
}

/// Our own path below the part of the hierarchy that is mounted. Outside of it (a bind mount of another part, a group
/// above our cgroup namespace) there is no such path, and the mount's root is as near as we get.
fn below(path: &str, root: &str) -> String {
    let inside = if root == "/" { Some(path) } else { path.strip_prefix(root) };
    match inside {
        Some(rest) if (rest.is_empty() || rest.starts_with('/')) && !rest.starts_with("/..") => {
            rest.trim_matches('/').to_owned()
        }
        _ => String::new(),
    }
}

/// Undoes mountinfo's octal escapes of space, tab, newline and backslash.
fn unescape(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(own: &str, mountinfo: &str) -> Result<Hierarchy> {
        Hierarchy::from_parts(own, mountinfo.as_bytes())
    }

    fn tree(hierarchy: &Hierarchy, controller: Controller) -> (&str, &str) {
        let tree = hierarchy.v1_of(controller).unwrap();
        (tree.mount.to_str().unwrap(), &tree.own)
    }

    #[test]
    fn pure_v2_is_found_and_reading_stops_there() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda rw\n\
                      30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let endless = mounts.as_bytes().chain(Broken);
        let found = Hierarchy::from_parts(
            "0::/user.slice/user-1000.slice/session-1.scope\n",
            BufReader::with_capacity(1, endless),
        );
        let found = found.unwrap();
        assert_eq!(found.layout(), Layout::Unified);
        let v2 = found.v2.unwrap();
        assert_eq!(v2.own_directory(), Path::new("/sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope"));
    }

    use std::io::Read;
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("read further than needed"))
        }
    }

    #[test]
    fn hybrid_has_one_tree_a_controller_and_named_ones_are_left_out() {
        let mounts = "32 31 0:29 / /c/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /c/memory rw - cgroup cgroup rw,memory\n\
                      40 31 0:37 / /c/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /c/uni\\040fied rw - cgroup2 cgroup2 rw\n";
        let own = "9:name=systemd:/\n4:memory:/job/7\n1:cpu,cpuacct:/\n0::/x\n";
        let found = parse(own, mounts).unwrap();
        assert_eq!(found.layout(), Layout::Hybrid);
        assert_eq!(tree(&found, Controller::Memory), ("/c/memory", "job/7"));
        assert_eq!(tree(&found, Controller::Cpuacct), ("/c/cpu,cpuacct", ""));
        assert_eq!(found.v1.len(), 2);
        assert!(
            found.words().starts_with("hybrid: v1 cpu cpuacct memory; v2 /c/uni fied/x is not delegated"),
            "{}",
            found.words()
        );
        assert_eq!(found.v2.unwrap().own_directory(), Path::new("/c/uni fied/x"));
        assert_eq!(parse("4:memory:/", mounts).unwrap().layout(), Layout::Legacy);
    }

    #[test]
    fn our_own_path_is_counted_from_what_is_mounted() {
        let mounts = "35 31 0:32 /docker/abc /m rw - cgroup cgroup rw,memory\n";
        for (path, own) in [("/docker/abc/x", "x"), ("/docker/abc", ""), ("/docker/abcd", ""), ("/../other", "")] {
            let found = parse(&format!("4:memory:{path}"), mounts).unwrap();
            assert_eq!(found.v1[0].own, own, "{path}");
        }
    }

    #[test]
    fn no_hierarchy_at_all_says_what_to_do() {
        let error = parse("0::/\n", "22 1 8:1 / / rw - ext4 /dev/sda rw\n").unwrap_err();
        assert_eq!(error.to_string(), "find the cgroup hierarchies: no cgroup file system is mounted");
        assert!(error.advice().is_some());
    }
}
