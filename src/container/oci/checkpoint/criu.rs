//! CRIU serves one request (`criu swrk`) over a seqpacket socket.

use super::rpc::{Features, Kind as Of, Notification, Request, Response};
use crate::error::{Context, Error, Kind, Result};
use crate::files::Channel;
use nix::sys::signal::{SigSet, Signal};
use prost::Message;
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};

/// More than any answer of CRIU.
const LARGEST: usize = 64 << 10;

/// Drop closes its socket, so that it ends, and reaps it.
#[derive(Debug)]
pub(super) struct Criu {
    child: Child,
    socket: Option<Channel>,
}

impl Criu {
    /// `handed` descriptors keep their numbers. The caller has one thread: another program would inherit them.
    pub(super) fn start(handed: &[OwnedFd]) -> Result<Criu> {
        let step = || "start `criu`";
        let (ours, theirs) = Channel::pair().failing(Kind::Internal, step)?;
        let inherited: Vec<BorrowedFd<'_>> = handed.iter().map(AsFd::as_fd).chain([theirs.as_fd()]).collect();
        let inherit = |flags| inherited.iter().try_for_each(|descriptor| fcntl_setfd(descriptor, flags));
        inherit(FdFlags::empty()).failing(Kind::Internal, step)?;
        // CRIU waits for its children by SIGCHLD, which a caller in the foreground has blocked.
        let mask = SigSet::thread_get_mask().failing(Kind::Internal, step)?;
        let mut open = mask;
        open.remove(Signal::SIGCHLD);
        open.thread_set_mask().failing(Kind::Internal, step)?;
        let started = Command::new("criu").arg("swrk").arg(theirs.as_fd().as_raw_fd().to_string()).spawn();
        mask.thread_set_mask().failing(Kind::Internal, step)?;
        inherit(FdFlags::CLOEXEC).failing(Kind::Internal, step)?;
        match started {
            Ok(child) => Ok(Criu { child, socket: Some(ours) }),
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                let words = "exec: \"criu\": executable file not found in $PATH";
                Err(Error::new(Kind::NotFound, words).hint("install CRIU 3.15 or newer (https://criu.org)"))
            }
            Err(cause) => Err(cause).failing(Kind::State, step),
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// `step` answers notifications, and gets their descriptor, until CRIU has ended.
    pub(super) fn run(
        mut self,
        request: &Request,
        mut step: impl FnMut(&Notification, Option<OwnedFd>) -> Result<()>,
    ) -> Result<Response> {
        self.send(request)?;
        let response = loop {
            let (response, descriptor) = self.receive()?;
            if !response.success {
                let (kind, errno) = (name(response.kind), response.errno.unwrap_or_default());
                let reason = response.message.map(|message| format!(": {message}")).unwrap_or_default();
                return Err(Error::new(Kind::State, format!("criu failed: type {kind} errno {errno}{reason}")));
            }
            match (response.kind(), &response.notification) {
                (Of::Notify, Some(notification)) => {
                    step(notification, descriptor)?;
                    self.send(&Request { kind: Of::Notify.into(), notify_success: Some(true), ..Request::default() })?;
                }
                _ if response.kind == request.kind => break response,
                _ => {
                    return Err(Error::new(Kind::State, format!("criu answered out of turn: {}", name(response.kind))));
                }
            }
        };
        self.socket = None;
        let status = self.child.wait().failing(Kind::State, || "wait for `criu`")?;
        // After a pre-dump CRIU waits for a next request, and fails without one.
        if status.success() || request.kind() == Of::PreDump {
            return Ok(response);
        }
        Err(Error::new(Kind::State, format!("criu failed: {status}")))
    }

    fn send(&self, request: &Request) -> Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.send(&request.encode_to_vec(), None).failing(Kind::State, || "send a request to `criu`")
    }

    fn receive(&self) -> Result<(Response, Option<OwnedFd>)> {
        let step = || "read an answer of `criu`";
        let packet = match &self.socket {
            Some(socket) => socket.receive_up_to(LARGEST).failing(Kind::State, step)?,
            None => None,
        };
        let packet = packet.ok_or_else(|| Error::new(Kind::Lost, "criu ended without an answer").doing(step()))?;
        let response = Response::decode(packet.bytes.as_slice())
            .map_err(|cause| Error::new(Kind::State, cause.to_string()).doing(step()))?;
        Ok((response, packet.descriptor))
    }
}

impl Drop for Criu {
    fn drop(&mut self) {
        self.socket = None;
        // The caller has an error already, or needs no status.
        let _ = self.child.wait();
    }
}

/// Refuses what this CRIU and this kernel do not have together.
pub(super) fn require(wanted: &Features) -> Result<()> {
    let request = Request { kind: Of::FeatureCheck.into(), features: Some(wanted.clone()), ..Request::default() };
    let found = Criu::start(&[])?.run(&request, |_, _| Ok(()))?.features.unwrap_or_default();
    let lacks = |wanted: Option<bool>, found: Option<bool>| wanted == Some(true) && found != Some(true);
    let (missing, need) = if lacks(wanted.memory_tracking, found.memory_tracking) {
        ("MemTrack", "--pre-dump and --parent-path need a kernel with CONFIG_MEM_SOFT_DIRTY")
    } else if lacks(wanted.lazy_pages, found.lazy_pages) {
        ("LazyPages", "--lazy-pages needs a kernel with CONFIG_USERFAULTFD")
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::State, format!("criu is missing features: [{missing}]: {need}")))
}

/// In CRIU's spelling.
fn name(kind: i32) -> String {
    match Of::try_from(kind) {
        Ok(kind) => format!("{kind:?}").to_uppercase(),
        Err(_) => kind.to_string(),
    }
}
