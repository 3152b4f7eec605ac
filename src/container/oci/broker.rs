//! Opens the secrets of `dev.brig.secret.NAME`, and makes the container trust the broker.

use super::bundle;
use super::creation::SecretOpener;
use crate::egress::trust::{BUNDLE, BUNDLES, FOLDER, VARIABLES};
use crate::egress::{Broker, PLACEHOLDER, Trust};
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use crate::mounts::bundle::Mount;
use crate::mounts::resolve;
use crate::spec::config::process::Process;
use crate::spec::protections::SECRET;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Of a root's own, in bytes.
const MOST_CERTIFICATES: u64 = 8 << 20;

pub(super) fn open(secrets: &[(String, String)], opener: Option<SecretOpener>) -> Result<Option<Broker>> {
    let Some((first, _)) = secrets.first() else { return Ok(None) };
    let SecretOpener(open) = opener.ok_or_else(|| {
        let words = format!("`{SECRET}{first}` is set, and this caller opens no secrets");
        Error::new(Kind::Secret, words).hint("set `secrets` of the creation")
    })?;
    open(secrets).map(Some)
}

/// Returns mounts of files in `directory`: the root's own certificates with the broker's authority. A root without any
/// gets the machine's.
pub(super) fn certificates(broker: &Broker, root: &Path, directory: &Path) -> Result<Vec<Mount>> {
    let trust = Trust::new(&broker.certificate, broker.roots.as_deref().map(Vec::as_slice));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inside =
        openat(CWD, root, flags, Mode::empty()).failing(Kind::Spec, || format!("open `{}`", root.display()))?;
    let usual = Path::new(FOLDER).join(BUNDLE);
    let mut mounts = Vec::new();
    for (number, at) in [usual].into_iter().chain(BUNDLES.map(PathBuf::from)).enumerate() {
        let content = match own(&inside, &at)? {
            Some(own) => [own.as_slice(), b"\n", &trust.authority].concat(),
            None if number == 0 => trust.bundle(),
            None => continue,
        };
        let source = directory.join(format!("certificates-{number}"));
        std::fs::write(&source, content)
            .map_err(|cause| files::failed(cause, format!("write `{}`", source.display())))?;
        mounts.push(bundle::read_only(&at.to_string_lossy(), source)?);
    }
    Ok(mounts)
}

/// `None` unless it is a regular file. The root may be hostile: opening a device can have an effect, so look first.
fn own(root: &OwnedFd, at: &Path) -> Result<Option<Vec<u8>>> {
    let Ok(found) = resolve::open(root.as_fd(), at) else { return Ok(None) };
    let step = || format!("read `{}` of the root", at.display());
    if FileType::from_raw_mode(fstat(&found).failing(Kind::Spec, step)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let opened = format!("/proc/self/fd/{}", found.as_raw_fd());
    let bytes = files::read_bounded(Path::new(&opened), MOST_CERTIFICATES);
    bytes.map(Some).map_err(|error| error.of_kind(Kind::Spec).doing(step()))
}

/// Adds variables for programs with built-in certificates, and a placeholder for each secret unless the process has
/// one: some clients check its form.
pub(super) fn give_variables(secrets: &[(String, String)], process: &mut Process) {
    if secrets.is_empty() {
        return;
    }
    for (name, _) in VARIABLES {
        process.env.retain(|each| each.split_once('=').is_none_or(|(known, _)| known != name));
        process.env.push(format!("{name}={FOLDER}/{BUNDLE}"));
    }
    for (name, _) in secrets {
        if !process.env.iter().any(|each| each.split_once('=').is_some_and(|(known, _)| known == name)) {
            process.env.push(format!("{name}={PLACEHOLDER}"));
        }
    }
}
