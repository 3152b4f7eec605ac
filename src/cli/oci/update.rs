//! `pause`, `resume`, `update` and `events`.

use super::arguments::{Arguments, Flag, switch, usage, value};
use super::{Context, Verb, verb};
use crate::cli::output;
use brig::container::Resources;
use brig::error::{Error, Kind, Result};
use brig::sandbox::parse_size;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

pub(super) const PAUSE: Verb = verb("pause", "stop all processes of a container", &[], pause);

pub(super) const RESUME: Verb = verb("resume", "let them go on", &[], resume);

fn pause(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    context.containers.pause(&context.id(&arguments)?)?;
    Ok(ExitCode::SUCCESS)
}

fn resume(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    context.containers.resume(&context.id(&arguments)?)?;
    Ok(ExitCode::SUCCESS)
}

const FLAGS: [Flag; 19] = [
    value("resources", Some('r'), "file with limits as JSON; - is standard input"),
    value("blkio-weight", None, "relative weight of block I/O, 10 to 1000"),
    value("cpu-period", None, "microseconds"),
    value("cpu-quota", None, "microseconds in each period"),
    value("cpu-burst", None, "microseconds"),
    value("cpu-share", None, "relative weight"),
    value("cpu-rt-period", None, "microseconds"),
    value("cpu-rt-runtime", None, "microseconds"),
    value("cpuset-cpus", None, "list of CPUs"),
    value("cpuset-mems", None, "list of memory nodes"),
    value("cpu-idle", None, "1: only when a processor would be idle"),
    value("memory", None, "bytes"),
    value("memory-reservation", None, "bytes"),
    value("memory-swap", None, "bytes of memory and swap together; -1 is unlimited"),
    value("pids-limit", None, "processes and threads; -1 is unlimited"),
    value("kernel-memory", None, "accepted and ignored"),
    value("kernel-memory-tcp", None, "accepted and ignored"),
    value("l3-cache-schema", None, "line of resctrl"),
    value("mem-bw-schema", None, "line of resctrl"),
];

pub(super) const UPDATE: Verb = verb("update", "change a container's limits", &FLAGS, update);
pub(super) const EVENTS: Verb = verb(
    "events",
    "print what a container uses",
    &[switch("stats", None, "once"), value("interval", None, "time between two lines, such as 5s")],
    events,
);

fn update(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    let mut limits = match arguments.get("resources") {
        Some(path) => read(path)?,
        None => Resources::default(),
    };
    let size = |name: &str| {
        arguments
            .text(name)?
            .map(|word| size(&word).ok_or_else(|| usage(format!("invalid value for {name}: {word}"))))
            .transpose()
    };
    let memory = &mut limits.memory;
    memory.limit = size("memory")?.or(memory.limit);
    memory.reservation = size("memory-reservation")?.or(memory.reservation);
    memory.swap = size("memory-swap")?.or(memory.swap);
    let cpu = &mut limits.cpu;
    cpu.shares = arguments.number("cpu-share")?.or(cpu.shares);
    cpu.quota = arguments.number("cpu-quota")?.or(cpu.quota);
    cpu.period = arguments.number("cpu-period")?.or(cpu.period);
    cpu.burst = arguments.number("cpu-burst")?.or(cpu.burst);
    cpu.realtime_period = arguments.number("cpu-rt-period")?.or(cpu.realtime_period);
    cpu.realtime_runtime = arguments.number("cpu-rt-runtime")?.or(cpu.realtime_runtime);
    cpu.idle = arguments.number("cpu-idle")?.or(cpu.idle);
    cpu.cpus = arguments.text("cpuset-cpus")?.or(cpu.cpus.take());
    cpu.mems = arguments.text("cpuset-mems")?.or(cpu.mems.take());
    limits.pids.limit = arguments.number("pids-limit")?.or(limits.pids.limit);
    limits.block_io.weight = arguments.number("blkio-weight")?.or(limits.block_io.weight);
    let lines = [arguments.text("l3-cache-schema")?, arguments.text("mem-bw-schema")?];
    let schemata: Vec<_> = lines.into_iter().flatten().filter(|line| !line.is_empty()).collect();
    context.containers.update(&id, &limits, &schemata)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &std::ffi::OsStr) -> Result<Resources> {
    let failed =
        |cause| Error::os(Kind::Usage, cause).doing(format!("read the limits from `{}`", path.to_string_lossy()));
    let mut bytes = Vec::new();
    if path == "-" {
        std::io::stdin().read_to_end(&mut bytes).map_err(failed)?;
    } else {
        bytes = std::fs::read(path).map_err(failed)?;
    }
    serde_json::from_slice(&bytes).map_err(|cause| Error::new(Kind::Spec, cause.to_string()).doing("read the limits"))
}

/// Bytes, or -1 for unlimited.
fn size(word: &str) -> Option<i64> {
    word.parse().ok().or_else(|| i64::try_from(parse_size(word).ok()?).ok())
}

fn events(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    if arguments.is_on("stats") {
        output::lines([context.containers.stats(&id)?]);
        return Ok(ExitCode::SUCCESS);
    }
    let interval = match arguments.text("interval")? {
        Some(word) => humantime::parse_duration(&word)
            .map_err(|_| usage(format!("invalid value \"{word}\" for flag -interval")))?,
        None => Duration::from_secs(5),
    };
    if interval.is_zero() {
        return Err(usage("duration interval must be greater than 0"));
    }
    context.containers.events(&id, interval, |line| output::lines([line]))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_suffixes() {
        for (word, expected) in
            [("-1", -1), ("1024", 1024), ("1k", 1024), ("64M", 64 << 20), ("2GiB", 2 << 30), ("5b", 5)]
        {
            assert_eq!(size(word), Some(expected), "{word}");
        }
        for wrong in ["", "m", "1x", "9999999999t", "é"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
