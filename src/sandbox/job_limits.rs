//! The limits of one job: each is at most that of its sandbox, which holds too.

use super::limits::{LimitName, Limits};
use crate::error::{Error, Kind, Result};
use crate::spec::resources::{Memory, Pids, Resources};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `None`: only the limit of the sandbox holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimits {
    /// Bytes, without swap.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processor time of all its processes together.
    pub cpu_time: Option<Duration>,
}

impl JobLimits {
    /// Parses like `brig task run`. Refuses a name that a job has no limit for.
    pub fn set(&mut self, name: LimitName, text: &str) -> Result<()> {
        let mut limits = Limits::default();
        limits.set(name, text)?;
        match name {
            LimitName::Memory => self.memory = Some(limits.memory),
            LimitName::Pids => self.pids = Some(limits.pids),
            LimitName::CpuTime => self.cpu_time = Some(limits.cpu_time),
            other => return Err(Error::new(Kind::Usage, format!("a job has no limit `{}`", other.word()))),
        }
        Ok(())
    }

    /// Whether only the limits of the sandbox hold.
    pub fn is_empty(&self) -> bool {
        *self == JobLimits::default()
    }

    /// Each limit is at most that of the sandbox, and one that a process can live with.
    pub(super) fn check(&self, of_task: &Limits) -> Result<()> {
        let mut own = of_task.clone();
        own.memory = self.memory.unwrap_or(own.memory);
        own.pids = self.pids.unwrap_or(own.pids);
        own.cpu_time = self.cpu_time.unwrap_or(own.cpu_time);
        for name in [LimitName::Memory, LimitName::Pids, LimitName::CpuTime] {
            let flag = name.word().replace('_', "-");
            if own.amount(name) > of_task.amount(name) {
                let (own, most) = (own.value(name), of_task.value(name));
                return Err(Error::new(Kind::Usage, format!("`--{flag} {own}` is above the task's own limit, {most}"))
                    .hint(format!("give the job at most {most}, or leave --{flag} out")));
            }
            if own.amount(name) <= 0.0 {
                return Err(Error::new(Kind::Usage, format!("`--{flag} {}` lets no process live", own.value(name)))
                    .hint(format!("leave --{flag} out")));
            }
        }
        Ok(())
    }

    /// What the kernel enforces; `None` without limits.
    pub(super) fn resources(&self) -> Option<Resources> {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let memory = self.memory.map(signed);
        (!self.is_empty()).then(|| Resources {
            // The specification's `swap` is memory and swap together.
            memory: Memory { limit: memory, swap: memory, ..Memory::default() },
            pids: Pids { limit: self.pids.map(signed) },
            oom_group: memory.is_some(),
            ..Resources::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_above_the_tasks_is_refused_by_its_name() {
        let mut task = Limits { memory: 64 << 20, pids: 10, ..Limits::default() };
        let refusal = |limits: JobLimits, task: &Limits| limits.check(task).err().map(|error| error.to_string());
        let own = JobLimits { memory: Some(64 << 20), pids: Some(10), cpu_time: Some(Duration::from_secs(60)) };
        assert_eq!(refusal(own, &task), None);
        assert_eq!(refusal(JobLimits::default(), &task), None);
        for (limits, words) in [
            (JobLimits { memory: Some(65 << 20), ..own }, "`--memory 65M` is above the task's own limit, 64M"),
            (JobLimits { pids: Some(11), ..own }, "`--pids 11` is above the task's own limit, 10"),
            (JobLimits { cpu_time: Some(Limits::NO_TIME_LIMIT), ..own }, "`--cpu-time none` is above"),
            (JobLimits { pids: Some(0), ..own }, "`--pids 0` lets no process live"),
        ] {
            assert!(refusal(limits, &task).is_some_and(|text| text.contains(words)), "{words}");
        }
        task.cpu_time = Limits::NO_TIME_LIMIT;
        assert_eq!(refusal(JobLimits { cpu_time: Some(Limits::NO_TIME_LIMIT), ..own }, &task), None);
    }
}
