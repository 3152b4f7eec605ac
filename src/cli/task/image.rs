//! Fetching a task's image when it is not there.

use brig::error::{Error, Kind, Result};
use brig::image;
use brig::task::ImageWish;
use clap::ValueEnum;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// When an image is fetched from its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Pull {
    /// If the store does not have it
    #[default]
    Missing,
    /// Each time; what has not changed is not fetched again
    Always,
    /// Never
    Never,
}

/// Fetches the image unless it is there. In a process of its own: an ordinary user's store is written in a user namespace, which a
/// supervisor must not be in, and nothing of a TLS connection stays in a supervisor's memory. The exit status of a fetch that failed, which
/// has said why, is returned.
pub(in crate::cli) fn fetch(store: &Path, wish: &ImageWish, when: Pull) -> Result<Option<ExitCode>> {
    let is_there = || match image::Store::existing(store)? {
        Some(store) => match store.find(&wish.reference) {
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            other => other.map(|_| true),
        },
        None => Ok(false),
    };
    let wanted = match when {
        Pull::Always => true,
        Pull::Never => false,
        Pull::Missing => !is_there()?,
    };
    if !wanted {
        return Ok(None);
    }
    let failed = |cause| Error::os(Kind::Internal, cause).doing("start `brig image pull`");
    let mut fetch = Command::new("/proc/self/exe");
    if brig::task::check_registry(&wish.reference)? {
        // The caller's variables name settings of registries and programs that give credentials.
        fetch.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    }
    let fetch = fetch
        .args(["image", "--store"])
        .arg(store)
        .args(["pull", "--", &wish.reference])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(failed)?;
    Ok(if fetch.success() { None } else { Some(ExitCode::from(fetch.code().map_or(130, |code| code as u8))) })
}
