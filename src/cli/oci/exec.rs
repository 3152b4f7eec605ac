//! `exec`.

use super::arguments::{Arguments, End, Flag, switch, usage, value};
use super::{Context, Verb, id, run, verb};
use brig::container::{Execution, parse_id, parse_user};
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

/// 255 for an error before the program runs: any other status could be the program's.
pub(super) const EXEC: Verb = Verb {
    end: End::After(1),
    enters: true,
    failure: 255,
    ..verb("exec", "run another process in a container", &FLAGS, exec)
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
        user: arguments.text("user")?.map(|word| parse_user(&word)).transpose()?,
        additional_gids: arguments.all("additional-gids")?.iter().map(|word| parse_id(word)).collect::<Result<_>>()?,
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
    let id = id(arguments.id()?)?;
    if wish.tty && !wish.detached {
        run::check_terminal()?;
    }
    let mut running = context.containers.exec(&id, &wish).map_err(|error| error.doing("exec failed"))?;
    running.warnings.iter().for_each(|warning| context.log.warn(warning));
    context.log.debug_start(&running.notes, "setns_init: about to exec");
    if wish.detached {
        return Ok(ExitCode::SUCCESS);
    }
    // After the start: until then a signal ends this process and the process that enters the container.
    let signals = run::Signals::block()?;
    run::serve(&signals, running.pid(), running.take_console()).map(ExitCode::from)
}
