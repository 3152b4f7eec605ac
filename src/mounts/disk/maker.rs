//! The disk helper: makes a disk while the caller prepares the sandbox, and unmounts it after the sandbox.
//!
//! The program's first lines fork it, with little memory to copy and no secret in it. It stays for a moment after it
//! has sent the disk. A sandbox that ends by then leaves its mounts to it; a longer one forks another helper.

use super::image::mount_image;
use super::template::Template;
use super::{DiskFile, Size};
use crate::error::{Context, Kind, Result, wire};
use crate::files::{Channel, Packet};
use crate::sys::clone::{Side, clone_process, close_from, exit, is_over, wait};
use crate::sys::environment;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The pause before it removes the overlay's directories: a short sandbox then does not share the processor.
const WAITS: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// After that, without a request.
const STAYS: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Tags on the channel: a disk, from the helper; an order, a descriptor to hold, and the end, to the helper.
const DISK: u8 = b'D';
const ORDER: u8 = b'O';
const HOLD: u8 = b'H';
const END: u8 = b'E';

pub(super) struct Order {
    pub template: Template,
    pub live: PathBuf,
    pub size: Size,
}

enum Job<'order> {
    /// First other work, if any, then a wait for an order.
    Idle(Option<First>),
    Order(&'order Order, &'order DiskFile),
}

impl Job<'_> {
    fn first(&self) -> Option<&OwnedFd> {
        match self {
            Job::Idle(first) => first.as_ref().map(|first| &first.with),
            Job::Order(..) => None,
        }
    }
}

/// The caller needs this sooner than the disk.
pub(crate) struct First {
    pub with: OwnedFd,
    /// `None` ends the helper.
    pub work: fn(OwnedFd) -> Option<()>,
}

#[derive(Debug)]
pub(crate) struct Maker {
    /// `None` if no wait for its end is needed.
    pidfd: Option<OwnedFd>,
    channel: Channel,
}

/// The first disk takes it.
static IDLE: Mutex<Option<Maker>> = Mutex::new(None);

/// The next start reaps them.
static ENDING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// The helper runs `first`. A later order reports a failure. The caller has one thread.
pub(crate) fn begin(first: Option<First>) {
    if let (Ok(maker), Ok(mut idle)) = (Maker::fork(Job::Idle(first)), IDLE.lock()) {
        *idle = Some(maker);
    }
}

/// A background process is not the helper's parent.
pub(crate) fn forget() {
    if let Ok(mut idle) = IDLE.lock() {
        *idle = None;
    }
}

impl Maker {
    /// The disk arrives on the channel (`Pending`).
    pub(super) fn order(order: Order, file: &DiskFile) -> Result<(Channel, Maker)> {
        let idle = || IDLE.lock().ok().and_then(|mut idle| idle.take());
        // An order for any other file would be long.
        let idle = if *file == DiskFile::Unnamed { idle() } else { None };
        let maker = match idle {
            Some(maker) if maker.channel.send(&order.to_bytes(), None).is_ok() => maker,
            _ => Maker::fork(Job::Order(&order, file))?,
        };
        let channel = maker.channel.try_clone().failing(Kind::Disk, step)?;
        Ok((channel, maker))
    }

    fn fork(job: Job<'_>) -> Result<Maker> {
        reap_ended();
        let (ours, theirs) = Channel::pair().failing(Kind::Disk, step)?;
        match clone_process(0, None).failing(Kind::Disk, step)? {
            Side::Parent(_, pidfd) => Ok(Maker { pidfd: Some(pidfd), channel: ours }),
            Side::Child => {
                // First close all descriptors that another process waits for, such as our standard output.
                let kept = [Some(theirs.as_fd()), job.first().map(AsFd::as_fd)];
                let kept: Vec<_> = kept.into_iter().flatten().collect();
                let closed = close_from(0, &kept);
                exit(i32::from(closed.is_err() || serve(&theirs, job).is_none()))
            }
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_none_or(|pidfd| is_over(pidfd.as_fd()))
    }

    /// Gives it `last`, which keeps a sandbox's mounts. After its end and the close of our copy, the helper unmounts.
    /// `false` if it has ended already.
    pub(crate) fn hold(&self, last: BorrowedFd<'_>) -> bool {
        // The kernel closes descriptors in the channel of an ended helper.
        self.channel.send(&[HOLD], Some(last)).is_ok()
    }

    fn leave(mut self) {
        // It may have ended already.
        let _ = self.channel.send(&[END], None);
        if let (Some(pidfd), Ok(mut ending)) = (self.pidfd.take(), ENDING.lock()) {
            ending.push(pidfd);
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let Some(pidfd) = &self.pidfd else { return };
        // It may have ended already.
        let _ = self.channel.send(&[END], None);
        let _ = wait(pidfd.as_fd());
    }
}

/// Closes `held`, the last descriptors that keep a sandbox's mounts, in a process without a waiter. Unmounting,
/// detaching the loop device and freeing the image take 1 to 40 ms. `maker` holds the same descriptors.
pub(crate) fn release_mounts(maker: Option<Maker>, held: Vec<OwnedFd>) -> Result<()> {
    if let Some(maker) = maker.filter(|maker| !maker.has_ended()) {
        drop(held); // first: the last process to close them unmounts
        maker.leave();
        return Ok(());
    }
    if held.is_empty() {
        return Ok(());
    }
    match clone_process(0, None).failing(Kind::Mount, || "let the mounts go")? {
        Side::Parent(_, pidfd) => {
            if let Ok(mut ending) = ENDING.lock() {
                ending.push(pidfd);
            }
            Ok(())
        }
        Side::Child => {
            let kept: Vec<_> = held.iter().map(AsFd::as_fd).collect();
            let closed = close_from(0, &kept);
            drop(held);
            exit(i32::from(closed.is_err()))
        }
    }
}

fn reap_ended() {
    if let Ok(mut ending) = ENDING.lock() {
        ending.retain(|pidfd| !is_over(pidfd.as_fd()));
    }
}

/// `None` if the disk was not needed or the error was not delivered.
fn serve(parent: &Channel, job: Job<'_>) -> Option<()> {
    // Ctrl-C is for the supervisor, which then ends the helper.
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).ok()?;
    let was_idle = matches!(job, Job::Idle(_));
    let heard;
    let (order, file) = match job {
        Job::Order(order, file) => (order, file),
        Job::Idle(first) => {
            heard = idle(parent, first)?;
            (&heard, &DiskFile::Unnamed)
        }
    };
    let (mounted, image) = match mount_image(&order.template, &order.live, order.size, file) {
        Ok((mounted, image)) => {
            parent.send(&[DISK], Some(mounted.as_fd())).ok()?;
            environment::wipe(); // a secret may be among the variables
            (mounted, image)
        }
        Err(error) => return parent.send(&wire::to_bytes(&error), None).ok(),
    };
    if !was_idle {
        return Some(()); // its memory has all that the parent had read by then
    }
    let (mut held, mut image) = (vec![mounted], Some(image));
    loop {
        let mut wait = [PollFd::new(parent, PollFlags::IN)];
        let patience = if image.is_some() { &WAITS } else { &STAYS };
        match poll(&mut wait, Some(patience)).ok()? {
            0 if image.is_some() => image = None,
            0 => return Some(()),
            _ => match parent.receive().ok()? {
                Some(Packet { descriptor: Some(descriptor), .. }) => held.push(descriptor),
                _ => return Some(()),
            },
        }
    }
}

/// Until the order the helper dies with its parent. Later it cleans up itself: the channel shows that the disk is not
/// needed.
fn idle(parent: &Channel, first: Option<First>) -> Option<Order> {
    set_parent_process_death_signal(Some(Signal::KILL)).ok()?;
    if let Some(First { with, work }) = first {
        work(with)?;
    }
    let order = Order::from_bytes(&parent.receive().ok()??.bytes)?;
    set_parent_process_death_signal(None).ok()?;
    Some(order)
}

impl Order {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![ORDER, u8::from(self.size.synchronous)];
        bytes.extend(self.size.bytes.to_le_bytes());
        bytes.extend(self.size.inodes.to_le_bytes());
        bytes.extend(self.template.path().as_os_str().as_bytes());
        bytes.push(0); // a path contains no NUL
        bytes.extend(self.live.as_os_str().as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Order> {
        let (&[ORDER, synchronous], rest) = bytes.split_first_chunk::<2>()? else { return None };
        let (size, rest) = rest.split_first_chunk::<8>()?;
        let (inodes, rest) = rest.split_first_chunk::<8>()?;
        let middle = rest.iter().position(|byte| *byte == 0)?;
        let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_owned();
        Some(Order {
            template: Template::at(path(&rest[..middle])),
            live: path(&rest[middle + 1..]),
            size: Size {
                bytes: u64::from_le_bytes(*size),
                inodes: u64::from_le_bytes(*inodes),
                synchronous: synchronous != 0,
            },
        })
    }
}

fn step() -> &'static str {
    "start making the disk"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_says_all_of_itself() {
        let size = Size { bytes: 10 << 30, inodes: 70_000, synchronous: true };
        let order = Order { template: Template::at("/a b/é.img".into()), live: "/live".into(), size };
        let heard = Order::from_bytes(&order.to_bytes()).unwrap();
        assert_eq!((heard.template.path(), &heard.live, heard.size), (order.template.path(), &order.live, size));
        for other in [&b"E"[..], b"O", b"", b"O\0too short"] {
            assert!(Order::from_bytes(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn one_that_waits_makes_the_disk_and_takes_what_is_left_to_it() {
        if !rustix::process::geteuid().is_root() {
            crate::sys::skip("one_that_waits_makes_the_disk_and_takes_what_is_left_to_it: needs root");
            return;
        }
        let (directory, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let size = Size { bytes: 16 << 20, inodes: 256, synchronous: false };
        begin(None);
        let waiting = IDLE.lock().unwrap().as_ref().unwrap().pidfd.as_ref().unwrap().try_clone().unwrap();
        let template = Template::of(directory.path(), live.path(), size).unwrap();
        let order = Order { template, live: live.path().to_owned(), size };
        let (channel, maker) = Maker::order(order, &DiskFile::Unnamed).unwrap();
        assert!(IDLE.lock().unwrap().is_none());
        let packet = channel.receive().unwrap().unwrap();
        assert_eq!(packet.bytes, [DISK], "{:?}", wire::from_bytes(&packet.bytes));
        let mounted = packet.descriptor.unwrap();
        let shown = rustix::fs::fstatvfs(&mounted).unwrap();
        assert!((12 << 20..18 << 20).contains(&(shown.f_blocks * shown.f_frsize)), "{}", shown.f_blocks);
        assert!(!is_over(waiting.as_fd()));
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        assert!(maker.hold(mounted.as_fd()) && maker.hold(writing.as_fd()));
        release_mounts(Some(maker), vec![mounted, writing]).unwrap();
        assert_eq!(rustix::io::read(&reading, &mut [0_u8; 1]), Ok(0));
        while !ENDING.lock().unwrap().is_empty() {
            reap_ended();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 0);
    }
}
