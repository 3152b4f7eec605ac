//! Limits of cache and memory bandwidth by resctrl (Documentation/filesystems/resctrl.rst; runtime-spec, "IntelRdt").
//!
//! The container's first process joins a [`Group`]. Never: removing a group that existed before.

use crate::error::{Context, Error, Kind, Result};
use crate::spec::config::linux::IntelRdt;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A class of service and its monitoring group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    path: PathBuf,
    made: bool,
    /// Made by brig in `path`.
    monitor: Option<PathBuf>,
}

pub(crate) fn create(config: &IntelRdt, id: &str) -> Result<Group> {
    create_below(&mount_point()?, config, id)
}

fn create_below(top: &Path, config: &IntelRdt, id: &str) -> Result<Group> {
    let lines = schemata_lines(config);
    let name = if config.clos_id.is_empty() { id } else { &config.clos_id };
    let path = match name {
        "/" => top.to_path_buf(),
        // Names of the file system itself.
        "." | ".." | "info" | "mon_groups" | "mon_data" => return Err(invalid(name)),
        name if name.contains(['/', '\0', '\n']) => return Err(invalid(name)),
        name => top.join(name),
    };
    if !config.clos_id.is_empty() && lines.is_empty() && !path.is_dir() {
        return Err(Error::new(Kind::Spec, "the group does not exist, and there is no schema for a new one")
            .doing(format!("use the resctrl group `{name}`"))
            .hint("give `linux.intelRdt.schemata`, or make the group first"));
    }
    let made = match std::fs::create_dir(&path) {
        Ok(()) => true,
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => false,
        Err(cause) => {
            return Err(cause).failing(Kind::LimitUnenforceable, || format!("make the resctrl group `{name}`"));
        }
    };
    let mut group = Group { path, made, monitor: None };
    let finished = group.write(&lines).and_then(|()| {
        if config.enable_monitoring {
            let monitor = group.path.join("mon_groups").join(id);
            std::fs::create_dir(&monitor)
                .failing(Kind::LimitUnenforceable, || format!("make the monitoring group `{id}`"))?;
            group.monitor = Some(monitor);
        }
        Ok(())
    });
    match finished {
        Ok(()) => Ok(group),
        Err(error) => {
            // Best effort: the first error is reported.
            let _ = group.remove();
            Err(error)
        }
    }
}

fn invalid(name: &str) -> Error {
    Error::new(Kind::Spec, format!("invalid name of a resctrl group: `{}`", name.escape_debug()))
        .doing("use `linux.intelRdt.closID`")
}

/// First the lines of the two older fields, as the specification requires.
fn schemata_lines(config: &IntelRdt) -> Vec<String> {
    let old = [&config.l3_cache_schema, &config.mem_bw_schema].into_iter().flat_map(|text| text.split('\n'));
    old.chain(config.schemata.iter().map(String::as_str)).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

impl Group {
    pub(crate) fn join(&self, pid: i32) -> Result<()> {
        for place in [Some(&self.path), self.monitor.as_ref()].into_iter().flatten() {
            std::fs::write(place.join("tasks"), pid.to_string())
                .failing(Kind::LimitUnenforceable, || format!("move the container into `{}`", place.display()))?;
        }
        Ok(())
    }

    /// One write for each line. A refused line is an error.
    pub(crate) fn write(&self, lines: &[String]) -> Result<()> {
        for line in lines {
            std::fs::write(self.path.join("schemata"), format!("{line}\n"))
                .failing(Kind::LimitUnenforceable, || format!("write `{line}` to the resctrl group's schemata"))?;
        }
        Ok(())
    }

    /// Keeps groups that brig did not make.
    pub(crate) fn remove(&self) -> Result<()> {
        let made = self.made.then_some(&self.path);
        for place in [self.monitor.as_ref(), made].into_iter().flatten() {
            match std::fs::remove_dir(place) {
                Err(cause) if cause.kind() != ErrorKind::NotFound => {
                    return Err(cause).failing(Kind::LimitUnenforceable, || {
                        format!("remove the resctrl group `{}`", place.display())
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// brig does not mount resctrl: its options affect the whole machine.
fn mount_point() -> Result<PathBuf> {
    let step = || "find the resctrl file system";
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").failing(Kind::LimitUnenforceable, step)?;
    let found = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("resctrl ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    });
    if let Some(path) = found {
        return Ok(path);
    }
    let known = std::fs::read_to_string("/proc/filesystems").failing(Kind::LimitUnenforceable, step)?;
    let error = |words: &str| Error::new(Kind::LimitUnenforceable, words).doing("use `linux.intelRdt`");
    if known.split_whitespace().any(|name| name == "resctrl") {
        return Err(error("the resctrl file system is not mounted").hint("mount -t resctrl resctrl /sys/fs/resctrl"));
    }
    Err(error("this kernel has no resctrl file system: the processor cannot divide its cache, or the kernel is built without it")
        .hint("remove `linux.intelRdt`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(clos_id: &str, schemata: &[&str]) -> IntelRdt {
        IntelRdt {
            clos_id: clos_id.into(),
            schemata: schemata.iter().map(|line| (*line).to_owned()).collect(),
            l3_cache_schema: "L3:0=f".into(),
            ..IntelRdt::default()
        }
    }

    #[test]
    fn only_a_group_that_brig_made_is_removed() {
        let top = tempfile::tempdir().unwrap();
        let group = create_below(top.path(), &config("", &["MB:0=50"]), "box").unwrap();
        assert_eq!(std::fs::read_to_string(top.path().join("box/schemata")).unwrap(), "MB:0=50\n");
        group.join(77).unwrap();
        assert_eq!(std::fs::read_to_string(top.path().join("box/tasks")).unwrap(), "77");
        // The kernel removes the files with the directory.
        for file in ["schemata", "tasks"] {
            std::fs::remove_file(top.path().join("box").join(file)).unwrap();
        }
        group.remove().unwrap();
        assert!(!top.path().join("box").exists());
        std::fs::create_dir(top.path().join("there")).unwrap();
        create_below(top.path(), &config("there", &[]), "box").unwrap().remove().unwrap();
        assert!(top.path().join("there").exists());
    }

    #[test]
    fn path_as_name_and_missing_group_are_refused() {
        let top = tempfile::tempdir().unwrap();
        for name in ["a/b", "..", ".", "info", "mon_groups"] {
            assert_eq!(create_below(top.path(), &config(name, &[]), "box").unwrap_err().kind(), Kind::Spec, "{name}");
        }
        let missing = IntelRdt { clos_id: "missing".into(), ..IntelRdt::default() };
        assert!(create_below(top.path(), &missing, "box").is_err());
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
    }
}
