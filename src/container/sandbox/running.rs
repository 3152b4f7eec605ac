//! A running container in the hands of its supervisor, and its removal.

use super::archive::pack_kept;
use super::entry::Entry;
use super::link::Link;
use crate::cgroup::{Cgroup, Evidence, OomNotifier, Usage};
use crate::container::gateway::{self, Gateway};
use crate::egress::{Ledger, Renewal, Row, Rule};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::is_ready_by;
use crate::mounts::disk::ImageCopy;
use crate::mounts::disk::maker::{self, Maker};
use crate::ns::{Helper, Range};
use crate::process::{Message, ProcessorTime, Spawned};
use crate::spec::resources::{Rates, Resources, block_io};
use crate::sys::weaken;
use rustix::event::PollFlags;
use rustix::process::Signal;
use std::cell::Cell;
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Drop ends and removes everything; [`Running::remove`] also reports.
#[derive(Debug)]
pub(crate) struct Running {
    spawned: Spawned,
    scratch: Option<OwnedFd>,
    /// Written volumes in memory.
    volumes: Vec<OwnedFd>,
    secrets: Option<OwnedFd>,
    cgroup: Option<Group>,
    /// Pid 1 then does not unmount at its end while we wait for it.
    mount_namespace: Option<OwnedFd>,
    maker: Option<Maker>,
    /// The disk helper holds the mounts too.
    are_mounts_shared: bool,
    on_disk: bool,
    rates: Rates,
    pub(super) volume_devices: Vec<(u32, u32)>,
    range: Option<Range>,
    entry: Entry,
    gateway: Option<Gateway>,
    /// After the gateway's end.
    gateway_time: ProcessorTime,
    /// The cgroup counts the gateway's processor time.
    is_gateway_counted: bool,
    link: Option<Link>,
    /// Until the supervisor's watch takes it.
    refusals: Option<OwnedFd>,
    ledger: Option<Ledger>,
    /// Numbers the cgroups of processes that entered.
    entrances: Cell<u64>,
    /// They are ending, or end when dropped.
    pub(super) helpers: Vec<Helper>,
    removed: bool,
}

/// The cleanup proof of the receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    pub removed: Vec<String>,
    /// Each with its reason.
    pub left: Vec<String>,
}

impl Running {
    pub(super) fn new(
        spawned: Spawned,
        cgroup: Option<Group>,
        maker: Option<Maker>,
        rates: Rates,
        range: Option<Range>,
        entry: Entry,
    ) -> Running {
        let mount_namespace = spawned.mount_namespace();
        Running {
            spawned,
            scratch: None,
            volumes: Vec::new(),
            secrets: None,
            cgroup,
            mount_namespace,
            on_disk: maker.is_some(),
            maker,
            are_mounts_shared: false,
            rates,
            volume_devices: Vec::new(),
            range,
            entry,
            gateway: None,
            gateway_time: ProcessorTime::default(),
            is_gateway_counted: false,
            link: None,
            refusals: None,
            ledger: None,
            entrances: Cell::new(0),
            helpers: Vec::new(),
            removed: false,
        }
    }

    /// Work that can wait until init has all its input: the processors are for init first.
    pub(crate) fn catch_up(&mut self) {
        self.helpers.clear();
        if let Some(group) = &self.cgroup {
            group.0.open_counters();
        }
    }

    /// `start` gets the container's cgroups, which count the gateway's processor time.
    pub(super) fn serve_by(&mut self, start: impl FnOnce(&[OwnedFd]) -> Result<Gateway>) -> Result<()> {
        let files = self.cgroup.as_ref().map(|group| group.0.time_files()).transpose()?;
        let (tasks, is_counted) = files.unwrap_or_default();
        self.gateway = Some(start(&tasks)?);
        self.is_gateway_counted = is_counted;
        Ok(())
    }

    pub(super) fn lead_out(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// `None` without private devices.
    pub(crate) fn device_bytes(&self) -> Option<(u64, u64)> {
        self.link.as_ref().and_then(Link::bytes)
    }

    /// Readable after its end.
    pub(crate) fn link_process(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().and_then(Link::process)
    }

    pub(crate) fn has_lost_device(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_gone)
    }

    pub(crate) fn gateway(&self) -> Option<&Gateway> {
        self.gateway.as_ref()
    }

    /// Whether it has ended, and a line with a new decision.
    pub(crate) fn hear_gateway(&mut self) -> Result<(bool, Option<Row>)> {
        let Some(gateway) = &mut self.gateway else { return Ok((false, None)) };
        let row = gateway.receive()?;
        Ok((gateway.is_over(), row))
    }

    pub(crate) fn change_egress(&self, rule: &Rule, allow: bool) -> Result<()> {
        match &self.gateway {
            Some(gateway) => gateway.change(rule, allow),
            None => Err(gateway::no_names()),
        }
    }

    pub(crate) fn renew_secret(&self, renewal: &Renewal) -> Result<()> {
        self.gateway.as_ref().filter(|gateway| !gateway.is_over()).map_or(Ok(()), |gateway| gateway.renew(renewal))
    }

    /// Does not wait for its end.
    pub(crate) fn dismiss_gateway(&mut self) {
        if let Some(gateway) = &mut self.gateway {
            gateway.ask_to_finish();
        }
    }

    /// Returns decisions that are not reported yet.
    pub(crate) fn end_gateway(&mut self) -> Vec<Row> {
        let Some(gateway) = self.gateway.take() else { return Vec::new() };
        let (ledger, rows, time) = gateway.finish();
        (self.ledger, self.gateway_time) = (Some(ledger), time);
        rows
    }

    pub(crate) fn close_account(&mut self) -> Option<Ledger> {
        drop(self.end_gateway());
        self.ledger.clone()
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.spawned.channel()
    }

    /// Handles messages until `deadline`, or until one that the supervisor's watch must see.
    pub(crate) fn settle(&mut self, deadline: Instant) -> Result<()> {
        loop {
            match is_ready_by(self.channel(), PollFlags::IN, deadline) {
                Ok(true) if self.spawned.brings_descriptor() => {
                    if let Some(Message::Refusals(listener)) = self.receive()? {
                        self.refusals = Some(listener);
                    }
                }
                _ => return Ok(()), // the watch handles the message, or the end
            }
        }
    }

    /// `None` after its end. Keeps the scratch file system for [`Running::scratch`].
    pub(crate) fn receive(&mut self) -> Result<Option<Message>> {
        match self.spawned.receive()? {
            Some(Message::Scratch(root)) => {
                self.slow_down(root.as_fd())?;
                self.scratch = Some(root.try_clone().failing(Kind::Internal, || "keep the scratch file system open")?);
                Ok(Some(Message::Scratch(root)))
            }
            Some(Message::Volume(files)) => {
                self.volumes.push(files.try_clone().failing(Kind::Internal, || "keep a volume's files open")?);
                Ok(Some(Message::Volume(files)))
            }
            Some(Message::Secrets(directory)) => {
                self.secrets = Some(directory.try_clone().failing(Kind::Internal, || "keep the secrets' directory")?);
                Ok(Some(Message::Secrets(directory)))
            }
            Some(Message::Ready) => {
                self.share_mounts();
                Ok(Some(Message::Ready))
            }
            other => Ok(other),
        }
    }

    /// `None` unless it came before the watch.
    pub(crate) fn take_refusals(&mut self) -> Option<OwnedFd> {
        self.refusals.take()
    }

    /// Early: at the end the disk helper unmounts them.
    fn share_mounts(&mut self) {
        // The namespace keeps all; without it the open descriptors do.
        let rest = self.scratch.iter().chain(&self.secrets).filter(|_| self.mount_namespace.is_none());
        let mut last = self.mount_namespace.iter().chain(rest);
        let has_failed = self.maker.as_ref().is_some_and(|maker| !last.all(|each| maker.hold(each.as_fd())));
        self.maker.take_if(|_| has_failed);
        self.are_mounts_shared = true;
    }

    /// Only if it has exited; never blocks.
    pub(crate) fn tidy(&mut self) {
        self.maker.take_if(|maker| maker.has_ended());
    }

    /// The disk's device number is known only now; the command, which starts at the same moment, may have written for
    /// some microseconds.
    fn slow_down(&self, root: BorrowedFd<'_>) -> Result<()> {
        let (Some(group), true) = (&self.cgroup, self.on_disk && self.rates.any()) else { return Ok(()) };
        let step = || "limit the rate of the disk";
        let device = rustix::fs::fstat(root).failing(Kind::Disk, step)?.st_dev;
        let mut disks = vec![(rustix::fs::major(device), rustix::fs::minor(device))];
        disks.extend(&self.volume_devices);
        let limits = Resources { block_io: block_io(&self.rates, &disks), ..Resources::default() };
        group.0.update(&limits).doing(step)
    }

    /// For all writes; `None` before init has made it.
    pub(crate) fn scratch(&self) -> Option<BorrowedFd<'_>> {
        self.scratch.as_ref().map(AsFd::as_fd)
    }

    /// In the order of the volumes.
    pub(crate) fn volumes(&self) -> &[OwnedFd] {
        &self.volumes
    }

    /// For a name in `directory`. No process may write meanwhile.
    pub(crate) fn copy_disk(&self, image: &Path, directory: &Path) -> Result<ImageCopy> {
        let missing = || Error::new(Kind::State, "its files are not there yet");
        let scratch = self.scratch.as_ref().ok_or_else(missing)?;
        rustix::fs::syncfs(scratch).failing(Kind::Disk, || "write out the files of the sandbox")?;
        ImageCopy::make(image, directory)
    }

    /// At most, for a copy: the disk blocks of `image`, or the bytes in memory.
    pub(crate) fn used_bytes(&self, image: Option<&Path>) -> Result<u64> {
        let step = || "measure the files of the sandbox";
        match (image, &self.scratch) {
            (Some(image), _) => Ok(rustix::fs::stat(image).failing(Kind::Disk, step)?.st_blocks as u64 * 512),
            (None, Some(scratch)) => {
                let room = rustix::fs::fstatvfs(scratch).failing(Kind::Disk, step)?;
                Ok((room.f_blocks - room.f_bfree) * room.f_frsize)
            }
            (None, None) => Ok(0),
        }
    }

    /// For a name in `directory`. No process may write meanwhile.
    pub(crate) fn pack_files(&self, directory: &Path) -> Result<ImageCopy> {
        let scratch = self.scratch.as_ref().ok_or_else(|| Error::new(Kind::State, "its files are not there yet"))?;
        let copy = ImageCopy::empty(directory)?;
        pack_kept(scratch.as_fd(), BufWriter::new(File::from(copy.file()?)))?;
        Ok(copy)
    }

    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(crate) fn environment(&self) -> &[(std::ffi::OsString, std::ffi::OsString)] {
        &self.entry.environment
    }

    /// The host id of user 0.
    pub(super) fn first_id(&self) -> Option<u32> {
        self.range.as_ref().map(|range| range.base)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.spawned.pid
    }

    /// It leaves its namespaces a moment before its end.
    pub(super) fn ends_within(&self, limit: Duration) -> bool {
        is_ready_by(self.spawned.pidfd(), PollFlags::IN, Instant::now() + limit) == Ok(true)
    }

    /// The v2 cgroup in which its processes are born.
    pub(super) fn clone_into(&self) -> Result<Option<OwnedFd>> {
        let directory = self.cgroup.as_ref().and_then(|group| group.0.clone_into());
        directory
            .map(|directory| directory.try_clone_to_owned())
            .transpose()
            .failing(Kind::Cgroup, || "keep the sandbox's cgroup open")
    }

    /// The `tasks` files of v1 cgroups.
    pub(super) fn join_files(&self) -> Result<Vec<OwnedFd>> {
        self.cgroup.as_ref().map(|group| group.0.join_files()).transpose().map(Option::unwrap_or_default)
    }

    /// For a process that enters, and its children: limits below the sandbox's. `None` without a cgroup.
    pub(super) fn make_entrance(&self, limits: &Resources) -> Result<Option<Cgroup>> {
        let Some(group) = self.cgroup.as_ref().filter(|_| !weaken::is_off("exec-group")) else { return Ok(None) };
        self.entrances.set(self.entrances.get() + 1);
        group.0.make_child(&format!("exec-{}", self.entrances.get()), limits).map(Some)
    }

    pub(crate) fn freeze(&self) -> Result<()> {
        self.group_to_freeze()?.freeze()
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        self.group_to_freeze()?.thaw()
    }

    fn group_to_freeze(&self) -> Result<&Cgroup> {
        self.cgroup.as_ref().map(|group| &group.0).ok_or_else(|| {
            Error::new(Kind::State, "it runs without a cgroup, and only a cgroup can be frozen")
                .hint("run it without --allow-degraded pids and memory, on a machine where you have a cgroup")
        })
    }

    /// In our PID namespace: the cgroup's, or else pid 1's descendants.
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        match &self.cgroup {
            Some(group) => group.0.processes(),
            None => Ok(crate::container::tree::descendants(self.spawned.pid)),
        }
    }

    /// Writable; `None` before init has made it.
    pub(crate) fn secrets(&self) -> Option<BorrowedFd<'_>> {
        self.secrets.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.spawned.signal(signal)
    }

    /// By the cgroup, or by pid 1 without one.
    pub(crate) fn kill(&self) -> Result<()> {
        let by_cgroup = self.cgroup.as_ref().map_or(Ok(()), |group| group.0.kill());
        self.spawned.signal(Signal::KILL).and(by_cgroup)
    }

    /// Includes the gateway's processor time.
    pub(crate) fn usage(&self) -> Result<Option<Usage>> {
        let Some(group) = &self.cgroup else { return Ok(None) };
        let mut usage = group.0.usage()?;
        if let Some(time) = self.uncounted_time() {
            let add = |value: &mut Option<u64>, more: u64| *value = value.map(|value| value + more);
            add(&mut usage.cpu_user_ns, time.user);
            add(&mut usage.cpu_system_ns, time.system);
            add(&mut usage.cpu_total_ns, time.user + time.system);
        }
        Ok(Some(usage))
    }

    /// That of [`Running::usage`] alone, for fewer reads.
    pub(crate) fn processor_time(&self) -> Option<u64> {
        let time = self.cgroup.as_ref()?.0.processor_time()?;
        Some(time + self.uncounted_time().map_or(0, |more| more.user + more.system))
    }

    /// The gateway's, if the cgroup does not count it.
    fn uncounted_time(&self) -> Option<ProcessorTime> {
        let time = || self.gateway.as_ref().map_or(self.gateway_time, Gateway::time);
        (!self.is_gateway_counted).then(time)
    }

    pub(crate) fn evidence(&self) -> Result<Option<Evidence>> {
        self.cgroup.as_ref().map(|group| group.0.evidence()).transpose()
    }

    pub(crate) fn is_memory_v1(&self) -> bool {
        self.cgroup.as_ref().is_some_and(|group| group.0.is_memory_v1())
    }

    pub(crate) fn oom_notifier(&self) -> Result<Option<OomNotifier>> {
        self.cgroup.as_ref().map_or(Ok(None), |group| group.0.oom_notifier())
    }

    pub(crate) fn reap(&self) -> Result<()> {
        self.spawned.reap()
    }

    /// Tries every step.
    pub(crate) fn remove(mut self) -> Removal {
        self.undo()
    }

    /// In another process: a disk's last unmount writes and frees blocks, which takes 1 to 40 ms.
    fn release_mounts(&mut self) -> Result<()> {
        if !self.are_mounts_shared {
            self.share_mounts();
        }
        let held = self.scratch.take().into_iter().chain(self.secrets.take()).chain(self.mount_namespace.take());
        let held: Vec<_> = held.collect();
        maker::release_mounts(self.maker.take(), held)
    }

    fn undo(&mut self) -> Removal {
        let mut removal = Removal::default();
        if std::mem::replace(&mut self.removed, true) {
            return removal;
        }
        let mut note = |what: &str, done: Result<()>| match done {
            Ok(()) => removal.removed.push(what.to_owned()),
            Err(error) => removal.left.push(format!("{what}: {error}")),
        };
        let ended = self.spawned.signal(Signal::KILL).and_then(|()| self.spawned.reap());
        note("processes and namespaces", ended);
        if self.gateway.take().is_some() || self.ledger.is_some() {
            note("egress gateway", Ok(())); // drop has ended it
        }
        if let Some(link) = self.link.take() {
            let (what, done) = link.remove();
            note(what, done);
        }
        if self.on_disk {
            // It is nameless: the kernel frees it and its loop device with the last mount.
            note("disk image and loop device", Ok(()));
        }
        note("mounts", self.release_mounts());
        if let Some(mut cgroup) = self.cgroup.take() {
            note("cgroup", cgroup.remove());
        }
        if self.range.take().is_some() {
            note("id range", Ok(()));
        }
        removal
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The caller has an error already.
        let _ = self.undo();
    }
}

/// Removed when dropped.
#[derive(Debug)]
pub(super) struct Group(pub(super) Cgroup, bool);

impl Group {
    pub(super) fn new(cgroup: Cgroup) -> Group {
        Group(cgroup, false)
    }

    fn remove(&mut self) -> Result<()> {
        self.0.remove().map_err(Error::from)?;
        self.1 = true;
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.1 {
            // The next command finds the remains.
            let _ = self.0.remove();
        }
    }
}
