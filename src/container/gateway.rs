//! The gateway of a container: its start, system calls, and messages to the supervisor.

use crate::egress::{self, Broker, Ledger, Order, Policy, Renewal, Row, Service, Word};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Channel, is_ready_by};
use crate::process::{Confined, Confinement, ProcessorTime, Work, spawn_confined};
use crate::seccomp;
use crate::spec::seccomp::{Action, Condition, Operator, Rule, Seccomp};
use rustix::event::PollFlags;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Only root inside can become this id of the container's range. 65,532 is the user of many images without root.
pub(super) const USER: u32 = 65_531;
/// For the rest of the account.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    pub policy: Policy,
    /// Bytes a second, both directions together.
    pub rate: Option<u64>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Addresses outside, each with its port inside.
    pub published: Vec<(SocketAddr, u16)>,
    pub broker: Option<Broker>,
}

pub(super) struct Prepared {
    service: Service,
    init: Channel,
}

#[derive(Debug)]
pub(crate) struct Gateway {
    process: Confined,
    channel: Channel,
    ledger: Ledger,
    /// Whether it only forwards ports to the inside.
    is_without_names: bool,
    /// For the rest of its account.
    is_asked: bool,
    over: bool,
}

impl Prepared {
    /// Also makes the channel by which init sends sockets.
    pub(super) fn new(wish: Wish) -> Result<(Prepared, Channel)> {
        let (init, inside) = Channel::pair().failing(Kind::Egress, || "make a channel to the gateway")?;
        Prepared::with_channel(wish, init).map(|prepared| (prepared, inside))
    }

    pub(super) fn with_channel(wish: Wish, init: Channel) -> Result<Prepared> {
        let published = wish.published.into_iter().map(listen).collect::<Result<_>>()?;
        let service =
            Service { policy: wish.policy, rate: wish.rate, total: wish.total, published, broker: wish.broker };
        Ok(Prepared { service, init })
    }

    /// `user` is a host id; `None` keeps the caller's. The process joins `tasks` itself: moving another one takes 10
    /// ms, a grace period of the kernel.
    pub(super) fn start(
        self,
        user: Option<u32>,
        tasks: &[OwnedFd],
        landlock_optional: bool,
        has_names: bool,
    ) -> Result<Gateway> {
        let (channel, supervisor) = Channel::pair().failing(Kind::Egress, || "make a channel to the gateway")?;
        let filter = seccomp::compile(&filter())?; // only now: init builds meanwhile
        let confinement = Confinement { user, tasks, filter: &filter, landlock_optional };
        let task = Task { service: self.service, init: self.init, supervisor };
        let process = spawn_confined(&confinement, task).doing(|| "start the egress gateway")?;
        let ledger = Ledger::default();
        Ok(Gateway { process, channel, ledger, is_without_names: !has_names, is_asked: false, over: false })
    }
}

struct Task {
    service: Service,
    init: Channel,
    supervisor: Channel,
}

impl Work for Task {
    type Sources = egress::Sources;

    fn parent(&self) -> BorrowedFd<'_> {
        self.supervisor.as_fd()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let published = self.service.published.iter().map(|(socket, _)| socket.as_fd());
        let memory = self.service.broker.iter().flat_map(|broker| [broker.key.as_fd(), broker.values.as_fd()]);
        published.chain(memory).chain([self.init.as_fd()]).collect()
    }

    fn prepare(&self) -> Result<egress::Sources> {
        egress::Sources::read(self.service.policy.resolver, self.service.broker.as_ref())
    }

    fn run(self, sources: egress::Sources) -> Result<()> {
        egress::serve(self.service, sources, self.init, self.supervisor).failing(Kind::Egress, || "serve the sandbox")
    }
}

impl Gateway {
    /// Readable on a message or the gateway's end.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(super) fn time(&self) -> ProcessorTime {
        self.process.time()
    }

    /// At most a moment old.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns a line with a new decision. Peers are untrusted: an invalid message is a fault of the account.
    pub(crate) fn receive(&mut self) -> Result<Option<Row>> {
        match self.channel.receive().failing(Kind::Egress, || "hear from the gateway")? {
            None => self.over = true,
            Some(packet) => match serde_json::from_slice(&packet.bytes) {
                Ok(Word::Row(index, row)) => return Ok(self.ledger.put(index, row)),
                Ok(Word::Fault(words)) => self.ledger.fault(&words),
                Ok(Word::Done) => self.over = true,
                Err(_) => self.ledger.fault("a word of the gateway's could not be read"),
            },
        }
        Ok(None)
    }

    pub(super) fn change(&self, rule: &egress::Rule, allow: bool) -> Result<()> {
        if self.is_without_names {
            return Err(no_names());
        }
        let text = rule.to_string();
        self.send_order(&if allow { Order::Allow(text) } else { Order::Deny(text) })
    }

    pub(super) fn renew(&self, renewal: &Renewal) -> Result<()> {
        let step = || "tell the gateway of a secret";
        let value = match renewal {
            Renewal::Revoked(name) => return self.send_order(&Order::Revoke(name.clone())),
            Renewal::Replaced(value) => value,
        };
        let broken = |cause: serde_json::Error| Error::new(Kind::Internal, cause.to_string()).doing(step());
        let memory = files::new_memory("broker-value")?;
        files::write_memory(&memory, &serde_json::to_vec(value).map_err(broken)?)?;
        let order = serde_json::to_vec(&Order::Replace).map_err(broken)?;
        self.channel.send(&order, Some(memory.as_fd())).failing(Kind::Egress, step)
    }

    fn send_order(&self, order: &Order) -> Result<()> {
        let bytes = serde_json::to_vec(order)
            .map_err(|cause| Error::new(Kind::Internal, cause.to_string()).doing("tell the gateway"))?;
        self.channel.try_send(&bytes).failing(Kind::Egress, || "tell the gateway")
    }

    /// The account arrives while we wait for other ends.
    pub(super) fn ask_to_finish(&mut self) {
        // If this fails, the end repeats it and reports the error.
        self.is_asked = self.is_asked || !self.over && self.send_order(&Order::Finish).is_ok();
    }

    /// The account, its new decisions, and the processor time. The account notes a missing part.
    pub(super) fn finish(mut self) -> (Ledger, Vec<Row>, ProcessorTime) {
        let mut rows = Vec::new();
        if let Err(error) = self.farewell(&mut rows) {
            self.ledger.fault(&error.doing("close the account").to_string());
        }
        self.process.kill();
        (self.ledger, rows, self.process.time())
    }

    fn farewell(&mut self, rows: &mut Vec<Row>) -> Result<()> {
        if self.over {
            self.process.wait(if self.is_asked { FAREWELL } else { Duration::ZERO });
            return Ok(());
        }
        if !self.is_asked {
            self.send_order(&Order::Finish)?;
        }
        let end = Instant::now() + FAREWELL;
        while !self.over {
            if !is_ready_by(&self.channel, PollFlags::IN, end).failing(Kind::Egress, || "wait for the gateway")? {
                return Err(Error::new(Kind::Egress, "the gateway does not tell the end of its account"));
            }
            rows.extend(self.receive()?);
        }
        self.process.wait(left_of(end));
        Ok(())
    }
}

/// The network has no rules that could change.
pub(super) fn no_names() -> Error {
    Error::new(Kind::State, "its network is not `egress`").hint("start it with --network egress, if only with no rule")
}

fn left_of(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

fn listen((address, port): (SocketAddr, u16)) -> Result<(OwnedFd, u16)> {
    let listener = TcpListener::bind(address)
        .failing(Kind::Network, || format!("publish port {port} at {address}"))
        .hint(|| "name an address of this host and a port that is free")?;
    listener.set_nonblocking(true).failing(Kind::Network, || "publish a port")?;
    Ok((listener.into(), port))
}

/// Internet sockets, pipes between them, memory: no files, no programs.
fn filter() -> Seccomp {
    let rule = |names: &str, args: Vec<Condition>| Rule {
        names: names.split_whitespace().map(str::to_owned).collect(),
        action: Action::Allow,
        errno_ret: None,
        args,
    };
    let is = |index, value: i32| Condition { index, value: value as u64, value_two: 0, op: Operator::Equal };
    Seccomp {
        default_action: Action::Errno,
        default_errno_ret: Some(libc::EPERM as u32),
        architectures: Vec::new(),
        flags: None,
        listener_path: String::new(),
        listener_metadata: String::new(),
        syscalls: vec![
            rule(
                "accept4 bind connect getsockname getsockopt listen recvfrom recvmsg sendmsg sendto setsockopt shutdown",
                vec![],
            ),
            rule("socket", vec![is(0, libc::AF_INET), seccomp::COMMON_TYPES]),
            rule("socket", vec![is(0, libc::AF_INET6), seccomp::COMMON_TYPES]),
            rule(
                "close epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait fcntl pipe2 poll ppoll read splice write writev",
                vec![],
            ),
            rule("brk clock_gettime getrandom gettimeofday madvise mmap mremap munmap futex", vec![]),
            rule("exit exit_group restart_syscall rt_sigreturn sigaltstack", vec![]),
        ],
    }
}
