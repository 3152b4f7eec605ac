//! Sends descriptors to the caller's unix sockets: one connection, one message, one descriptor, as conmon, containerd
//! and the agents expect.

use crate::error::{Context, Error, Kind, Result};
use crate::spec::seccomp::Seccomp;
use crate::spec::state::State;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};
use serde::Serialize;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// unix(7); longer paths go through the directory's descriptor.
const LONGEST_ADDRESS: usize = 107;

pub(super) fn send(path: &Path, words: &str, descriptor: BorrowedFd<'_>) -> Result<()> {
    let step = || format!("send a descriptor to the socket `{}`", path.display());
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).failing(Kind::State, step)?;
    let address = Address::of(path).failing(Kind::State, step)?;
    connect(&socket, &SocketAddrUnix::new(address.path()).failing(Kind::State, step)?).failing(Kind::State, step)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(&socket, &[IoSlice::new(words.as_bytes())], &mut control, SendFlags::NOSIGNAL)
        .failing(Kind::State, step)
        .map(|_| ())
}

pub(super) struct Address {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Address {
    pub(super) fn of(path: &Path) -> rustix::io::Result<Address> {
        use rustix::fs::{Mode, OFlags};
        if path.as_os_str().len() <= LONGEST_ADDRESS {
            return Ok(Address { path: path.to_path_buf(), _directory: None });
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(rustix::io::Errno::NAMETOOLONG);
        };
        let directory = rustix::fs::open(above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Address { path: short, _directory: Some(directory) })
    }

    /// Valid as long as `self`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// With the slave's name.
pub(super) fn send_console(path: &Path, master: &OwnedFd) -> Result<()> {
    let name = rustix::pty::ptsname(master, Vec::new()).failing(Kind::State, || "find the terminal's name")?;
    send(path, &name.to_string_lossy(), master.as_fd())
}

/// To a seccomp agent (runtime-spec, "The Container Process State").
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerProcessState<'a> {
    oci_version: &'a str,
    fds: [&'static str; 1],
    pid: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    metadata: &'a str,
    state: &'a State,
}

/// `pid` is the process with the filter.
pub(super) fn send_listener(profile: &Seccomp, listener: &OwnedFd, pid: i32, state: &State) -> Result<()> {
    let message = ContainerProcessState {
        oci_version: &state.oci_version,
        fds: ["seccompFd"],
        pid,
        metadata: &profile.listener_metadata,
        state,
    };
    let text = serde_json::to_string(&message).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    send(Path::new(&profile.listener_path), &text, listener.as_fd())
}
