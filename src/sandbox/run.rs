//! One run from options to report.

use super::backend;
use super::control::Control;
use super::devices;
use super::host_mounts::SourceFacts;
use super::limits::{LimitName, counted};
use super::monitor::Monitor;
use super::mount::Mount;
use super::network::NetworkMode;
use super::options::Backend;
use super::options::{Options, Workspace};
use super::outcome::{Facts, LimitHit, Outcome, Stopped, decide};
use super::profile::{self, container_spec};
use super::report::{Cleanup, Degraded, Guarantee, Report};
use super::signals::Signals;
use super::streams::{Progress, Sink, Streams};
use super::submounts::{self, Submounts};
use super::supervise::{Findings, Watch};
use super::system;
use super::trust;
use crate::container::PendingVolume;
use crate::container::{self, Checked, HostPaths, Running};
use crate::egress::Ledger;
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::files::Pinned;
use crate::process::{Stdio, Terminal};
use crate::spec::Container;
use crate::spec::process::EVENTS;
use crate::spec::root::{Backing as ScratchBacking, FileSystem, Root, Source, Step};
use rustix::fs::{FileType, Stat};
use rustix::process::Signal;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than init needs, except for a root with many copies.
const A_MOMENT: Duration = Duration::from_millis(10);

pub(crate) struct Site {
    pub paths: HostPaths,
    /// In the order of [`Options::all_volumes`].
    pub volumes: Vec<PendingVolume>,
    pub forward_input: bool,
    pub open_input: bool,
    pub progress: Option<Progress>,
}

pub(crate) struct Audience<'run> {
    pub sink: &'run mut dyn Sink,
    pub control: Option<&'run mut Control>,
    /// Runs after the last process's end, before the removal of its files.
    pub collect: &'run mut dyn FnMut(Remains<'_>) -> Result<()>,
}

/// The files of a sandbox whose processes are gone.
#[derive(Clone, Copy)]
pub(crate) struct Remains<'run> {
    pub scratch: BorrowedFd<'run>,
    /// Written volumes in memory, in the order of the volumes.
    pub volumes: &'run [OwnedFd],
}

/// Init builds it while the caller does other work. Its drop removes it.
pub(crate) struct PendingSandbox<'run> {
    options: &'run Options,
    degraded: Vec<Degraded>,
    started: Result<Started>,
    /// Differences between the host's folders and what the sandbox shows.
    pub(crate) notes: Vec<String>,
    pub(crate) hints: Vec<String>,
}

struct Started {
    running: Running,
    /// The start of the first process: supervision may begin much later on a slow disk.
    launched: Instant,
    streams: Streams,
    signals: Signals,
    progress: Option<OwnedFd>,
    forward_input: bool,
    disk_bytes: u64,
    disk_file: Option<PathBuf>,
    is_on_disk: bool,
    stop_signal: Signal,
}

/// An error means that nothing was started; later errors are in the report.
pub(crate) fn begin(options: &Options, site: Site) -> Result<PendingSandbox<'_>> {
    let (progress, handed) = site.progress.map(|pipe| (pipe.ours, pipe.theirs)).unzip();
    let Planned { mut spec, checked, mut degraded, submounts } = plan(options, &site.paths.stage, container::check)?;
    // Another runtime would not pass the descriptor on.
    let handed = handed.filter(|_| !matches!(options.backend, Backend::Oci(_)));
    let progress = progress.filter(|_| handed.is_some());
    if let Some(handed) = &handed {
        spec.command.environment.push((EVENTS.into(), handed.as_raw_fd().to_string().into()));
    }
    degraded.extend(self::degraded(&checked));
    let disk_bytes = spec.file_system.scratch.bytes;
    let is_on_disk = spec.file_system.scratch.backing == ScratchBacking::Image;
    let stop_signal = stop_signal(options)?;
    let signals = Signals::take()?;
    let (streams, stdio) = if options.terminal {
        let (rows, columns) =
            rustix::termios::tcgetwinsize(rustix::stdio::stdin()).map_or((24, 80), |size| (size.ws_row, size.ws_col));
        (Streams::none(), Stdio::Terminal(Terminal { rows, columns, passes_newlines: false }))
    } else {
        let (streams, ends) = Streams::pipes(site.forward_input || site.open_input)?;
        (streams, Stdio::Descriptors { input: ends.input, output: ends.output, error: ends.error })
    };
    let gateway = options.network.gateway(options.broker.as_ref());
    let names = options.all_volumes().into_iter().map(|volume| volume.name);
    let volumes = site.volumes.into_iter().zip(names);
    let volumes = volumes.map(|(volume, name)| volume.wait().doing(|| format!("use the volume `{name}`")));
    let volumes = volumes.collect::<Result<_>>()?;
    let started = container::launch(spec, &checked, &site.paths, stdio, handed, gateway, volumes).map(|running| {
        let (forward_input, launched) = (site.forward_input, Instant::now());
        let disk_file = site.paths.disk.named().map(Path::to_owned);
        Started {
            running,
            launched,
            streams,
            signals,
            progress,
            forward_input,
            disk_bytes,
            disk_file,
            is_on_disk,
            stop_signal,
        }
    });
    Ok(PendingSandbox { options, degraded, started, notes: submounts.notes, hints: submounts.hints })
}

pub(crate) fn run(options: &Options, site: Site, audience: Audience<'_>) -> Result<Report> {
    options.check()?;
    let mut begun = begin(options, site)?;
    begun.wait_for_start();
    Ok(begun.watch(audience))
}

impl PendingSandbox<'_> {
    /// Waits at most [`A_MOMENT`] for init, to leave the processors to init, its disk and the command. Work after the
    /// wait runs beside the command; before it would delay the start.
    pub(crate) fn wait_for_start(&mut self) {
        let Ok(started) = &mut self.started else { return };
        match started.running.settle(Instant::now() + A_MOMENT) {
            Ok(()) => started.running.catch_up(),
            Err(error) => self.started = Err(error),
        }
    }

    pub(crate) fn watch(self, audience: Audience<'_>) -> Report {
        let mut started = match self.started {
            Ok(started) => started,
            Err(error) => {
                return Report { degraded: self.degraded, ..Report::without_command(Outcome::StartFailed, error) };
            }
        };
        let mut control = audience.control;
        let watch = Watch {
            running: &mut started.running,
            launched: started.launched,
            streams: started.streams,
            limits: &self.options.limits,
            grace: self.options.grace,
            stop_signal: started.stop_signal,
            holds: self.options.holds,
            disk_bytes: started.disk_bytes,
            disk_file: started.disk_file.as_deref(),
            is_on_disk: started.is_on_disk,
            network: self.options.network.mode,
            signals: &started.signals,
            sink: audience.sink,
            forward_input: started.forward_input,
            progress: started.progress,
            control: control.as_deref_mut(),
            health: Monitor::new(&self.options.health),
        };
        let seen = watch.run();
        if let Some(control) = control {
            control.end();
        }
        finish(self.options, started.running, seen, self.degraded, audience.collect)
    }
}

fn stop_signal(options: &Options) -> Result<Signal> {
    let Some(number) = options.image.as_ref().and_then(|image| image.stop_signal) else { return Ok(Signal::TERM) };
    Signal::from_named_raw(number)
        .ok_or_else(|| Error::new(Kind::Image, format!("the image's StopSignal {number} cannot be passed on")))
}

fn close_account(running: &mut Running, seen: &mut Findings) -> Option<Ledger> {
    let ledger = running.close_account();
    for (sent, received) in ledger.iter().map(Ledger::bytes).chain(running.device_bytes()) {
        *seen.usage.network_sent_bytes.get_or_insert(0) += sent;
        *seen.usage.network_received_bytes.get_or_insert(0) += received;
    }
    ledger
}

fn finish(
    options: &Options,
    mut running: Running,
    mut seen: Findings,
    degraded: Vec<Degraded>,
    collect: &mut dyn FnMut(Remains<'_>) -> Result<()>,
) -> Report {
    let egress = close_account(&mut running, &mut seen);
    let evidence = running.evidence();
    if let Ok(Some(evidence)) = &evidence {
        let mut note = |limit, count: u64, (one, many), words: &str| {
            if count > 0 {
                seen.hits.push(LimitHit { limit, evidence: format!("{} {words}", counted(count, one, many)) });
            }
        };
        note(LimitName::Memory, evidence.oom_kills, ("process", "processes"), "killed by the kernel (oom_kill)");
        note(LimitName::Pids, evidence.pids_max_hits, ("fork", "forks"), "refused (pids.events max)");
    }
    if let Err(error) = evidence {
        seen.failure.get_or_insert(error);
        seen.stopped.get_or_insert(Stopped::Blind);
    }
    seen.hits.sort_by_key(|hit| hit.limit);
    let facts = Facts {
        ended: seen.ended,
        stopped: seen.stopped,
        hits: seen.hits,
        start_failed: seen.start_failed && !matches!(seen.stopped, Some(Stopped::Gateway | Stopped::Link)),
        exit_codes: options.exit_codes.clone(),
    };
    let mut outcome = decide(&facts);
    let mut error = seen.failure;
    let collected = match running.scratch() {
        Some(_) if seen.may_live => Err(Error::new(Kind::State, "its processes could not be ended")),
        Some(scratch) => collect(Remains { scratch, volumes: running.volumes() }),
        None => Ok(()),
    };
    let removal = running.remove();
    if let Err(cause) = collected {
        error.get_or_insert(cause.doing("collect the work"));
        // The files are the agent's: they must not replace the outcome of the attempt.
        if outcome.is_success() {
            outcome = Outcome::PushFailed;
        }
    }
    if !removal.left.is_empty() && outcome.is_success() {
        outcome = Outcome::CleanupFailed;
    }
    Report {
        outcome,
        ended: seen.ended,
        error,
        limits_hit: facts.hits,
        usage: seen.usage,
        egress,
        refused_namespaces: seen.refusals.take(),
        unfinished: seen.unfinished,
        guarantee: options.backend.guarantee(),
        degraded,
        cleanup: Cleanup { removed: removal.removed, left: removal.left },
    }
}

struct Planned {
    spec: Container,
    checked: Checked,
    degraded: Vec<Degraded>,
    /// Contains descriptors that the spec names.
    submounts: Submounts,
}

fn plan(options: &Options, stage: &Path, check: fn(&mut Container) -> Result<Checked>) -> Result<Planned> {
    let degraded = backend::given_up(options)?;
    let system = system::find_folders();
    let facts = profile::Facts {
        system: &system,
        workspace_owner: match &options.workspace {
            Workspace::Directory(path) => owner(&options.pinned.path(path))?,
            Workspace::Empty => (super::USER, super::USER),
        },
        shown_owners: options.shown.iter().map(|(path, _)| owner(&options.pinned.path(path))).collect::<Result<_>>()?,
        mounts: options.mounts.iter().map(|mount| source_facts(mount, &options.pinned)).collect::<Result<_>>()?,
        lent_owners: options.lent.iter().map(|(path, _)| owner(&options.pinned.path(path))).collect::<Result<_>>()?,
        has_bundle: trust::shown_bundle(options).is_some_and(|path| path.exists()),
        disks: if profile::rates(options).any() { devices::disks(read_from(options, &system))? } else { Vec::new() },
    };
    let mut spec = container_spec(options, &facts);
    open_pinned(&mut spec.file_system, &options.pinned);
    let submounts = match options.backend {
        Backend::Local => Submounts::default(), // the host's own root
        _ => submounts::add(&mut spec.file_system.steps, &crate::host::mounts()?, container::privileged())?,
    };
    let mut spec = options.backend.isolates().shape(spec, options, stage)?;
    let checked = check(&mut spec)?;
    Ok(Planned { spec, checked, degraded, submounts })
}

/// Replaces pinned paths by their descriptors, which init has too.
fn open_pinned(file_system: &mut FileSystem, pinned: &Pinned) {
    if let Root::Overlay { lower, .. } = &mut file_system.root {
        *lower = pinned.path(lower);
    }
    for step in &mut file_system.steps {
        if let Step::Overlay { lower: path, .. }
        | Step::Bind { source: Source::Host(path) | Source::Copied { from: path, .. }, .. } = step
        {
            *path = pinned.path(path);
        }
    }
}

fn degraded(checked: &Checked) -> Vec<Degraded> {
    let missing = checked.missing.iter().cloned();
    missing.map(|(name, reason)| Degraded { name, reason }).collect()
}

fn read_from<'all>(options: &'all Options, system: &'all system::System) -> impl Iterator<Item = &'all Path> {
    let layers = options.image.as_ref().map(|image| &image.directory);
    let system = system.folders.iter().filter(|_| options.rootfs.is_none() && options.image.is_none());
    let workspace = match &options.workspace {
        Workspace::Directory(path) => Some(path),
        Workspace::Empty => None,
    };
    let shown = options.shown.iter().chain(&options.lent).map(|(path, _)| path);
    let mounts = options.mounts.iter().map(|mount| &mount.source);
    system.chain(&options.rootfs).chain(layers).chain(workspace).chain(shown).chain(mounts).map(PathBuf::as_path)
}

fn source_facts(mount: &Mount, pinned: &Pinned) -> Result<SourceFacts> {
    let step = || format!("open `{}`", mount.source.display());
    let status = rustix::fs::stat(pinned.path(&mount.source)).failing(Kind::NotFound, step)?;
    let is_folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    Ok(SourceFacts { owner: (status.st_uid, status.st_gid), is_folder })
}

fn owner(path: &Path) -> Result<(u32, u32)> {
    let status: Stat = rustix::fs::stat(path).failing(Kind::Workspace, || format!("open `{}`", path.display()))?;
    Ok((status.st_uid, status.st_gid))
}

pub(crate) fn guarantee() -> Guarantee {
    Backend::Native.guarantee()
}

pub(crate) fn possible() -> Result<container::Possible> {
    container::possible(&profile::resources(&Options::new(Vec::new()), &[]))
}

/// Returns rows of a name and its value. Makes nothing.
pub(crate) fn explain(options: &Options) -> Result<Vec<(String, String)>> {
    options.check()?;
    let planned = plan(options, Path::new("/"), container::check_thoroughly)?;
    let (spec, checked) = (planned.spec, planned.checked);
    let mut rows = vec![
        ("backend".to_owned(), options.backend.to_string()),
        ("guarantee".to_owned(), options.backend.guarantee().word().to_owned()),
        (
            "root".to_owned(),
            match (&options.image, &options.rootfs) {
                (Some(image), _) => {
                    let layers = counted(image.layers.len() as u64, "layer", "layers");
                    format!("{layers} of an image (copy-on-write)")
                }
                (None, Some(path)) => format!("{} (copy-on-write)", path.display()),
                (None, None) => "the host's system folders, read-only".to_owned(),
            },
        ),
        (
            "workspace".to_owned(),
            match &options.workspace {
                Workspace::Empty => "empty".to_owned(),
                Workspace::Directory(path) => format!("{} (copy-on-write)", path.display()),
            },
        ),
        ("workspace at".to_owned(), options.at.display().to_string()),
        ("network".to_owned(), options.network.explain()),
        ("user".to_owned(), format!("{} in an own user namespace, {}", spec.command.uid, powers(options))),
        ("namespaces".to_owned(), namespaces(options).to_owned()),
        ("seccomp".to_owned(), "built-in allow-list".to_owned()),
        ("landlock".to_owned(), format!("{} rules", spec.landlock.rules.len())),
        ("masked".to_owned(), paths(&spec.file_system.masked)),
        ("read-only".to_owned(), paths(&spec.file_system.read_only)),
    ];
    let hidden = options.hidden.flags.iter().chain(&options.hidden.lines);
    rows.extend(hidden.map(|pattern| ("hidden".to_owned(), pattern.escape_debug().to_string())));
    rows.extend(options.mounts.iter().map(|mount| ("mount".to_owned(), mount.words())));
    rows.extend(options.all_volumes().iter().map(|volume| ("volume".to_owned(), volume.words())));
    let disk = spec.file_system.scratch;
    rows.extend(options.limits.rows().into_iter().map(|(name, value)| {
        let value = match name {
            LimitName::Disk => {
                let backing = format!("{:?}", disk.backing).to_lowercase();
                format!("{} ({backing})", super::limits::size(disk.bytes))
            }
            _ => value,
        };
        (name.word().to_owned(), value)
    }));
    for (name, words) in options.backend.isolates().words() {
        rows.iter_mut().filter(|(row, _)| row == name).for_each(|row| row.1.clone_from(&words));
    }
    rows.extend(
        planned
            .degraded
            .into_iter()
            .chain(degraded(&checked))
            .map(|each| (format!("missing: {}", each.name), each.reason)),
    );
    let Submounts { notes, hints, .. } = planned.submounts;
    rows.extend(notes.into_iter().chain(hints).map(|note| ("note".to_owned(), note)));
    Ok(rows)
}

fn powers(options: &Options) -> &'static str {
    match options.root_inside {
        true => "root inside: Docker's capabilities in that namespace, set-uid programs",
        false => "no capabilities, no_new_privs",
    }
}

fn namespaces(options: &Options) -> &'static str {
    match options.network.mode {
        NetworkMode::Host => "user, mount, pid, ipc, uts, cgroup",
        _ => "user, mount, pid, network, ipc, uts, cgroup",
    }
}

fn paths(list: &[std::path::PathBuf]) -> String {
    list.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}
