//! From options to a container's spec. Pure, given what the host has.

use super::devices::Device;
use super::host_mounts::{self, SourceFacts};
use super::image::ImageRoot;
use super::limits::{LimitName, Limits};
use super::location::{self, SECRETS};
use super::mount::MountMode;
use super::options::{Backend, Options, Workspace};
use super::system::System;
use super::{HOME, ROOTS_HOME, USER, trust, volumes};
use crate::container;
use crate::host::is_off;
use crate::spec::landlock::{Access, Landlock, Rule};
use crate::spec::process::{Command, fixed};
use crate::spec::resources::{Rates, Resources, block_io};
use crate::spec::root::{Attributes, Backing, FileSystem, Owner, Root, Scratch, Shown, Source, Step, Version};
use crate::spec::{Confinement, Container};
use rustix::process::Resource;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const HOSTNAME: &str = "sandbox";
pub(super) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// An overlay's changes of the workspace on the scratch file system, in `upper`.
pub(crate) const CHANGES: &str = "workspace";
/// A workspace on the scratch file system that begins without a folder.
pub(crate) const FILES: &str = "files";

/// Paths of /proc that tell of the machine or reach into it. This is the list of runc and moby, with the side channels
/// of GHSA-6fw5-f8r9-fgfm and GHSA-jq35-85cj-fj4p.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(crate) struct Facts<'host> {
    pub system: &'host System,
    pub workspace_owner: (u32, u32),
    /// In the order of `Options::shown`.
    pub shown_owners: Vec<(u32, u32)>,
    /// In the order of `Options::mounts`.
    pub mounts: Vec<SourceFacts>,
    /// In the order of `Options::lent`.
    pub lent_owners: Vec<(u32, u32)>,
    pub disks: Vec<Device>,
    /// Whether the one file of the variables has the host's certificates; only asked with a network.
    pub has_bundle: bool,
}

/// Whether everything writable can be on a disk; else it is in memory.
pub(crate) fn on_disk() -> bool {
    container::privileged()
}

/// The disk takes longest of a sandbox, and is known without a look at the machine.
pub(crate) fn begin_disk(limits: &Limits, workshop: &container::Workshop) {
    if on_disk() && limits.io_bps.is_none() && limits.io_iops.is_none() {
        container::begin_disk(workshop, limits.disk.unwrap_or(Limits::DISK), limits.inodes);
    }
}

pub(crate) fn container_spec(options: &Options, facts: &Facts<'_>) -> Container {
    Container {
        hostname: HOSTNAME.into(),
        file_system: file_system(options, facts),
        command: command(options, facts.has_bundle),
        network: options.network.spec(),
        landlock: landlock(options),
        resources: Some(resources(options, &facts.disks)),
        may_degrade: options.may_degrade.clone(),
        confinement: match options.mounts.iter().any(|mount| mount.mode == MountMode::Writable) {
            _ if options.root_inside => Confinement::Root,
            true if !is_off("set-id-bits") => Confinement::Sharing,
            _ => Confinement::Agent,
        },
    }
}

fn file_system(options: &Options, facts: &Facts<'_>) -> FileSystem {
    let limits = &options.limits;
    let scratch = if on_disk() {
        Scratch { backing: Backing::Image, bytes: limits.disk_bytes(), inodes: limits.inodes, rates: rates(options) }
    } else {
        Scratch { backing: Backing::Memory, bytes: limits.disk_bytes(), inodes: limits.inodes, rates: Rates::default() }
    };
    let at = &options.at;
    // A broker's certificates and the places of what a caller shows are of one sandbox. Another runtime mounts parents
    // by itself.
    let has_volumes = !options.volumes.is_empty() || options.home.is_some();
    let shows_more = !options.shown.is_empty() || !options.lent.is_empty() || !options.mounts.is_empty();
    let is_usual = options.broker.is_none() && !shows_more && !has_volumes;
    let is_kept =
        options.image.is_none() && options.rootfs.is_none() && is_usual && matches!(options.backend, Backend::Native);
    let mut steps = if is_kept { location::before(at) } else { Vec::new() };
    let root = match (&options.image, &options.rootfs) {
        (Some(image), _) => image.root(),
        (None, Some(lower)) => Root::Overlay { lower: lower.clone(), shown: Shown::Inside },
        (None, None) => {
            let mounts = options.mounts.iter().map(|mount| &mount.target);
            let places: Vec<_> = mounts.chain(options.shown.iter().map(|(_, place)| place)).chain([at]).collect();
            let is_parent = |step: &Step| matches!(step, Step::Directory { at: own, .. } if places.iter().any(|place| place.starts_with(own)));
            // A folder that only the administrator may enter would close a workspace or mount below it: it is made as
            // their parent.
            steps.extend(system_steps(facts.system).into_iter().filter(|step| !is_parent(step)));
            if is_kept { Root::Kept } else { Root::Empty }
        }
    };
    let is_ours = matches!(root, Root::Kept | Root::Empty);
    steps.extend(kernel_steps());
    if options.backend == Backend::Native {
        let hierarchy = facts.system.hierarchy.as_deref();
        let is_mixed = hierarchy.is_some_and(|path| path != Path::new("/sys/fs/cgroup"));
        steps.extend(limit_steps(options, hierarchy, is_mixed));
    }
    let is_empty_home = |step: &Step| matches!(step, Step::Bind { source: Source::Scratch("home"), .. });
    let of_image = options.image.iter().flat_map(|image| image.steps(HOSTNAME));
    steps.extend(of_image.filter(|step| options.home.is_none() || !is_empty_home(step)));
    if options.root_inside && options.image.is_none() {
        steps.push(Step::Directory { at: ROOTS_HOME.into(), mode: 0o700, owner: Owner::Administrator });
    }
    // Without a network, a root of the caller's own keeps its file.
    let resolver = options.network.resolver_file().or_else(|| is_ours.then(String::new));
    steps.extend(resolver.map(|content| Step::File {
        at: "/etc/resolv.conf".into(),
        content: content.into(),
        mode: 0o644,
    }));
    steps.extend(writable_steps(options, facts));
    steps.extend(location::link(at, is_kept));
    steps.extend(options.broker.iter().flat_map(|broker| match is_ours {
        true => trust::in_host(broker, facts.system.settings.iter().any(|each| each == trust::FOLDER), on_disk()),
        false => trust::in_root(broker, options),
    }));
    if !options.secrets.is_empty() {
        steps.push(Step::Secrets { at: SECRETS.into(), files: options.secrets.clone() });
    }
    steps.extend(options.shown.iter().zip(&facts.shown_owners).map(|((from, at), &(uid, gid))| Step::Bind {
        source: Source::Host(from.clone()),
        at: at.clone(),
        attributes: Attributes::READ_ONLY,
        shown: Shown::Users { uid, gid },
    }));
    steps.extend(host_mounts::steps(options, &facts.mounts));
    steps.extend(volumes::steps(options));
    steps.extend(options.lent.iter().zip(&facts.lent_owners).map(|((from, at), &(uid, gid))| Step::Bind {
        source: Source::Host(from.clone()),
        at: at.clone(),
        attributes: Attributes::WRITABLE,
        shown: Shown::Users { uid, gid },
    }));
    steps.extend(location::after(at).filter(|_| is_kept));
    if is_ours {
        steps.push(Step::Freeze { at: "/".into(), attributes: Attributes::READ_ONLY });
    }
    FileSystem {
        root,
        attributes: if options.root_inside { Attributes::ROOT_INSIDE } else { Attributes::WRITABLE },
        scratch,
        steps,
        masked: MASKED.iter().map(PathBuf::from).collect(),
        read_only: READ_ONLY.iter().map(PathBuf::from).collect(),
    }
}

/// The host's programs, and an /etc of our own.
pub(super) fn system_steps(system: &System) -> Vec<Step> {
    let show = |path: &PathBuf| Step::Bind {
        source: Source::Host(path.clone()),
        at: path.clone(),
        attributes: Attributes::READ_ONLY,
        shown: Shown::Inside,
    };
    let file = |name: &str, content: String| Step::File {
        at: Path::new("/etc").join(name),
        content: content.into(),
        mode: 0o644,
    };
    let mut steps: Vec<_> = system.folders.iter().map(show).collect();
    steps.extend(system.links.iter().map(|(at, target)| Step::Symlink { at: at.clone(), target: target.clone() }));
    steps.extend([
        file("passwd", format!("root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{USER}:{USER}:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")),
        file("group", format!("root:x:0:\nagent:x:{USER}:\nnogroup:x:65534:\n")),
        file("hosts", format!("127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n")),
        file("hostname", format!("{HOSTNAME}\n")),
        file("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".into()),
        file("gitconfig", "[user]\n\tname = agent\n\temail = agent@localhost\n[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n[core]\n\tcheckStat = minimal\n".to_owned()),
    ]);
    steps.extend(system.settings.iter().map(show));
    let copy = |(at, version): &(PathBuf, Version)| Step::Copy {
        from: at.clone(),
        version: *version,
        at: at.clone(),
        mode: 0o644,
    };
    steps.extend(system.copies.iter().map(copy));
    steps.push(Step::Symlink { at: "/var/tmp".into(), target: "/tmp".into() });
    steps.push(Step::Directory { at: "/run".into(), mode: 0o755, owner: Owner::Administrator });
    steps.push(Step::Directory { at: "/root".into(), mode: 0o700, owner: Owner::Administrator });
    steps
}

pub(super) fn kernel_steps() -> Vec<Step> {
    let link = |at: &str, target: &str| Step::Symlink { at: at.into(), target: target.into() };
    vec![
        Step::Proc { at: "/proc".into() },
        Step::Tmpfs {
            at: "/dev".into(),
            bytes: 64 << 10,
            inodes: 64,
            mode: 0o755,
            owner: Owner::Administrator,
            attributes: Attributes::DEVICES,
        },
        Step::Devices,
        Step::Pts { at: "/dev/pts".into() },
        link("/dev/ptmx", "pts/ptmx"),
        link("/dev/fd", "/proc/self/fd"),
        link("/dev/stdin", "/proc/self/fd/0"),
        link("/dev/stdout", "/proc/self/fd/1"),
        link("/dev/stderr", "/proc/self/fd/2"),
        Step::Tmpfs {
            at: "/dev/shm".into(),
            bytes: 64 << 20,
            inodes: 4096,
            mode: 0o1777,
            owner: Owner::Administrator,
            attributes: Attributes::KERNEL,
        },
        Step::Freeze { at: "/dev".into(), attributes: Attributes::DEVICES.read_only() },
    ]
}

fn writable_steps(options: &Options, facts: &Facts<'_>) -> Vec<Step> {
    let owner = facts.workspace_owner;
    let bind = |name, at: &Path| Step::Bind {
        source: Source::Scratch(name),
        at: at.to_owned(),
        attributes: Attributes::WRITABLE,
        shown: Shown::Stored,
    };
    let workspace = match &options.workspace {
        Workspace::Empty => bind(FILES, &options.at),
        Workspace::Directory(lower) => Step::Overlay {
            lower: lower.clone(),
            changes: CHANGES,
            at: options.at.clone(),
            attributes: Attributes::WRITABLE,
            shown: Shown::Users { uid: owner.0, gid: owner.1 },
            hidden: options.hidden.clone(),
        },
    };
    // An image has its own, and root's is in the root.
    let has_empty_home = options.image.is_none() && !options.root_inside;
    let home =
        volumes::home_step(options, &facts.mounts).or_else(|| has_empty_home.then(|| bind("home", Path::new(HOME))));
    home.into_iter().chain([bind("tmp", Path::new("/tmp")), workspace]).collect()
}

/// The index of a folder has another owner of each file than the sandbox sees. Without this git reads each file again.
/// The /etc/gitconfig of our own root has it too.
const CHECK_STAT: [(&str, &str); 3] =
    [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "core.checkStat"), ("GIT_CONFIG_VALUE_0", "minimal")];

fn command(options: &Options, has_bundle: bool) -> Command {
    let image = options.image.as_ref();
    let given = |name: &OsStr, all: &[(OsString, OsString)]| all.iter().any(|(each, _)| each == name);
    let (user, name, own) = if options.root_inside { (0, "root", ROOTS_HOME) } else { (USER, "agent", HOME) };
    let home = image.map_or(Path::new(own), ImageRoot::home);
    let of_image = image.map_or(&[][..], |image| &image.environment);
    let has_own_git = image.is_none() && options.rootfs.is_none();
    let has_foreign_index = !has_own_git && matches!(options.workspace, Workspace::Directory(_));
    let mut environment: Vec<(OsString, OsString)> = [
        ("PATH", OsStr::new(SEARCH_PATH)),
        ("HOME", home.as_os_str()),
        ("LANG", OsStr::new("C.UTF-8")),
        ("TERM", OsStr::new(if options.terminal { "xterm-256color" } else { "dumb" })),
    ]
    .into_iter()
    .chain(image.is_none().then_some([("USER", OsStr::new(name)), ("LOGNAME", OsStr::new(name))]).into_iter().flatten())
    // A git below /usr/local would look below it for the /etc/gitconfig that we make.
    .chain(has_own_git.then_some(("GIT_CONFIG_SYSTEM", OsStr::new("/etc/gitconfig"))))
    .chain(has_foreign_index.then_some(CHECK_STAT.map(|(name, value)| (name, OsStr::new(value)))).into_iter().flatten())
    .filter(|(name, _)| !given(OsStr::new(name), of_image))
    .map(|(name, value)| (name.into(), value.into()))
    .chain(trust::variables(options.broker.is_some(), has_bundle))
    .chain(of_image.iter().filter(|(name, _)| options.broker.is_none() || !trust::is_variable(name)).cloned())
    .filter(|(name, _)| !given(name, &options.environment))
    .collect();
    // The last of a name is in force: programs disagree about which of two they read.
    let last = |(at, (name, _)): &(usize, &(OsString, OsString))| !given(name, &options.environment[at + 1..]);
    environment.extend(options.environment.iter().enumerate().filter(last).map(|(_, variable)| variable.clone()));
    let mut rlimits = vec![
        fixed(Resource::Nofile, options.limits.open_files),
        fixed(Resource::Core, 1), // also keeps a piped core_pattern away, see the profile of system calls
        // A caller's right to real-time priority (audio groups, service managers) would starve the host.
        fixed(Resource::Rtprio, 0),
        fixed(Resource::Nice, 0),
    ];
    if options.may_degrade.iter().any(|name| name == LimitName::Pids.word()) {
        // Counted in the sandbox's own user namespace it still stops a fork bomb.
        rlimits.push(fixed(Resource::Nproc, options.limits.pids));
    }
    Command {
        holds: options.holds,
        arguments: options.command.clone(),
        environment,
        directory: options.directory.clone().unwrap_or_else(|| match image {
            Some(image) => image.start(options.workspace != Workspace::Empty, &options.at),
            None => options.at.clone(),
        }),
        uid: image.map_or(user, |image| image.uid),
        gid: image.map_or(user, |image| image.gid),
        // An ordinary user's namespace with one id refuses setgroups(2).
        groups: image
            .filter(|_| container::privileged() || options.root_inside)
            .map_or_else(Vec::new, |image| image.groups.clone()),
        rlimits,
    }
}

/// Read and run everything, write where mounts are writable, use devices.
fn landlock(options: &Options) -> Landlock {
    let optional = options.may_degrade.iter().any(|name| name == "landlock");
    if options.root_inside {
        // Root makes folders anywhere. Mounts protect the kernel's own.
        return Landlock::for_root(optional);
    }
    let rule = |path: &str, access| Rule { path: path.into(), access };
    let mut rules = vec![
        rule("/", Access::ReadExecute),
        Rule { path: options.at.clone(), access: Access::Write },
        rule(HOME, Access::Write),
        rule("/tmp", Access::Write),
        rule("/dev/shm", Access::Write),
        rule("/dev", Access::Device),
    ];
    rules.extend(options.lent.iter().map(|(_, at)| Rule { path: at.clone(), access: Access::Write }));
    rules.extend(host_mounts::landlock(options));
    rules.extend(volumes::landlock(options));
    if options.rootfs.is_some() {
        // In a root of the user's own, which is copy-on-write, file modes decide.
        rules.extend(
            ["/etc", "/opt", "/root", "/run", "/srv", "/usr", "/var", "/home", "/mnt"]
                .map(|path| rule(path, Access::Write)),
        );
    }
    rules.extend(options.image.iter().flat_map(ImageRoot::landlock));
    Landlock { rules, optional }
}

/// Leaves out limits that the caller gave up by name.
pub(crate) fn rates(options: &Options) -> Rates {
    let kept = |name: LimitName, rate: Option<u64>| {
        rate.filter(|_| !options.may_degrade.iter().any(|each| each == name.word()))
    };
    let limits = &options.limits;
    Rates { bytes: kept(LimitName::IoBps, limits.io_bps), operations: kept(LimitName::IoIops, limits.io_iops) }
}

/// `container` leaves out what this machine cannot enforce and the caller accepted.
pub(crate) fn resources(options: &Options, disks: &[Device]) -> Resources {
    let limits = &options.limits;
    let mut resources = Resources { oom_group: true, ..Resources::default() };
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    resources.memory.limit = Some(signed(limits.memory));
    // The specification's `swap` is memory and swap together.
    resources.memory.swap = Some(signed(limits.memory.saturating_add(limits.swap)));
    // cgroup v1 counts what waits in TCP and UDP sockets apart, and only where there is a limit; v2 counts it as memory.
    resources.memory.kernel_tcp = Some(signed(limits.memory / Limits::UNCOUNTED));
    resources.pids.limit = Some(signed(limits.pids));
    const PERIOD: u64 = 100_000; // microseconds, the kernel's default
    resources.cpu.period = Some(PERIOD);
    resources.cpu.quota = Some((limits.cpus * PERIOD as f64).round().max(1000.0) as i64);
    resources.block_io = block_io(&rates(options), disks);
    resources
}

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The files are bound from here to [`CGROUP_ROOT`], over the host's mount.
const LIMIT_FILES: &str = "/sys/fs/limits";
const CGROUP_TABLE: &str = "/proc/cgroups";
/// Microseconds.
const PERIOD: u64 = 100_000;

/// The limits as programs read them: read-only files of a control group at /sys/fs/cgroup, made at the start. The real
/// group's files reveal more than needed. A JVM looks for a mount of cgroup v2 and for v2-only controllers in
/// /proc/cgroups; Node on a machine with v1 reads the v1 file.
///
/// The steps follow that of /proc. `hierarchy` is the host's mount point of cgroup v2, and `is_mixed` whether the host
/// has v1 too.
fn limit_steps(options: &Options, hierarchy: Option<&Path>, is_mixed: bool) -> Vec<Step> {
    let limits = &options.limits;
    let holds = |name: LimitName| !options.may_degrade.iter().any(|each| each == name.word());
    let mut files = vec![("cgroup.controllers", "cpu memory pids\n".to_owned())];
    if holds(LimitName::Memory) {
        let line = format!("{}\n", limits.memory);
        files.extend([
            ("memory.max", line.clone()),
            ("memory/memory.limit_in_bytes", line.clone()),
            ("memory/memory.soft_limit_in_bytes", line),
        ]);
    }
    if holds(LimitName::Swap) {
        files.push(("memory.swap.max", format!("{}\n", limits.swap)));
    }
    if holds(LimitName::Cpus) {
        let quota = (limits.cpus * PERIOD as f64).round();
        files.push(("cpu.max", format!("{quota} {PERIOD}\n")));
    }
    if holds(LimitName::Pids) {
        files.push(("pids.max", format!("{}\n", limits.pids)));
    }
    let rows = ["cpuset", "cpu", "cpuacct", "memory", "pids"].map(|name| format!("{name}\t0\t1\t1\n"));
    files.push(("cgroups", format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\n{}", rows.concat())));
    let mut steps: Vec<Step> = files
        .into_iter()
        .map(|(name, text)| Step::File { at: Path::new(LIMIT_FILES).join(name), content: text.into(), mode: 0o444 })
        .collect();
    let show = |source, at: &str| Step::Bind {
        source,
        at: at.into(),
        attributes: Attributes::KERNEL.read_only(),
        shown: Shown::Stored,
    };
    let Some(hierarchy) = hierarchy else { return steps };
    steps.extend([
        show(Source::Host(hierarchy.into()), CGROUP_ROOT),
        show(Source::Root(LIMIT_FILES.into()), CGROUP_ROOT),
    ]);
    if is_mixed {
        steps.push(show(Source::Root(Path::new(LIMIT_FILES).join("cgroups")), CGROUP_TABLE));
    }
    steps
}
