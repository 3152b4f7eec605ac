//! Writing limits, and changing them with the way back.

use super::Cgroup;
use super::controller::Controller;
use super::create::Group;
use super::devices::{self, DeviceControl};
use super::plan::{self, Missing, Write};
use super::refusal;
use crate::error::{Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use rustix::io::Errno;

/// Writes all of them. A value that is refused only because of another's old value (memory above memory and swap, a
/// period below the quota, a burst above it) goes in when the rest has been written.
pub(super) fn write_all(cgroup: &Cgroup, writes: &[Write]) -> Result<()> {
    let mut refused = Vec::new();
    for write in writes {
        match write_one(cgroup, write) {
            Ok(()) => {}
            Err(error) if is_order(&error) && writes.len() > 1 => refused.push(write),
            Err(error) => return Err(error),
        }
    }
    refused.into_iter().try_for_each(|write| write_one(cgroup, write))
}

fn is_order(error: &Error) -> bool {
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
        Missing::NoSwap if write.value.starts_with(['-', 'm']) || !refusal::has_swap() => Ok(()),
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
    /// Changes the limits that `limits` names. If one cannot be changed, those changed before get their old values back.
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

    fn update_devices(&self, limits: &Resources) -> Result<()> {
        let Some(group) = self.device_group().filter(|_| !limits.devices.is_empty()) else { return Ok(()) };
        match devices::control(group, &limits.devices, false)? {
            DeviceControl::InForce | DeviceControl::NotAsked => Ok(()),
            DeviceControl::NotPermitted => Err(Error::os(Kind::Cgroup, Errno::PERM)
                .doing("change the device rules")
                .hint("run as root of the host")),
        }
    }

    fn is_v1(&self, controller: Controller) -> bool {
        // A controller that the container has no group of is named by the error of `target`, in either dialect.
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

    /// What a file says now, as a write that says it again. Files of several lines (throttles) have no one value
    /// and are left as far as they got.
    fn old_value(&self, write: &Write) -> Option<Write> {
        let text = target(self, write).ok()?.directory.read(&write.file).ok()?;
        let value = text.trim();
        let single = !value.is_empty() && !value.contains('\n');
        single.then(|| Write { value: value.to_owned(), ..write.clone() })
    }
}
