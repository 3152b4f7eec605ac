//! The flags of a task's image, and fetching it when it is not there.

use super::flags::refuse_idle;
use brig::error::{Error, Kind, Result};
use brig::image;
use brig::task::{Definition, ImageWish};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// When an image is fetched from its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Pull {
    /// If the store does not have it
    #[default]
    Missing,
    /// Each time; what has not changed is not fetched again
    Always,
    /// Never
    Never,
}

#[derive(Args)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct Flags {
    /// Run in an image: its layers are the root, copy-on-write; without a command it runs its own
    #[arg(long, value_name = "REF", conflicts_with = "rootfs")]
    image: Option<String>,
    /// When to fetch the image from its registry [default: missing]
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        hide_possible_values = true,
        help = "When to fetch the image: missing, always or never [default: missing]"
    )]
    pull: Option<Pull>,
    /// Replace the image's Entrypoint ('' for none); its Cmd goes with it
    #[arg(long, value_name = "COMMAND", requires = "image")]
    entrypoint: Option<String>,
    /// Run as this user of the image [default: the image's]
    #[arg(short, long, value_name = "USER[:GROUP]", requires = "image")]
    user: Option<String>,
    /// Start in this directory, meant from the workspace [default: the workspace; without one the image's WorkingDir]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// How the command is asked to end [default: the image's StopSignal, else SIGTERM]
    #[arg(long, value_name = "SIGNAL", requires = "image")]
    stop_signal: Option<String>,
}

impl Flags {
    /// What they say; over what a profile has said.
    pub(super) fn take(self, definition: &mut Definition) -> Result<Pull> {
        if self.image.is_none() {
            let own = [
                ("--entrypoint", self.entrypoint.is_some()),
                ("--user", self.user.is_some()),
                ("--stop-signal", self.stop_signal.is_some()),
                ("--pull", self.pull.is_some() && definition.image.is_none()),
            ];
            refuse_idle(&own, "an image, and the task has none", "--image")?;
        }
        let workdir = self.workdir.map(PathBuf::from).or(definition.directory.take());
        if let Some(reference) = self.image {
            definition.rootfs = None;
            definition.image = Some(ImageWish {
                reference,
                entrypoint: self.entrypoint,
                user: self.user,
                working_directory: None,
                stop_signal: self.stop_signal,
            });
        }
        match &mut definition.image {
            Some(image) => {
                let workdir = workdir.and_then(|path| path.into_os_string().into_string().ok());
                image.working_directory = workdir.or(image.working_directory.take());
            }
            None => definition.directory = workdir,
        }
        Ok(self.pull.unwrap_or_default())
    }
}

/// Fetches the image unless it is there. In a process of its own: an ordinary user's store is written in a user namespace, which a
/// supervisor must not be in, and nothing of a TLS connection stays in a supervisor's memory. The exit status of a fetch that failed, which
/// has said why, is returned.
pub(super) fn fetch(store: &Path, wish: &ImageWish, when: Pull) -> Result<Option<ExitCode>> {
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
