//! Groups inside a container's: the one that `exec --cgroup` names, and the one that its init has moved itself to.

use super::Cgroup;
use super::create::Group;
use super::devices::DeviceControl;
use super::directory::Directory;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// `exec --cgroup [CONTROLLER,…:]PATH`: the path for each controller that is named, or for all (the empty name).
fn parse(wishes: &[&str]) -> Result<BTreeMap<String, Vec<String>>> {
    let fail = |words: String| Err(Error::new(Kind::Usage, words));
    let mut paths = BTreeMap::new();
    for wish in wishes {
        let Some((controllers, path)) = wish.split_once(':') else {
            if wishes.len() != 1 {
                return fail(format!("invalid --cgroup argument: {wish} (missing <controller>: prefix)"));
            }
            paths.insert(String::new(), inside(wish)?);
            continue;
        };
        for controller in controllers.split(',') {
            if controller.is_empty() {
                return fail(format!("invalid --cgroup argument: {wish} (empty <controller> prefix)"));
            }
            if paths.insert(controller.to_owned(), inside(path)?).is_some() {
                return fail(format!("invalid --cgroup argument(s): controller {controller} specified multiple times"));
            }
        }
    }
    Ok(paths)
}

/// The names on the way down. Counted name by name: `/foo` is not above `/foobar`, and `..` never leads out.
fn inside(path: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if !weaken::is_off("cgroup-below") => {
                names.pop().ok_or_else(|| Error::new(Kind::Usage, format!("bad sub cgroup path: {path}")))?;
            }
            name => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

impl Cgroup {
    /// The groups below this container's that `--cgroup` names. They must exist: the container made them.
    pub(crate) fn below(&self, wishes: &[&str]) -> Result<Cgroup> {
        let paths = parse(wishes)?;
        let known = |name: &str| self.groups.iter().any(|group| is_named(group, name));
        if let Some(unknown) = paths.keys().find(|name| !name.is_empty() && !known(name)) {
            return Err(Error::new(Kind::Usage, format!("unknown controller {unknown} in --cgroup argument")));
        }
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let named = paths.iter().find(|(name, _)| name.is_empty() || is_named(group, name));
            groups.push(descend(group, named.map_or(&[][..], |(_, names)| names))?);
        }
        Ok(Cgroup { groups, devices: DeviceControl::NotAsked })
    }

    /// The groups that the process `pid` of the container is in now. An init such as systemd's moves itself into a child,
    /// and then the container's own v2 group takes no more processes ("no internal processes").
    pub(crate) fn of_process(&self, pid: i32) -> Result<Cgroup> {
        let words = || format!("find the group of the process {pid}");
        let text = std::fs::read(format!("/proc/{pid}/cgroup")).failing(Kind::Cgroup, words)?;
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let now = text.split(|byte| *byte == b'\n').find_map(|line| path_of(line, group));
            let names = now.and_then(|now| relative(group.directory.path(), now));
            let names = names.ok_or_else(|| Error::new(Kind::State, "it is outside the container's").doing(words()))?;
            groups.push(descend(group, &names)?);
        }
        Ok(Cgroup { groups, devices: DeviceControl::NotAsked })
    }
}

fn is_named(group: &Group, name: &str) -> bool {
    !group.is_v2 && group.controllers.iter().any(|each| each.name_v1() == name)
}

fn descend(group: &Group, names: &[impl AsRef<Path>]) -> Result<Group> {
    let path = group.directory.path();
    let words = || format!("open the group `{}`", path.join(names.iter().collect::<PathBuf>()).display());
    let mut directory = Directory::open(path).failing(Kind::Cgroup, words)?;
    for name in names {
        directory = directory.child(name).failing(Kind::Cgroup, words)?;
    }
    Ok(Group { directory, controllers: group.controllers, is_v2: group.is_v2 })
}

/// The path in the line of /proc/PID/cgroup that is about this group's hierarchy. Its end is what the container chose, and not always text.
fn path_of<'line>(line: &'line [u8], group: &Group) -> Option<&'line Path> {
    let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
    let (names, path) = (std::str::from_utf8(parts.next()?).ok()?, parts.next()?);
    let ours = if names.is_empty() { group.is_v2 } else { names.split(',').any(|name| is_named(group, name)) };
    ours.then(|| Path::new(OsStr::from_bytes(path)))
}

/// How to get from our group's directory to `now`, a path in its hierarchy. Where the hierarchy is mounted does not
/// matter: the longest end of our directory that `now` begins with is our path in it.
fn relative(directory: &Path, now: &Path) -> Option<Vec<OsString>> {
    let names = |path: &Path| -> Vec<OsString> {
        let parts = path.components().filter(|part| *part != Component::RootDir);
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let (ours, now) = (names(directory), names(now));
    let mut ends = (0..ours.len()).map(|from| &ours[from..]);
    let end = ends.find(|end| now.starts_with(end))?;
    Some(now[end.len()..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(wishes: &[&str]) -> String {
        match parse(wishes) {
            Ok(paths) => format!("{paths:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_path_below_is_counted_name_by_name_and_never_leads_out() {
        assert_eq!(show(&["/a/../b//c"]), r#"{"": ["b", "c"]}"#);
        assert_eq!(show(&["cpu,memory:x", "pids:/"]), r#"{"cpu": ["x"], "memory": ["x"], "pids": []}"#);
        for bad in ["..", "/../web-12", "a/../..", "pids:../x"] {
            let path = bad.strip_prefix("pids:").unwrap_or(bad);
            assert_eq!(show(&[bad]), format!("bad sub cgroup path: {path}"));
        }
        assert_eq!(show(&[":x"]), "invalid --cgroup argument: :x (empty <controller> prefix)");
        assert_eq!(show(&["a", "b"]), "invalid --cgroup argument: a (missing <controller>: prefix)");
        assert_eq!(show(&["cpu:a", "cpu:b"]), "invalid --cgroup argument(s): controller cpu specified multiple times");
    }

    #[test]
    fn where_a_process_is_is_found_wherever_the_hierarchy_is_mounted() {
        let names = |directory: &str, now: &str| {
            relative(Path::new(directory), Path::new(now))
                .map(|names| names.join(OsStr::new("/")).into_string().unwrap())
        };
        assert_eq!(names("/sys/fs/cgroup/docker/abc", "/docker/abc/init.scope"), Some("init.scope".into()));
        assert_eq!(names("/sys/fs/cgroup/docker/abc", "/docker/abc"), Some(String::new()));
        assert_eq!(names("/sys/fs/cgroup/docker/abc", "/docker/abcd"), None);
        assert_eq!(names("/sys/fs/cgroup/docker/abc", "/"), None);
    }
}
