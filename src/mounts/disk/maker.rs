//! The process that makes a disk while the sandbox's own is prepared, and that takes the mounts apart when it has ended: neither is on anybody's time.
//!
//! One is forked by the program's first lines, where there is little memory to copy and nothing secret in it, and waits for its order. When it has handed
//! the disk over it stays for a moment: a sandbox that ends meanwhile leaves its mounts to it, a longer one forks another for that.

use super::description::{DiskFile, Size};
use super::image::mount_image;
use super::template::Template;
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

/// How long it leaves the processor to the sandbox that has its disk now, before it removes the directories that the image's overlay had: one that has ended
/// by then need not share it.
const WAITS: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// How long it stays after that without a word.
const STAYS: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The words on the channel: a disk, from it; an order, a descriptor to hold, and that it may end, to it.
const DISK: u8 = b'D';
const ORDER: u8 = b'O';
const HOLD: u8 = b'H';
const END: u8 = b'E';

/// What is to be made.
pub(super) struct Order {
    pub template: Template,
    /// Where what is in use for a moment is made.
    pub live: PathBuf,
    pub size: Size,
}

/// What the process is for.
enum Job<'order> {
    /// To do something else first, and to wait for an order.
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

/// What the process does before anything else: what everybody waits for sooner than for the disk.
pub(crate) struct First {
    /// All that it does it with.
    pub with: OwnedFd,
    /// `None` says that the process is to end.
    pub work: fn(OwnedFd) -> Option<()>,
}

/// The process. Dropped, it is told to end and waited for.
#[derive(Debug)]
pub(crate) struct Maker {
    /// `None` when nobody waits for its end any more.
    pidfd: Option<OwnedFd>,
    channel: Channel,
}

/// The one that waits for its order; the first disk that is wanted takes it.
static IDLE: Mutex<Option<Maker>> = Mutex::new(None);

/// Those whose end nobody waits for. They are buried when the next is needed.
static ENDING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Forks the one that waits, when it has done what is `first`. What goes wrong is found out, and said, when a disk is wanted. The caller has one thread.
pub(crate) fn begin(first: Option<First>) {
    if let (Ok(maker), Ok(mut idle)) = (Maker::fork(Job::Idle(first)), IDLE.lock()) {
        *idle = Some(maker);
    }
}

/// Ends the one that waits: a process in the background is not its parent.
pub(crate) fn forget() {
    if let Ok(mut idle) = IDLE.lock() {
        *idle = None;
    }
}

impl Maker {
    /// Has a disk made. It comes over the channel (`Pending`).
    pub(super) fn order(order: Order, file: &DiskFile) -> Result<(Channel, Maker)> {
        let idle = || IDLE.lock().ok().and_then(|mut idle| idle.take());
        // What it needs for any other file would be long to say.
        let idle = if *file == DiskFile::Unnamed { idle() } else { None };
        let maker = match idle {
            Some(maker) if maker.channel.send(&order.to_bytes(), None).is_ok() => maker,
            _ => Maker::fork(Job::Order(&order, file))?,
        };
        let channel = maker.channel.try_clone().failing(Kind::Disk, step)?;
        Ok((channel, maker))
    }

    fn fork(job: Job<'_>) -> Result<Maker> {
        bury();
        let (ours, theirs) = Channel::pair().failing(Kind::Disk, step)?;
        match clone_process(0, None).failing(Kind::Disk, step)? {
            Side::Parent(_, pidfd) => Ok(Maker { pidfd: Some(pidfd), channel: ours }),
            Side::Child => {
                // First all that somebody else waits for, such as our standard output.
                let kept = [Some(theirs.as_fd()), job.first().map(AsFd::as_fd)];
                let kept: Vec<_> = kept.into_iter().flatten().collect();
                let closed = close_from(0, &kept);
                exit(i32::from(closed.is_err() || serve(&theirs, job).is_none()))
            }
        }
    }

    /// Whether it is over, so that nobody need wait for it.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.as_ref().is_none_or(|pidfd| is_over(pidfd.as_fd()))
    }

    /// Has it hold `last`, which keeps a sandbox's mounts, beside us: when it is told to end, and we have let go of ours, the mounts are taken apart on its
    /// time. `false` if it has ended already.
    pub(crate) fn hold(&self, last: BorrowedFd<'_>) -> bool {
        // What waits in its channel when it ends, the kernel closes then.
        self.channel.send(&[HOLD], Some(last)).is_ok()
    }

    /// Tells it to end, without waiting for that.
    fn leave(mut self) {
        // One that has ended meanwhile need not be told.
        let _ = self.channel.send(&[END], None);
        if let (Some(pidfd), Ok(mut ending)) = (self.pidfd.take(), ENDING.lock()) {
            ending.push(pidfd);
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let Some(pidfd) = &self.pidfd else { return };
        // One that has ended need not be told. There is nothing to hear from it.
        let _ = self.channel.send(&[END], None);
        let _ = wait(pidfd.as_fd());
    }
}

/// Closes `held`, the last that keeps a sandbox's mounts, in a process that nobody waits for: unmounting, detaching the loop device and freeing the
/// image (1 to 40 ms) are then on that one's time. `maker` is the process that made the disk and holds the same ([`Maker::hold`]).
pub(crate) fn let_go(maker: Option<Maker>, held: Vec<OwnedFd>) -> Result<()> {
    if let Some(maker) = maker.filter(|maker| !maker.has_ended()) {
        drop(held); // first: whoever lets go last takes the mounts apart
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

/// Buries those that have ended.
fn bury() {
    if let Ok(mut ending) = ENDING.lock() {
        ending.retain(|pidfd| !is_over(pidfd.as_fd()));
    }
}

/// The process's whole life. `None` if nobody wanted what it made, or could be told why there is nothing.
fn serve(parent: &Channel, job: Job<'_>) -> Option<()> {
    // Ctrl-C at the terminal is for the supervisor, which ends us in its turn.
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

/// Waits for the order. Until then it dies with its parent; from then on it does not, because nobody could tidy up after it as soon: it sees by the channel
/// that nobody wants the disk, and ends.
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
        bytes.push(0); // no path has one
        bytes.extend(self.live.as_os_str().as_bytes());
        bytes
    }

    /// `None` for anything else, as the word to end.
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
        let_go(Some(maker), vec![mounted, writing]).unwrap();
        // The last that held the pipe has let it go.
        assert_eq!(rustix::io::read(&reading, &mut [0_u8; 1]), Ok(0));
        while !ENDING.lock().unwrap().is_empty() {
            bury();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(std::fs::read_dir(live.path()).unwrap().count(), 0);
    }
}
