//! The volumes of a task: opened, locked and mounted before its sandbox begins.
//!
//! A volume without files begins with the image's directory at its target. It gets its name when it is whole: a killed
//! first use leaves a volume without files.

use super::archive;
use super::record::{VolumePaths, VolumeSize, step_of, step_of_name};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::Lock;
use crate::sandbox::{
    ImageAccess, NewVolumeImage, PendingVolume, Volume, VolumeAccess, VolumeFiles, VolumeImage, are_packed,
    volume_files,
};
use crate::task::definition::Definition;
use crate::task::definition::image::Opened;
use crate::task::store::Store;
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

const HOME_MODE: u32 = 0o700;
const MODE: u32 = 0o755;

pub(crate) struct FirstUse<'task> {
    pub image: Option<&'task Opened>,
    /// The ids of the command's user inside.
    pub user: (u32, u32),
    pub home: Option<&'task str>,
    pub id: &'task str,
    /// The task goes on from another one, which had files in its volumes.
    pub is_continued: bool,
}

#[derive(Debug, Default)]
pub(crate) struct TaskVolumes {
    pub files: Vec<PendingVolume>,
    pub fill: Option<Fill>,
    /// Of archives: no mount holds them.
    locks: Vec<VolumeImage>,
    /// Archives to replace after the task, in the task's order.
    written: Vec<String>,
    user: (u32, u32),
}

#[derive(Debug)]
pub(crate) struct Fill {
    name: String,
    /// `None`: an archive is made after the task.
    image: Option<NewVolumeImage>,
    /// No other process fills or removes the volume meanwhile.
    _lock: Lock,
}

impl TaskVolumes {
    /// All of them, or none.
    pub(crate) fn open<'task>(store: &'task Store, volumes: &[Volume], first: &FirstUse<'task>) -> Result<TaskVolumes> {
        let mut opened = TaskVolumes { user: first.user, ..TaskVolumes::default() };
        for volume in volumes {
            match volume.access {
                VolumeAccess::Fill => opened.begin_fill(store, volume, first),
                _ => opened.add(store, volume, first),
            }
            .doing(|| step_of(volume))?;
            if are_packed() && volume.access.writes() {
                opened.written.push(volume.name.clone());
            }
        }
        Ok(opened)
    }

    /// Packs the written volumes of an ordinary user and replaces their archives. One that a command fills waits for
    /// the command's success.
    pub(crate) fn pack(&mut self, store: &Store, files: &[OwnedFd]) -> Result<()> {
        let mut packed = Ok(());
        for (name, top) in self.written.iter().zip(files) {
            let replaced = archive::packed(store, top, self.user).and_then(|new| match &mut self.fill {
                Some(fill) if fill.name == *name => {
                    fill.image = Some(new);
                    Ok(())
                }
                _ => new.rename_to(&VolumePaths::of(store, name)?.image()),
            });
            packed = packed.and(replaced.doing(|| format!("keep the volume `{name}`")));
        }
        packed
    }

    fn show(&mut self, image: VolumeImage, paths: &VolumePaths<'_>) -> Result<()> {
        if !are_packed() {
            self.files.push(PendingVolume::Mounting(image.begin_mount()?));
            return Ok(());
        }
        self.files.push(PendingVolume::Ready(archive::shown(image.file()?, paths.existing()?.size)));
        self.locks.push(image);
        Ok(())
    }

    fn add<'task>(&mut self, store: &'task Store, volume: &Volume, first: &FirstUse<'task>) -> Result<()> {
        let paths = VolumePaths { own: first.id, ..VolumePaths::of(store, &volume.name)? };
        let writes = volume.access.writes();
        let access = if writes { ImageAccess::Write } else { ImageAccess::Read };
        if paths.read()?.is_none() && (!writes || first.is_continued) {
            return paths.existing().and(Err(Error::new(Kind::Internal, "the volume was made meanwhile")));
        }
        if let Some(image) = paths.open(access)? {
            if writes {
                // A fill holds this lock until it replaces the image. One that begins later finds the image in use.
                drop(paths.lock()?);
            }
            return self.show(image, &paths);
        }
        if !writes || first.is_continued {
            let name = &volume.name;
            let hint =
                format!("fill it: brig volume fill {name} -- COMMAND; or use it once with --volume {name}:TARGET");
            return Err(Error::new(Kind::State, "it has no files yet").hint(hint));
        }
        paths.create(VolumeSize::default())?;
        let _lock = paths.lock()?;
        // Another task may have had the first use before the lock.
        if let Some(image) = paths.open(access)? {
            return self.show(image, &paths);
        }
        if are_packed() {
            first_archive(&paths, volume, first)?.rename_to(&paths.image())?;
            let image = paths.open(access)?.ok_or_else(|| Error::new(Kind::Internal, "its archive is gone"))?;
            return self.show(image, &paths);
        }
        let new = paths.format()?;
        let mounted = new.mount()?;
        begin_files(&mounted, volume, first)?;
        new.publish(mounted.as_fd(), &paths.image())?;
        self.files.push(PendingVolume::Ready(VolumeFiles::Mounted(mounted)));
        Ok(())
    }

    fn begin_fill<'task>(&mut self, store: &'task Store, volume: &Volume, first: &FirstUse<'task>) -> Result<()> {
        let paths = VolumePaths { own: first.id, ..VolumePaths::of(store, &volume.name)? };
        paths.create(VolumeSize::default())?;
        let lock = paths.lock()?;
        // The volume stays locked for readers: no task writes it while it is copied.
        let earlier = paths.open(ImageAccess::Read)?;
        let image = if are_packed() {
            let archive = match &earlier {
                Some(earlier) => earlier.file()?,
                None => first_archive(&paths, volume, first)?.archive()?.into(),
            };
            self.files.push(PendingVolume::Ready(archive::shown(archive, paths.existing()?.size)));
            None
        } else {
            let image = match &earlier {
                Some(_) => NewVolumeImage::copy(&store.live(), &paths.image())?,
                None => paths.format()?,
            };
            let mounted = image.mount()?;
            if earlier.is_none() {
                begin_files(&mounted, volume, first)?;
            }
            self.files.push(PendingVolume::Ready(VolumeFiles::Mounted(mounted)));
            Some(image)
        };
        self.fill = Some(Fill { name: volume.name.clone(), image, _lock: lock });
        Ok(())
    }
}

fn begin_files(mounted: &OwnedFd, volume: &Volume, first: &FirstUse<'_>) -> Result<()> {
    let top = volume_files(mounted.as_fd())?;
    if first.copy(volume, &top)? {
        return Ok(());
    }
    let step = || "give a new volume to the command";
    let (uid, gid) = (Uid::from_raw(first.user.0), Gid::from_raw(first.user.1));
    fchown(&top, Some(uid), Some(gid)).failing(Kind::Disk, step)?;
    fchmod(&top, Mode::from_raw_mode(first.mode(volume))).failing(Kind::Disk, step)
}

fn first_archive(paths: &VolumePaths<'_>, volume: &Volume, first: &FirstUse<'_>) -> Result<NewVolumeImage> {
    let form = (paths.existing()?.size, first.mode(volume));
    let made = archive::made(paths.store, form, first.user, |top| first.copy(volume, top).map(|_| ()));
    made.hint(|| FirstUse::advice(volume))
}

impl FirstUse<'_> {
    /// `false` if the image lacks the directory.
    fn copy(&self, volume: &Volume, top: &OwnedFd) -> Result<bool> {
        let Some(image) = self.image else { return Ok(false) };
        image.copy_directory(&volume.target, top.as_fd()).hint(|| FirstUse::advice(volume))
    }

    fn advice(volume: &Volume) -> String {
        format!("a larger one: brig volume rm {0}; brig volume create {0} --size 40G --inodes 4000000", volume.name)
    }

    fn mode(&self, volume: &Volume) -> u32 {
        if self.home == Some(volume.name.as_str()) { HOME_MODE } else { MODE }
    }
}

impl Fill {
    /// Tasks that have the volume keep the earlier files.
    pub(crate) fn publish(self, store: &Store) -> Result<()> {
        let paths = VolumePaths::of(store, &self.name)?;
        let image = paths.image();
        let Some(new) = self.image else { return Err(Error::new(Kind::Internal, "the filled volume has no files")) };
        let published = if are_packed() { new.rename_to(&image) } else { new.publish_unmounted(&image) };
        published.doing(|| format!("fill the volume `{}`", self.name))
    }
}

/// Makes a task fill a volume, `NAME` or `NAME:TARGET`. Returns the volume's place inside.
pub fn add_fill(volume: &str, definition: &mut Definition) -> Result<PathBuf> {
    let volume = Volume::filled(volume).doing(|| format!("fill the volume `{}`", volume.escape_debug()))?;
    let target = volume.target.clone();
    definition.sandbox.volumes.push(volume);
    Ok(target)
}

impl Store {
    /// Refuses (E-STATE) a home that another task writes.
    pub(in crate::task) fn prepare_home(&self, name: &str, purpose: &str) -> Result<()> {
        let paths = VolumePaths::of(self, name)?;
        paths.create_with(VolumeSize::default(), Some(purpose), |_| Ok(()))?;
        // The first task that uses it fills it under this lock.
        let _lock = paths.lock().doing(|| step_of_name(name))?;
        paths.open(ImageAccess::Write).doing(|| step_of_name(name)).map(drop)
    }
}
