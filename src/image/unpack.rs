//! Unpacks an image as an OCI bundle: `DIR/rootfs` and `DIR/config.json`.
//!
//! Layers of the store are copied. Layers of an archive are unpacked next to the target and then moved together, mostly
//! by renames. `DIR` appears only when it is complete.

use super::ImageConfig;
use super::config::bundle::{self, IdRange, Runner};
use super::config::{Accounts, Overrides, Process, to_process};
use super::flatten::{self, ApplyMode};
use super::form::{Form, Owners};
use super::layer::{Budget, Extractor, FinishedLayer, decode, finish_layer};
use super::load::{LoadOptions, check};
use super::manifest::Descriptor;
use super::progress::{Event, Report, ReportingReader};
use super::rootless;
use super::source::{SelectedImage, Source};
use super::store::{Store, Temporary};
use super::tar::Reader;
use super::union::Stack;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Durability, in_parallel, lost};
use rustix::fs::{Mode, OFlags};
use std::fs::Permissions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Unpacks an image of the store.
pub fn from_store(store: &Store, text: &str, target: &Path, overrides: &Overrides) -> Result<Process> {
    let image = store.resolve(text)?;
    let bundle = Bundle::begin(target)?;
    let accounts = image.accounts()?;
    let root = bundle.work.make("rootfs")?;
    for layer in image.layers.iter().rev() {
        flatten::apply(open(layer)?.as_fd(), root.as_fd(), store.form(), ApplyMode::Copy, true)?;
    }
    bundle.finish(&image.config, &accounts, overrides, image.digest.short(), store.form())
}

pub(crate) fn from_source(
    source: &dyn Source,
    chosen: &SelectedImage,
    target: &Path,
    options: &LoadOptions,
    overrides: &Overrides,
    report: Report<'_>,
) -> Result<Process> {
    let bundle = Bundle::begin(target)?;
    let probe = bundle.work.make("layers")?;
    let form = Form::probe(probe.as_fd())?;
    let unpacked = layers(source, chosen, &bundle.work, form, options, report)?;
    let paths: Vec<PathBuf> = (0..unpacked.len()).map(|index| layer_path(&bundle.work, index)).collect();
    let mut removes = Vec::new();
    for (index, extractor) in unpacked.into_iter().enumerate() {
        let below: Vec<&PathBuf> = paths[..index].iter().rev().collect();
        let finished: FinishedLayer = finish_layer(extractor, &Stack::open(&below, form)?)?;
        removes.push(finished.removes);
    }
    let stack: Vec<&PathBuf> = paths.iter().rev().collect();
    let accounts = Accounts::of(&Stack::open(&stack, form)?)?;
    let root = bundle.work.make("rootfs")?;
    for (path, removes) in paths.iter().zip(removes) {
        flatten::apply(open(path)?.as_fd(), root.as_fd(), form, ApplyMode::Move, removes)?;
    }
    bundle.finish(&chosen.config, &accounts, overrides, chosen.descriptor.digest.short(), form)
}

fn layer_path(work: &Temporary, index: usize) -> PathBuf {
    work.path().join("layers").join(index.to_string())
}

fn layers(
    source: &dyn Source,
    chosen: &SelectedImage,
    work: &Temporary,
    form: Form,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<Vec<Extractor>> {
    let blobs = &chosen.manifest.layers;
    let budget = Budget::new(options.limits);
    budget.check_announced(blobs.iter().map(|blob| blob.size))?;
    let mut queue: Vec<usize> = (0..blobs.len()).collect();
    queue.sort_by_key(|index| std::cmp::Reverse(blobs[*index].size));
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<Extractor>>> = blobs.iter().map(|_| Mutex::new(None)).collect();
    let run = || -> Result<()> {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = queue.get(turn) else { return Ok(()) };
            let mut extractor = Extractor::new(work.make(&format!("layers/{index}"))?, form, &budget);
            let diff_id = &chosen.config.diff_ids[index];
            if let Err(error) = layer(source, &blobs[index], diff_id, &mut extractor, &budget, report) {
                next.store(usize::MAX / 2, Ordering::Relaxed);
                return Err(error).doing(|| format!("unpack the layer `{}`", blobs[index].digest));
            }
            if let Ok(mut slot) = slots[index].lock() {
                *slot = Some(extractor);
            }
        }
    };
    in_parallel(queue.len(), run)?;
    slots.into_iter().map(|slot| slot.into_inner().ok().flatten().ok_or_else(lost)).collect()
}

fn layer(
    source: &dyn Source,
    blob: &Descriptor,
    diff_id: &super::Digest,
    extractor: &mut Extractor,
    budget: &Budget,
    report: Report<'_>,
) -> Result<()> {
    report(Event::Begin { digest: &blob.digest, size: blob.size });
    let watched = Box::new(ReportingReader { inner: source.open(blob, 0)?, digest: &blob.digest, report });
    let algorithm = blob.digest.algorithm();
    let (outcome, measured) =
        decode(watched, algorithm, Some(blob.size), budget, |stream| extractor.apply(&mut Reader::new(stream)))?;
    check(blob, diff_id, &measured, outcome)?;
    report(Event::Done { digest: &blob.digest, reused: 0 });
    Ok(())
}

/// Next to the target, so that the last step is a rename.
struct Bundle {
    target: PathBuf,
    work: Temporary,
}

impl Bundle {
    fn begin(target: &Path) -> Result<Bundle> {
        let step = || format!("unpack into `{}`", target.display());
        let parent = match target.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        match std::fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(
                        Error::new(Kind::Exists, "the directory is not empty").hint("name a new or an empty one")
                    )
                    .doing(step);
                }
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(files::failed(cause, step())),
        }
        Ok(Bundle { work: Temporary::in_directory(parent).doing(step)?, target: target.to_owned() })
    }

    fn finish(
        self,
        image: &ImageConfig,
        accounts: &Accounts,
        overrides: &Overrides,
        hostname: &str,
        form: Form,
    ) -> Result<Process> {
        let process = to_process(image, accounts, overrides)?;
        let one = |outside| vec![IdRange { inside: 0, outside, count: 1 }];
        let runner = match (form.owners, rootless::subordinate()) {
            (Owners::Image, None) => Runner::Root,
            (Owners::Image, Some((uids, gids))) => Runner::User { uids, gids },
            (Owners::Caller, _) => Runner::User {
                uids: one(rootless::outside("uid_map", rustix::process::getuid().as_raw())),
                gids: one(rootless::outside("gid_map", rustix::process::getgid().as_raw())),
            },
        };
        let config = bundle::config(&process, hostname, &runner);
        let failed = |cause| files::failed(cause, format!("unpack into `{}`", self.target.display()));
        let made = self.work.path().join("bundle");
        // A user with access to the image's set-id files could run them like the host's.
        std::fs::DirBuilder::new().mode(0o700).create(&made).map_err(failed)?;
        files::replace(&made.join("config.json"), &super::store::to_json(&config)?, 0o644, Durability::Cached)?;
        std::fs::rename(self.work.path().join("rootfs"), made.join("rootfs")).map_err(failed)?;
        let directory = std::fs::File::open(&made).map_err(failed)?;
        let (own, found) = (directory.metadata().map_err(failed)?, std::fs::symlink_metadata(&self.target).ok());
        // An existing target keeps its owner.
        if let Some(found) = &found
            && (found.uid(), found.gid()) != (own.uid(), own.gid())
        {
            std::os::unix::fs::fchown(&directory, Some(found.uid()), Some(found.gid())).map_err(failed)?;
        }
        std::fs::rename(&made, &self.target).map_err(failed)?;
        // Last: an ordinary user could not rename a read-only directory.
        if let Some(found) = found {
            directory.set_permissions(Permissions::from_mode(found.mode() & 0o7777)).map_err(failed)?;
        }
        Ok(process)
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.failing(Kind::Store, || format!("open `{}`", path.display()))
}
