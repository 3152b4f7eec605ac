//! Groups below a container's: of `exec --cgroup`, and of an init that moved itself.

use super::directory::Directory;
use super::group::{Cgroup, Group};
use crate::error::{Context, Error, Kind, Result};
use crate::sys::weaken;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Parses `exec --cgroup [CONTROLLER,…:]PATH`; the empty name is for all controllers.
fn parse(arguments: &[&str]) -> Result<BTreeMap<String, Vec<String>>> {
    let fail = |reason: String| Err(Error::new(Kind::Usage, reason));
    let mut paths = BTreeMap::new();
    for argument in arguments {
        let Some((controllers, path)) = argument.split_once(':') else {
            if arguments.len() != 1 {
                return fail(format!("invalid --cgroup argument: {argument} (missing <controller>: prefix)"));
            }
            paths.insert(String::new(), inside(argument)?);
            continue;
        };
        for controller in controllers.split(',') {
            if controller.is_empty() {
                return fail(format!("invalid --cgroup argument: {argument} (empty <controller> prefix)"));
            }
            if paths.insert(controller.to_owned(), inside(path)?).is_some() {
                return fail(format!("invalid --cgroup argument(s): controller {controller} specified multiple times"));
            }
        }
    }
    Ok(paths)
}

/// `..` never leads out of the container's group.
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
    /// They must exist: the container made them.
    pub(crate) fn below(&self, arguments: &[&str]) -> Result<Cgroup> {
        let paths = parse(arguments)?;
        let known = |name: &str| self.groups.iter().any(|group| is_named(group, name));
        if let Some(unknown) = paths.keys().find(|name| !name.is_empty() && !known(name)) {
            return Err(Error::new(Kind::Usage, format!("unknown controller {unknown} in --cgroup argument")));
        }
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let named = paths.iter().find(|(name, _)| name.is_empty() || is_named(group, name));
            groups.push(descend(group, named.map_or(&[][..], |(_, names)| names))?);
        }
        Ok(Cgroup::of(groups))
    }

    /// An init such as systemd moves itself into a child group; the container's own v2 group then accepts no process
    /// ("no internal processes").
    pub(crate) fn of_process(&self, pid: i32) -> Result<Cgroup> {
        let step = || format!("find the group of the process {pid}");
        let text = std::fs::read(format!("/proc/{pid}/cgroup")).failing(Kind::Cgroup, step)?;
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let now = text.split(|byte| *byte == b'\n').find_map(|line| path_of(line, group));
            let names = now.and_then(|now| relative(group.directory.path(), now));
            let names =
                names.ok_or_else(|| Error::new(Kind::State, "it is outside the container's group").doing(step()))?;
            groups.push(descend(group, &names)?);
        }
        Ok(Cgroup::of(groups))
    }
}

fn is_named(group: &Group, name: &str) -> bool {
    !group.is_v2 && group.controllers.iter().any(|each| each.name_v1() == name)
}

fn descend(group: &Group, names: &[impl AsRef<Path>]) -> Result<Group> {
    let path = group.directory.path();
    let step = || format!("open the group `{}`", path.join(names.iter().collect::<PathBuf>()).display());
    let mut directory = Directory::open(path).failing(Kind::Cgroup, step)?;
    for name in names {
        directory = directory.child(name).failing(Kind::Cgroup, step)?;
    }
    Ok(Group { directory, controllers: group.controllers, is_v2: group.is_v2 })
}

/// A line of /proc/PID/cgroup, whose last names may not be UTF-8.
fn path_of<'line>(line: &'line [u8], group: &Group) -> Option<&'line Path> {
    let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
    let (names, path) = (std::str::from_utf8(parts.next()?).ok()?, parts.next()?);
    let ours = if names.is_empty() { group.is_v2 } else { names.split(',').any(|name| is_named(group, name)) };
    ours.then(|| Path::new(OsStr::from_bytes(path)))
}

/// The names from `directory` down to `now`, a path in its hierarchy, at any mount point. The longest end of
/// `directory` with which `now` begins is the container's path there.
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

    fn show(arguments: &[&str]) -> String {
        match parse(arguments) {
            Ok(paths) => format!("{paths:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn cgroup_argument_never_leads_out_of_the_container() {
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
    fn path_below_is_found_at_every_mount_point() {
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
