//! `exec`.

use super::arguments::{Arguments, End, Flag, switch, usage, value};
use super::{Context, Verb, id, run};
use brig::container::Execution;
use brig::error::Result;
use std::process::ExitCode;

const FLAGS: [Flag; 18] = [
    value("console-socket", None, "unix socket that gets the terminal's master"),
    value("pidfd-socket", None, "unix socket that gets the process's pidfd"),
    value("cwd", None, "working directory"),
    value("env", Some('e'), "NAME=VALUE, can be repeated"),
    switch("tty", Some('t'), "give it a terminal"),
    value("user", Some('u'), "UID[:GID]"),
    value("additional-gids", Some('g'), "more groups, can be repeated"),
    value("process", Some('p'), "file with the process as JSON"),
    switch("detach", Some('d'), "leave it running"),
    value("pid-file", None, "file for its pid"),
    value("process-label", None, "SELinux label"),
    value("apparmor", None, "AppArmor profile"),
    switch("no-new-privs", None, "set no_new_privs"),
    value("cap", Some('c'), "capability to add, can be repeated"),
    value("preserve-fds", None, "how many descriptors from 3 on are handed through"),
    value("cgroup", None, "[CONTROLLERS:]PATH below the container's cgroup, can be repeated"),
    switch("ignore-paused", None, "also in a paused container"),
    switch("no-subreaper", None, "accepted and ignored"),
];

/// 255 for what went wrong before the program ran: any other status could be the program's.
pub(super) const EXEC: Verb = Verb {
    name: "exec",
    about: "run another process in a container",
    flags: &FLAGS,
    end: End::After(1),
    run: exec,
    enters: true,
    failure: 255,
};

fn exec(context: &Context, mut arguments: Arguments) -> Result<ExitCode> {
    let mut words = std::mem::take(&mut arguments.rest);
    if words.first().is_some_and(|word| word == "--") {
        words.remove(0);
    }
    let process = arguments.path("process")?;
    if process.is_none() && words.is_empty() {
        return Err(usage("requires a minimum of 2 arguments"));
    }
    let wish = Execution {
        args: words.iter().map(|word| super::arguments::text(word, "argument")).collect::<Result<_>>()?,
        cwd: arguments.text("cwd")?,
        env: arguments.all("env")?,
        tty: arguments.is_on("tty"),
        user: arguments.text("user")?.map(|word| user(&word)).transpose()?,
        additional_gids: arguments.all("additional-gids")?.iter().map(|word| number(word)).collect::<Result<_>>()?,
        label: arguments.text("process-label")?,
        apparmor: arguments.text("apparmor")?,
        no_new_privileges: arguments.get("no-new-privs").map(|_| arguments.is_on("no-new-privs")),
        capabilities: arguments.all("cap")?,
        cgroups: arguments.all("cgroup")?,
        ignore_paused: arguments.is_on("ignore-paused"),
        console_socket: arguments.path("console-socket")?,
        pidfd_socket: arguments.path("pidfd-socket")?,
        pid_file: arguments.path("pid-file")?,
        detached: arguments.is_on("detach"),
        preserve_fds: arguments.number("preserve-fds")?.unwrap_or(0),
        process,
    };
    let signals = if wish.detached { None } else { Some(run::Signals::block()?) };
    let id = id(arguments.id()?)?;
    let mut running = context.containers.exec(&id, &wish).map_err(|error| error.doing("exec failed"))?;
    match signals {
        None => Ok(ExitCode::SUCCESS),
        Some(signals) => run::serve(&signals, running.pid(), running.take_console()).map(ExitCode::from),
    }
}

/// `UID[:GID]`, every digit of it: what does not parse is not 0 (CVE-2026-30892).
fn user(word: &str) -> Result<(u32, Option<u32>)> {
    match word.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, Some(number(gid)?))),
        None => Ok((number(word)?, None)),
    }
}

fn number(word: &str) -> Result<u32> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    // The largest stands for "no user" in system calls, and above i32 callers disagree about the sign.
    let number = word.parse().ok().filter(|number| digits && *number <= i32::MAX as u32);
    number.ok_or_else(|| usage(format!("`{}` is no user or group id", word.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::user;
    use proptest::prelude::*;

    #[test]
    fn every_id_is_read_as_itself() {
        for id in 0..70_000 {
            assert_eq!(user(&id.to_string()).unwrap(), (id, None));
            assert_eq!(user(&format!("{id}:{id}")).unwrap(), (id, Some(id)));
        }
    }

    #[test]
    fn what_is_not_all_digits_is_refused() {
        for wrong in [
            "",
            "1:",
            ":1",
            " 1",
            "1 ",
            "1x",
            "x",
            "-1",
            "+1",
            "0x1",
            "1:2:3",
            "4294967296",
            "4294967295",
            "2147483648",
            "١",
        ] {
            assert!(user(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn a_word_is_the_number_it_prints_as_or_an_error(word in "\\PC{0,12}") {
            if let Ok((uid, None)) = user(&word) {
                prop_assert!(word.trim_start_matches('0') == uid.to_string().trim_start_matches('0'));
            }
        }
    }
}
