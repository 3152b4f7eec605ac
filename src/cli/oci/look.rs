//! `state`, `list`, `ps`.

use super::arguments::{Arguments, End, switch, usage, value};
use super::{Context, Verb, id, verb};
use crate::cli::output;
use brig::error::{Error, Kind, Result};
use std::process::{Command, ExitCode};

pub(super) const STATE: Verb = verb("state", "print the state of a container", &[], state);
pub(super) const LIST: Verb = verb(
    "list",
    "list the containers",
    &[value("format", Some('f'), "table or json"), switch("quiet", Some('q'), "names only")],
    list,
);
pub(super) const PS: Verb = Verb {
    end: End::After(1),
    ..verb("ps", "list the processes of a container", &[value("format", Some('f'), "table or json")], ps)
};

fn state(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    output::json(&context.containers.state(&context.id(&arguments)?)?);
    Ok(ExitCode::SUCCESS)
}

fn list(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let format = format(&arguments)?;
    let (containers, broken) = context.containers.list()?;
    broken.iter().for_each(|words| context.log.warn(words));
    if arguments.is_on("quiet") {
        output::lines(containers.into_iter().map(|each| each.id));
    } else if format == "json" {
        // Callers written in Go print, and expect, `null` for an empty list.
        if containers.is_empty() {
            output::lines(["null".to_owned()]);
        } else {
            output::lines([serde_json::to_string(&containers).unwrap_or_default()]);
        }
    } else {
        let row = |cells: [&str; 6]| cells.map(str::to_owned);
        let header = row(["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"]);
        let rows = containers.iter().map(|each| {
            row([&each.id, &each.pid.to_string(), each.status.word(), &each.bundle, &each.created, &each.owner])
        });
        let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        output::lines(rows.iter().map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}   "));
            cells.collect::<String>().trim_end().to_owned()
        }));
    }
    Ok(ExitCode::SUCCESS)
}

fn format(arguments: &Arguments) -> Result<String> {
    let format = arguments.text("format")?.unwrap_or_else(|| "table".to_owned());
    if format == "table" || format == "json" { Ok(format) } else { Err(usage("invalid format option")) }
}

fn ps(context: &Context, mut arguments: Arguments) -> Result<ExitCode> {
    let mut rest = std::mem::take(&mut arguments.rest);
    // `ps ID --format json` occurs as well; other words are options of ps(1).
    let mut format = format(&arguments)?;
    if let Some(at) = rest.iter().position(|word| word == "--format" || word == "-f").filter(|at| at + 1 < rest.len()) {
        format = rest[at + 1].to_string_lossy().into_owned();
        rest.drain(at..at + 2);
    }
    let pids = context.containers.processes(&id(arguments.id()?)?)?;
    if format == "json" {
        output::lines([serde_json::to_string(&pids).unwrap_or_default()]);
        return Ok(ExitCode::SUCCESS);
    }
    if rest.is_empty() {
        rest.push("-ef".into());
    }
    let failed = || "run ps(1)";
    let listed =
        Command::new("ps").args(&rest).output().map_err(|cause| Error::os(Kind::NotFound, cause).doing(failed()))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    if !listed.status.success() {
        return Err(Error::new(Kind::Usage, String::from_utf8_lossy(&listed.stderr).trim().to_owned()).doing(failed()));
    }
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let column = header
        .split_whitespace()
        .position(|name| name == "PID")
        .ok_or_else(|| usage("the output of ps has no column PID"))?;
    let ours = |line: &&str| {
        let pid = line.split_whitespace().nth(column).and_then(|word| word.parse::<i32>().ok());
        pid.is_some_and(|pid| pids.contains(&pid))
    };
    output::lines(std::iter::once(header).chain(lines.filter(ours)).map(output::escaped));
    Ok(ExitCode::SUCCESS)
}
