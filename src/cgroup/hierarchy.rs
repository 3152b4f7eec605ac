//! The cgroup hierarchies that this process sees, and its own group in each. In a container, they may be mounted
//! anywhere, and only in part.

use super::controller::{Controller, Controllers, Purpose};
use super::path::CgroupPath;
use crate::error::{Context, Error, Kind, Result};
use crate::host::parse_mount;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

const SYSTEMD: &str = "name=systemd";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// cgroup v2 alone.
    Unified,
    /// v1 controllers, and a v2 tree beside them.
    Hybrid,
    /// v1 controllers alone.
    Legacy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Empty for v2, whose controllers are read when needed.
    pub(super) controllers: Controllers,
    pub(super) mount: PathBuf,
    /// This process's group below the mount point; empty for the root.
    pub(super) own: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(super) v1: Vec<Tree>,
    pub(super) v2: Option<Tree>,
    /// v1's `name=systemd`, which limits nothing; a systemd inside a container needs it.
    pub(super) systemd: Option<Tree>,
}

struct Membership {
    /// Empty for v2.
    names: Vec<String>,
    path: String,
}

impl Hierarchy {
    /// Reads the second file only as far as needed.
    pub(crate) fn probe() -> Result<Hierarchy> {
        let mut own = String::with_capacity(1024); // a file of /proc has no size
        File::open("/proc/self/cgroup")
            .and_then(|mut file| file.read_to_string(&mut own))
            .failing(Kind::Cgroup, || "read `/proc/self/cgroup`")
            .map_err(|error| error.hint("mount proc at /proc"))?;
        let file = File::open("/proc/self/mountinfo").failing(Kind::Cgroup, || "open `/proc/self/mountinfo`")?;
        // The kernel formats this file while it is read: a small buffer avoids the cost of a thousand mounts.
        Hierarchy::from_parts(&own, BufReader::with_capacity(4096, file))
    }

    pub(super) fn from_parts(own: &str, mountinfo: impl BufRead) -> Result<Hierarchy> {
        let mut missing: Vec<Membership> = own.lines().filter_map(membership).collect();
        let mut found = Hierarchy { v1: Vec::new(), v2: None, systemd: None };
        for line in mountinfo.split(b'\n') {
            if missing.is_empty() {
                break;
            }
            let line = line.failing(Kind::Cgroup, || "read `/proc/self/mountinfo`")?;
            let Some(mount) = parse_mount(&line) else { continue };
            let is_v2 = mount.kind == "cgroup2";
            if !is_v2 && mount.kind != "cgroup" {
                continue;
            }
            let mounted: Vec<&str> = mount.options.split(',').collect();
            let matches = |each: &Membership| {
                each.names.is_empty() == is_v2 && each.names.iter().all(|name| mounted.contains(&name.as_str()))
            };
            let Some(at) = missing.iter().position(matches) else { continue };
            let member = missing.swap_remove(at);
            let tree = Tree {
                controllers: member.names.iter().filter_map(|name| Controller::from_v1(name)).collect(),
                mount: mount.point,
                own: below(&member.path, &mount.root.to_string_lossy()),
            };
            if is_v2 {
                found.v2 = Some(tree);
            } else if member.names == [SYSTEMD] {
                found.systemd = Some(tree);
            } else if !tree.controllers.is_empty() {
                found.v1.push(tree); // not another named hierarchy
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

    /// For a host without a cgroup file system.
    pub(crate) fn absent() -> Hierarchy {
        Hierarchy { v1: Vec::new(), v2: None, systemd: None }
    }

    pub(crate) fn layout(&self) -> Layout {
        match (&self.v2, self.v1.is_empty()) {
            (Some(_), true) => Layout::Unified,
            (Some(_), false) => Layout::Hybrid,
            (None, _) => Layout::Legacy,
        }
    }

    /// Names the v1 controllers and the delegated v2 group.
    pub(crate) fn description(&self) -> String {
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

    /// If not, only v2 may have it.
    pub(super) fn is_v1(&self, controller: Controller) -> bool {
        self.v1.iter().any(|tree| tree.controllers.has(controller))
    }

    /// v1's io controller counts writeback for the kernel, not for the writer (blkio-controller.rst, "Writeback").
    pub(crate) fn counts_only_synchronous_writes(&self) -> bool {
        self.is_v1(Controller::Io)
    }

    pub(super) fn v1_of(&self, controller: Controller) -> Option<&Tree> {
        self.v1.iter().find(|tree| tree.controllers.has(controller))
    }

    /// The directories of the groups at `path`, or of the caller's own. Each has the name of its v1 controller (empty
    /// for v2).
    pub(crate) fn directories(&self, path: Option<&CgroupPath>) -> Vec<(String, PathBuf)> {
        let directory = |tree: &Tree, is_v2: bool| match path {
            Some(CgroupPath::Absolute(path)) => join(&tree.mount, path),
            Some(CgroupPath::Relative(path)) => {
                let base = if is_v2 { tree.base() } else { None };
                join(&base.unwrap_or_else(|| tree.own_directory()), path)
            }
            Some(CgroupPath::Task(_)) | None => tree.own_directory(),
        };
        let v1 = self.v1.iter().flat_map(|tree| {
            let names = tree.controllers.iter().filter(|&each| Purpose::Container.optional().has(each));
            names.map(move |each| (each.name_v1().to_owned(), directory(tree, false)))
        });
        let v2 = self.v2.iter().map(|tree| (String::new(), directory(tree, true)));
        v2.chain(v1).chain(self.systemd.iter().map(|tree| ("systemd".to_owned(), directory(tree, false)))).collect()
    }
}

impl Tree {
    pub(super) fn own_directory(&self) -> PathBuf {
        join(&self.mount, &self.own)
    }

    /// The v2 group for relative paths. Root: the one above the own group, whose processes forbid controllers for
    /// children.
    pub(super) fn base(&self) -> Option<PathBuf> {
        if !rustix::process::geteuid().is_root() {
            return self.delegated();
        }
        let own = self.own_directory();
        let above = own.parent().filter(|parent| parent.starts_with(&self.mount));
        Some(above.unwrap_or(&self.mount).to_path_buf())
    }

    /// The v2 group where this user may make groups. Root: the root group. Other users: the nearest delegated group
    /// above their own (cgroup-v2.rst, "No Internal Process Constraint"). Last resort: their own group, whose processes
    /// are moved into a child first.
    pub(super) fn delegated(&self) -> Option<PathBuf> {
        if rustix::process::geteuid().is_root() && is_delegated(&self.mount) {
            return Some(self.mount.clone());
        }
        let own = self.own_directory();
        let mut above = own.ancestors().skip(1).take_while(|path| path.starts_with(&self.mount));
        match above.find(|path| is_delegated(path)) {
            Some(path) => Some(path.to_path_buf()),
            None => is_delegated(&own).then_some(own),
        }
    }
}

/// cgroup-v2.rst, "Delegation Containment".
pub(super) fn is_delegated(directory: &Path) -> bool {
    let may = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    may(directory) && may(&directory.join("cgroup.procs"))
}

pub(super) fn join(directory: &Path, below: &str) -> PathBuf {
    if below.is_empty() { directory.to_path_buf() } else { directory.join(below) }
}

pub(super) fn has_swap() -> bool {
    // A heading, then a line for each swap area. A kernel without swap has no such file.
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

/// `ID:CONTROLLERS:PATH` (cgroups(7)).
fn membership(line: &str) -> Option<Membership> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (names, path) = (parts.next()?, parts.next()?);
    let names = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Some(Membership { names, path: path.to_owned() })
}

/// The own path below the mounted part. The group may be outside: the mount is a bind of another part, or the group is
/// above the cgroup namespace. Then the mount's root stands for it.
fn below(path: &str, root: &str) -> String {
    let inside = if root == "/" { Some(path) } else { path.strip_prefix(root) };
    match inside {
        Some(rest) if (rest.is_empty() || rest.starts_with('/')) && !rest.starts_with("/..") => {
            rest.trim_matches('/').to_owned()
        }
        _ => String::new(),
    }
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
    fn probing_stops_when_every_hierarchy_is_found() {
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
        if rustix::process::geteuid().is_root() {
            assert_eq!(v2.base().unwrap(), Path::new("/sys/fs/cgroup/user.slice/user-1000.slice"));
        }
    }

    use std::io::Read;
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("read further than needed"))
        }
    }

    #[test]
    fn hybrid_host_has_one_tree_for_each_v1_hierarchy() {
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
            found.description().starts_with("hybrid: v1 cpu cpuacct memory; v2 /c/uni fied/x is not delegated"),
            "{}",
            found.description()
        );
        assert_eq!(found.v2.unwrap().own_directory(), Path::new("/c/uni fied/x"));
        assert_eq!(parse("4:memory:/", mounts).unwrap().layout(), Layout::Legacy);
    }

    #[test]
    fn own_path_is_relative_to_the_mounted_part() {
        let mounts = "35 31 0:32 /docker/abc /m rw - cgroup cgroup rw,memory\n";
        for (path, own) in [("/docker/abc/x", "x"), ("/docker/abc", ""), ("/docker/abcd", ""), ("/../other", "")] {
            let found = parse(&format!("4:memory:{path}"), mounts).unwrap();
            assert_eq!(found.v1[0].own, own, "{path}");
        }
    }

    #[test]
    fn host_without_cgroups_is_an_error_with_a_hint() {
        let error = parse("0::/\n", "22 1 8:1 / / rw - ext4 /dev/sda rw\n").unwrap_err();
        assert_eq!(error.to_string(), "find the cgroup hierarchies: no cgroup file system is mounted");
        assert!(error.advice().is_some());
    }
}
