//! The units of workers, by systemctl(1).

use crate::error::{Error, Kind, Result, Step};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

/// The unit's name before and after the worker's.
const PARTS: (&str, &str) = ("brig-worker@", ".service");
const PROPERTIES: &str = "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts";

/// The state of a worker's unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// ActiveState, such as `active`, `activating`, `failed`.
    pub active: String,
    /// SubState, such as `running`, `auto-restart`.
    pub sub: String,
    /// Whether it starts with the machine.
    pub enabled: bool,
    /// Result of the last run, such as `exit-code`, `watchdog`, `oom-kill`.
    pub result: String,
    /// How often systemd has started it again.
    pub restarts: u64,
}

impl Unit {
    /// Whether it runs, starts or waits for its next start.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading")
    }
}

pub(super) fn unit_name(worker: &str) -> String {
    format!("{}{worker}{}", PARTS.0, PARTS.1)
}

fn worker_name(unit: &str) -> Option<&str> {
    unit.strip_prefix(PARTS.0)?.strip_suffix(PARTS.1).filter(|name| !name.is_empty())
}

pub(super) fn systemctl(arguments: &[&str]) -> Result<String> {
    let step = || format!("run `systemctl {}`", arguments.join(" "));
    let hint = "workers are units of systemd: `brig task run --hold` runs a sandbox without it";
    let output = Command::new("systemctl")
        .arg("--no-pager")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| Error::os(Kind::NotFound, cause).doing(step()).hint(hint))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed").trim();
    Err(Error::new(Kind::State, line)
        .doing(step())
        .hint("see `systemctl status` of the unit and `journalctl -u` for it"))
}

/// These workers' units, and all others that are loaded or enabled.
pub(super) fn units(workers: &[String]) -> Result<BTreeMap<String, Unit>> {
    let pattern = unit_name("*");
    let mut names: BTreeSet<String> = workers.iter().cloned().collect();
    for words in [["list-units", "--all", "--plain"], ["list-unit-files", "--plain", "--full"]] {
        let text = systemctl(&[&words[..], &["--no-legend", &pattern]].concat())?;
        names.extend(text.lines().filter_map(|line| worker_name(line.split_whitespace().next()?)).map(str::to_owned));
    }
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut words = vec!["show".to_owned(), PROPERTIES.to_owned()];
    words.extend(names.iter().map(|name| unit_name(name)));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    parse(&systemctl(&words)?).doing(|| "read the units of workers")
}

/// The output has lines `Name=value`, with an empty line between units.
fn parse(text: &str) -> Result<BTreeMap<String, Unit>> {
    let mut units = BTreeMap::new();
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let get = |key: &str| {
            let value = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim().to_owned()
        };
        if get("LoadState") == "not-found" {
            let words = "the unit brig-worker@.service is not installed";
            let hint = "install brig's package, or its tarball in /usr/local; in a clone it is in rootfs/systemd";
            return Err(Error::new(Kind::NotFound, words).hint(hint));
        }
        let id = get("Id");
        let Some(name) = worker_name(&id) else { continue };
        let unit = Unit {
            active: get("ActiveState"),
            sub: get("SubState"),
            enabled: get("UnitFileState").starts_with("enabled"),
            result: get("Result"),
            restarts: get("NRestarts").parse().unwrap_or_default(),
        };
        units.insert(name.to_owned(), unit);
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_systemctl_is_read_unit_by_unit() {
        let text = "Id=brig-worker@a.service\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\n\
            Result=success\nNRestarts=2\n\nId=brig-worker@b-c.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\n\
            UnitFileState=disabled\nResult=watchdog\nNRestarts=0\n";
        let units = parse(text).unwrap();
        assert_eq!(units.keys().collect::<Vec<_>>(), ["a", "b-c"]);
        assert!(units["a"].is_up() && units["a"].enabled && units["a"].restarts == 2);
        assert!(!units["b-c"].is_up() && !units["b-c"].enabled && units["b-c"].result == "watchdog");
        let missing = "Id=brig-worker@a.service\nLoadState=not-found\n";
        assert!(parse(missing).unwrap_err().to_string().contains("is not installed"));
        assert_eq!(worker_name("brig-worker@.service"), None);
    }
}
