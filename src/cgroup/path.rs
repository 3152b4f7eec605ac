//! The path of a container's group, which cannot lead out of the hierarchy.

use crate::error::{Error, Kind, Result};
use crate::sys::weaken;

/// The same in every hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CgroupPath {
    /// `brig-ID` where this user may make groups.
    Task(String),
    /// An absolute `linux.cgroupsPath`: below the mount point.
    Absolute(String),
    /// A relative `linux.cgroupsPath`: below the caller's own group, on v2 beside it (`Tree::base`).
    Relative(String),
}

/// No common parent: it would stay behind empty, or cost a mkdir and rmdir for each task.
pub(super) const PREFIX: &str = "brig-";

/// In bytes.
const NAME_MAX: usize = 255;

impl CgroupPath {
    pub(crate) fn task(id: &str) -> Result<CgroupPath> {
        check_name(id, id)?;
        Ok(CgroupPath::Task(id.to_owned()))
    }

    /// Ignores doubled and trailing slashes. Refuses `..`: a path out of its hierarchy names the group of another
    /// program.
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
        // NUL would cut the name short; the kernel refuses a newline.
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
    fn path_is_normalised_or_refused() {
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
