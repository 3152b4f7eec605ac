//! The host's parts of a container, which CRIU saves by name: bind mounts, cgroups, devices, joined namespaces. Masks
//! are the container's own device and directory (`mounts::cover`), which CRIU saves.

use super::super::record::Record;
use super::super::{creation::Creation, group, prepare};
use super::rpc::{ExternalMount, InheritDescriptor, JoinNamespace, Options};
use crate::error::{Context, Error, Kind, Result};
use crate::host::{MountEntry, parse_mounts};
use crate::mounts::bundle::{Bundle, Entry};
use crate::mounts::resolve;
use crate::spec::config::Config;
use crate::spec::config::linux::NamespaceKind;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The cgroup that `pause` freezes, or CRIU would wait forever for a paused container.
pub(super) fn freezer(record: &Record) -> Option<String> {
    let groups = record.cgroup.as_ref()?;
    let of = |wanted: &str| groups.paths().find(|(name, _)| *name == wanted).map(|(_, path)| path);
    of("").or_else(|| of("freezer")).map(|path| path.display().to_string())
}

/// Mount point, and the name that [`restored_mounts`] uses.
pub(super) fn saved_mounts(config: &Config, record: &Record) -> Result<Vec<ExternalMount>> {
    let creation = Creation { bundle: PathBuf::from(&record.bundle), ..Creation::default() };
    let groups = group::recorded_places(record);
    let (_, user) = prepare::namespaces(config)?;
    let bundle = prepare::bundle(config, &creation.bundle, (Entry::Pivot, Vec::new()), groups, &user)?;
    let of_init = |name: &str| PathBuf::from(format!("/proc/{}/{name}", record.pid));
    let table = std::fs::read(of_init("mountinfo")).failing(Kind::State, || "read the mounts of the container")?;
    let table = parse_mounts(&table);
    let root = rustix::fs::open(of_init("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::State, || "open the root of the container")?;
    let found = |at: PathBuf| Some(external(&mount_point(root.as_fd(), &at, &table)?, &at));
    Ok(bundle.host_mounts().into_iter().filter_map(|(at, _)| found(at)).collect())
}

/// By the container's own table, with links resolved.
fn mount_point(root: BorrowedFd<'_>, at: &Path, table: &[MountEntry]) -> Option<PathBuf> {
    let found = resolve::open(root, at).ok()?;
    let status = statx(&found, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let entry = table.iter().find(|entry| entry.id == status.stx_mnt_id)?;
    // For another file statx names the mount above it.
    let is_point = entry.point == at || entry.point.file_name() == at.file_name();
    is_point.then(|| entry.point.clone())
}

pub(super) fn restored_mounts(bundle: &Bundle) -> Vec<ExternalMount> {
    bundle.host_mounts().iter().map(|(at, source)| external(at, source)).collect()
}

fn external(key: &Path, value: &Path) -> ExternalMount {
    ExternalMount { key: key.display().to_string(), value: value.display().to_string() }
}

/// Existing namespaces, by CRIU's names (`--external`, `--inherit-fd`).
const KEPT: [(NamespaceKind, &str, &str); 2] =
    [(NamespaceKind::Network, "net", "extRootNetNS"), (NamespaceKind::Pid, "pid", "extRootPidNS")];

/// CRIU leaves out the network and PID namespace that the container joined.
pub(super) fn save_namespaces(config: &Config, options: &mut Options) -> Result<()> {
    for (kind, word, key) in KEPT {
        let Some(path) = joined(config, kind) else { continue };
        let status = rustix::fs::stat(path).failing(Kind::Namespace, || format!("find the namespace `{path}`"))?;
        options.external.push(format!("{word}[{}]:{key}", status.st_ino));
    }
    Ok(())
}

/// The descriptors are for CRIU.
pub(super) fn join_namespaces(config: &Config, options: &mut Options) -> Result<Vec<OwnedFd>> {
    let mut handed = Vec::new();
    for namespace in config.linux.namespaces.iter().filter(|each| !each.path.is_empty()) {
        let path = &namespace.path;
        match KEPT.iter().find(|(kind, ..)| *kind == namespace.kind) {
            Some((_, _, key)) => {
                let opened = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                    .failing(Kind::Namespace, || format!("open the namespace `{path}`"))?;
                options.inherited.push(InheritDescriptor { key: (*key).to_owned(), descriptor: opened.as_raw_fd() });
                handed.push(opened);
            }
            None if namespace.kind == NamespaceKind::Cgroup => {
                return Err(Error::new(Kind::Spec, "CRIU cannot restore into a cgroup namespace that exists")
                    .hint("leave out the `path` of the cgroup namespace"));
            }
            None => options
                .joined
                .push(JoinNamespace { namespace: namespace.kind.file().to_owned(), file: path.to_owned() }),
        }
    }
    Ok(handed)
}

fn joined(config: &Config, kind: NamespaceKind) -> Option<&str> {
    let found = config.linux.namespaces.iter().find(|each| each.kind == kind && !each.path.is_empty());
    found.map(|each| each.path.as_str())
}
