//! `NOTIFY_SOCKET` (sd_notify(3)): a service manager that waits for a container's program to be ready gets that word from us. The host's socket
//! stays on the host: the container has one of its own, from which only `READY=1` is passed on.

use super::record::Place;
use super::socket;
use crate::error::{Context, Error, Kind, Result};
use crate::mounts::bundle::Mount;
use crate::mounts::bundle::options;
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
/// Where the container finds its directory.
const INSIDE: &str = "/run/notify";
/// How long the service manager may take to have read what we sent.
const BARRIER_WAIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Makes the directory of the socket and shows it in the container, if a service manager waits. Nothing that is mounted there later is seen by
/// the host, and the other way round.
pub(super) fn prepare(place: &Place, environment: &mut Vec<(OsString, OsString)>) -> Result<Option<Mount>> {
    if host_socket().is_none() {
        return Ok(None);
    }
    let source = place.path.join(DIRECTORY);
    let failed = || format!("make the directory `{}`", source.display());
    rustix::fs::mkdir(&source, Mode::from_raw_mode(0o755)).failing(Kind::Store, failed)?;
    let words = ["bind", "ro", "nosuid", "nodev", "noexec", "private"].map(str::to_owned);
    environment.retain(|(name, _)| name != VARIABLE);
    environment.push((VARIABLE.into(), format!("{INSIDE}/{SOCKET}").into()));
    Ok(Some(Mount {
        at: INSIDE.into(),
        kind: "bind".into(),
        source,
        options: options::parse(INSIDE, &words)?,
        userns: None,
        label: String::new(),
        tree: None,
        context: None,
    }))
}

/// The container's socket, at which we listen.
#[derive(Debug)]
pub struct Notify(UnixDatagram);

impl Notify {
    /// Listens, if the container was made for it and a service manager waits now.
    pub(super) fn listen(place: &Place) -> Result<Option<Notify>> {
        let directory = place.path.join(DIRECTORY);
        if host_socket().is_none() || !directory.is_dir() {
            return Ok(None);
        }
        let path = directory.join(SOCKET);
        let step = || format!("listen at `{}`", path.display());
        let address = socket::Address::of(&path).failing(Kind::State, step)?;
        let socket = UnixDatagram::bind(address.path()).failing(Kind::State, step)?;
        // Whoever runs in the container may say that it is ready.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).failing(Kind::State, step)?;
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(0o777), rustix::fs::AtFlags::empty())
            .failing(Kind::State, step)?;
        Ok(Some(Notify(socket)))
    }

    /// Waits until the container says that it is ready, or `process`, its first one, has ended, and tells the service manager.
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
                    return tell(pid);
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

/// Tells the service manager, and waits until it has read it: we may be gone the next moment, and then it would not know whose word it was.
fn tell(pid: i32) -> Result<()> {
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
    // The manager closes its copy when it has read all that came before.
    match poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&BARRIER_WAIT)).failing(Kind::State, step)? {
        0 => Err(Error::new(Kind::State, "it did not read what it was told within 30 s").doing(step())),
        _ => Ok(()),
    }
}
