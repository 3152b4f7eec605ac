use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Attempt, Durability, Lock};
use crate::sandbox::{ImageAccess, NewVolumeImage, OpenedImage, Volume, VolumeImage, are_packed, check_volume_name};
use crate::task::definition::hosted;
use crate::task::store::{KEPT_NOTE, REMOVED, Status, Store, is_id, is_left, names_in};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SCHEMA: u32 = 1;
/// In the volume's directory. Its lock is held while the volume is made, replaced or removed.
const RECORD: &str = "record.json";
/// The file system. Missing until the first use.
const IMAGE: &str = "image";
/// An ordinary user's file system.
const ARCHIVE: &str = "files.tar";
const LONGEST: u64 = 64 << 10;
/// Of a volume that a task makes at its first use.
const DEFAULT: VolumeSize = VolumeSize { bytes: 10 << 30, inodes: 1_000_000 };
/// A journal and a few files.
const SMALLEST: VolumeSize = VolumeSize { bytes: 16 << 20, inodes: 64 };
/// ext4 with blocks of 4 KiB.
const LARGEST: VolumeSize = VolumeSize { bytes: 8 << 40, inodes: 1 << 30 };

/// Time for the mount of an ended task: the kernel removes it asynchronously.
const UNMOUNT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The caps of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSize {
    /// Bytes of data.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Default for VolumeSize {
    fn default() -> VolumeSize {
        DEFAULT
    }
}

impl VolumeSize {
    pub(super) fn check(self) -> Result<()> {
        let is_within = |value, least, most| (least..=most).contains(&value);
        if !is_within(self.bytes, SMALLEST.bytes, LARGEST.bytes) {
            let words = format!("a volume cannot have {} bytes", self.bytes);
            return Err(Error::new(Kind::Usage, words).hint("give --size between 16M and 8T"));
        }
        if !is_within(self.inodes, SMALLEST.inodes, LARGEST.inodes) {
            let words = format!("a volume cannot have {} inodes", self.inodes);
            return Err(Error::new(Kind::Usage, words).hint("give --inodes between 64 and 1073741824"));
        }
        Ok(())
    }
}

/// The record of a volume. It never changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeRecord {
    schema: u32,
    /// The volume's name.
    pub name: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// What it is for: the agent and the project of a home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Its caps.
    #[serde(flatten)]
    pub size: VolumeSize,
}

#[derive(Debug)]
pub(super) struct VolumePaths<'store> {
    pub store: &'store Store,
    pub name: String,
    /// The task that opens it, which is not another user.
    pub own: &'store str,
}

impl<'store> VolumePaths<'store> {
    /// Refuses a wrong name, and one that the machine's rules do not list.
    pub fn of(store: &'store Store, name: &str) -> Result<Self> {
        check_volume_name(name)?;
        hosted::check_volume(name)?;
        Ok(VolumePaths { store, name: name.to_owned(), own: "" })
    }

    pub fn directory(&self) -> PathBuf {
        self.store.volumes_directory().join(&self.name)
    }

    pub fn image(&self) -> PathBuf {
        VolumePaths::image_in(&self.directory())
    }

    pub fn image_in(directory: &Path) -> PathBuf {
        directory.join(if are_packed() { ARCHIVE } else { IMAGE })
    }

    fn record(&self) -> PathBuf {
        self.directory().join(RECORD)
    }

    pub fn read(&self) -> Result<Option<VolumeRecord>> {
        let bytes = match files::read_bounded(&self.record(), LONGEST) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            other => other?,
        };
        let step = || format!("read the record of the volume `{}`", self.name);
        let record: VolumeRecord = serde_json::from_slice(&bytes)
            .map_err(|cause| Error::new(Kind::Record, cause.to_string()).doing(step()))?;
        if record.schema != SCHEMA {
            let words = format!("it has version {}, and this brig reads {SCHEMA}", record.schema);
            return Err(Error::new(Kind::Record, words).doing(step()));
        }
        Ok(Some(record))
    }

    pub fn existing(&self) -> Result<VolumeRecord> {
        self.read()?.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("no volume `{}` exists", self.name))
                .hint(format!("`brig volume ls` lists them; fill it: brig volume fill {0} -- COMMAND; or make it: brig volume create {0}", self.name))
        })
    }

    pub fn exists(&self) -> Error {
        let name = &self.name;
        Error::new(Kind::Exists, format!("there is a volume `{name}` already"))
            .hint(format!("choose another name, or remove it: brig volume rm {name}"))
    }

    /// `false` if there is one of that name.
    pub fn create(&self, size: VolumeSize) -> Result<bool> {
        self.create_with(size, None, |_| Ok(()))
    }

    pub fn create_with(
        &self,
        size: VolumeSize,
        purpose: Option<&str>,
        add: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<bool> {
        size.check()?;
        let step = || format!("make the volume `{}`", self.name);
        let all = self.store.volumes_directory();
        files::create_directories(&all, 0o700)?;
        if self.directory().exists() {
            return Ok(false);
        }
        // It gets its name when it is whole.
        let unfinished = all.join(format!(".new-{}-{}", self.name, std::process::id()));
        let record = VolumeRecord {
            schema: SCHEMA,
            name: self.name.clone(),
            created: now(),
            purpose: purpose.map(str::to_owned),
            size,
        };
        let made = (|| {
            files::create_directories(&unfinished, 0o700)?;
            let bytes = serde_json::to_vec(&record).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
            files::replace(&unfinished.join(RECORD), &bytes, 0o600, Durability::Synced)?;
            add(&unfinished)?;
            match std::fs::rename(&unfinished, self.directory()) {
                Ok(()) => Ok(true),
                Err(cause) if cause.raw_os_error() == Some(libc::ENOTEMPTY) => Ok(false),
                Err(cause) => Err(files::failed(cause, step())),
            }
        })();
        if !matches!(made, Ok(true)) {
            // The next prune removes a leftover.
            let _ = std::fs::remove_dir_all(&unfinished);
        }
        made
    }

    pub fn lock(&self) -> Result<Lock> {
        match Lock::attempt(&self.record())? {
            Attempt::Taken(lock) => Ok(lock),
            Attempt::Missing => self.existing().and(Err(Error::new(Kind::Internal, "the volume's lock is gone"))),
            Attempt::Held => Err(self.in_use("filled, imported or removed")),
        }
    }

    /// Waits for the mount of an ended task. `None` before the first use.
    pub fn open(&self, access: ImageAccess) -> Result<Option<VolumeImage>> {
        let end = Instant::now() + UNMOUNT;
        let (open, other) = match are_packed() {
            true => (VolumeImage::open_packed as fn(&Path, ImageAccess) -> Result<OpenedImage>, IMAGE),
            false => (VolumeImage::open as _, ARCHIVE),
        };
        if self.directory().join(other).exists() {
            let whose = if are_packed() { "root" } else { "an ordinary user" };
            return Err(Error::new(Kind::State, format!("{whose} made it in this store, in another form")).hint(
                "export it there, and import it in a store of your own: brig volume export, brig volume import",
            ));
        }
        loop {
            match open(&self.image(), access)? {
                OpenedImage::Free(image) => return Ok(Some(image)),
                OpenedImage::Missing => return Ok(None),
                OpenedImage::Busy if Instant::now() > end || self.users()?.iter().any(|user| user.blocks(access)) => {
                    return Err(self.in_use("used"));
                }
                OpenedImage::Busy => std::thread::sleep(PAUSE),
            }
        }
    }

    pub fn format(&self) -> Result<NewVolumeImage> {
        let VolumeSize { bytes, inodes } = self.existing()?.size;
        NewVolumeImage::format(&self.store.live(), bytes, inodes).doing(|| format!("make the volume `{}`", self.name))
    }

    pub fn users(&self) -> Result<Vec<VolumeUser>> {
        let mut users = Vec::new();
        for id in names_in(&self.store.live())?.into_iter().filter(|id| is_id(id) && id != self.own) {
            if self.store.status(&id)? != Status::Running {
                continue;
            }
            // A task that begins has no record yet.
            let Ok(record) = self.store.record(&id) else { continue };
            let named = record.volumes.iter().find(|volume| volume.name == self.name);
            let is_home = record.home.as_ref() == Some(&self.name);
            let access = named.map(|volume| volume.access.word()).or_else(|| is_home.then_some("home"));
            users.extend(access.map(|access| VolumeUser { task: id, access }));
        }
        Ok(users)
    }

    pub fn in_use(&self, how: &str) -> Error {
        let users: Vec<_> = self.users().unwrap_or_default().into_iter().map(|user| user.task).collect();
        let words = match users.as_slice() {
            [] => format!("it is being {how} by another process"),
            [id] => format!("it is in use by the task `{id}`"),
            ids => format!("it is in use by the tasks `{}`", ids.join("`, `")),
        };
        let hint = match users.first() {
            Some(id) => format!(
                "wait for its end: brig task wait {id}; or end it: brig task stop {id}; many tasks can read it at once: `:ro`, --cache"
            ),
            None => "wait a moment and try again".to_owned(),
        };
        Error::new(Kind::State, words).hint(hint)
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// A volume in a list.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeRow {
    /// The record.
    #[serde(flatten)]
    pub record: VolumeRecord,
    /// Whether it has files: it was used, filled or imported.
    pub filled: bool,
    /// Its last change, RFC 3339.
    pub changed: Option<String>,
    /// Bytes on the host's disk.
    pub disk_bytes: u64,
    /// The running tasks that have it.
    pub used_by: Vec<VolumeUser>,
}

/// A running task that has a volume.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeUser {
    /// Its id.
    pub task: String,
    /// `rw`, `ro`, `cache`, `fill` or `home`.
    pub access: &'static str,
}

impl VolumeUser {
    /// A fill changes a copy.
    fn blocks(&self, access: ImageAccess) -> bool {
        match access {
            ImageAccess::Write => self.access != "fill",
            ImageAccess::Read => matches!(self.access, "rw" | "home"),
        }
    }
}

impl Store {
    pub(crate) fn volumes_directory(&self) -> PathBuf {
        self.root().join("volumes")
    }

    /// Makes an empty volume. Its first use fills it with the image's files at the target.
    pub fn create_volume(&self, name: &str, size: VolumeSize) -> Result<VolumeRecord> {
        let paths = VolumePaths::of(self, name)?;
        if !paths.create(size)? {
            return Err(paths.exists());
        }
        paths.existing()
    }

    /// All volumes by name, and the errors of those whose records cannot be read.
    pub fn volumes(&self) -> Result<(Vec<VolumeRow>, Vec<Error>)> {
        let mut names = names_in(&self.volumes_directory())?;
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        let (mut rows, mut unread) = (Vec::new(), Vec::new());
        for name in names {
            match self.volume(&name) {
                Ok(row) => rows.push(row),
                // Not listed by the operator, or removed meanwhile.
                Err(error) if matches!(error.kind(), Kind::Policy | Kind::NotFound) => {}
                Err(error) => unread.push(error),
            }
        }
        Ok((rows, unread))
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> Result<VolumeRow> {
        use std::os::unix::fs::MetadataExt;
        let paths = VolumePaths::of(self, name)?;
        let record = paths.existing()?;
        let image = match std::fs::metadata(paths.image()) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other.map_err(|cause| files::failed(cause, format!("look at the volume `{name}`")))?),
        };
        let changed = image.as_ref().and_then(|status| status.modified().ok());
        Ok(VolumeRow {
            record,
            filled: image.is_some(),
            changed: changed.map(|time| humantime::format_rfc3339_seconds(time).to_string()),
            disk_bytes: image.map_or(0, |status| status.blocks() * 512),
            used_by: paths.users()?,
        })
    }

    /// Removes a volume that no task uses.
    pub fn remove_volume(&self, name: &str) -> Result<()> {
        let paths = VolumePaths::of(self, name)?;
        paths.existing()?;
        let step = || format!("remove the volume `{name}`");
        let _lock = paths.lock().doing(step)?;
        let _image = paths.open(ImageAccess::Write).doing(step)?;
        // Renamed in one step: a crash leaves no half of a volume.
        let hidden = self.volumes_directory().join(format!("{REMOVED}{name}-{}", std::process::id()));
        std::fs::rename(paths.directory(), &hidden)
            .and_then(|()| files::remove_directory(&hidden))
            .map_err(|cause| files::failed(cause, step()))
            .map(|_| ())
    }

    /// Removes the volumes unchanged for `older_than`, unless a task uses them or a kept task goes on with them; also
    /// the remains of killed commands. Returns the volumes' names and bytes.
    pub fn prune_volumes(&self, older_than: Duration, dry_run: bool) -> Result<Vec<(String, u64)>> {
        if !dry_run {
            self.remove_volume_leftovers()?;
        }
        let needed = self.volumes_of_kept_tasks()?;
        let mut gone = Vec::new();
        for row in self.volumes()?.0 {
            let time = row.changed.as_deref().unwrap_or(&row.record.created);
            // A clock that was set back makes nothing old.
            let age = humantime::parse_rfc3339(time).ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
            if age <= older_than || !row.used_by.is_empty() || needed.contains(&row.record.name) {
                continue;
            }
            if !dry_run {
                self.remove_volume(&row.record.name)?;
            }
            gone.push((row.record.name, row.disk_bytes));
        }
        Ok(gone)
    }

    fn remove_volume_leftovers(&self) -> Result<()> {
        for path in self.volume_leftovers()? {
            files::remove_directory(&path)
                .map_err(|cause| files::failed(cause, format!("remove `{}`", path.display())))?;
        }
        Ok(())
    }

    /// Unfinished and half-removed directories of killed commands.
    pub(crate) fn volume_leftovers(&self) -> Result<Vec<PathBuf>> {
        let all = self.volumes_directory();
        let names = names_in(&all)?.into_iter().filter(|name| name.starts_with('.'));
        Ok(names.map(|name| all.join(name)).filter(|path| is_left(path)).collect())
    }

    fn volumes_of_kept_tasks(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for id in self.ids()? {
            if !self.task(&id).join(KEPT_NOTE).exists() {
                continue;
            }
            let record = self.record(&id)?;
            names.extend(record.volumes.into_iter().map(|volume| volume.name).chain(record.home));
        }
        Ok(names)
    }
}

pub(super) fn step_of(volume: &Volume) -> String {
    step_of_name(&volume.name)
}

pub(super) fn step_of_name(name: &str) -> String {
    format!("use the volume `{name}`")
}
