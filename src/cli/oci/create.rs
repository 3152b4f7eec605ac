//! `create` and `start`.

use super::arguments::{Arguments, Flag, switch, value};
use super::{Context, Verb, verb};
use brig::container::Creation;
use brig::error::{Error, Kind, Result};
use std::process::ExitCode;

/// The options of `create`; `run` has some more.
pub(super) const FLAGS: [Flag; 9] = [
    value("bundle", Some('b'), "directory with config.json; the current one if absent"),
    value("config", Some('f'), "the configuration; config.json of the bundle if absent"),
    value("console-socket", None, "unix socket that gets the terminal's master"),
    value("pidfd-socket", None, "unix socket that gets the first process's pidfd"),
    value("pid-file", None, "file for the first process's pid"),
    switch("no-pivot", None, "do not use pivot_root: for hosts on a ramdisk"),
    switch("no-new-keyring", None, "keep the caller's session keyring"),
    value("preserve-fds", None, "how many descriptors from 3 on are handed through"),
    switch("detach", Some('d'), "leave the container running"),
];

/// runc's line when init waits for `start`.
pub(super) const CREATED: &str = "init: closing the pipe to signal completion";

pub(super) const CREATE: Verb = Verb { enters: true, ..verb("create", "create a container", &FLAGS, create) };
pub(super) const START: Verb = verb("start", "start a created container", &[], start);

/// The requested container.
pub(super) fn creation(context: &Context, arguments: &Arguments) -> Result<Creation> {
    let here =
        || std::env::current_dir().map_err(|cause| Error::os(Kind::Usage, cause).doing("find the current directory"));
    Ok(Creation {
        bundle: arguments.path("bundle")?.map_or_else(here, Ok)?,
        config: arguments.path("config")?,
        console_socket: arguments.path("console-socket")?,
        pidfd_socket: arguments.path("pidfd-socket")?,
        pid_file: arguments.path("pid-file")?,
        preserve_fds: arguments.number("preserve-fds")?.unwrap_or(0),
        no_pivot: arguments.is_on("no-pivot"),
        no_new_keyring: arguments.is_on("no-new-keyring"),
        systemd_cgroup: context.systemd_cgroup,
        no_cgroup: context.no_cgroup,
        detached: true,
        secrets: Some(brig::task::secret_opener()),
        annotations: context.annotations.clone(),
    })
}

fn create(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    let created = context
        .containers
        .create(&id, &creation(context, &arguments)?)
        .map_err(|error| error.doing(format!("{} create failed", context.name)))?;
    created.warnings.iter().for_each(|warning| context.log.warn(warning));
    context.log.debug_start(&created.notes, CREATED);
    Ok(ExitCode::SUCCESS)
}

fn start(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    context.containers.start(&context.id(&arguments)?)?;
    Ok(ExitCode::SUCCESS)
}
