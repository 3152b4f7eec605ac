//! Writes limits, and updates them with a rollback.

use super::controller::Controller;
use super::devices;
use super::group::{Cgroup, DeviceControl, Group};
use super::hierarchy::has_swap;
use super::plan::{self, Missing, Write};
use crate::error::{Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use rustix::io::Errno;

/// Repeats a refused write at the end, since it may depend on another file's old value. Examples: memory above memory
/// and swap, a period below the quota, a burst above it.
pub(super) fn write_all(cgroup: &Cgroup, writes: &[Write]) -> Result<()> {
    let mut refused = Vec::new();
    for write in writes {
        match write_one(cgroup, write) {
            Ok(()) => {}
            Err(error) if is_invalid_value(&error) && writes.len() > 1 => refused.push(write),
            Err(error) => return Err(error),
        }
    }
    refused.into_iter().try_for_each(|write| write_one(cgroup, write))
}

fn is_invalid_value(error: &Error) -> bool {
    error.errno() == Some(Errno::INVAL.raw_os_error())
}

fn write_one(cgroup: &Cgroup, write: &Write) -> Result<()> {
    let group = target(cgroup, write)?;
    let errno = match group.directory.write(&write.file, &write.value) {
        Ok(()) => return Ok(()),
        Err(errno) => errno,
    };
    match &write.missing {
        _ if errno != Errno::NOENT => Err(group.directory.refused(&write.file, &write.value, errno)),
        Missing::Ignore => Ok(()),
        Missing::NoSwap if write.value.starts_with(['-', 'm']) || !has_swap() => Ok(()),
        Missing::NoSwap => {
            let error = group.directory.refused(&write.file, &write.value, Errno::NOENT);
            Err(error.of_kind(Kind::LimitUnenforceable))
        }
        Missing::Instead(file, value) => group.directory.set(file, value),
        Missing::Refuse => {
            let error = group.directory.refused(&write.file, &write.value, Errno::NOENT);
            Err(error.of_kind(Kind::LimitUnenforceable))
        }
    }
}

fn target<'a>(cgroup: &'a Cgroup, write: &Write) -> Result<&'a Group> {
    let found = match write.controller {
        Some(controller) => cgroup.group(controller),
        None => cgroup.v2(),
    };
    found.ok_or_else(|| {
        let name = write.controller.map_or("cgroup", Controller::name_v1);
        Error::new(Kind::LimitUnenforceable, format!("the container has no group of the controller `{name}`"))
            .doing(format!("write `{}` to `{}`", write.value, write.file))
    })
}

impl Cgroup {
    /// If one change fails, restores the old values.
    pub(crate) fn update(&self, limits: &Resources) -> Result<()> {
        let writes = plan::writes(limits, |controller| self.is_v1(controller))?;
        self.check_usage(limits)?;
        let old: Vec<Write> = writes.iter().filter_map(|write| self.old_value(write)).collect();
        let done = write_all(self, &writes).and_then(|()| self.update_devices(limits));
        done.doing(|| "update the container's limits").map_err(|error| match write_all(self, &old) {
            Ok(()) => error,
            Err(second) => error.doing(format!("restore the old limits ({second})")),
        })
    }

    /// Adds the current quota or period, which share a v2 file. A new swap limit needs the current memory limit.
    pub(crate) fn completed(&self, limits: &Resources) -> Resources {
        let mut limits = limits.clone();
        let read = |controller, file| {
            let group = self.group(controller).filter(|group| group.is_v2)?;
            group.directory.read(file).ok()
        };
        let is_set = |value: i64| value != 0;
        let (quota, period) = (limits.cpu.quota.is_some_and(is_set), limits.cpu.period.is_some_and(|value| value != 0));
        if quota != period
            && let Some(text) = read(Controller::Cpu, "cpu.max")
            && let Some((old_quota, old_period)) = text.trim().split_once(' ')
        {
            if quota {
                limits.cpu.period = old_period.parse().ok();
            } else {
                limits.cpu.quota = old_quota.parse().ok();
            }
        }
        let memory = &mut limits.memory;
        if memory.swap.is_some_and(is_set) && !memory.limit.is_some_and(is_set) {
            memory.limit = read(Controller::Memory, "memory.max").and_then(|text| text.trim().parse().ok());
        }
        limits
    }

    fn update_devices(&self, limits: &Resources) -> Result<()> {
        let Some(group) = self.device_group().filter(|_| !limits.devices.is_empty()) else { return Ok(()) };
        match devices::control(group, &limits.devices, false)? {
            DeviceControl::InForce | DeviceControl::NotAsked => Ok(()),
            DeviceControl::NotPermitted => Err(Error::os(Kind::Cgroup, Errno::PERM)
                .doing("change the device rules")
                .hint("run as root of the host")),
        }
    }

    pub(super) fn is_v1(&self, controller: Controller) -> bool {
        // `target` reports a controller without a group.
        match self.group(controller) {
            Some(group) => !group.is_v2,
            None => self.groups.iter().any(|group| !group.is_v2),
        }
    }

    /// `checkBeforeUpdate`: a limit below what is in use would start killing.
    fn check_usage(&self, limits: &Resources) -> Result<()> {
        let (Some(true), Some(limit)) = (limits.memory.check_before_update, limits.memory.limit) else { return Ok(()) };
        let (Some(used), Ok(limit)) = (self.usage()?.memory_current, u64::try_from(limit)) else { return Ok(()) };
        if limit != 0 && limit < used {
            let words = format!("rejecting memory limit {limit} because of the usage ({used})");
            return Err(Error::new(Kind::State, words).doing("update the container's limits"));
        }
        Ok(())
    }

    fn old_value(&self, write: &Write) -> Option<Write> {
        let text = target(self, write).ok()?.directory.read(&write.file).ok()?;
        Some(Write { value: restoring_value(&write.file, &write.value, &text), ..write.clone() })
    }
}

/// `text` is the old content of `file`; `value` was written.
fn restoring_value(file: &str, value: &str, text: &str) -> String {
    let key = value.split(' ').next().unwrap_or_default();
    let of_key = |key: &str| text.lines().find(|line| line.split(' ').next() == Some(key));
    match file {
        "memory.oom_control" => {
            of_key("oom_kill_disable").and_then(|line| line.split(' ').nth(1)).unwrap_or("0").to_owned()
        }
        // One line for each device with a limit.
        "io.max" => of_key(key).map_or(format!("{key} rbps=max wbps=max riops=max wiops=max"), str::to_owned),
        "rdma.max" => of_key(key).map_or(format!("{key} hca_handle=max hca_object=max"), str::to_owned),
        _ if key.contains(':') && file.starts_with("io.") => {
            of_key(key).map_or(format!("{key} default"), str::to_owned)
        }
        _ if key.contains(':') => of_key(key).map_or(format!("{key} 0"), str::to_owned),
        _ if text.lines().count() > 1 => {
            // The default line of a file with devices (`io.weight`).
            of_key("default").map_or_else(|| value.to_owned(), str::to_owned)
        }
        // An empty list means the parent's processors. Write an empty line: the kernel ignores an empty write.
        _ if text.trim().is_empty() => "\n".to_owned(),
        _ => text.trim().to_owned(),
    }
}

#[cfg(test)]
mod unit {
    use super::restoring_value;

    #[test]
    fn old_value_can_be_restored() {
        for (file, value, text, expected) in [
            ("memory.max", "5", "max\n", "max"),
            ("cpu.max", "1000 100000", "50000 100000\n", "50000 100000"),
            ("cpuset.cpus", "0", "\n", "\n"),
            ("memory.oom_control", "1", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "0"),
            ("io.max", "8:0 rbps=1", "", "8:0 rbps=max wbps=max riops=max wiops=max"),
            ("io.max", "8:0 rbps=1", "8:16 rbps=9\n8:0 rbps=2 wbps=max\n", "8:0 rbps=2 wbps=max"),
            ("io.weight", "50", "default 100\n8:0 70\n", "default 100"),
            ("io.bfq.weight", "8:0 50", "default 100\n", "8:0 default"),
            ("blkio.throttle.read_bps_device", "8:0 5", "8:16 7\n", "8:0 0"),
            ("blkio.throttle.read_bps_device", "8:0 5", "8:0 7\n", "8:0 7"),
            (
                "rdma.max",
                "mlx5_0 hca_handle=1",
                "mlx5_0 hca_handle=max hca_object=max\n",
                "mlx5_0 hca_handle=max hca_object=max",
            ),
        ] {
            assert_eq!(restoring_value(file, value, text), expected, "{file}={value} over {text:?}");
        }
    }
}
