//! `checkpoint` and `restore`, with runc's options.

use super::arguments::{Arguments, Flag, switch, usage, value};
use super::run::{Signals, check_terminal, serve};
use super::{Context, Verb, verb};
use brig::container::{Cgroups, Checkpoint, Creation, CriuOptions, Restoration};
use brig::error::{Context as _, Error, Kind, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The default directory of the images below the current one.
const DEFAULT_IMAGES: &str = "checkpoint";

/// The options of both verbs.
const COMMON: [Flag; 9] = [
    value("image-path", None, "directory of the images; `checkpoint` in the current one if absent"),
    value("work-path", None, "directory of CRIU's log; that of the images if absent"),
    switch("tcp-established", None, "save open TCP connections"),
    switch("ext-unix-sk", None, "allow unix sockets that are connected to the outside"),
    switch("shell-job", None, "allow processes of a session outside of the container"),
    switch("file-locks", None, "save locks of files"),
    value("manage-cgroups-mode", None, "soft (default), full, strict or ignore"),
    value("empty-ns", None, "`network`: make the namespace and nothing in it"),
    switch("auto-dedup", None, "remove pages of earlier images that a later one has"),
];

const CHECKPOINT_ONLY: [Flag; 8] = [
    switch("lazy-pages", None, "serve memory when the restored processes use it"),
    value("parent-path", None, "images of an earlier pre-dump, relative to --image-path"),
    switch("leave-running", None, "let the container run on"),
    switch("pre-dump", None, "save memory alone, and let the container run on"),
    value("page-server", None, "ADDRESS:PORT of a `criu page-server` that gets the memory"),
    value("status-fd", None, "descriptor that gets a zero byte when lazy pages can be fetched"),
    switch("tcp-skip-in-flight", None, "leave out connections that are not accepted yet"),
    switch("link-remap", None, "give names to files that have lost theirs"),
];

const RESTORE_ONLY: [Flag; 11] = [
    switch("lazy-pages", None, "fetch memory when it is used"),
    value("bundle", Some('b'), "directory with config.json; the current one if absent"),
    value("console-socket", None, "unix socket that gets the terminal's master"),
    value("pid-file", None, "file for the first process's pid"),
    switch("detach", Some('d'), "leave the container running"),
    switch("keep", None, "do not remove the container when it has ended"),
    switch("no-subreaper", None, "accepted and ignored"),
    switch("no-pivot", None, "accepted and ignored: CRIU enters the root"),
    value("lsm-profile", None, "label of the processes instead of the saved one, TYPE:NAME"),
    value("lsm-mount-context", None, "SELinux context of the mounts instead of the saved one"),
    value("preserve-fds", None, "accepted and ignored"),
];

const CHECKPOINT_FLAGS: [Flag; 17] = joined(COMMON, CHECKPOINT_ONLY);
const RESTORE_FLAGS: [Flag; 20] = joined(COMMON, RESTORE_ONLY);

const fn joined<const A: usize, const B: usize, const ALL: usize>(first: [Flag; A], second: [Flag; B]) -> [Flag; ALL] {
    let mut all = [first[0]; ALL];
    let mut index = 0;
    while index < ALL {
        all[index] = if index < A { first[index] } else { second[index - A] };
        index += 1;
    }
    all
}

pub(super) const CHECKPOINT: Verb =
    verb("checkpoint", "save a running container by CRIU", &CHECKPOINT_FLAGS, checkpoint);
pub(super) const RESTORE: Verb =
    Verb { enters: true, ..verb("restore", "put a container back from a checkpoint", &RESTORE_FLAGS, restore) };

fn checkpoint(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    let wish = Checkpoint {
        criu: criu_options(&arguments)?,
        parent: parent(&arguments)?,
        leave_running: arguments.is_on("leave-running"),
        pre_dump: arguments.is_on("pre-dump"),
        tcp_skip_in_flight: arguments.is_on("tcp-skip-in-flight"),
        link_remap: arguments.is_on("link-remap"),
        page_server: page_server(&arguments)?,
        status: arguments.number("status-fd")?.filter(|number| *number != -1).map(status).transpose()?,
    };
    context.containers.checkpoint(&id, &wish)?.iter().for_each(|words| context.log.warn(words));
    Ok(ExitCode::SUCCESS)
}

fn restore(context: &Context, arguments: Arguments) -> Result<ExitCode> {
    let id = context.id(&arguments)?;
    let here =
        || std::env::current_dir().map_err(|cause| Error::os(Kind::Usage, cause).doing("find the current directory"));
    let detached = arguments.is_on("detach");
    let wish = Restoration {
        creation: Creation {
            bundle: arguments.path("bundle")?.map_or_else(here, Ok)?,
            console_socket: arguments.path("console-socket")?,
            pid_file: arguments.path("pid-file")?,
            systemd_cgroup: context.systemd_cgroup,
            no_cgroup: context.no_cgroup,
            annotations: context.annotations.clone(),
            detached,
            ..Creation::default()
        },
        criu: criu_options(&arguments)?,
        lsm_profile: arguments.text("lsm-profile")?,
        lsm_mount_context: arguments.text("lsm-mount-context")?,
    };
    let signals = if detached { None } else { Some(Signals::block()?) };
    let restored = context.containers.restore(&id, &wish)?;
    let Some(signals) = signals else { return Ok(ExitCode::SUCCESS) };
    if restored.console.is_some()
        && let Err(error) = check_terminal()
    {
        context.containers.delete(&id, true)?;
        return Err(error);
    }
    let status = serve(&signals, restored.pid, restored.console)?;
    if !arguments.is_on("keep") {
        context.containers.delete(&id, true)?.iter().for_each(|words| context.log.warn(words));
    }
    Ok(ExitCode::from(status))
}

fn criu_options(arguments: &Arguments) -> Result<CriuOptions> {
    let images = match arguments.path("image-path")? {
        Some(path) => path,
        None => std::path::absolute(DEFAULT_IMAGES)
            .map_err(|cause| Error::os(Kind::Usage, cause).doing("find the current directory"))?,
    };
    let empty_network = match arguments.text("empty-ns")?.as_deref() {
        None | Some("") => false,
        Some("network") => true,
        Some(other) => return Err(usage(format!("namespace {other} is not supported"))),
    };
    let cgroups = match arguments.text("manage-cgroups-mode")?.as_deref() {
        None | Some("") => Cgroups::Default,
        Some("soft") => Cgroups::Soft,
        Some("full") => Cgroups::Full,
        Some("strict") => Cgroups::Strict,
        Some("ignore") => Cgroups::Ignore,
        Some(_) => return Err(usage("invalid manage-cgroups-mode value")),
    };
    Ok(CriuOptions {
        images,
        work: arguments.path("work-path")?,
        tcp_established: arguments.is_on("tcp-established"),
        external_unix_sockets: arguments.is_on("ext-unix-sk"),
        shell_job: arguments.is_on("shell-job"),
        file_locks: arguments.is_on("file-locks"),
        auto_dedup: arguments.is_on("auto-dedup"),
        lazy_pages: arguments.is_on("lazy-pages"),
        empty_network,
        cgroups,
    })
}

/// The earlier images: CRIU finds them relative to the new ones' directory.
fn parent(arguments: &Arguments) -> Result<Option<PathBuf>> {
    let Some(path) = arguments.get("parent-path").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(None);
    };
    if path.is_absolute() {
        return Err(usage("--parent-path must be relative"));
    }
    let images = criu_options(arguments)?.images;
    let found = images.join(&path);
    let is_directory = std::fs::metadata(&found)
        .map_err(|cause| {
            Error::os(Kind::Usage, cause).doing(format!("invalid --parent-path: stat {}", found.display()))
        })?
        .is_dir();
    if !is_directory {
        let cause = std::io::Error::from_raw_os_error(libc::ENOTDIR);
        return Err(Error::os(Kind::Usage, cause).doing(format!("invalid --parent-path: stat {}", found.display())));
    }
    Ok(Some(path))
}

fn page_server(arguments: &Arguments) -> Result<Option<(String, u16)>> {
    let Some(text) = arguments.text("page-server")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let parts = text.split_once(':').map(|(address, port)| (address.to_owned(), port.parse::<u16>()));
    match parts {
        Some((address, Ok(port))) if !address.is_empty() => Ok(Some((address, port))),
        _ => Err(usage("use --page-server ADDRESS:PORT to specify page server")),
    }
}

/// A duplicate of the descriptor of --status-fd.
fn status(number: i32) -> Result<Arc<std::os::fd::OwnedFd>> {
    let step = || format!("use the descriptor {number} of --status-fd");
    let path = PathBuf::from(format!("/proc/self/fd/{number}"));
    let opened = std::fs::OpenOptions::new().write(true).open(Path::new(&path)).failing(Kind::Usage, step)?;
    Ok(Arc::new(opened.into()))
}
