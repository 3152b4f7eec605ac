//! Scheduling, I/O priority, memory policy, personality, labels. [`plan`] turns config.json's words into numbers before
//! anything is created.

use super::procfs::Procfs;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::spec::config::linux::{Linux, MemoryPolicy, Personality};
use crate::spec::config::process::{IoPriority, Process, Scheduler};
use crate::spec::resources::bits_of_list;
use crate::sys::attributes::{self as sys, SchedAttr};
use nix::sys::personality::{Persona, set as set_personality};

/// The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    scheduling: Option<SchedAttr>,
    io_priority: Option<u32>,
    memory_policy: Option<(u32, Vec<u64>)>,
    personality: Option<u32>,
    /// Applied once the process is in the cgroup.
    pub affinity: Option<Vec<u64>>,
    apparmor: String,
    selinux: String,
}

pub(crate) fn plan(process: &Process, linux: &Linux) -> Result<Attributes> {
    let memory_policy = linux.memory_policy.as_ref().map(memory_policy_of).transpose()?;
    let personality = linux.personality.as_ref().map(personality).transpose()?;
    if !process.selinux_label.is_empty() && !has_selinux() {
        // runc's words. Without SELinux another security module would read the label.
        return Err(Error::new(
            Kind::Spec,
            "selinux label is specified in config, but selinux is disabled or not supported",
        )
        .hint("leave `process.selinuxLabel` out"));
    }
    Ok(Attributes {
        scheduling: process.scheduler.as_ref().map(scheduling).transpose()?,
        io_priority: process.io_priority.as_ref().map(io_priority).transpose()?,
        memory_policy,
        personality,
        affinity: None,
        apparmor: process.apparmor_profile.clone(),
        selinux: process.selinux_label.clone(),
    })
}

impl Attributes {
    pub(super) fn apply(&self) -> Result<()> {
        if let Some(cpus) = &self.affinity {
            sys::set_affinity(cpus).failing(Kind::Identity, || "set the CPU affinity")?;
        }
        if let Some(scheduling) = &self.scheduling {
            sys::set_scheduling(scheduling).failing(Kind::Identity, || "set the scheduler")?;
        }
        if let Some(value) = self.io_priority {
            sys::set_io_priority(value).failing(Kind::Identity, || "set the I/O priority")?;
        }
        if let Some(value) = self.personality {
            set_personality(Persona::from_bits_retain(value as i32))
                .map(drop)
                .failing(Kind::Identity, || "set the personality")?;
        }
        if let Some((mode, nodes)) = &self.memory_policy {
            sys::set_memory_policy(*mode, nodes).failing(Kind::Identity, || "set the memory policy")?;
        }
        Ok(())
    }

    /// New keyrings get the program's SELinux label: it could not search its session keyring otherwise. execve(2)
    /// resets this.
    pub(super) fn label_keys(&self) -> Result<()> {
        if self.selinux.is_empty() {
            return Ok(());
        }
        Procfs::open()?
            .write("thread-self/attr/keycreate", &self.selinux)
            .doing(|| format!("apply the SELinux label `{}`", self.selinux))
    }

    /// Sets the labels before the process sees the container. A child inherits both and writes none again.
    pub(super) fn label_ahead(&mut self) -> Result<()> {
        self.label_keys()?;
        self.label(Procfs::open)?;
        self.selinux.clear();
        self.apparmor.clear();
        Ok(())
    }

    /// Whether an attribute may need CAP_SYS_NICE.
    pub(super) fn need_priority(&self) -> bool {
        self.scheduling.is_some() || self.io_priority.is_some()
    }

    /// The program gets these labels at execve(2).
    pub(super) fn label(&self, procfs: impl FnOnce() -> Result<Procfs>) -> Result<()> {
        if self.apparmor.is_empty() && self.selinux.is_empty() {
            return Ok(());
        }
        let procfs = procfs()?;
        if !self.apparmor.is_empty() {
            let value = format!("exec {}", self.apparmor);
            let written = procfs
                .write("thread-self/attr/apparmor/exec", &value)
                .or_else(|_| procfs.write("thread-self/attr/exec", &value))
                // The kernel's error names a file, which callers would look for in the container.
                .map_err(|error| if has_labels(&procfs) { error } else { no_apparmor() });
            written.doing(|| format!("apply the AppArmor profile `{}`", self.apparmor))?;
        }
        if !self.selinux.is_empty() {
            procfs
                .write("thread-self/attr/exec", &self.selinux)
                .doing(|| format!("apply the SELinux label `{}`", self.selinux))?;
        }
        Ok(())
    }
}

/// Its file system is mounted writable, as libselinux asks.
fn has_selinux() -> bool {
    /// `SELINUX_MAGIC` of linux/magic.h.
    const MAGIC: i64 = 0xf97c_ff8c;
    rustix::fs::statfs("/sys/fs/selinux").is_ok_and(|found| found.f_type == MAGIC)
        && rustix::fs::statvfs("/sys/fs/selinux")
            .is_ok_and(|found| !found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Without a security module the kernel refuses to write a label.
fn has_labels(procfs: &Procfs) -> bool {
    ["thread-self/attr/apparmor/current", "thread-self/attr/current"].iter().any(|path| procfs.can_read(path))
}

/// runc's words.
fn no_apparmor() -> Error {
    Error::new(Kind::Identity, "apparmor: config provided but apparmor not supported")
        .hint("boot with `apparmor=1`, or leave `process.apparmorProfile` out")
}

fn word(table: &[(&str, u64)], word: &str, what: &str) -> Result<u64> {
    let found = table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    found.ok_or_else(|| Error::new(Kind::Spec, format!("`{word}` is not a valid {what}")))
}

/// linux/sched.h.
const POLICIES: [(&str, u64); 7] = [
    ("SCHED_OTHER", 0),
    ("SCHED_FIFO", 1),
    ("SCHED_RR", 2),
    ("SCHED_BATCH", 3),
    ("SCHED_ISO", 4),
    ("SCHED_IDLE", 5),
    ("SCHED_DEADLINE", 6),
];

const POLICY_FLAGS: [(&str, u64); 7] = [
    ("SCHED_FLAG_RESET_ON_FORK", 0x01),
    ("SCHED_FLAG_RECLAIM", 0x02),
    ("SCHED_FLAG_DL_OVERRUN", 0x04),
    ("SCHED_FLAG_KEEP_POLICY", 0x08),
    ("SCHED_FLAG_KEEP_PARAMS", 0x10),
    ("SCHED_FLAG_UTIL_CLAMP_MIN", 0x20),
    ("SCHED_FLAG_UTIL_CLAMP_MAX", 0x40),
];

fn scheduling(asked: &Scheduler) -> Result<SchedAttr> {
    let policy = word(&POLICIES, &asked.policy, "scheduling policy")?;
    if !matches!(policy, 1 | 2) && asked.priority != 0 {
        return Err(Error::new(Kind::Spec, "scheduler.priority can only be specified for SchedFIFO or SchedRR policy"));
    }
    if policy != 6 && (asked.runtime, asked.deadline, asked.period) != (0, 0, 0) {
        return Err(Error::new(
            Kind::Spec,
            "scheduler runtime/deadline/period can only be specified for SchedDeadline policy",
        ));
    }
    if !(-20..=19).contains(&asked.nice) {
        return Err(Error::new(Kind::Spec, format!("invalid scheduler.nice: {}", asked.nice)));
    }
    let flags = asked
        .flags
        .iter()
        .try_fold(0, |bits, flag| word(&POLICY_FLAGS, flag, "scheduling flag").map(|bit| bits | bit))?;
    Ok(SchedAttr {
        policy: policy as u32,
        flags,
        nice: asked.nice,
        priority: asked.priority.unsigned_abs(),
        runtime: asked.runtime,
        deadline: asked.deadline,
        period: asked.period,
        ..SchedAttr::default()
    })
}

/// linux/ioprio.h: the class is above 13 bits of data.
fn io_priority(asked: &IoPriority) -> Result<u32> {
    const CLASSES: [(&str, u64); 3] = [("IOPRIO_CLASS_RT", 1), ("IOPRIO_CLASS_BE", 2), ("IOPRIO_CLASS_IDLE", 3)];
    let class = word(&CLASSES, &asked.class, "I/O class")? as u32;
    match u32::try_from(asked.priority) {
        Ok(priority @ 0..=7) => Ok(class << 13 | priority),
        _ => Err(Error::new(Kind::Spec, format!("invalid ioPriority.Priority: {}", asked.priority))),
    }
}

/// linux/mempolicy.h.
fn memory_policy_of(asked: &MemoryPolicy) -> Result<(u32, Vec<u64>)> {
    // runc's words.
    let known = |table: &[(&str, u64)], name: &str, what: &str| {
        word(table, name, what).map_err(|_| Error::new(Kind::Spec, format!("invalid memory policy {what} {name:?}")))
    };
    let mode = known(&MEMORY_MODES, &asked.mode, "mode")?;
    let flags =
        asked.flags.iter().try_fold(0, |bits, flag| known(&MEMORY_FLAGS, flag, "flag").map(|bit| bits | bit))?;
    let nodes = bits_of_list(&asked.nodes).doing(|| format!("invalid memory policy nodes {:?}", asked.nodes))?;
    let wants_none = matches!(asked.mode.as_str(), "MPOL_DEFAULT" | "MPOL_LOCAL");
    if wants_none != nodes.is_empty() && asked.mode != "MPOL_PREFERRED" {
        return Err(Error::new(
            Kind::Spec,
            format!("invalid memory policy: mode `{}` with nodes `{}` contradicts itself", asked.mode, asked.nodes),
        ));
    }
    Ok(((mode | flags) as u32, nodes))
}

pub(crate) const MEMORY_MODES: [(&str, u64); 7] = [
    ("MPOL_DEFAULT", 0),
    ("MPOL_PREFERRED", 1),
    ("MPOL_BIND", 2),
    ("MPOL_INTERLEAVE", 3),
    ("MPOL_LOCAL", 4),
    ("MPOL_PREFERRED_MANY", 5),
    ("MPOL_WEIGHTED_INTERLEAVE", 6),
];

pub(crate) const MEMORY_FLAGS: [(&str, u64); 3] =
    [("MPOL_F_STATIC_NODES", 1 << 15), ("MPOL_F_RELATIVE_NODES", 1 << 14), ("MPOL_F_NUMA_BALANCING", 1 << 13)];

fn personality(asked: &Personality) -> Result<u32> {
    if let Some(flag) = asked.flags.first() {
        return Err(Error::new(Kind::Spec, format!("`{flag}` is not a flag of a personality")));
    }
    // linux/personality.h: PER_LINUX, PER_LINUX32.
    word(&[("LINUX", 0), ("LINUX32", 8)], &asked.domain, "personality").map(|value| value as u32)
}

/// The kernel keeps those that exist and that the cgroup allows.
pub(crate) fn every_cpu() -> Vec<u64> {
    vec![u64::MAX; 128]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_kernels_numbers_or_errors() {
        let class = |class: &str, priority| io_priority(&IoPriority { class: class.into(), priority });
        assert_eq!(class("IOPRIO_CLASS_BE", 4).unwrap(), 2 << 13 | 4);
        assert!(class("IOPRIO_CLASS_BE", 8).is_err() && class("BE", 1).is_err());
        let policy =
            |policy: &str, priority| scheduling(&Scheduler { policy: policy.into(), priority, ..Scheduler::default() });
        assert_eq!(policy("SCHED_RR", 5).unwrap().priority, 5);
        assert!(policy("SCHED_OTHER", 5).is_err());
    }
}
