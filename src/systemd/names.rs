//! The unit that `cgroupsPath` names, and the path of its group. Pure.

use crate::error::{Error, Kind, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// `docker-0123.scope`, or a slice.
    pub(super) name: String,
    pub(super) slice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    System,
    User,
}

/// `UNIT_NAME_MAX`, without the NUL.
const NAME_BYTES: usize = 255;

impl Unit {
    /// `slice:prefix:name`, as from Docker, containerd and Podman. Empty: a scope named after the container.
    pub(crate) fn parse(path: &str, id: &str, manager: Manager) -> Result<Unit> {
        let (slice, prefix, name) = match path.split(':').collect::<Vec<_>>()[..] {
            [""] => ("", "brig", id),
            [slice, prefix, name] if !name.is_empty() => (slice, prefix, name),
            _ => {
                return Err(Error::new(
                    Kind::Spec,
                    format!(
                        "expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups, got \"{path}\" instead"
                    ),
                ));
            }
        };
        let slice = match (slice, manager) {
            ("", Manager::System) => "system.slice",
            ("", Manager::User) => "user.slice",
            (slice, _) => slice,
        };
        let name = match (prefix, name.ends_with(".slice")) {
            (_, true) => name.to_owned(),
            ("", false) => format!("{name}.scope"),
            (prefix, false) => format!("{prefix}-{name}.scope"),
        };
        slice_path(slice)?;
        if name.len() > NAME_BYTES || name.contains(|letter: char| !is_unit_letter(letter)) {
            return Err(Error::new(Kind::Spec, format!("invalid unit name: {}", name.escape_default())));
        }
        if name.ends_with(".slice") {
            slice_path(&name)?;
        }
        Ok(Unit { name, slice: slice.to_owned() })
    }

    /// A slice contains units and no process.
    pub(crate) fn is_slice(&self) -> bool {
        self.name.ends_with(".slice")
    }

    /// Below the manager's group, without a leading slash.
    pub(crate) fn path(&self) -> Result<String> {
        if self.is_slice() {
            return slice_path(&self.name);
        }
        let slice = slice_path(&self.slice)?;
        Ok(if slice.is_empty() { self.name.clone() } else { format!("{slice}/{}", self.name) })
    }
}

/// systemd.unit(5). A container id has no other letters.
fn is_unit_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter)
}

/// Each dash is a level: `a-b.slice` is `a.slice/a-b.slice` (systemd.slice(5)).
fn slice_path(slice: &str) -> Result<String> {
    let invalid = || Error::new(Kind::Spec, format!("invalid slice name: {}", slice.escape_default()));
    let name =
        slice.strip_suffix(".slice").filter(|name| !name.is_empty() && !name.contains('/')).ok_or_else(invalid)?;
    if name == "-" {
        return Ok(String::new());
    }
    let mut path = Vec::new();
    let mut prefix = String::new();
    for part in name.split('-') {
        if part.is_empty() || part.contains(|letter: char| !is_unit_letter(letter)) {
            return Err(invalid());
        }
        path.push(format!("{prefix}{part}.slice"));
        prefix += part;
        prefix.push('-');
    }
    Ok(path.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, manager: Manager, expected: &str) {
        let text = match Unit::parse(path, "web-1", manager) {
            Ok(unit) => format!("{} in {} at {}", unit.name, unit.slice, unit.path().unwrap()),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, expected, "{path}");
    }

    #[test]
    fn cgroups_path_names_a_unit_and_its_group() {
        use Manager::{System, User};
        check(
            "system.slice:docker:01ab",
            System,
            "docker-01ab.scope in system.slice at system.slice/docker-01ab.scope",
        );
        check(":libpod:01ab", User, "libpod-01ab.scope in user.slice at user.slice/libpod-01ab.scope");
        check("", System, "brig-web-1.scope in system.slice at system.slice/brig-web-1.scope");
        check("a-b.slice::x", System, "x.scope in a-b.slice at a.slice/a-b.slice/x.scope");
        check("-.slice:p:x", System, "p-x.scope in -.slice at p-x.scope");
        check(
            "kubepods.slice:cri:kubepods-pod1.slice",
            System,
            "kubepods-pod1.slice in kubepods.slice at kubepods.slice/kubepods-pod1.slice",
        );
        check("a--b.slice:p:x", System, "invalid slice name: a--b.slice");
        check("-a.slice:p:x", System, "invalid slice name: -a.slice");
        check("a/b.slice:p:x", System, "invalid slice name: a/b.slice");
        check("system:p:x", System, "invalid slice name: system");
        check("system.slice:p:../x", System, "invalid unit name: p-../x.scope");
        check(
            "/docker/01ab",
            System,
            "expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups, got \"/docker/01ab\" instead",
        );
    }
}
