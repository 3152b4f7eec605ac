//! Hands the listener of a filter to whoever decides on its calls: `listenerPath` of the profile.
//!
//! runtime-spec, runtime-linux.md "The Container Process State": one message a connection, the descriptor with its first byte,
//! then the connection is closed. The same for a container's first process and for each one that joins later.

use crate::error::{Context, Error, Kind, Result, Step};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with, sockopt,
};
use serde::Serialize;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long a listener may take to accept and to read. The container waits meanwhile, and someone may wait for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the listener is told about the process whose calls it will decide on.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessState<'a, S> {
    oci_version: &'a str,
    /// What the descriptors are that come along.
    fds: [&'static str; 1],
    /// The process, in the runtime's PID namespace.
    pid: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    metadata: &'a str,
    state: S,
}

impl<'a, S: Serialize> ProcessState<'a, S> {
    /// A message about process `pid` of the container in this `state` (as `state` prints it), with the profile's metadata.
    pub(crate) fn new(oci_version: &'a str, pid: i32, metadata: &'a str, state: S) -> ProcessState<'a, S> {
        ProcessState { oci_version, fds: ["seccompFd"], pid, metadata, state }
    }
}

/// Sends the message and the listener to the socket at `path`, an absolute path of the host.
pub(crate) fn deliver<S: Serialize>(
    path: &Path,
    message: &ProcessState<'_, S>,
    listener: BorrowedFd<'_>,
) -> Result<()> {
    let bytes = serde_json::to_vec(message).map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
    connected(path)
        .and_then(|socket| send(socket.as_fd(), &bytes, listener))
        .doing(|| format!("send the seccomp listener to `{}`", path.display()))
        .hint(|| "start the process that listens on `listenerPath` first".to_string())
}

fn connected(path: &Path) -> Result<OwnedFd> {
    let address = SocketAddrUnix::new(path).failing(Kind::Seccomp, || "name the socket")?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .failing(Kind::Seccomp, || "make a socket")?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))
        .failing(Kind::Seccomp, || "limit the time of a socket")?;
    connect(&socket, &address).failing(Kind::Seccomp, || "connect")?;
    Ok(socket)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], listener: BorrowedFd<'_>) -> Result<()> {
    let descriptors = [listener];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Error::new(Kind::Internal, "no space for a descriptor"));
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = match sendmsg(socket, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => continue,
            sent => sent.failing(Kind::Seccomp, || "send")?,
        };
        // The descriptor went with the first bytes.
        ancillary.clear();
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::io::{IoSliceMut, Read};
    use std::os::unix::net::UnixListener;

    /// What a listener gets: the whole text of a connection, and the descriptors.
    fn received(listener: &UnixListener) -> (String, Vec<OwnedFd>) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0u8; 5];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(&stream, &mut [IoSliceMut::new(&mut first)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        let descriptors = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        let mut text = String::from_utf8(first[..got.bytes].to_vec()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        (text, descriptors)
    }

    fn sent(metadata: &str) -> (String, bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let file = tempfile::tempfile().unwrap();
        let state = serde_json::json!({"ociVersion": "1.2.0", "id": "web", "status": "creating"});
        let (text, descriptors) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| received(&listener));
            deliver(&path, &ProcessState::new("1.2.0", 42, metadata, &state), file.as_fd()).unwrap();
            thread.join().unwrap()
        });
        let of = |file: BorrowedFd<'_>| rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).unwrap();
        (text, descriptors.len() == 1 && of(descriptors[0].as_fd()) == of(file.as_fd()))
    }

    #[test]
    fn a_listener_gets_the_state_the_descriptor_and_the_end() {
        let (text, descriptor) = sent("m");
        let mut expected = serde_json::json!({
            "ociVersion": "1.2.0", "fds": ["seccompFd"], "pid": 42, "metadata": "m",
            "state": {"ociVersion": "1.2.0", "id": "web", "status": "creating"},
        });
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert!(descriptor);
        assert_eq!(value(&text), expected);
        expected.as_object_mut().unwrap().remove("metadata");
        assert_eq!(value(&sent("").0), expected);
    }

    #[test]
    fn a_message_that_is_longer_than_a_socket_holds_arrives_whole() {
        let metadata = "x".repeat(1 << 20);
        let (text, descriptor) = sent(&metadata);
        assert!(descriptor && text.len() > 1 << 20 && text.ends_with("}}"));
    }

    #[test]
    fn a_socket_where_nobody_listens_is_an_error() {
        let message = ProcessState::new("1.2.0", 1, "", ());
        let error = deliver(Path::new("/nonexistent/socket"), &message, std::io::stdin().as_fd()).unwrap_err();
        let expected =
            "send the seccomp listener to `/nonexistent/socket`: connect: No such file or directory (os error 2)";
        assert_eq!(error.to_string(), expected);
    }
}
