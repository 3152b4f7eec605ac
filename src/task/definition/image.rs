//! A task's image: found in the store, locked against `prune` while the task runs, turned into a root and a command.

use super::Definition;
use crate::error::{Error, Kind, Result, Step};
use crate::image::{self, Image, ImageConfig, Mounter, Overrides, Process, Reference, to_process};
use crate::sandbox::{self, Files, Guarantee, ImageRoot, Limits, Options};
use crate::task::store::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const ROOT_INSIDE: &str = "dev.brig.root-inside";

/// The image, and what the caller replaces of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageWish {
    /// A name, a digest or the beginning of one, as `brig image ls` shows them.
    pub reference: String,
    /// The digest of exactly this image, for a kept root. `reference` is then only for the reader.
    pub digest: Option<String>,
    /// Replaces the Entrypoint and drops the image's Cmd; empty for none.
    pub entrypoint: Option<String>,
    /// `user[:group]`, names of the image or numbers.
    pub user: Option<String>,
    /// Where the command starts, with or without a workspace.
    pub working_directory: Option<String>,
    /// `SIGINT`, `INT` or `2`.
    pub stop_signal: Option<String>,
}

/// The image section of a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUsed {
    /// As it was asked for.
    pub reference: String,
    /// The manifest's digest.
    pub digest: String,
    /// Number of layers.
    pub layers: usize,
    /// Whether files were copied: they could not be mounted with the task's ids or by its user.
    #[serde(default)]
    pub copied: bool,
    /// As the image or the caller writes it.
    pub user: String,
    /// User id inside.
    pub uid: u32,
    /// Primary group inside.
    pub gid: u32,
    /// Supplementary groups in force; an ordinary user's sandbox has none.
    pub groups: Vec<u32>,
    /// Entrypoint and Cmd, with the caller's replacements.
    pub command: Vec<String>,
    /// The image's WorkingDir, or the caller's.
    pub working_dir: String,
    /// Names of the image's variables.
    pub env: Vec<String>,
    /// Directories for this run only.
    pub volumes: Vec<String>,
    /// The signal that asks the command to end.
    pub stop_signal: Option<String>,
    /// `port[/protocol]`, for the reader: nothing is opened.
    pub exposed_ports: Vec<String>,
    /// Docker's, verbatim; nothing runs it.
    pub healthcheck: Option<serde_json::Value>,
    /// Docker's, for the shell form of commands.
    pub shell: Vec<String>,
    /// Labels and the image specification's annotations.
    pub annotations: BTreeMap<String, String>,
}

pub(crate) struct Opened {
    pub root: ImageRoot,
    pub command: Vec<OsString>,
    pub used: ImageUsed,
    /// The image's label asks for root inside, and the caller names no user.
    pub asks_root: bool,
    image: Image,
    /// A tree of the layers, which goes with this value.
    copy: Option<image::Copied>,
}

impl Opened {
    /// Makes a tree of the layers if the store's file system cannot show them with the sandbox's ids. If an ordinary
    /// user's overlay rejects them, the sandbox makes the tree in its memory. Returns a message about the copy.
    pub(crate) fn copy_if_needed(&mut self, limits: &Limits) -> Result<Option<String>> {
        let step = || format!("use the image `{}`", self.used.reference);
        let Some(words) = self.copying(limits)? else { return Ok(None) };
        match mounter() {
            Mounter::Root => {
                let copy = self.image.copied().doing(step).doing(|| "copy its files")?;
                self.root.files = Files::Copied(copy.tree());
                self.copy = Some(copy);
            }
            Mounter::User => self.root.files = Files::Gathered,
        }
        self.used.copied = true;
        Ok(Some(words))
    }

    /// The message about a needed copy, with place and reason. Makes none.
    pub(crate) fn copying(&self, limits: &Limits) -> Result<Option<String>> {
        let step = || format!("use the image `{}`", self.used.reference);
        let mounter = mounter();
        if self.image.can_be_shown(mounter).doing(step)? {
            return Ok(None);
        }
        let (place, why) = match mounter {
            Mounter::Root => ("", "the store's file system cannot show them with other owners (idmapped mounts)"),
            Mounter::User => {
                self.fits_into(limits.memory).doing(step)?;
                let why = "no overlay of an ordinary user takes the store's file system as a layer";
                (" into memory, where its memory limit counts them", why)
            }
        };
        let reference = &self.used.reference;
        Ok(Some(format!(
            "all files of the image `{reference}` are copied for this task{place}: {why}; a store on ext4, xfs or btrfs needs no copy (--store DIR)",
        )))
    }

    /// Copies the image's directory at `path` into an empty one. `false` if the image has none.
    pub(crate) fn copy_directory(&self, path: &Path, into: BorrowedFd<'_>) -> Result<bool> {
        let step = || format!("copy `{}` of the image `{}`", path.display(), self.used.reference);
        self.image.copy_directory(path, into).doing(step)
    }

    /// Keeps the image while the store has a file at `path`, relative to the store.
    pub(crate) fn hold(&self, store: &Store, name: &str, path: &Path) -> Result<()> {
        let images = image::Store::open(store.root())?;
        images.hold(&self.image, name, path).doing(|| format!("keep the image `{}`", self.used.reference))
    }

    /// An error instead of a kill for want of memory during the copy.
    fn fits_into(&self, memory: u64) -> Result<()> {
        if self.image.size < memory {
            return Ok(());
        }
        let size = self.image.size;
        let text = format!("its {size} bytes must be copied into memory, and the memory limit is {memory} bytes");
        Err(Error::new(Kind::Store, text)
            .hint("raise --memory, or have the store on ext4, xfs or btrfs (--store DIR), where nothing is copied"))
    }
}

fn mounter() -> Mounter {
    if sandbox::guarantee() == Guarantee::Full { Mounter::Root } else { Mounter::User }
}

pub(crate) fn open(store: &Store, definition: &Definition) -> Result<Option<Opened>> {
    let Some(wish) = &definition.image else { return Ok(None) };
    if definition.sandbox.rootfs.is_some() {
        return Err(Error::new(Kind::Usage, "an image and a root file system are two roots")
            .hint("leave --image or --rootfs out"));
    }
    open_one(store, wish, &definition.sandbox).map(Some).doing(|| format!("use the image `{}`", wish.reference))
}

fn open_one(store: &Store, wish: &ImageWish, options: &Options) -> Result<Opened> {
    let command = &options.command;
    let missing = || {
        Error::new(Kind::NotFound, "it is not in the store")
            .hint(format!("fetch it: brig image pull {}", wish.reference))
    };
    let images = image::Store::existing(store.root())?.ok_or_else(|| gone(wish).unwrap_or_else(missing))?;
    let image = match &wish.digest {
        Some(digest) => images.resolve(digest).map_err(|error| match error.kind() {
            Kind::NotFound => gone(wish).unwrap_or(error),
            _ => error,
        })?,
        None => images.resolve(&wish.reference)?,
    };
    let mounter = mounter();
    let is_root = mounter == Mounter::Root;
    let layered = image.layered_root(mounter)?;
    let asks_root = wish.user.is_none() && image.config.labels.get(ROOT_INSIDE).is_some_and(|value| value == "true");
    let root_inside = options.root_inside || asks_root;
    let wish = &match root_inside && wish.user.is_none() {
        true => ImageWish { user: Some("0".to_owned()), ..wish.clone() },
        false => wish.clone(),
    };
    let process = process(&image, wish, command)?;
    let stop_signal = process.stop_signal.as_deref().map(signal_number).transpose()?;
    let home = home(&image, &process)?;
    let has_groups = is_root || root_inside;
    let used = used(&image.config, wish, &process, image.digest.to_string(), layered.layers.len(), has_groups);
    let root = ImageRoot {
        directory: layered.directory,
        files: Files::Mounted,
        layers: layered.layers,
        mode: layered.mode,
        folders: layered.folders,
        others: layered.others,
        uid: process.user.uid,
        gid: process.user.gid,
        groups: if has_groups { process.user.additional_gids.clone() } else { Vec::new() },
        home,
        // An image without a working directory has `/`.
        working_directory: Some(PathBuf::from(&process.cwd)).filter(|path| path.as_os_str() != "/"),
        always_starts_there: wish.working_directory.is_some(),
        environment: process.env.iter().filter_map(|line| variable(line)).collect(),
        volumes: process.volumes.iter().map(PathBuf::from).collect(),
        stop_signal,
    };
    let entrypoint = process.args.iter().map(OsString::from);
    let command = entrypoint.chain(command.iter().cloned()).collect();
    Ok(Opened { root, command, used, asks_root, image, copy: None })
}

/// For a kept root whose image is not in the store.
fn gone(wish: &ImageWish) -> Option<Error> {
    let digest = wish.digest.as_ref()?;
    let fix = match wish.reference.parse::<Reference>() {
        Ok(name) => format!("brig image pull {}/{}@{digest}", name.host(), name.repository()),
        Err(_) => "load its archive again: brig image load FILE".to_owned(),
    };
    let words = format!("the changes of its root belong to the image {digest}, which is not in the store");
    Some(Error::new(Kind::NotFound, words).hint(format!("nothing is lost; get the same image again: {fix}")))
}

/// The arguments are those before the caller's own command.
fn process(image: &Image, wish: &ImageWish, command: &[OsString]) -> Result<Process> {
    let entrypoint = wish.entrypoint.as_ref();
    let overrides = Overrides {
        entrypoint: entrypoint.map(|word| Some(word.clone()).into_iter().filter(|word| !word.is_empty()).collect()),
        // The caller's words may not be text: an empty word stands for them.
        args: command.first().map(|_| vec![String::new()]),
        user: wish.user.clone(),
        working_dir: wish.working_directory.clone(),
        ..Overrides::default()
    };
    let mut process = to_process(&image.config, &image.accounts()?, &overrides)?;
    if !command.is_empty() {
        process.args.pop();
    }
    if let Some(signal) = &wish.stop_signal {
        process.stop_signal = Some(signal.clone());
    }
    Ok(process)
}

fn home(image: &Image, process: &Process) -> Result<Option<PathBuf>> {
    let Some(home) = process.user.home.as_deref().filter(|home| *home != "/") else { return Ok(None) };
    if home.split('/').any(|part| part == "..") {
        return Err(Error::new(Kind::Image, format!("the home `{}` leads upwards", home.escape_debug())));
    }
    Ok(image.has_directory(home)?.then(|| home.into()))
}

fn used(
    config: &ImageConfig,
    wish: &ImageWish,
    process: &Process,
    digest: String,
    layers: usize,
    has_groups: bool,
) -> ImageUsed {
    ImageUsed {
        reference: wish.reference.clone(),
        digest,
        layers,
        copied: false,
        user: wish.user.clone().unwrap_or_else(|| config.user.clone()),
        uid: process.user.uid,
        gid: process.user.gid,
        groups: if has_groups { process.user.additional_gids.clone() } else { Vec::new() },
        command: process.args.clone(),
        working_dir: process.cwd.clone(),
        env: process.env.iter().filter_map(|line| line.split('=').next()).map(str::to_owned).collect(),
        volumes: process.volumes.clone(),
        stop_signal: process.stop_signal.clone(),
        exposed_ports: config.exposed_ports.clone(),
        healthcheck: config.healthcheck.clone(),
        shell: config.shell.clone(),
        annotations: config.annotations(),
    }
}

/// A line without a value sets nothing, as with Docker.
fn variable(line: &str) -> Option<(OsString, OsString)> {
    let (name, value) = line.split_once('=')?;
    Some((OsString::from_vec(name.into()), OsString::from_vec(value.into())))
}

/// Refuses real-time signals: they are for service managers, which are not a task's command.
fn signal_number(text: &str) -> Result<i32> {
    let refused = || {
        Error::new(Kind::Image, format!("its StopSignal `{}` is none that can be passed on", text.escape_debug()))
            .hint("name another one: --stop-signal SIGTERM")
    };
    const LAST: i32 = 31; // above are the real-time ones, signal(7)
    if let Ok(number) = text.parse::<i32>() {
        return if (1..=LAST).contains(&number) { Ok(number) } else { Err(refused()) };
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    NAMES.iter().find(|(each, _)| *each == name).map(|(_, number)| *number).ok_or_else(refused)
}

/// Signals that ask programs to end, with the numbers that all of our machines share (signal(7)).
const NAMES: [(&str, i32); 9] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("WINCH", 28), // httpd and php-fpm end gracefully by these
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_signal_is_a_name_or_a_number_and_no_real_time_one() {
        let check = |text, expected: Option<i32>| assert_eq!(signal_number(text).ok(), expected, "{text}");
        check("SIGQUIT", Some(3));
        check("int", Some(2));
        check("15", Some(15));
        for wrong in ["SIGRTMIN+3", "37", "0", "-1", "SIGFOO", ""] {
            check(wrong, None);
        }
    }
}
