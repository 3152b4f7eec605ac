//! `NOTIFY_SOCKET` (sd_notify(3)): the container gets a private socket, and only `READY=1` passes.

use super::record::Place;
use super::{bundle, socket};
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::bundle::Mount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg_addr};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;

const VARIABLE: &str = "NOTIFY_SOCKET";
const DIRECTORY: &str = "notify";
const SOCKET: &str = "notify.sock";
const INSIDE: &str = "/run/notify";
/// For the service manager to read the message.
const BARRIER_WAIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// `None` without a service manager. Later mounts there do not propagate to or from the host.
pub(super) fn prepare(place: &Place, environment: &mut Vec<(OsString, OsString)>) -> Result<Option<Mount>> {
    if host_socket().is_none() {
        return Ok(None);
    }
    let source = place.path.join(DIRECTORY);
    let failed = || format!("make the directory `{}`", source.display());
    rustix::fs::mkdir(&source, Mode::from_raw_mode(0o755)).failing(Kind::Store, failed)?;
    environment.retain(|(name, _)| name != VARIABLE);
    environment.push((VARIABLE.into(), format!("{INSIDE}/{SOCKET}").into()));
    bundle::read_only(INSIDE, source).map(Some)
}

/// The container's socket.
#[derive(Debug)]
pub struct Notify(UnixDatagram);

impl Notify {
    /// `None` without a service manager, now or at `create`.
    pub(super) fn listen(place: &Place) -> Result<Option<Notify>> {
        let directory = place.path.join(DIRECTORY);
        if host_socket().is_none() || !directory.is_dir() {
            return Ok(None);
        }
        let path = directory.join(SOCKET);
        let step = || format!("listen at `{}`", path.display());
        let address = socket::Address::of(&path).failing(Kind::State, step)?;
        let socket = UnixDatagram::bind(address.path()).failing(Kind::State, step)?;
        // Any process of the container may report that it is ready.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).failing(Kind::State, step)?;
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(0o777), rustix::fs::AtFlags::empty())
            .failing(Kind::State, step)?;
        Ok(Some(Notify(socket)))
    }

    /// Passes `READY=1` to the service manager, or waits for the end of the first process, `process`.
    pub fn pass_on(&self, process: &OwnedFd, pid: i32) -> Result<()> {
        let step = || "wait until the container is ready";
        let mut bytes = [0_u8; 4096];
        loop {
            let mut watched = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(process, PollFlags::IN)];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.failing(Kind::State, step)?,
            };
            let (said, ended) = (!watched[0].revents().is_empty(), !watched[1].revents().is_empty());
            if said {
                let length = self.0.recv(&mut bytes).failing(Kind::State, step)?;
                if bytes[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                    return notify_manager(pid);
                }
            } else if ended {
                return Ok(());
            }
        }
    }
}

fn host_socket() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty())
}

/// Waits until it is read: after our end the service manager could not identify the sender.
fn notify_manager(pid: i32) -> Result<()> {
    let Some(path) = host_socket() else { return Ok(()) };
    let step = || format!("tell the service manager at `{}`", path.to_string_lossy());
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => rustix::net::SocketAddrUnix::new_abstract_name(name),
        None => rustix::net::SocketAddrUnix::new(path.as_bytes()),
    };
    let address = address.failing(Kind::State, step)?;
    let socket = UnixDatagram::unbound().failing(Kind::State, step)?;
    let say = |words: &str, descriptor: Option<&OwnedFd>| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg_addr(&socket, &address, &[IoSlice::new(words.as_bytes())], &mut control, SendFlags::NOSIGNAL)
            .failing(Kind::State, step)
            .map(drop)
    };
    say(&format!("READY=1\nMAINPID={pid}\n"), None)?;
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::State, step)?;
    say("BARRIER=1", Some(&theirs))?;
    drop(theirs);
    // The manager closes its copy after it has read all earlier messages.
    match poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&BARRIER_WAIT)).failing(Kind::State, step)? {
        0 => Err(Error::new(Kind::State, "it did not read the message within 30 s").doing(step())),
        _ => Ok(()),
    }
}
