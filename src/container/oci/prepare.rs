//! Makes init's plan from a checked config.json. Pure but for files that must be opened ahead: every refusal comes
//! before anything is created.

use crate::error::{Context, Error, Kind, Result};
use crate::mounts::bundle::options::{self, Reach};
use crate::mounts::bundle::{Bundle, Entry, Mount, take_sources};
use crate::mounts::device;
use crate::ns::{self, IdMap, Maps, Namespaces};
use crate::process::{Capabilities, Identity, UserNamespace};
use crate::seccomp;
use crate::spec::config::check::{clean, has, is_new, sysctl_path};
use crate::spec::config::linux::{Device, IdMapping, Namespace, NamespaceKind};
use crate::spec::config::process::{self as wish, Process};
use crate::spec::config::{self, Config};
use crate::spec::process::RLIMITS;
use crate::spec::protections::{Protections, SECCOMP};
use crate::spec::resources::{DeviceRule, Resources};
use crate::spec::root::Ids;
use crate::sys::weaken;
use caps::Capability;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;
use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(super) fn namespaces(config: &Config) -> Result<(Namespaces, UserNamespace)> {
    let mut plan = Namespaces::default();
    let mut user = UserNamespace::Callers;
    plan.shifts_time_inside = !rustix::process::geteuid().is_root();
    for namespace in &config.linux.namespaces {
        match (namespace.kind, namespace.path.is_empty()) {
            (NamespaceKind::User, true) => {
                user = UserNamespace::Mapped(Maps {
                    uid: lines(&config.linux.uid_mappings),
                    gid: lines(&config.linux.gid_mappings),
                });
            }
            (NamespaceKind::User, false) => {
                // A joined namespace keeps its maker's mappings: callers send both (containerd, CRI-O).
                if let Some(userns) = open_user(&namespace.path)? {
                    user = UserNamespace::Joined(userns);
                }
            }
            (NamespaceKind::Cgroup, true) => plan.cgroup = true,
            // Offsets must be written before a process is in the namespace, so the parent makes it.
            (NamespaceKind::Time, true) if !config.linux.time_offsets.is_empty() => {
                for (clock, offset) in &config.linux.time_offsets {
                    plan.time_offsets.push_str(&format!("{clock} {} {}\n", offset.secs, offset.nanosecs));
                }
            }
            (NamespaceKind::Cgroup, false) if enters_cgroup_namespace(config) => {} // see `cgroup_namespace`
            (kind, true) => plan.made |= ns::flag(kind),
            (kind, false) => {
                let length = weaken::length("long-values", namespace.path.len());
                plan.joined.push((kind, namespace.path.get(..length).unwrap_or_default().into()));
            }
        }
    }
    Ok((plan, user))
}

/// `None` for our own, which the kernel refuses to enter.
fn open_user(path: &str) -> Result<Option<OwnedFd>> {
    let step = || format!("open the namespace `{path}`");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::open(path, flags, Mode::empty()).failing(Kind::Namespace, step);
    let (theirs, own) = (open(path)?, open("/proc/self/ns/user")?);
    let inode = |file: &OwnedFd| rustix::fs::fstat(file).map(|status| status.st_ino).failing(Kind::Namespace, step);
    Ok(if inode(&theirs)? == inode(&own)? { None } else { Some(theirs) })
}

fn has_own_users(user: &UserNamespace) -> bool {
    matches!(user, UserNamespace::Mapped(_) | UserNamespace::Joined(_))
}

/// The host id of user 0, the cgroup's owner. `None` unless the container has its own user and cgroup namespace, and a
/// writable cgroup mount (runtime-spec, "Cgroup ownership").
pub(super) fn group_owner(config: &Config, user: &UserNamespace) -> Option<u32> {
    let UserNamespace::Mapped(maps) = user else { return None };
    let writable = config.mounts.iter().any(|mount| {
        matches!(mount.kind.as_str(), "cgroup" | "cgroup2")
            && !mount.options.iter().any(|word| word == "ro" || word == "rro")
    });
    let root = maps.uid.iter().find(|line| line.inside == 0)?;
    (is_new(config, NamespaceKind::Cgroup) && writable).then_some(root.outside)
}

fn lines(maps: &[IdMapping]) -> Vec<IdMap> {
    maps.iter().map(|line| IdMap { inside: line.container_id, outside: line.host_id, size: line.size }).collect()
}

/// Also returns unknown capabilities, which are ignored with a warning.
pub(super) fn identity(process: &Process) -> (Identity, Vec<String>) {
    let mut unknown = Vec::new();
    let mut set = |names: &[String]| {
        names.iter().fold(0, |bits, name| match Capability::from_str(name) {
            Ok(capability) => bits | capability.bitmask(),
            Err(_) => {
                unknown.push(name.clone());
                bits
            }
        })
    };
    let capabilities = process.capabilities.as_ref().map_or_else(Capabilities::default, |wish| Capabilities {
        bounding: set(&wish.bounding),
        effective: set(&wish.effective),
        permitted: set(&wish.permitted),
        inheritable: set(wish.inheritable.as_deref().unwrap_or_default()),
        ambient: set(&wish.ambient),
    });
    let user = &process.user;
    let identity = Identity {
        uid: user.uid,
        gid: user.gid,
        groups: user.additional_gids.clone(),
        born_with_groups: false,
        // As in runc; the specification leaves it open.
        umask: Some(user.umask.unwrap_or(0o022)),
        capabilities,
        no_new_privileges: process.no_new_privileges,
    };
    (identity, unknown)
}

/// runc's warnings: unknown names, and ambient capabilities outside the two sets that they need.
pub(super) fn capability_warnings(identity: &Identity, mut unknown: Vec<String>) -> Vec<String> {
    unknown.sort_unstable();
    unknown.dedup();
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        warnings.push(format!("ignoring unknown or unavailable capabilities: [{}]", unknown.join(" ")));
    }
    let sets = &identity.capabilities;
    let refused = sets.ambient & !(sets.permitted & sets.inheritable);
    let refused = caps::all().into_iter().filter(|each| refused & each.bitmask() != 0);
    let mut names: Vec<_> = refused.map(|each| each.to_string()).collect();
    names.sort_unstable();
    if !names.is_empty() {
        // One line, where runc 1.2 has several: Buildah shows them between the lines of a build.
        warnings.push(format!("can't raise ambient capability {}: operation not permitted", names.join(", ")));
    }
    warnings
}

/// What an unprivileged caller lacks: capabilities, and a score that protects from the out-of-memory killer. In a user
/// namespace every capability exists.
pub(super) fn missing_privileges(process: &Process, wished: &Capabilities, config: &Config) -> Vec<String> {
    let mut missing = Vec::new();
    let Ok(own) = rustix::thread::capabilities(None) else { return missing };
    let lacking = CapabilitySet::from_bits_retain(wished.permitted) - own.permitted;
    if !lacking.is_empty() && !has(config, NamespaceKind::User) {
        let names: Vec<_> = caps::all()
            .into_iter()
            .filter(|each| lacking.bits() & each.bitmask() != 0)
            .map(|each| each.to_string())
            .collect();
        missing.push(format!(
            "the caller does not have these capabilities, so the container gets none of them: {}",
            names.join(", ")
        ));
    }
    let score = process.oom_score_adj.unwrap_or_default();
    if score < 0 && !own.permitted.contains(CapabilitySet::SYS_RESOURCE) {
        missing.push(format!(
            "the caller may not lower its oom_score_adj (CAP_SYS_RESOURCE), so the container may not get {score}"
        ));
    }
    missing
}

/// The last variable of a name counts. Also returns whether HOME is missing.
pub(super) fn environment(process: &Process) -> (Vec<(OsString, OsString)>, bool) {
    let mut variables: Vec<(OsString, OsString)> = Vec::with_capacity(process.env.len());
    for (name, value) in process.env.iter().filter_map(|each| each.split_once('=')) {
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value.into(),
            None => variables.push((name.into(), value.into())),
        }
    }
    let missing = !variables.iter().any(|(name, value)| name == "HOME" && !value.is_empty());
    if missing {
        variables.retain(|(name, _)| name != "HOME");
    }
    (variables, missing)
}

pub(super) fn rlimits(process: &Process) -> Result<Vec<(Resource, Rlimit)>> {
    let value = |number: u64| (number != u64::MAX).then_some(number);
    process
        .rlimits
        .iter()
        .map(|limit| {
            let found = RLIMITS.iter().find(|(name, _)| *name == limit.kind);
            let (_, resource) =
                found.ok_or_else(|| Error::new(Kind::Spec, format!("invalid rlimit type: `{}`", limit.kind)))?;
            Ok((*resource, Rlimit { current: value(limit.soft), maximum: value(limit.hard) }))
        })
        .collect()
}

/// The last rules let every container make any node, and use the default devices.
pub(super) fn resources(config: &Config) -> Resources {
    let mut resources = config.linux.resources.clone().unwrap_or_default();
    let rules = &mut resources.devices;
    // An ordinary user may make no rules, and has no power over devices.
    if rules.is_empty() && !crate::container::check::privileged() {
        return resources;
    }
    // As in runc, a device without a rule is denied.
    if rules.first().is_none_or(|rule| !is_for_all(rule)) {
        rules.insert(0, DeviceRule { allow: false, kind: None, major: None, minor: None, access: Some("rwm".into()) });
    }
    let mut allow = |kind: &str, major: Option<i64>, minor: Option<i64>, access: &str| {
        resources.devices.push(DeviceRule {
            allow: true,
            kind: Some(kind.into()),
            major,
            minor,
            access: Some(access.into()),
        });
    };
    allow("c", None, None, "m");
    allow("b", None, None, "m");
    for (major, minor) in [(1, 3), (1, 8), (1, 7), (5, 0), (1, 5), (1, 9)] {
        allow("c", Some(major), Some(minor), "rwm");
    }
    allow("c", Some(136), None, "rwm"); // pseudo-terminals of devpts
    allow("c", Some(5), Some(2), "rwm"); // their multiplexer
    resources
}

fn is_for_all(rule: &DeviceRule) -> bool {
    rule.kind.as_deref().is_none_or(|kind| matches!(kind, "" | "a"))
        && [rule.major, rule.minor].iter().all(|number| number.is_none_or(|number| number < 0))
}

/// Without links.
pub(super) fn root(config: &Config, directory: &Path) -> Result<PathBuf> {
    let wish = config.root.as_ref().ok_or_else(|| Error::new(Kind::Spec, "`root` is missing"))?;
    let root = absolute(directory, &wish.path);
    resolved(&root).map_err(|errno| {
        let hint = "make the directory that `root.path` names";
        Error::os(Kind::Spec, errno).doing(format!("find the root `{}`", root.display())).hint(hint)
    })
}

/// `groups` are the container's cgroups, and whether they are private.
pub(super) fn bundle(
    config: &Config,
    directory: &Path,
    (entry, more): (Entry, Vec<Mount>),
    (groups, own_groups): (Vec<(String, PathBuf)>, bool),
    user: &UserNamespace,
) -> Result<Bundle> {
    let linux = &config.linux;
    let mut mounts =
        config.mounts.iter().map(|mount| self::mount(config, directory, mount)).collect::<Result<Vec<_>>>()?;
    mounts.extend(more);
    let mut bundle = Bundle {
        root: root(config, directory)?,
        read_only: config.root.as_ref().is_some_and(|root| root.readonly),
        cap: RefCell::default(),
        own_mounts: has(config, NamespaceKind::Mount),
        new_mounts: is_new(config, NamespaceKind::Mount),
        entry,
        propagation: propagation(&linux.rootfs_propagation),
        mounts,
        devices: linux.devices.iter().map(node).collect(),
        owner: Ids::default(),
        label: linux.mount_label.clone(),
        masked: unique_paths(&linux.masked_paths),
        read_only_paths: unique_paths(&linux.readonly_paths),
        groups,
        // Without a cgroup namespace the cgroups are not the container's alone to change (CVE-2023-25809).
        groups_read_only: !own_groups || (has_own_users(user) && !has(config, NamespaceKind::Cgroup)),
    };
    if has_own_users(user) && bundle.new_mounts && rustix::process::geteuid().is_root() {
        take_sources(&mut bundle)?;
    }
    Ok(bundle)
}

/// A second mask of a path would be one more mount on the first.
fn unique_paths(list: &[String]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::with_capacity(list.len());
    for path in list {
        let path = PathBuf::from(clean(path));
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// As the kernel names it: realpath(3) of musl makes a call for each component.
fn resolved(path: &Path) -> Result<PathBuf, Errno> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", found.as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(name.into_bytes())))
}

fn absolute(directory: &Path, path: &str) -> PathBuf {
    directory.join(path)
}

fn propagation(word: &str) -> Option<MountPropagationFlags> {
    use MountPropagationFlags as P;
    let (recursive, word) = word.strip_prefix('r').map_or((false, word), |rest| (true, rest));
    let flags = match word {
        "shared" => P::SHARED,
        "slave" => P::DOWNSTREAM,
        "private" => P::PRIVATE,
        "unbindable" => P::UNBINDABLE,
        _ => return None,
    };
    Some(if recursive { flags | P::REC } else { flags })
}

fn mount(config: &Config, directory: &Path, wish: &config::Mount) -> Result<Mount> {
    let mut options = options::parse(&wish.destination, &wish.options)?;
    let joined = config.linux.namespaces.iter().find(|each| each.kind == NamespaceKind::User && !each.path.is_empty());
    let mut userns = None;
    let maps = if !wish.uid_mappings.is_empty() {
        Some(Maps { uid: lines(&wish.uid_mappings), gid: lines(&wish.gid_mappings) })
    } else if options.idmap.is_some() && !config.linux.uid_mappings.is_empty() {
        Some(Maps { uid: lines(&config.linux.uid_mappings), gid: lines(&config.linux.gid_mappings) })
    } else if let (Some(_), Some(joined)) = (options.idmap, joined) {
        userns = open_user(&joined.path)?;
        None
    } else if options.idmap.is_some() {
        let words =
            format!("mount `{}`: `idmap` needs mappings, or a user namespace of the container", wish.destination);
        return Err(Error::new(Kind::Spec, words));
    } else {
        None
    };
    if maps.is_some() || userns.is_some() {
        options.idmap = options.idmap.or(Some(Reach::One));
        if options.bind.is_none() {
            let words = format!("mount `{}`: only bind mounts can be id-mapped", wish.destination);
            return Err(Error::new(Kind::Spec, words));
        }
    }
    if let Some(maps) = &maps {
        userns = Some(ns::mapped(maps)?.userns);
    }
    let source = if options.bind.is_some() { absolute(directory, &wish.source) } else { PathBuf::from(&wish.source) };
    let label = config.linux.mount_label.clone();
    Ok(Mount {
        at: clean(&wish.destination).into(),
        kind: wish.kind.clone(),
        source,
        options,
        userns,
        label,
        tree: None,
        context: None,
    })
}

fn node(wish: &Device) -> device::Node {
    let kind = match wish.kind.as_str() {
        "b" => FileType::BlockDevice,
        "p" => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    device::Node {
        at: clean(&wish.path).into(),
        kind,
        major: u32::try_from(wish.major).unwrap_or_default(),
        minor: u32::try_from(wish.minor).unwrap_or_default(),
        mode: wish.file_mode.unwrap_or(0o666) & 0o7777,
        owner: Ids { uid: wish.uid.unwrap_or_default(), gid: wish.gid.unwrap_or_default() },
    }
}

/// The first process enters it from its cgroup. In a user namespace its helper enters; an ordinary user's process is
/// born in it.
pub(super) fn cgroup_namespace(config: &Config) -> Result<Option<OwnedFd>> {
    let named = |each: &&Namespace| each.kind == NamespaceKind::Cgroup && !each.path.is_empty();
    let Some(namespace) = config.linux.namespaces.iter().find(named).filter(|_| enters_cgroup_namespace(config)) else {
        return Ok(None);
    };
    rustix::fs::open(&namespace.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Namespace, || format!("open the namespace `{}`", namespace.path))
        .map(Some)
}

fn enters_cgroup_namespace(config: &Config) -> bool {
    !has(config, NamespaceKind::User) || rustix::process::geteuid().is_root()
}

/// The configuration's filter, and with `dev.brig.seccomp` that of tasks.
pub(super) fn filter(config: &Config, protections: &Protections) -> Result<seccomp::Program> {
    let own = match &config.linux.seccomp {
        Some(profile) => seccomp::compile(profile)?,
        None => seccomp::Program::empty(),
    };
    if !protections.agent_filter || weaken::is_off("agent-annotation") {
        return Ok(own);
    }
    if own.listens() {
        return Err(Error::new(Kind::Seccomp, "the agent's filter allows no other filter with a listener")
            .doing(format!("combine `{SECCOMP}` with the profile's SCMP_ACT_NOTIFY"))
            .hint("leave one of them out"));
    }
    // Without the listener: no supervisor watches this container.
    Ok(own.over(seccomp::compile(&seccomp::profile::agent_spec())?))
}

/// As paths below /proc/sys.
pub(super) fn sysctls(config: &Config) -> Vec<(String, String)> {
    config.linux.sysctl.iter().map(|(key, value)| (sysctl_path(key), value.clone())).collect()
}

pub(super) fn terminal(size: wish::ConsoleSize, is_served_here: bool) -> crate::process::Terminal {
    crate::process::Terminal { rows: size.height, columns: size.width, passes_newlines: is_served_here }
}
