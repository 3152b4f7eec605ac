//! The limits of a sandbox: one table of names, defaults, and their form on the command line.

use crate::error::{Error, Kind, Result, words};
use crate::spec::parse_size;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

words! {
    /// Every limit, by one name in command line, profile, receipt and errors. Flags have dashes for underscores.
    pub enum LimitName {
        /// Processors, as a share of their time.
        Cpus = "cpus",
        /// Processor time of all processes together.
        CpuTime = "cpu_time",
        /// Memory of all processes together, page cache and tmpfs included.
        Memory = "memory",
        /// Swap of all processes together.
        Swap = "swap",
        /// Processes and threads.
        Pids = "pids",
        /// Bytes of everything writable together.
        Disk = "disk",
        /// Files, directories and links of everything writable together.
        Inodes = "inodes",
        /// Open descriptors of one process.
        OpenFiles = "open_files",
        /// Time from start to end.
        Wall = "wall",
        /// Time without a byte of output.
        Idle = "idle",
        /// Bytes of standard output and error together.
        OutputBytes = "output_bytes",
        /// Bytes a second, for reads and for writes separately.
        IoBps = "io_bps",
        /// Operations a second, for reads and for writes separately.
        IoIops = "io_iops",
    }
}

impl LimitName {
    /// The meaning, for the help.
    pub fn meaning(self) -> &'static str {
        match self {
            LimitName::Cpus => "Processors",
            LimitName::CpuTime => "Processor time of all processes together",
            LimitName::Memory => "Memory of all processes together",
            LimitName::Swap => "Swap of all processes together",
            LimitName::Pids => "Processes and threads",
            LimitName::Disk => "Bytes of everything writable together",
            LimitName::Inodes => "Files of everything writable together",
            LimitName::OpenFiles => "Open descriptors of one process",
            LimitName::Wall => "Time from start to end",
            LimitName::Idle => "Time without output",
            LimitName::OutputBytes => "Bytes of output",
            LimitName::IoBps => "Bytes a second read and, apart, written",
            LimitName::IoIops => "Operations a second read and, apart, written",
        }
    }

    /// The form of the value, for the help.
    pub const fn form(self) -> &'static str {
        match self {
            LimitName::Cpus | LimitName::Pids | LimitName::Inodes | LimitName::OpenFiles | LimitName::IoIops => "N",
            LimitName::CpuTime | LimitName::Wall | LimitName::Idle => "TIME|none",
            _ => "SIZE",
        }
    }
}

/// The limits of one sandbox. All hold from the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors.
    pub cpus: f64,
    /// Processor time, in seconds; null: not limited.
    #[serde(with = "seconds")]
    pub cpu_time: Duration,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub swap: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes. `None`: 10 GiB on disk; half the memory limit where only memory can hold the files.
    pub disk: Option<u64>,
    /// Files.
    pub inodes: u64,
    /// Descriptors of one process.
    pub open_files: u64,
    /// Seconds; null: not limited.
    #[serde(with = "seconds")]
    pub wall: Duration,
    /// Seconds; null: not limited.
    #[serde(with = "seconds")]
    pub idle: Duration,
    /// Bytes.
    pub output_bytes: u64,
    /// Bytes a second. `None`: not limited. No default suits every disk, and cgroup v1 enforces it only with
    /// synchronous writes.
    pub io_bps: Option<u64>,
    /// Operations a second. `None`: not limited.
    pub io_iops: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            cpus: 2.0,
            cpu_time: Duration::from_secs(4 * 3600),
            memory: 4 << 30,
            swap: 0,
            pids: 1024,
            disk: None,
            inodes: 1_000_000,
            open_files: 8192,
            wall: Duration::from_secs(2 * 3600),
            idle: Duration::from_secs(30 * 60),
            output_bytes: 256 << 20,
            io_bps: None,
            io_iops: None,
        }
    }
}

const NONE: &str = "none";
/// The image is a file, and ext4, the file system of most hosts, limits files to 16 TiB.
const MOST_DISK: u64 = 8 << 40;
/// The inode table is in the same image.
const MOST_INODES: u64 = 1 << 30;

impl Limits {
    /// A time without a limit: longer than a machine lives, and no overflow in the arithmetic of clocks.
    pub const NO_TIME_LIMIT: Duration = Duration::from_secs(1 << 32);

    /// When a time of any length has passed.
    pub(crate) fn end_of(time: Duration) -> Instant {
        Instant::now() + time.min(Limits::NO_TIME_LIMIT)
    }

    pub(crate) const DISK: u64 = 10 << 30;
    /// Uncounted kernel memory may be this part of the memory limit.
    pub(crate) const UNCOUNTED: u64 = 4;

    /// Of everything writable together.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk.unwrap_or(if crate::container::privileged() { Limits::DISK } else { self.memory / 2 })
    }

    /// Sets one limit from the command line or a profile.
    pub fn set(&mut self, name: LimitName, text: &str) -> Result<()> {
        match name {
            LimitName::Cpus => self.cpus = cpus(text)?,
            LimitName::CpuTime => self.cpu_time = duration(name, text)?,
            LimitName::Memory => self.memory = bytes(name, text, 1 << 20)?,
            LimitName::Swap => self.swap = bytes(name, text, 0)?,
            LimitName::Pids => self.pids = count(name, text, 2)?,
            LimitName::Disk => self.disk = Some(at_most(name, text, bytes(name, text, 4 << 20)?, MOST_DISK)?),
            LimitName::Inodes => self.inodes = at_most(name, text, count(name, text, 64)?, MOST_INODES)?,
            LimitName::OpenFiles => self.open_files = count(name, text, 16)?,
            LimitName::Wall => self.wall = duration(name, text)?,
            LimitName::Idle => self.idle = duration(name, text)?,
            LimitName::OutputBytes => self.output_bytes = bytes(name, text, 1)?,
            LimitName::IoBps => self.io_bps = Some(bytes(name, text, 4096)?),
            LimitName::IoIops => self.io_iops = Some(count(name, text, 1)?),
        }
        Ok(())
    }

    /// Each limit with its value as text.
    pub fn rows(&self) -> Vec<(LimitName, String)> {
        LimitName::ALL.iter().map(|&name| (name, self.value(name))).collect()
    }

    pub(crate) fn value(&self, name: LimitName) -> String {
        let optional = |value: Option<u64>| value.map_or_else(|| "not limited".to_owned(), |value| value.to_string());
        match name {
            LimitName::Cpus => self.cpus.to_string(),
            LimitName::CpuTime => time(self.cpu_time),
            LimitName::Memory => size(self.memory),
            LimitName::Swap => size(self.swap),
            LimitName::Pids => self.pids.to_string(),
            LimitName::Disk => self.disk.map_or_else(|| "by the backing".to_owned(), size),
            LimitName::Inodes => self.inodes.to_string(),
            LimitName::OpenFiles => self.open_files.to_string(),
            LimitName::Wall => time(self.wall),
            LimitName::Idle => time(self.idle),
            LimitName::OutputBytes => size(self.output_bytes),
            LimitName::IoBps => self.io_bps.map_or_else(|| "not limited".to_owned(), size),
            LimitName::IoIops => optional(self.io_iops),
        }
    }

    /// Returns seconds, bytes or a count; infinite without a limit.
    pub(crate) fn amount(&self, name: LimitName) -> f64 {
        let optional = |value: Option<u64>| value.map_or(f64::INFINITY, |value| value as f64);
        match name {
            LimitName::Cpus => self.cpus,
            LimitName::CpuTime => seconds_or_none(self.cpu_time).unwrap_or(f64::INFINITY),
            LimitName::Memory => self.memory as f64,
            LimitName::Swap => self.swap as f64,
            LimitName::Pids => self.pids as f64,
            LimitName::Disk => self.disk.unwrap_or(Limits::DISK) as f64,
            LimitName::Inodes => self.inodes as f64,
            LimitName::OpenFiles => self.open_files as f64,
            LimitName::Wall => seconds_or_none(self.wall).unwrap_or(f64::INFINITY),
            LimitName::Idle => seconds_or_none(self.idle).unwrap_or(f64::INFINITY),
            LimitName::OutputBytes => self.output_bytes as f64,
            LimitName::IoBps => optional(self.io_bps),
            LimitName::IoIops => optional(self.io_iops),
        }
    }

    pub(crate) fn copy_from(&mut self, name: LimitName, other: &Limits) {
        match name {
            LimitName::Cpus => self.cpus = other.cpus,
            LimitName::CpuTime => self.cpu_time = other.cpu_time,
            LimitName::Memory => self.memory = other.memory,
            LimitName::Swap => self.swap = other.swap,
            LimitName::Pids => self.pids = other.pids,
            LimitName::Disk => self.disk = other.disk,
            LimitName::Inodes => self.inodes = other.inodes,
            LimitName::OpenFiles => self.open_files = other.open_files,
            LimitName::Wall => self.wall = other.wall,
            LimitName::Idle => self.idle = other.idle,
            LimitName::OutputBytes => self.output_bytes = other.output_bytes,
            LimitName::IoBps => self.io_bps = other.io_bps,
            LimitName::IoIops => self.io_iops = other.io_iops,
        }
    }
}

/// Bytes in the largest unit that needs no rounding, such as `512M`.
pub fn size(bytes: u64) -> String {
    [("T", 40), ("G", 30), ("M", 20), ("K", 10)]
        .into_iter()
        .find(|&(_, shift)| bytes >= 1 << shift && bytes.trailing_zeros() >= shift)
        .map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// A number with its noun: "1 file", "2 files".
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn wrong(name: LimitName, text: &str, why: impl std::fmt::Display, example: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a value for `{}`: {why}", name.word()))
        .hint(format!("give it like `{example}`"))
}

fn bytes(name: LimitName, text: &str, least: u64) -> Result<u64> {
    let value = parse_size(text).map_err(|cause| wrong(name, text, cause, "512M"))?;
    at_least(name, text, value, least, "512M")
}

fn count(name: LimitName, text: &str, least: u64) -> Result<u64> {
    let value = text.parse().map_err(|cause| wrong(name, text, cause, "1024"))?;
    at_least(name, text, value, least, "1024")
}

fn at_least(name: LimitName, text: &str, value: u64, least: u64, example: &str) -> Result<u64> {
    if value < least {
        return Err(wrong(name, text, format!("the least is {}", size(least)), example));
    }
    // The kernel counts in signed 64 bits.
    if i64::try_from(value).is_err() {
        return Err(wrong(name, text, "it is too large", example));
    }
    Ok(value)
}

fn at_most(name: LimitName, text: &str, value: u64, most: u64) -> Result<u64> {
    if value <= most { Ok(value) } else { Err(wrong(name, text, format!("the most is {}", size(most)), &size(most))) }
}

fn time(limit: Duration) -> String {
    if limit == Limits::NO_TIME_LIMIT { NONE.to_owned() } else { humantime::format_duration(limit).to_string() }
}

fn seconds_or_none(limit: Duration) -> Option<f64> {
    (limit != Limits::NO_TIME_LIMIT).then_some(limit.as_secs_f64())
}

fn duration(name: LimitName, text: &str) -> Result<Duration> {
    if text == NONE {
        return Ok(Limits::NO_TIME_LIMIT);
    }
    let value = humantime::parse_duration(text).map_err(|cause| wrong(name, text, cause, "10m"))?;
    if value.is_zero() {
        return Err(wrong(name, text, "it must be longer than nothing", "10m"));
    }
    if value >= Limits::NO_TIME_LIMIT {
        return Err(wrong(name, text, "it is longer than any clock counts", NONE));
    }
    Ok(value)
}

fn cpus(text: &str) -> Result<f64> {
    let value: f64 = text.parse().map_err(|cause| wrong(LimitName::Cpus, text, cause, "1.5"))?;
    if (0.01..=8192.0).contains(&value) {
        Ok(value)
    } else {
        Err(wrong(LimitName::Cpus, text, "it must be between 0.01 and 8192", "1.5"))
    }
}

mod seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match super::seconds_or_none(*value) {
            Some(seconds) => to.serialize_f64(seconds),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        match Option::<f64>::deserialize(from)? {
            Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom),
            None => Ok(super::Limits::NO_TIME_LIMIT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_takes_its_text_and_refuses_nonsense() {
        let check = |name, good: &str, expected: &str| {
            let mut limits = Limits::default();
            limits.set(name, good).unwrap();
            assert_eq!(limits.rows().into_iter().find(|row| row.0 == name).unwrap().1, expected);
            for bad in ["", "x", "-1", "1 potato", "99999999999999999999"] {
                let error = limits.set(name, bad).unwrap_err();
                assert!(error.to_string().contains(name.word()) && error.advice().is_some(), "{name:?} {bad}: {error}");
            }
        };
        check(LimitName::Cpus, "1.5", "1.5");
        check(LimitName::CpuTime, "90s", "1m 30s");
        check(LimitName::Memory, "512M", "512M");
        check(LimitName::Swap, "1g", "1G");
        check(LimitName::Pids, "50", "50");
        check(LimitName::Disk, "64MiB", "64M");
        check(LimitName::Inodes, "1000", "1000");
        check(LimitName::OpenFiles, "64", "64");
        check(LimitName::Wall, "10m", "10m");
        check(LimitName::Idle, "2s", "2s");
        check(LimitName::OutputBytes, "10k", "10K");
        check(LimitName::IoBps, "1M", "1M");
        check(LimitName::IoIops, "100", "100");
    }

    #[test]
    fn a_time_without_a_limit_is_null_in_records_and_above_every_ceiling() {
        let mut limits = Limits::default();
        for name in [LimitName::Wall, LimitName::Idle, LimitName::CpuTime] {
            limits.set(name, "none").unwrap();
            assert_eq!((limits.value(name).as_str(), limits.amount(name)), ("none", f64::INFINITY));
            assert!(Limits::default().set(name, "200years").is_err());
        }
        let written = serde_json::to_value(&limits).unwrap();
        assert!(written["wall"].is_null() && written["idle"].is_null() && written["cpu_time"].is_null(), "{written}");
        assert_eq!(serde_json::from_value::<Limits>(written).unwrap(), limits);
        assert!(limits.set(LimitName::Memory, "none").is_err());
    }

    #[test]
    fn zero_limit_is_refused() {
        let mut limits = Limits::default();
        for name in LimitName::ALL.iter().copied().filter(|&name| name != LimitName::Swap) {
            assert!(limits.set(name, "0").is_err(), "{name:?}");
        }
        limits.set(LimitName::Swap, "0").unwrap();
    }
}
