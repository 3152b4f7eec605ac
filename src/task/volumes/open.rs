//! The volumes of a task: opened, locked and mounted before its sandbox begins.
//!
//! A volume without files begins with the image's directory at its target. It gets its name in the store when it is
//! whole: a killed first use leaves a volume without files.

use super::record::{VolumePaths, VolumeSize, step_of, step_of_name};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::Lock;
use crate::sandbox::{ImageAccess, NewVolumeImage, Volume, VolumeAccess, needs_root, volume_files};
use crate::task::definition::Definition;
use crate::task::definition::image::Opened;
use crate::task::store::Store;
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The mode of a new home, and of any other new volume.
const HOME_MODE: u32 = 0o700;
const MODE: u32 = 0o755;

/// What a volume without files begins with.
pub(crate) struct FirstUse<'task> {
    /// The image of the task's root.
    pub image: Option<&'task Opened>,
    /// The ids of the command's user inside.
    pub user: (u32, u32),
    /// The volume that is the home.
    pub home: Option<&'task str>,
    /// The task.
    pub id: &'task str,
    /// Whether the task goes on from another one, which had files in its volumes.
    pub is_continued: bool,
}

/// The volumes of one task.
#[derive(Debug, Default)]
pub(crate) struct TaskVolumes {
    /// Detached mounts, in the order of the task's volumes.
    pub mounts: Vec<OwnedFd>,
    /// The copy that replaces a volume.
    pub fill: Option<Fill>,
}

/// A new image of a volume on its way.
#[derive(Debug)]
pub(crate) struct Fill {
    name: String,
    image: NewVolumeImage,
    /// No other process fills or removes the volume meanwhile.
    _lock: Lock,
}

impl TaskVolumes {
    /// Opens and mounts all of them, or none.
    pub(crate) fn open<'task>(store: &'task Store, volumes: &[Volume], first: &FirstUse<'task>) -> Result<TaskVolumes> {
        let mut opened = TaskVolumes::default();
        for volume in volumes {
            let mounted = match volume.access {
                VolumeAccess::Fill => {
                    let (fill, mounted) = begin_fill(store, volume, first).doing(|| step_of(volume))?;
                    opened.fill = Some(fill);
                    mounted
                }
                _ => open_one(store, volume, first).doing(|| step_of(volume))?,
            };
            opened.mounts.push(mounted);
        }
        Ok(opened)
    }
}

fn open_one<'task>(store: &'task Store, volume: &Volume, first: &FirstUse<'task>) -> Result<OwnedFd> {
    let paths = VolumePaths { own: first.id, ..VolumePaths::of(store, &volume.name)? };
    let writes = volume.access.writes();
    let access = if writes { ImageAccess::Write } else { ImageAccess::Read };
    if paths.read()?.is_none() && (!writes || first.is_continued) {
        return paths.existing().and(Err(Error::new(Kind::Internal, "the volume was made meanwhile")));
    }
    if let Some(image) = paths.open(access)? {
        return image.mount();
    }
    if !writes || first.is_continued {
        let name = &volume.name;
        let hint = format!("fill it: brig volume fill {name} -- COMMAND; or use it once with --volume {name}:TARGET");
        return Err(Error::new(Kind::State, "it has no files yet").hint(hint));
    }
    needs_root(&volume.name)?;
    paths.create(VolumeSize::default())?;
    let _lock = paths.lock()?;
    // Another task may have had the first use before the lock.
    if let Some(image) = paths.open(access)? {
        return image.mount();
    }
    let new = paths.format()?;
    let mounted = new.mount()?;
    begin_files(&mounted, volume, first)?;
    new.publish(mounted.as_fd(), &paths.image())?;
    Ok(mounted)
}

/// Gives a new volume its first files, and its owner.
fn begin_files(mounted: &OwnedFd, volume: &Volume, first: &FirstUse<'_>) -> Result<()> {
    let top = volume_files(mounted.as_fd())?;
    let is_home = first.home == Some(volume.name.as_str());
    let copied = match first.image {
        Some(image) => image.copy_directory(&volume.target, top.as_fd()).hint(|| {
            format!("a larger one: brig volume rm {0}; brig volume create {0} --size 40G --inodes 4000000", volume.name)
        })?,
        None => false,
    };
    if copied {
        return Ok(());
    }
    let step = || "give a new volume to the command";
    let (uid, gid) = (Uid::from_raw(first.user.0), Gid::from_raw(first.user.1));
    fchown(&top, Some(uid), Some(gid)).failing(Kind::Disk, step)?;
    let mode = if is_home { HOME_MODE } else { MODE };
    fchmod(&top, Mode::from_raw_mode(mode)).failing(Kind::Disk, step)
}

fn begin_fill<'task>(store: &'task Store, volume: &Volume, first: &FirstUse<'task>) -> Result<(Fill, OwnedFd)> {
    let paths = VolumePaths { own: first.id, ..VolumePaths::of(store, &volume.name)? };
    needs_root(&volume.name)?;
    paths.create(VolumeSize::default())?;
    let lock = paths.lock()?;
    // The image stays locked for readers: no task writes it while it is copied.
    let (image, mounted) = match paths.open(ImageAccess::Read)? {
        Some(_readers) => {
            let image = NewVolumeImage::copy(&store.live(), &paths.image())?;
            let mounted = image.mount()?;
            (image, mounted)
        }
        None => {
            let image = paths.format()?;
            let mounted = image.mount()?;
            begin_files(&mounted, volume, first)?;
            (image, mounted)
        }
    };
    Ok((Fill { name: volume.name.clone(), image, _lock: lock }, mounted))
}

impl Fill {
    /// Replaces the volume's files. Tasks that have it keep the earlier ones.
    pub(crate) fn publish(self, store: &Store) -> Result<()> {
        let paths = VolumePaths::of(store, &self.name)?;
        let image = paths.image();
        self.image.publish_unmounted(Path::new(&image)).doing(|| format!("fill the volume `{}`", self.name))
    }
}

/// Makes a task the one that fills a volume, `NAME` or `NAME:TARGET`. Returns the volume's place inside.
pub fn add_fill(volume: &str, definition: &mut Definition) -> Result<PathBuf> {
    let volume = Volume::filled(volume).doing(|| format!("fill the volume `{}`", volume.escape_debug()))?;
    let target = volume.target.clone();
    definition.sandbox.volumes.push(volume);
    Ok(target)
}

impl Store {
    /// Makes the volume of a home unless it exists. Refuses (E-STATE) a home that another task writes.
    pub(in crate::task) fn prepare_home(&self, name: &str, purpose: &str) -> Result<()> {
        let paths = VolumePaths::of(self, name)?;
        needs_root(name)?;
        paths.create_with(VolumeSize::default(), Some(purpose), |_| Ok(()))?;
        // The first task that uses it fills it under this lock.
        let _lock = paths.lock().doing(|| step_of_name(name))?;
        paths.open(ImageAccess::Write).doing(|| step_of_name(name)).map(drop)
    }
}
