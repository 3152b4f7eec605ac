//! A running container, as its supervisor holds it, and its removal.

use super::entry::Entry;
use super::link::Link;
use crate::cgroup::{Cgroup, Evidence, Usage};
use crate::container::gateway::Gateway;
use crate::egress::{Ledger, Renewal, Row, Rule};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::mounts::disk::maker::{self, Maker};
use crate::ns::{Helper, Range};
use crate::process::{Message, ProcessorTime, Spawned};
use crate::spec::resources::{Rates, Resources, block_io};
use crate::sys::weaken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// A container whose command runs or ran. Dropping it ends and removes everything; [`Running::remove`] does the same and says what it did.
#[derive(Debug)]
pub(crate) struct Running {
    spawned: Spawned,
    scratch: Option<OwnedFd>,
    secrets: Option<OwnedFd>,
    cgroup: Option<Group>,
    /// Held until the end, so that pid 1 does not spend its last moment on taking the mounts apart while we wait for it.
    mount_namespace: Option<OwnedFd>,
    maker: Option<Maker>,
    /// Whether the helper holds the mounts beside us.
    are_mounts_shared: bool,
    /// Whether what it writes is on a disk of its own.
    on_disk: bool,
    rates: Rates,
    range: Option<Range>,
    entry: Entry,
    gateway: Option<Gateway>,
    /// The processor time of a gateway that has ended.
    gateway_time: ProcessorTime,
    /// Whether the cgroup counts the gateway's processor time.
    is_gateway_counted: bool,
    link: Option<Link>,
    /// The listener of its command's filter, until the watch takes it.
    refusals: Option<OwnedFd>,
    ledger: Option<Ledger>,
    /// How many groups were made for processes that entered it.
    entrances: Cell<u64>,
    /// Children that are ending, or do when they are dropped.
    pub(super) helpers: Vec<Helper>,
    removed: bool,
}

/// What a removal did: the cleanup proof of the receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// What was removed, in words.
    pub removed: Vec<String>,
    /// What could not be, with the reason.
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
            secrets: None,
            cgroup,
            mount_namespace,
            on_disk: maker.is_some(),
            maker,
            are_mounts_shared: false,
            rates,
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

    /// Does what can wait until init has all that it needs of us: the processors are for it and for what it waits for.
    pub(crate) fn catch_up(&mut self) {
        self.helpers.clear();
        if let Some(group) = &self.cgroup {
            group.0.open_counters();
        }
    }

    /// Its network is served by this gateway from now on, whose processor time is the container's.
    pub(super) fn serve_by(&mut self, gateway: Gateway) -> Result<()> {
        let gateway = self.gateway.insert(gateway);
        if let Some(group) = &self.cgroup {
            self.is_gateway_counted = group.0.join_time(gateway.pid())?;
        }
        Ok(())
    }

    /// Its packets leave by this from now on.
    pub(super) fn lead_out(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Bytes that it sent and received by devices of its own; `None` where it has none.
    pub(crate) fn device_bytes(&self) -> Option<(u64, u64)> {
        self.link.as_ref().and_then(Link::bytes)
    }

    /// The process by which its packets leave, if one does: readable when it has ended.
    pub(crate) fn link_process(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().and_then(Link::process)
    }

    /// Whether the device by which its packets leave was removed by somebody else.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_gone)
    }

    /// The gateway that serves its network, if one does.
    pub(crate) fn gateway(&self) -> Option<&Gateway> {
        self.gateway.as_ref()
    }

    /// Hears one word of the gateway: whether it has ended, and a line of the account with a new decision.
    pub(crate) fn hear_gateway(&mut self) -> Result<(bool, Option<Row>)> {
        let Some(gateway) = &mut self.gateway else { return Ok((false, None)) };
        let row = gateway.hear()?;
        Ok((gateway.is_over(), row))
    }

    /// Allows or refuses what a rule covers from now on.
    pub(crate) fn change_egress(&self, rule: &Rule, allow: bool) -> Result<()> {
        match &self.gateway {
            Some(gateway) => gateway.change(rule, allow),
            None => Err(Error::new(Kind::State, "its network is not `egress`")
                .hint("start it with --network egress, if only with no rule")),
        }
    }

    /// Tells the gateway what becomes of a secret of the broker's. One that has ended needs none.
    pub(crate) fn renew_secret(&self, renewal: &Renewal) -> Result<()> {
        self.gateway.as_ref().filter(|gateway| !gateway.is_over()).map_or(Ok(()), |gateway| gateway.renew(renewal))
    }

    /// Tells the gateway that nobody needs it any more, without waiting for its end.
    pub(crate) fn dismiss_gateway(&mut self) {
        if let Some(gateway) = &mut self.gateway {
            gateway.ask_to_finish();
        }
    }

    /// Ends the gateway, and returns the lines of its account with decisions that nobody has heard of yet.
    pub(crate) fn end_gateway(&mut self) -> Vec<Row> {
        let Some(gateway) = self.gateway.take() else { return Vec::new() };
        let (ledger, rows, time) = gateway.finish();
        (self.ledger, self.gateway_time) = (Some(ledger), time);
        rows
    }

    /// Ends the gateway and returns the whole account of what was reached, if somebody kept one.
    pub(crate) fn close_account(&mut self) -> Option<Ledger> {
        drop(self.end_gateway());
        self.ledger.clone()
    }

    /// Readable when the container has something to say.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.spawned.channel()
    }

    /// Waits for a word from inside that the watch must hear, at most until `deadline`, and takes in what comes before.
    pub(crate) fn settle(&mut self, deadline: Instant) -> Result<()> {
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
            let mut wait = [PollFd::from_borrowed_fd(self.channel(), PollFlags::IN)];
            match poll(&mut wait, Some(&left)) {
                Ok(1..) if self.spawned.brings_descriptor() => {
                    if let Some(Message::Refusals(listener)) = self.receive()? {
                        self.refusals = Some(listener);
                    }
                }
                Err(Errno::INTR) => {}
                _ => return Ok(()), // whatever it says, or does not say, is heard by the watch
            }
        }
    }

    /// The next word from inside; `None` when nobody is left. The scratch file system is kept for [`Running::scratch`].
    pub(crate) fn receive(&mut self) -> Result<Option<Message>> {
        match self.spawned.receive()? {
            Some(Message::Scratch(root)) => {
                self.slow_down(root.as_fd())?;
                self.scratch = Some(root.try_clone().failing(Kind::Internal, || "keep the scratch file system open")?);
                Ok(Some(Message::Scratch(root)))
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

    /// The listener of its command's filter, if it came before the watch began.
    pub(crate) fn take_refusals(&mut self) -> Option<OwnedFd> {
        self.refusals.take()
    }

    /// Has the helper that made the disk hold the mounts beside us, while there is time: at the end it takes them apart.
    fn share_mounts(&mut self) {
        // The namespace keeps all of them; where it cannot be opened, what is open in them does.
        let rest = self.scratch.iter().chain(&self.secrets).filter(|_| self.mount_namespace.is_none());
        let mut last = self.mount_namespace.iter().chain(rest);
        let has_failed = self.maker.as_ref().is_some_and(|maker| !last.all(|each| maker.hold(each.as_fd())));
        self.maker.take_if(|_| has_failed);
        self.are_mounts_shared = true;
    }

    /// Buries the helper that made the disk, once it has tidied up after itself; nobody waits for that.
    pub(crate) fn tidy(&mut self) {
        self.maker.take_if(|maker| maker.has_ended());
    }

    /// Sets the rates of the disk that was made for this container. Its number is known only now; the command, which comes to life at the
    /// same moment, may have written for some microseconds.
    fn slow_down(&self, root: BorrowedFd<'_>) -> Result<()> {
        let (Some(group), true) = (&self.cgroup, self.on_disk && self.rates.any()) else { return Ok(()) };
        let step = || "limit the rate of the disk";
        let device = rustix::fs::fstat(root).failing(Kind::Disk, step)?.st_dev;
        let disk = (rustix::fs::major(device), rustix::fs::minor(device));
        let limits = Resources { block_io: block_io(&self.rates, &[disk]), ..Resources::default() };
        group.0.update(&limits).doing(step)
    }

    /// The root of the file system under everything writable; `None` before init has made it.
    pub(crate) fn scratch(&self) -> Option<BorrowedFd<'_>> {
        self.scratch.as_ref().map(AsFd::as_fd)
    }

    /// What those who enter it are like.
    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The environment of its command.
    pub(crate) fn environment(&self) -> &[(std::ffi::OsString, std::ffi::OsString)] {
        &self.entry.environment
    }

    /// The host's id of its user 0, where it has a range of its own.
    pub(super) fn first_id(&self) -> Option<u32> {
        self.range.as_ref().map(|range| range.base)
    }

    /// Its first process, in our PID namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.spawned.pid
    }

    /// The v2 group that a process of it is born in.
    pub(super) fn clone_into(&self) -> Result<Option<OwnedFd>> {
        let directory = self.cgroup.as_ref().and_then(|group| group.0.clone_into());
        directory
            .map(|directory| directory.try_clone_to_owned())
            .transpose()
            .failing(Kind::Cgroup, || "keep the sandbox's cgroup open")
    }

    /// The files of v1 groups through which a process joins them.
    pub(super) fn join_files(&self) -> Result<Vec<OwnedFd>> {
        self.cgroup.as_ref().map(|group| group.0.join_files()).transpose().map(Option::unwrap_or_default)
    }

    /// Makes a group for a process that enters, and for all that it starts; `None` where the sandbox has no group itself.
    pub(super) fn make_entrance(&self) -> Result<Option<Cgroup>> {
        let Some(group) = self.cgroup.as_ref().filter(|_| !weaken::is_off("exec-group")) else { return Ok(None) };
        self.entrances.set(self.entrances.get() + 1);
        group.0.make_child(&format!("exec-{}", self.entrances.get())).map(Some)
    }

    /// Stops every process where it stands.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.group_to_freeze()?.freeze()
    }

    /// Lets them go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.group_to_freeze()?.thaw()
    }

    fn group_to_freeze(&self) -> Result<&Cgroup> {
        self.cgroup.as_ref().map(|group| &group.0).ok_or_else(|| {
            Error::new(Kind::State, "it runs without a cgroup, and only a cgroup can be frozen")
                .hint("run it without --allow-degraded pids and memory, on a machine where you have a cgroup")
        })
    }

    /// Every process of it in our PID namespace: from the cgroup, or the descendants of pid 1 where there is none.
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        match &self.cgroup {
            Some(group) => group.0.processes(),
            None => Ok(crate::container::tree::descendants(self.spawned.pid)),
        }
    }

    /// The directory of the secrets, writable; `None` before init has made it, or where there are none.
    pub(crate) fn secrets(&self) -> Option<BorrowedFd<'_>> {
        self.secrets.as_ref().map(AsFd::as_fd)
    }

    /// Passes a signal to the command.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.spawned.signal(signal)
    }

    /// Ends every process at once: by the cgroup, and by pid 1 where there is none.
    pub(crate) fn kill(&self) -> Result<()> {
        let by_cgroup = self.cgroup.as_ref().map_or(Ok(()), |group| group.0.kill());
        self.spawned.signal(Signal::KILL).and(by_cgroup)
    }

    /// What it has used until now, its gateway's processor time included; `None` without a cgroup.
    pub(crate) fn usage(&self) -> Result<Option<Usage>> {
        let Some(group) = &self.cgroup else { return Ok(None) };
        let mut usage = group.0.usage()?;
        if !self.is_gateway_counted {
            let time = self.gateway.as_ref().map_or(self.gateway_time, Gateway::time);
            let add = |value: &mut Option<u64>, more: u64| *value = value.map(|value| value + more);
            add(&mut usage.cpu_user_ns, time.user);
            add(&mut usage.cpu_system_ns, time.system);
            add(&mut usage.cpu_total_ns, time.user + time.system);
        }
        Ok(Some(usage))
    }

    /// What the kernel counted against the limits; `None` without a cgroup.
    pub(crate) fn evidence(&self) -> Result<Option<Evidence>> {
        self.cgroup.as_ref().map(|group| group.0.evidence()).transpose()
    }

    /// Becomes readable when the memory limit was hit.
    pub(crate) fn oom_notifier(&self) -> Result<Option<OwnedFd>> {
        self.cgroup.as_ref().map_or(Ok(None), |group| group.0.oom_notifier())
    }

    /// Waits until every process is gone.
    pub(crate) fn reap(&self) -> Result<()> {
        self.spawned.reap()
    }

    /// Ends what still runs and removes all that was made, trying every step, and says what was removed and what was left.
    pub(crate) fn remove(mut self) -> Removal {
        self.undo()
    }

    /// Lets the kernel take the mounts apart without us: the last unmounting of a disk writes and frees blocks, which takes 1 to 40 ms.
    fn let_go(&mut self) -> Result<()> {
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
            note("egress gateway", Ok(())); // dropping it ends it and waits for its end
        }
        if let Some(link) = self.link.take() {
            let (what, done) = link.remove();
            note(what, done);
        }
        if self.on_disk {
            // It has no name: the kernel frees it and its loop device with the last mount.
            note("disk image and loop device", Ok(()));
        }
        note("mounts", self.let_go());
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
        // Whoever wants to know what was left calls `remove`; here an error is on its way up already.
        let _ = self.undo();
    }
}

/// A container's cgroup; removed when dropped.
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
            // What is left now is found by the next command of ours.
            let _ = self.0.remove();
        }
    }
}
