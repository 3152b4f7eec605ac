//! Limits of cache and memory bandwidth by resctrl (Documentation/filesystems/resctrl.rst; runtime-spec, "IntelRdt").
//!
//! The container's first process joins a [`Group`]. Never: removing a group that existed before.

use crate::error::{Context, Error, Kind, Result};
use crate::host::mounts;
use crate::spec::config::linux::IntelRdt;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const MONITORS: &str = "mon_groups";

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

/// Groups with the container's id, which a `create` that was killed before its record may have left.
pub(crate) fn unrecorded(config: &IntelRdt, id: &str) -> Vec<PathBuf> {
    mount_point().map_or(Vec::new(), |top| unrecorded_below(&top, config, id))
}

fn unrecorded_below(top: &Path, config: &IntelRdt, id: &str) -> Vec<PathBuf> {
    let Ok((_, path)) = find(top, config, id) else { return Vec::new() };
    let monitor = path.join(MONITORS).join(id);
    let own = config.clos_id.is_empty().then_some(path);
    [Some(monitor), own].into_iter().flatten().filter(|path| path.exists()).collect()
}

/// The group's name and path.
fn find<'name>(top: &Path, config: &'name IntelRdt, id: &'name str) -> Result<(&'name str, PathBuf)> {
    let name = if config.clos_id.is_empty() { id } else { &config.clos_id };
    match name {
        "/" => Ok((name, top.to_path_buf())),
        // Names of the file system itself.
        "." | ".." | "info" | MONITORS | "mon_data" => Err(invalid(name)),
        name if name.contains(['/', '\0', '\n']) => Err(invalid(name)),
        name => Ok((name, top.join(name))),
    }
}

fn create_below(top: &Path, config: &IntelRdt, id: &str) -> Result<Group> {
    let lines = schemata_lines(config);
    let (name, path) = find(top, config, id)?;
    if !config.clos_id.is_empty() && lines.is_empty() && !path.is_dir() {
        return Err(Error::new(Kind::Spec, "the group does not exist, and there is no schema for a new one")
            .doing(format!("use the resctrl group `{name}`"))
            .hint("give `linux.intelRdt.schemata`, or make the group first"));
    }
    let made = match std::fs::create_dir(&path) {
        Ok(()) => true,
        // As with runc, a group with the container's id is the container's: a killed `create` may have left it.
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => config.clos_id.is_empty(),
        Err(cause) => {
            return Err(cause).failing(Kind::LimitUnenforceable, || format!("make the resctrl group `{name}`"));
        }
    };
    let mut group = Group { path, made, monitor: None };
    let finished = group.write(&lines).and_then(|()| {
        if config.enable_monitoring {
            let monitor = group.path.join(MONITORS).join(id);
            let made = std::fs::create_dir(&monitor);
            made.or_else(|cause| if cause.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(cause) })
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
        for place in self.places() {
            std::fs::write(place.join("tasks"), pid.to_string())
                .failing(Kind::LimitUnenforceable, || format!("move the container into `{}`", place.display()))?;
        }
        Ok(())
    }

    /// A process that writes 0 joins.
    pub(crate) fn join_files(&self) -> Result<Vec<OwnedFd>> {
        let open = |place: &PathBuf| {
            let tasks = place.join("tasks");
            rustix::fs::open(&tasks, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .failing(Kind::LimitUnenforceable, || format!("open `{}`", tasks.display()))
        };
        self.places().map(open).collect()
    }

    /// The group comes first: it has the monitoring group.
    fn places(&self) -> impl Iterator<Item = &PathBuf> {
        [Some(&self.path), self.monitor.as_ref()].into_iter().flatten()
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
    if let Some(mount) = mounts()?.into_iter().find(|mount| mount.kind == "resctrl") {
        return Ok(mount.point);
    }
    let step = || "find the resctrl file system";
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
    use std::os::fd::AsRawFd;

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
        // A killed `create` leaves groups with the container's id.
        let monitored = |clos_id| IntelRdt { enable_monitoring: true, ..config(clos_id, &[]) };
        for (clos_id, count) in [("", 2), ("there", 1)] {
            let own = top.path().join(if clos_id.is_empty() { "box" } else { clos_id });
            std::fs::create_dir_all(own.join("mon_groups/box")).unwrap();
            assert_eq!(unrecorded_below(top.path(), &monitored(clos_id), "box").len(), count, "{clos_id}");
            let group = create_below(top.path(), &monitored(clos_id), "box").unwrap();
            assert_eq!(group.places().count(), 2);
            std::fs::remove_file(own.join("schemata")).unwrap();
            std::fs::rename(own.join("mon_groups/box"), own.join("box")).unwrap();
            std::fs::remove_dir(own.join("mon_groups")).unwrap();
            std::fs::remove_dir(own.join("box")).unwrap();
            group.remove().unwrap();
            assert_eq!(own.exists(), !clos_id.is_empty(), "{clos_id}");
        }
    }

    #[test]
    fn a_process_joins_the_group_and_then_its_monitor() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("box/mon_groups")).unwrap();
        let group = create_below(top.path(), &IntelRdt { enable_monitoring: true, ..config("", &[]) }, "box").unwrap();
        let tasks = ["box/tasks", "box/mon_groups/box/tasks"].map(|name| top.path().join(name));
        tasks.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let files = group.join_files().unwrap();
        let name = |file: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(files.iter().map(name).collect::<Vec<_>>(), tasks);
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
