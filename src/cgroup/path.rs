//! Where a container's group is: a name that cannot lead out of the hierarchy.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;

/// A group's place in every hierarchy that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CgroupPath {
    /// A task's: `brig-ID` below the group that this user may make children in.
    Task(String),
    /// `linux.cgroupsPath` that begins with a slash: below the mount point.
    Absolute(String),
    /// `linux.cgroupsPath` without one: below the caller's own group (v2: beside it, since a group with processes in it
    /// cannot have children with controllers).
    Relative(String),
}

/// What the names of all tasks' groups begin with. They have no directory of their own: an empty one would have to be left behind, or made and
/// removed with each task.
pub(super) const PREFIX: &str = "brig-";

/// The kernel's limit for one name (NAME_MAX).
const NAME_MAX: usize = 255;

impl CgroupPath {
    /// The place of the task `id`.
    pub(crate) fn task(id: &str) -> Result<CgroupPath> {
        check_name(id, id)?;
        Ok(CgroupPath::Task(id.to_owned()))
    }

    /// What `linux.cgroupsPath` says for the cgroupfs driver. Doubled and trailing slashes mean nothing; `..` is refused:
    /// a path that leaves its hierarchy names somebody else's group.
    pub(crate) fn parse(path: &str) -> Result<CgroupPath> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        for name in &names {
            check_name(name, path)?;
        }
        if names.is_empty() {
            return Err(invalid(path, "it names no group"));
        }
        let joined = names.join("/");
        Ok(if path.starts_with('/') { CgroupPath::Absolute(joined) } else { CgroupPath::Relative(joined) })
    }
}

fn check_name(name: &str, path: &str) -> Result<()> {
    let reason = match name {
        "" => "a name in it is empty",
        "." | ".." if !weaken::is_off("cgroup-path") => "it must not hold `..`",
        _ if name.len() > NAME_MAX => "a name in it is longer than 255 bytes",
        _ if name.contains('/') => "it must not hold a slash",
        // The kernel refuses a newline itself; NUL would cut the name short.
        _ if name.contains(['\0', '\n']) => "it holds a NUL or a newline",
        _ => return Ok(()),
    };
    Err(invalid(path, reason))
}

fn invalid(path: &str, reason: &str) -> Error {
    Error::new(Kind::Spec, reason).doing(format!("use the cgroup path `{}`", path.escape_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cleaned_or_refused() {
        let good = |path: &str| CgroupPath::parse(path).unwrap();
        assert_eq!(good("/docker/abc"), CgroupPath::Absolute("docker/abc".into()));
        assert_eq!(good("//a/./b/"), CgroupPath::Absolute("a/b".into()));
        assert_eq!(good("a:b"), CgroupPath::Relative("a:b".into()));
        for bad in ["", "/", "/a/../b", "..", "a\0b", "/a\nb", &"x".repeat(256)] {
            assert_eq!(CgroupPath::parse(bad).unwrap_err().kind(), Kind::Spec, "{bad:?}");
        }
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert_eq!(CgroupPath::task(bad).unwrap_err().kind(), Kind::Spec, "{bad:?}");
        }
    }
}
