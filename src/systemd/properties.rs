//! Limits as properties of a unit (systemd.resource-control(5)). Pure.
//!
//! A reload of systemd writes its properties to the group's files again: every limit that systemd can express is a
//! property. `cgroup` writes the others afterwards.

use super::names::Unit;
use super::wire::{Property, Value};
use crate::error::Result;
use crate::spec::devices::{DeviceKind, DeviceList, Rule};
use crate::spec::resources::{Resources, bits_of_list, weight_of_shares};
use std::collections::BTreeMap;

// The first version of systemd with a property.
const KNOWS_QUOTA_PERIOD: u32 = 242;
const KNOWS_CPUSET: u32 = 244;
const KNOWS_IDLE: u32 = 252;
const KNOWS_OOM_POLICY_OF_SCOPES: u32 = 253;

/// The kernel's default.
const PERIOD_US: u64 = 100_000;
/// systemd rounds a quota to whole percents: 10 ms a second.
const QUOTA_STEP_US: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    pub version: u32,
    pub is_v2: bool,
    /// `/proc/devices`: systemd names devices by their driver.
    pub devices: &'a str,
}

/// Without its limits.
pub(super) fn of_unit(unit: &Unit, pid: Option<i32>, host: Host<'_>) -> Vec<Property> {
    let mut list = Vec::new();
    let mut add = |name: &str, value: Value| list.push((name.to_owned(), value));
    add("Description", Value::Text(format!("brig container {}", unit.name)));
    if unit.is_slice() {
        add("Wants", Value::Texts(vec![unit.slice.clone()]));
    } else {
        add("Slice", Value::Text(unit.slice.clone()));
        // systemd leaves the groups below alone (systemd.resource-control(5), "Delegate=").
        add("Delegate", Value::Bool(true));
        if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
            add("PIDs", Value::Numbers(vec![pid]));
        }
    }
    let io = if host.is_v2 { "IOAccounting" } else { "BlockIOAccounting" };
    for name in ["MemoryAccounting", "CPUAccounting", io, "TasksAccounting"] {
        add(name, Value::Bool(true));
    }
    // They would start and stop the scope together with unrelated units.
    add("DefaultDependencies", Value::Bool(false));
    if !unit.is_slice() && host.version >= KNOWS_OOM_POLICY_OF_SCOPES {
        // When the kernel kills one process, brig decides, not systemd.
        add("OOMPolicy", Value::Text("continue".to_owned()));
    }
    list
}

/// Only limits that systemd can express.
pub(super) fn of_limits(limits: &Resources, host: Host<'_>) -> Result<Vec<Property>> {
    let mut list = devices(limits, host)?;
    let mut add = |name: &str, value: Value| list.push((name.to_owned(), value));
    // -1 becomes 2^64-1, which systemd reads as no limit.
    let size = |value: i64| Value::U64(value as u64);
    let memory = &limits.memory;
    if let Some(limit) = memory.limit.filter(|&limit| limit != 0) {
        add(if host.is_v2 { "MemoryMax" } else { "MemoryLimit" }, size(limit));
    }
    if host.is_v2 {
        if let Some(low) = memory.reservation.filter(|&low| low != 0) {
            add("MemoryLow", size(low));
        }
        if let Some(swap) = memory.swap_alone()? {
            add("MemorySwapMax", size(swap));
        }
    }
    let cpu = &limits.cpu;
    let is_idle = cpu.idle == Some(1) && host.is_v2 && host.version >= KNOWS_IDLE;
    if is_idle {
        add("CPUWeight", Value::U64(0));
    } else if let Some(shares) = cpu.shares.filter(|&shares| shares != 0 && cpu.idle != Some(1)) {
        match host.is_v2 {
            true => add("CPUWeight", Value::U64(weight_of_shares(shares))),
            false => add("CPUShares", Value::U64(shares)),
        }
    }
    let (quota, period) = (cpu.quota.unwrap_or(0), cpu.period.unwrap_or(0));
    if period != 0 && host.version >= KNOWS_QUOTA_PERIOD {
        add("CPUQuotaPeriodUSec", Value::U64(period));
    }
    if quota != 0 || period != 0 {
        add("CPUQuotaPerSecUSec", Value::U64(quota_per_second(quota, period)));
    }
    if host.version >= KNOWS_CPUSET {
        for (name, set) in [("AllowedCPUs", &cpu.cpus), ("AllowedMemoryNodes", &cpu.mems)] {
            if let Some(set) = set.as_ref().filter(|set| !set.is_empty()) {
                add(name, Value::Bytes(bit_mask(set)?));
            }
        }
    }
    if let Some(weight) = limits.block_io.weight.filter(|&weight| weight != 0 && !host.is_v2) {
        add("BlockIOWeight", Value::U64(u64::from(weight)));
    }
    if let Some(limit) = limits.pids.limit {
        // systemd refuses 0. The group's file gets the real value.
        add("TasksMax", size(if limit == 0 { 1 } else { limit.max(-1) }));
    }
    let last = if host.is_v2 { of_files(&limits.unified, host.version) } else { Vec::new() };
    list.retain(|(name, _)| last.iter().all(|(other, _)| other != name));
    list.extend(last);
    Ok(list)
}

/// In microseconds, rounded up to systemd's step: a smaller quota would limit a child group that has the requested one.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    match u64::try_from(quota) {
        Ok(quota) if quota > 0 => {
            let period = if period == 0 { PERIOD_US } else { period };
            (quota.saturating_mul(1_000_000) / period).div_ceil(QUOTA_STEP_US).saturating_mul(QUOTA_STEP_US)
        }
        _ => u64::MAX,
    }
}

/// The first byte has bits 0 to 7.
fn bit_mask(set: &str) -> Result<Vec<u8>> {
    let words = bits_of_list(set).map_err(|error| error.doing(format!("read the set `{}`", set.escape_default())))?;
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    Ok(bytes)
}

/// The files that `cgroup` writes last. The kernel judges a value that cannot be read here.
fn of_files(files: &BTreeMap<String, String>, version: u32) -> Vec<Property> {
    let one = |name: &str, value: Option<u64>| value.map(|value| (name.to_owned(), Value::U64(value)));
    let set = |name: &str, list: &str| {
        let mask = bit_mask(list).ok().filter(|mask| !mask.is_empty() && version >= KNOWS_CPUSET);
        mask.map(|mask| (name.to_owned(), Value::Bytes(mask)))
    };
    let of_file = |(file, text): (&String, &String)| {
        let value = text.lines().last().unwrap_or_default().trim(); // each line is a write
        let property = match file.as_str() {
            "memory.min" => one("MemoryMin", amount(value)),
            "memory.low" => one("MemoryLow", amount(value)),
            "memory.high" => one("MemoryHigh", amount(value)),
            "memory.max" => one("MemoryMax", amount(value)),
            "memory.swap.max" => one("MemorySwapMax", amount(value)),
            "pids.max" => one("TasksMax", amount(value).map(|most| most.max(1))),
            "cpu.weight" => one("CPUWeight", value.parse().ok().filter(|weight| (1..=10_000).contains(weight))),
            "cpuset.cpus" => set("AllowedCPUs", value),
            "cpuset.mems" => set("AllowedMemoryNodes", value),
            "cpu.max" => return quota_of_file(value, version),
            _ => None,
        };
        property.into_iter().collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// `max`, or a number with the kernel's suffixes (memparse).
fn amount(text: &str) -> Option<u64> {
    if text == "max" {
        return Some(u64::MAX);
    }
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        suffix => ["K", "M", "G", "T", "P", "E"].iter().position(|each| *each == suffix)? + 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

/// `QUOTA`, or `QUOTA PERIOD`.
fn quota_of_file(text: &str, version: u32) -> Vec<Property> {
    let mut words = text.split_whitespace();
    let quota = words.next().and_then(|quota| if quota == "max" { Some(-1) } else { quota.parse().ok() });
    let period = words.next().map_or(Some(0), |period| period.parse::<u64>().ok());
    let (Some(quota), Some(period)) = (quota, period) else { return Vec::new() };
    let period_property = (period != 0 && version >= KNOWS_QUOTA_PERIOD).then_some(("CPUQuotaPeriodUSec", period));
    let all = period_property.into_iter().chain([("CPUQuotaPerSecUSec", quota_per_second(quota, period))]);
    all.map(|(name, value)| (name.to_owned(), Value::U64(value))).collect()
}

/// systemd cannot express rules that allow by default: then brig's own filter enforces them.
fn devices(limits: &Resources, host: Host<'_>) -> Result<Vec<Property>> {
    if limits.devices.is_empty() {
        return Ok(Vec::new());
    }
    let rules = Rule::parse_all(&limits.devices)?;
    let policy = |word: &str| ("DevicePolicy".to_owned(), Value::Text(word.to_owned()));
    // An empty list clears earlier entries.
    let clear = ("DeviceAllow".to_owned(), Value::Pairs(Vec::new()));
    let list = DeviceList::of(&rules).ok().filter(|list| !list.allows_by_default());
    let Some(list) = list else { return Ok(vec![policy("auto"), clear]) };
    let mut allowed = Vec::new();
    for rule in list.exceptions() {
        allowed.extend(device_names(rule, host.devices).into_iter().map(|path| (path, rule.access_letters())));
    }
    Ok(vec![policy("strict"), clear, ("DeviceAllow".to_owned(), Value::Pairs(allowed))])
}

/// Without a driver of the major number, the device does not exist.
fn device_names(rule: &Rule, drivers: &str) -> Vec<String> {
    let kind = if rule.kind == DeviceKind::Block { "block" } else { "char" };
    match (rule.major, rule.minor) {
        (None, _) => vec![format!("{kind}-*")],
        (Some(major), Some(minor)) => vec![format!("/dev/{kind}/{major}:{minor}")],
        (Some(major), None) => {
            drivers_of(drivers, kind, major).into_iter().map(|name| format!("{kind}-{name}")).collect()
        }
    }
}

fn drivers_of(text: &str, kind: &str, major: u32) -> Vec<String> {
    let heading = if kind == "block" { "Block devices:" } else { "Character devices:" };
    let of_kind = text.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    let pairs = of_kind.filter_map(|line| line.trim().split_once(' '));
    pairs.filter(|(number, _)| number.parse() == Ok(major)).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systemd::names::Manager;

    const DRIVERS: &str =
        "Character devices:\n  1 mem\n  5 /dev/tty\n  5 ttyprintk\n136 pts\n\nBlock devices:\n  8 sd\n";

    fn show(list: &[Property]) -> String {
        let value = |value: &Value| match value {
            Value::Text(text) => text.clone(),
            Value::Bool(value) => value.to_string(),
            Value::U64(u64::MAX) => "infinity".to_owned(),
            Value::U64(value) => value.to_string(),
            other => format!("{other:?}"),
        };
        list.iter().map(|(name, each)| format!("{name}={}", value(each))).collect::<Vec<_>>().join(" ")
    }

    fn check(json: &str, version: u32, v2: &str, v1: &str) {
        let limits = serde_json::from_str(json).unwrap();
        for (is_v2, expected) in [(true, v2), (false, v1)] {
            let text = match of_limits(&limits, Host { version, is_v2, devices: DRIVERS }) {
                Ok(list) => show(&list),
                Err(error) => error.to_string(),
            };
            assert_eq!(text, expected, "{json}, v2: {is_v2}");
        }
    }

    #[test]
    fn limits_become_properties() {
        check("{}", 257, "", "");
        check(
            r#"{"memory": {"limit": 100, "swap": 150, "reservation": 50}}"#,
            257,
            "MemoryMax=100 MemoryLow=50 MemorySwapMax=50",
            "MemoryLimit=100",
        );
        check(r#"{"memory": {"limit": -1}}"#, 257, "MemoryMax=infinity MemorySwapMax=infinity", "MemoryLimit=infinity");
        check(r#"{"cpu": {"shares": 1024}}"#, 257, "CPUWeight=100", "CPUShares=1024");
        check(r#"{"cpu": {"idle": 1, "shares": 1024}}"#, 257, "CPUWeight=0", "");
        check(r#"{"cpu": {"idle": 1}}"#, 251, "", "");
        check(
            r#"{"cpu": {"quota": 33333, "period": 100000}}"#,
            257,
            "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=340000",
            "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=340000",
        );
        check(
            r#"{"cpu": {"quota": 50000, "period": 100000}}"#,
            241,
            "CPUQuotaPerSecUSec=500000",
            "CPUQuotaPerSecUSec=500000",
        );
        check(r#"{"cpu": {"quota": -1}}"#, 257, "CPUQuotaPerSecUSec=infinity", "CPUQuotaPerSecUSec=infinity");
        check(
            r#"{"cpu": {"cpus": "0,2-3,9", "mems": "0"}}"#,
            257,
            "AllowedCPUs=Bytes([13, 2]) AllowedMemoryNodes=Bytes([1])",
            "AllowedCPUs=Bytes([13, 2]) AllowedMemoryNodes=Bytes([1])",
        );
        check(
            r#"{"cpu": {"cpus": "3-1"}}"#,
            257,
            "read the set `3-1`: `3-1` is not a list of numbers such as `0-3,7`",
            "read the set `3-1`: `3-1` is not a list of numbers such as `0-3,7`",
        );
        check(r#"{"cpu": {"cpus": "0-1"}}"#, 243, "", "");
        check(r#"{"pids": {"limit": 0}}"#, 257, "TasksMax=1", "TasksMax=1");
        check(r#"{"pids": {"limit": -1}}"#, 257, "TasksMax=infinity", "TasksMax=infinity");
        check(r#"{"blockIO": {"weight": 500}}"#, 257, "", "BlockIOWeight=500");
    }

    #[test]
    fn unified_files_become_properties_and_override_the_others() {
        for (file, value, expected) in [
            ("memory.min", "4096", "MemoryMin=4096"),
            ("memory.low", "1K", "MemoryLow=1024"),
            ("memory.high", "1G", "MemoryHigh=1073741824"),
            ("memory.max", "max", "MemoryMax=infinity"),
            ("memory.swap.max", "0", "MemorySwapMax=0"),
            ("pids.max", "7", "TasksMax=7"),
            ("pids.max", "0", "TasksMax=1"),
            ("cpu.weight", "50", "CPUWeight=50"),
            ("cpu.weight", "0", ""),
            ("cpu.max", "50000 100000", "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000"),
            ("cpu.max", "20000", "CPUQuotaPerSecUSec=200000"),
            ("cpu.max", "max 50000", "CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec=infinity"),
            ("cpuset.cpus", "0,2-3", "AllowedCPUs=Bytes([13])"),
            ("cpuset.mems", "1", "AllowedMemoryNodes=Bytes([2])"),
            ("cpuset.cpus", "0-3:1/2", ""),
            ("memory.max", "1G1", ""),
            ("memory.oom.group", "1", ""),
        ] {
            check(&serde_json::json!({"unified": {file: value}}).to_string(), 257, expected, "");
        }
        check(
            r#"{"memory": {"limit": 100}, "pids": {"limit": 5}, "unified": {"memory.max": "1\n7"}}"#,
            257,
            "TasksMax=5 MemoryMax=7",
            "MemoryLimit=100 TasksMax=5",
        );
        check(r#"{"unified": {"cpuset.cpus": "0", "cpu.max": "1000 10000"}}"#, 241, "CPUQuotaPerSecUSec=100000", "");
    }

    #[test]
    fn device_rules_become_systemd_names() {
        let json = r#"{"devices": [{"allow": false}, {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
            {"allow": true, "type": "c", "major": 5, "access": "rw"}, {"allow": true, "type": "b", "access": "m"},
            {"allow": true, "type": "c", "major": 250}]}"#;
        let strict = "DevicePolicy=strict DeviceAllow=Pairs([]) DeviceAllow=Pairs([(\"/dev/char/1:3\", \"rwm\"), \
            (\"char-/dev/tty\", \"rw\"), (\"char-ttyprintk\", \"rw\"), (\"block-*\", \"m\")])";
        check(json, 257, strict, strict);
        let all = "DevicePolicy=auto DeviceAllow=Pairs([])";
        check(r#"{"devices": [{"allow": true}]}"#, 257, all, all);
    }

    #[test]
    fn scope_has_its_process_and_slice_has_none() {
        let host = Host { version: 257, is_v2: true, devices: "" };
        let scope = Unit::parse("system.slice:docker:1", "1", Manager::System).unwrap();
        assert_eq!(
            show(&of_unit(&scope, Some(7), host)),
            "Description=brig container docker-1.scope Slice=system.slice Delegate=true PIDs=Numbers([7]) MemoryAccounting=true \
             CPUAccounting=true IOAccounting=true TasksAccounting=true DefaultDependencies=false OOMPolicy=continue"
        );
        let slice = Unit::parse("a.slice::a-b.slice", "1", Manager::System).unwrap();
        assert_eq!(
            show(&of_unit(&slice, Some(7), Host { version: 250, is_v2: false, ..host })),
            "Description=brig container a-b.slice Wants=Texts([\"a.slice\"]) MemoryAccounting=true CPUAccounting=true \
             BlockIOAccounting=true TasksAccounting=true DefaultDependencies=false"
        );
    }
}
