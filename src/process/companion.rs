//! A host program that serves a sandbox's network from outside and ends with it.
//!
//! It goes to the background with another identity, so the kernel forgets to end it with its parent (prctl(2),
//! PR_SET_PDEATHSIG). So `keeper` ends with us, and with it `first`, pid 1 of a new PID namespace, and all processes
//! there (pid_namespaces(7)).

use super::identity::{self, Capabilities, Identity};
use super::launch;
use crate::error::{Context, Error, Kind, Result};
use crate::files::Channel;
use crate::mounts;
use crate::net::Route;
use crate::sys::clone::{Side, clone_process, close_from, exit, wait as wait_for};
use crate::sys::exec::{Vector, execve};
use caps::Capability;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitOptions, pidfd_send_signal, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Time limit for the network to be ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of output in an error.
const MOST_WORDS: u64 = 4096;
const DONE: &[u8] = b"+";
const FAILED: &[u8] = b"-";

/// Gets the network namespace as standard input. It exits when the network is ready; its background process serves.
pub(crate) struct Service {
    pub path: CString,
    /// The name first.
    pub arguments: Vec<CString>,
    pub network: OwnedFd,
    /// Owns the network namespace: the program has power only there.
    pub users: OwnedFd,
    /// `None` keeps the caller's.
    pub user: Option<u32>,
    /// A private device for tunnels, not the host's.
    pub own_tun: bool,
}

/// Dropping it ends the program.
#[derive(Debug)]
pub(crate) struct Companion {
    keeper: Keeper,
    /// A netlink route socket of the sandbox's namespace.
    pub(crate) inside: Route,
}

impl Companion {
    /// Waits until the network is ready.
    pub(crate) fn start(service: Service) -> Result<Companion> {
        let step = || "start a program beside the container";
        let (ours, theirs) = Channel::pair().failing(Kind::Internal, step)?;
        let (words, out) = pipe_with(PipeFlags::CLOEXEC).failing(Kind::Internal, step)?;
        match clone_process(0, None).failing(Kind::Internal, step)? {
            Side::Child => {
                // As in `init::run`.
                std::panic::set_hook(Box::new(|_| exit(1)));
                drop((ours, words));
                exit(i32::from(keep(service, &theirs, &out).is_err()))
            }
            Side::Parent(_, keeper) => {
                drop((theirs, out));
                let keeper = Keeper(keeper);
                match receive_route(&ours)? {
                    Answer::Ready(inside) => Ok(Companion { keeper, inside: Route::from(inside) }),
                    Answer::Failed => Err(refusal(&service, words, None)),
                    Answer::Late => Err(refusal(&service, words, Some(PATIENCE))),
                }
            }
        }
    }

    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        self.keeper.0.as_fd()
    }
}

/// Ends with us or when dropped, and with it all processes of the program.
#[derive(Debug)]
struct Keeper(OwnedFd);

impl Drop for Keeper {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
        let _ = wait_for(self.0.as_fd());
    }
}

enum Answer {
    /// A socket of the network, which is ready.
    Ready(OwnedFd),
    Failed,
    /// After [`PATIENCE`].
    Late,
}

fn receive_route(channel: &Channel) -> Result<Answer> {
    let step = || "hear from a program beside the container";
    let timeout = Timespec::try_from(PATIENCE).unwrap_or_default();
    if poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&timeout)).failing(Kind::Network, step)? == 0 {
        return Ok(Answer::Late);
    }
    let packet = channel.receive().failing(Kind::Network, step)?;
    let inside = packet.filter(|packet| packet.bytes == DONE).and_then(|packet| packet.descriptor);
    Ok(inside.map_or(Answer::Failed, Answer::Ready))
}

/// With the program's last line. `late`: it was not ready after this time.
fn refusal(service: &Service, words: OwnedFd, late: Option<Duration>) -> Error {
    let mut bytes = Vec::new();
    // Unreadable output counts as empty.
    let _ = rustix::fs::fcntl_setfl(&words, rustix::fs::OFlags::NONBLOCK);
    let _ = File::from(words).take(MOST_WORDS).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.last().map_or("it printed nothing".to_owned(), |line| line.escape_debug().to_string());
    let cause = late.map_or(last.clone(), |time| format!("no network after {} s: {last}", time.as_secs()));
    Error::new(Kind::Network, cause).doing(format!("run `{}`", service.path.to_string_lossy()))
}

fn keep(service: Service, channel: &Channel, out: &OwnedFd) -> Result<()> {
    let step = || "start a program beside the container";
    // Ctrl-C at the terminal is for the supervisor, which then ends the keeper.
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).failing(Kind::Identity, step)?;
    if service.own_tun {
        mounts::tun::show_tun()?;
    }
    move_into_link_name_space(service.users.as_fd(), Some(LinkNameSpaceType::User))
        .failing(Kind::UserNamespace, || "enter the network's user namespace")?;
    identity::die_with_parent()?;
    identity::be_undumpable()?;
    match clone_process(libc::CLONE_NEWPID as u64, None).failing(Kind::Namespace, step)? {
        Side::Child => exit(i32::from(first(service, channel, out).is_err())),
        Side::Parent(_, pidfd) => {
            let done = close_from(0, &[pidfd.as_fd()])
                .failing(Kind::Identity, step)
                .and_then(|()| identity::keep_capabilities(&[]))
                .and_then(|()| wait_for(pidfd.as_fd()).failing(Kind::Lost, step));
            exit(i32::from(done.is_err())) // our closed descriptors must not be closed twice
        }
    }
}

/// Pid 1, which stays as long as the program's processes.
fn first(service: Service, channel: &Channel, out: &OwnedFd) -> Result<()> {
    let step = || "run a program beside the container";
    identity::die_with_parent()?;
    let pidfd = match clone_process(0, None).failing(Kind::Internal, step)? {
        Side::Child => exit(i32::from(become_service(&service, out).is_err()) * 126),
        Side::Parent(_, pidfd) => pidfd,
    };
    let ended = wait_for(pidfd.as_fd());
    let is_ready = ended.is_ok_and(|status| status.is_some_and(|status| status.exit_status() == Some(0)));
    if !is_ready {
        return channel.send(FAILED, None).failing(Kind::Lost, step);
    }
    move_into_link_name_space(service.network.as_fd(), Some(LinkNameSpaceType::Network))
        .failing(Kind::Network, step)?;
    let inside = Route::open().failing(Kind::Network, step)?;
    channel.send(DONE, Some(inside.as_fd())).failing(Kind::Lost, step)?;
    let done = close_from(0, &[]).failing(Kind::Identity, step).and_then(|()| identity::keep_capabilities(&[]));
    while done.is_ok() && !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
    exit(i32::from(done.is_err())) // as above
}

fn become_service(service: &Service, out: &OwnedFd) -> Result<std::convert::Infallible> {
    let step = || "become a program beside the container";
    rustix::stdio::dup2_stdin(&service.network).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stdout(out).failing(Kind::Identity, step)?;
    rustix::stdio::dup2_stderr(out).failing(Kind::Identity, step)?;
    close_from(3, &[] as &[BorrowedFd<'_>]).failing(Kind::Identity, step)?;
    launch::reset_signals()?;
    let bits =
        [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_ADMIN].iter().fold(0, |bits, each| bits | each.bitmask());
    let all = Capabilities { bounding: bits, effective: bits, permitted: bits, inheritable: bits, ambient: bits };
    identity::bound_capabilities(&all)?;
    if let Some(user) = service.user {
        identity::become_user(&Identity::powerless(user, user), None)?;
    }
    identity::take_capabilities(&all)?;
    let arguments = Vector::new(service.arguments.clone());
    let errno = execve(&service.path, &arguments, &Vector::new(Vec::new()));
    Err(Error::os(Kind::Network, errno).doing(step()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_late_program_is_quoted() {
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let service = Service {
            path: c"/usr/bin/pasta".to_owned(),
            arguments: Vec::new(),
            network: file(),
            users: file(),
            user: None,
            own_tun: false,
        };
        // The program holds the other end.
        let (words, out) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        File::from(out.try_clone().unwrap()).write_all(b"first\nNo interface with a default route\n").unwrap();
        let error = refusal(&service, words, Some(PATIENCE)).to_string();
        assert_eq!(error, "run `/usr/bin/pasta`: no network after 10 s: No interface with a default route");
    }
}
