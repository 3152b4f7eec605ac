//! Filling [`Stats`] from the files of whichever version each controller is.

use super::{Blkio, BlkioEntry, Cpu, Cpuset, Hugetlb, Memory, MemoryEntry, Pids, Pressure, PressureLine, Stats};
use crate::cgroup::Cgroup;
use crate::cgroup::controller::Controller;
use crate::cgroup::create::Group;
use crate::cgroup::usage::{NANOSECONDS_PER_TICK, flat, number};
use std::collections::BTreeMap;

impl Cgroup {
    /// What an `events` line says. A file that is missing counts nothing, as with runc.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats { cpu: self.cpu(), ..Stats::default() };
        if let Some(group) = self.group(Controller::Cpuset).filter(|group| !group.is_v2) {
            stats.cpuset = cpuset(group);
        }
        if let Some(group) = self.group(Controller::Memory) {
            stats.memory = if group.is_v2 { memory_v2(group) } else { memory_v1(group) };
        }
        if let Some(group) = self.group(Controller::Pids) {
            let limit = number(group, "pids.max").unwrap_or(0);
            stats.pids = Pids { current: number(group, "pids.current").unwrap_or(0), limit };
        }
        if let Some(group) = self.group(Controller::Io) {
            stats.blkio = if group.is_v2 { blkio_v2(&text(group, "io.stat")) } else { blkio_v1(group) };
        }
        if let Some(group) = self.group(Controller::Hugetlb) {
            stats.hugetlb = hugetlb(group);
        }
        // Pressure is counted for every v2 group, with or without the controller.
        if let Some(group) = self.v2() {
            stats.cpu.psi = pressure(&text(group, "cpu.pressure"));
            stats.memory.psi = pressure(&text(group, "memory.pressure"));
            stats.blkio.psi = pressure(&text(group, "io.pressure"));
        }
        stats
    }

    fn cpu(&self) -> Cpu {
        let mut cpu = Cpu::default();
        if let Some(group) = self.group(Controller::Cpuacct) {
            let stat = text(group, "cpuacct.stat");
            let stat = flat(&stat);
            let ticks = |key: &str| stat.get(key).copied().unwrap_or(0) * NANOSECONDS_PER_TICK;
            (cpu.usage.user, cpu.usage.kernel) = (ticks("user"), ticks("system"));
            cpu.usage.total = number(group, "cpuacct.usage").unwrap_or(0);
            let percpu = text(group, "cpuacct.usage_percpu");
            cpu.usage.percpu = percpu.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let all = text(group, "cpuacct.usage_all");
            (cpu.usage.percpu_user, cpu.usage.percpu_kernel) = all.lines().skip(1).filter_map(user_and_system).unzip();
        } else if let Some(group) = self.v2() {
            let stat = text(group, "cpu.stat");
            let stat = flat(&stat);
            let nanoseconds = |key: &str| stat.get(key).copied().unwrap_or(0) * 1000;
            cpu.usage.total = nanoseconds("usage_usec");
            (cpu.usage.user, cpu.usage.kernel) = (nanoseconds("user_usec"), nanoseconds("system_usec"));
        }
        if let Some(group) = self.group(Controller::Cpu) {
            let stat = text(group, "cpu.stat");
            let stat = flat(&stat);
            let value = |key: &str| stat.get(key).copied().unwrap_or(0);
            cpu.throttling.periods = value("nr_periods");
            cpu.throttling.throttled_periods = value("nr_throttled");
            let time = if group.is_v2 { value("throttled_usec") * 1000 } else { value("throttled_time") };
            cpu.throttling.throttled_time = time;
        }
        cpu
    }
}

fn text(group: &Group, file: &str) -> String {
    group.directory.read(file).unwrap_or_default()
}

/// `CPU USER SYSTEM` of `cpuacct.usage_all`, below a heading.
fn user_and_system(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace().skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn cpuset(group: &Group) -> Cpuset {
    let number = |file: &str| number(group, file).unwrap_or(0);
    Cpuset {
        cpus: list(&text(group, "cpuset.cpus")),
        cpu_exclusive: number("cpuset.cpu_exclusive"),
        mems: list(&text(group, "cpuset.mems")),
        mem_hardwall: number("cpuset.mem_hardwall"),
        mem_exclusive: number("cpuset.mem_exclusive"),
        memory_migrate: number("cpuset.memory_migrate"),
        memory_spread_page: number("cpuset.memory_spread_page"),
        memory_spread_slab: number("cpuset.memory_spread_slab"),
        memory_pressure: number("cpuset.memory_pressure"),
        sched_load_balance: number("cpuset.sched_load_balance"),
        sched_relax_domain_level: text(group, "cpuset.sched_relax_domain_level").trim().parse().unwrap_or(0),
    }
}

/// `0-3,7`.
fn list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn raw(group: &Group) -> BTreeMap<String, u64> {
    flat(&text(group, "memory.stat")).into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn memory_v1(group: &Group) -> Memory {
    let entry = |prefix: &str| {
        let number = |file: &str| number(group, &format!("memory.{prefix}{file}")).unwrap_or(0);
        MemoryEntry {
            limit: number("limit_in_bytes"),
            usage: number("usage_in_bytes"),
            max: number("max_usage_in_bytes"),
            failcnt: number("failcnt"),
        }
    };
    let raw = raw(group);
    Memory {
        cache: raw.get("cache").copied().unwrap_or(0),
        usage: entry(""),
        swap: entry("memsw."),
        kernel: entry("kmem."),
        kernel_tcp: entry("kmem.tcp."),
        raw,
        psi: None,
    }
}

fn memory_v2(group: &Group) -> Memory {
    let entry = |prefix: &str| {
        let number = |file: &str| number(group, &format!("memory.{prefix}{file}"));
        MemoryEntry {
            // `max` is no number, and no limit is the largest one.
            limit: number("max").unwrap_or(u64::MAX),
            usage: number("current").unwrap_or(0),
            max: number("peak").unwrap_or(0),
            failcnt: 0,
        }
    };
    let (raw, usage, alone) = (raw(group), entry(""), entry("swap."));
    let both = alone.limit.saturating_add(usage.limit);
    // Two peaks at different times make no peak of the sum.
    let swap = MemoryEntry { limit: both, usage: alone.usage + usage.usage, max: 0, failcnt: 0 };
    Memory { cache: raw.get("file").copied().unwrap_or(0), usage, swap, raw, ..Memory::default() }
}

fn device(word: &str) -> Option<(u64, u64)> {
    let (major, minor) = word.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn blkio_v1(group: &Group) -> Blkio {
    let table = |file: &str| {
        let text = text(group, file);
        let entry = |line: &str| {
            let mut words = line.split(' ');
            let (major, minor) = device(words.next()?)?;
            Some(BlkioEntry { major, minor, op: words.next()?.to_owned(), value: words.next()?.parse().ok()? })
        };
        text.lines().filter_map(entry).collect()
    };
    Blkio {
        io_service_bytes_recursive: table("blkio.throttle.io_service_bytes_recursive"),
        io_serviced_recursive: table("blkio.throttle.io_serviced_recursive"),
        psi: None,
    }
}

fn blkio_v2(text: &str) -> Blkio {
    let mut blkio = Blkio::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some((major, minor)) = words.next().and_then(device) else { continue };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let (table, op) = match key {
                "rbytes" => (&mut blkio.io_service_bytes_recursive, "Read"),
                "wbytes" => (&mut blkio.io_service_bytes_recursive, "Write"),
                "rios" => (&mut blkio.io_serviced_recursive, "Read"),
                "wios" => (&mut blkio.io_serviced_recursive, "Write"),
                // Discards have no name in v1's tables.
                _ => continue,
            };
            let Ok(value) = value.parse() else { continue };
            table.push(BlkioEntry { major, minor, op: op.to_owned(), value });
        }
    }
    blkio
}

/// By the sizes that the group has files for.
fn hugetlb(group: &Group) -> BTreeMap<String, Hugetlb> {
    let current = if group.is_v2 { ".current" } else { ".usage_in_bytes" };
    let names = std::fs::read_dir(group.directory.path()).into_iter().flatten().flatten();
    let sizes = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(current)?;
        (!size.contains('.')).then(|| size.to_owned())
    });
    let read = |size: String| {
        let number = |file: &str| number(group, &format!("hugetlb.{size}{file}")).unwrap_or(0);
        let entry = if group.is_v2 {
            let events = text(group, &format!("hugetlb.{size}.events"));
            Hugetlb { usage: number(current), max: 0, failcnt: flat(&events).get("max").copied().unwrap_or(0) }
        } else {
            Hugetlb { usage: number(current), max: number(".max_usage_in_bytes"), failcnt: number(".failcnt") }
        };
        (size, entry)
    };
    sizes.map(read).collect()
}

fn pressure(text: &str) -> Option<Pressure> {
    let mut pressure = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let mut read = PressureLine::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => read.avg10 = value.parse().ok()?,
                "avg60" => read.avg60 = value.parse().ok()?,
                "avg300" => read.avg300 = value.parse().ok()?,
                "total" => read.total = value.parse().ok()?,
                _ => {}
            }
        }
        let pressure: &mut Pressure = pressure.get_or_insert_default();
        match kind {
            "some" => pressure.some = read,
            "full" => pressure.full = read,
            _ => {}
        }
    }
    pressure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_into_the_shape_that_callers_know() {
        assert_eq!(list("0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(list("\n"), Vec::<u16>::new());
        let psi = pressure(
            "some avg10=1.50 avg60=0.00 avg300=0.25 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
        let psi = serde_json::to_string(&psi).unwrap();
        assert_eq!(
            psi,
            r#"{"some":{"avg10":1.5,"avg60":0.0,"avg300":0.25,"total":42},"full":{"avg10":0.0,"avg60":0.0,"avg300":0.0,"total":7}}"#
        );
        let blkio =
            serde_json::to_string(&blkio_v2("254:0 rbytes=1 wbytes=2 rios=3 wios=0 dbytes=5 dios=6\n")).unwrap();
        assert_eq!(
            blkio,
            r#"{"ioServiceBytesRecursive":[{"major":254,"op":"Read","value":1},{"major":254,"op":"Write","value":2}],"ioServicedRecursive":[{"major":254,"op":"Read","value":3},{"major":254,"op":"Write"}]}"#
        );
    }

    #[test]
    fn nothing_is_what_runc_prints_for_nothing() {
        let none = r#"{"cpu":{"usage":{"kernel":0,"user":0},"throttling":{}},"cpuset":{"cpu_exclusive":0,"mem_hardwall":0,"mem_exclusive":0,"memory_migrate":0,"memory_spread_page":0,"memory_spread_slab":0,"memory_pressure":0,"sched_load_balance":0,"sched_relax_domain_level":0},"memory":{"usage":{"limit":0,"failcnt":0},"swap":{"limit":0,"failcnt":0},"kernel":{"limit":0,"failcnt":0},"kernelTCP":{"limit":0,"failcnt":0}},"pids":{},"blkio":{},"hugetlb":{},"intel_rdt":{},"network_interfaces":null}"#;
        assert_eq!(serde_json::to_string(&Stats::default()).unwrap(), none);
    }
}
