//! `kill` and `delete`.

use super::arguments::{Arguments, End, switch, usage};
use super::{Context, Verb, id, verb};
use brig::error::Result;
use std::process::ExitCode;

pub(super) const KILL: Verb = Verb {
    end: End::After(1),
    ..verb(
        "kill",
        "send a signal (default: SIGTERM) to a container",
        &[switch("all", Some('a'), "to all of its processes")],
        kill,
    )
};
pub(super) const DELETE: Verb = verb(
    "delete",
    "remove the remains of a container",
    &[switch("force", Some('f'), "kill it first if it runs; a missing one is not an error")],
    delete,
);

fn kill(context: &Context, mut arguments: Arguments) -> Result<ExitCode> {
    // `kill ID -9` and `kill ID --all TERM` both occur.
    let mut rest = std::mem::take(&mut arguments.rest);
    let mut all = arguments.is_on("all");
    rest.retain(|word| {
        let is_all = word == "--all" || word == "-a";
        all |= is_all;
        !is_all
    });
    let signal = match rest.as_slice() {
        [] => "SIGTERM".to_owned(),
        [word] => word.to_string_lossy().into_owned(),
        _ => return Err(usage("requires a maximum of 2 arguments")),
    };
    let number = number(signal.trim_start_matches('-'))
        .ok_or_else(|| usage(format!("unknown signal \"{}\"", signal.escape_debug())))?;
    context.containers.kill(&id(arguments.id()?)?, number, all)?;
    Ok(ExitCode::SUCCESS)
}

fn delete(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let failed = context.containers.delete(&context.id(&arguments)?, arguments.is_on("force"))?;
    failed.iter().for_each(|words| context.log.warn(words));
    Ok(ExitCode::SUCCESS)
}

/// The number of a signal by number or name, with or without `SIG`, in any case.
pub(in crate::cli) fn number(word: &str) -> Option<i32> {
    let upper = word.to_ascii_uppercase();
    if let Ok(number) = upper.parse::<i32>() {
        return (0..=64).contains(&number).then_some(number); // 0 checks for existence only (kill(2))
    }
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    // signal(7): the C library reserves the first two real-time signals.
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(34 + offset);
    }
    if let Some(offset) = name.strip_prefix("RTMAX") {
        let offset: i32 = if offset.is_empty() { 0 } else { offset.strip_prefix('-')?.parse().ok()? };
        return (0..=30).contains(&offset).then_some(64 - offset);
    }
    let name = match name {
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        "POLL" => "IO",
        other => other,
    };
    format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_signal_is_known_by_number_and_name() {
        for (word, expected) in [
            ("9", 9),
            ("KILL", 9),
            ("SIGKILL", 9),
            ("sigterm", 15),
            ("RTMIN+3", 37),
            ("SIGRTMAX", 64),
            ("iot", 6),
            ("0", 0),
        ] {
            assert_eq!(number(word), Some(expected), "{word}");
        }
        for wrong in ["65", "", "SIG", "MOON", "RTMIN+31", "9x", "-"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
