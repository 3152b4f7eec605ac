//! Messages between a running sandbox and its clients, over a SOCK_SEQPACKET socket: one JSON document, with at most
//! one descriptor. A document that is longer than a message is in a file in memory, whose descriptor the message has.
//! Input of a terminal is bytes after a tag.

use super::super::checkpoint::Checkpoint;
use super::super::job_limits::JobLimits;
use super::super::report::Sample;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{Channel, new_sealable_memory, read_memory, write_memory};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// A socket's buffer holds a message of this length.
pub(crate) const LARGEST: usize = 128 << 10;
/// Longer than any command line that the kernel takes (execve(2): 2 MiB by default).
const LARGEST_DOCUMENT: usize = 4 << 20;
const JSON: u8 = b'J';
const MEMORY: u8 = b'M';
const INPUT: u8 = b'I';

/// Increase it with every change that an older client or supervisor misunderstands, and change docs/control.md.
pub(crate) const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The version of the messages.
    Version,
    /// Asks the command to end, and kills the rest after the grace (default: the task's own). With `drain`, processes
    /// that entered may end first, for this time.
    Stop { grace: Option<Duration>, drain: Option<Duration> },
    /// Signals this connection's process, else the command, where 9 ends everything at once.
    Kill { signal: i32 },
    /// Freezes every process.
    Pause,
    /// Resumes every process.
    Unpause,
    /// Copies the files; without a name, under the first free number.
    Checkpoint { name: Option<String> },
    /// The current usage.
    Stats,
    /// The ids of the processes.
    Processes,
    /// Starts another process.
    Exec(Exec),
    /// A supervisor that does not know separate limits refuses the request.
    LimitedJob { exec: Exec, limits: JobLimits },
    /// Background processes of this connection's ended process may outlive the connection.
    Release,
    /// Output of this connection's process: the task is not idle. Has no answer.
    Active,
    /// Takes input from this client, if the command takes any.
    Attach,
    /// The size of the attached client's terminal.
    Resize { rows: u16, columns: u16 },
    /// Allows or refuses what an egress rule covers from now on.
    Reach { rule: String, allow: bool },
    /// Kills the job after the grace (default: the task's own).
    StopJob { job: u32, grace: Option<Duration> },
    /// 9 ends the whole process tree of the job.
    KillJob { job: u32, signal: i32 },
    /// For the caller's redactor: the caller's user gave the values.
    Values,
    /// The variables with their values: the caller's user gave them.
    Environment,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Exec {
    #[serde(with = "words")]
    pub command: Vec<OsString>,
    #[serde(with = "variables")]
    pub environment: Vec<(OsString, OsString)>,
    pub directory: Option<std::path::PathBuf>,
    /// Rows and columns of the terminal.
    pub terminal: Option<(u16, u16)>,
    /// Serve file requests instead of running the command.
    pub errand: bool,
    /// User, group and supplementary groups; `None` for those of the task's command.
    pub user: Option<(u32, u32, Vec<u32>)>,
    pub timeout: Option<Duration>,
    /// Whether it outlives its client, with its output in a log.
    pub is_job: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The request is done.
    Done,
    /// The versions of the messages and of brig.
    Version { messages: u32, brig: String },
    /// The request failed.
    Failed(Error),
    /// The current usage.
    Stats(Box<Sample>),
    /// The copy of the files.
    Checkpoint(Checkpoint),
    /// The ids in the PID namespace of the supervisor.
    Processes(Vec<i32>),
    /// The message's descriptor is the process's standard descriptor of this number, or its terminal.
    Stream(Option<u8>),
    /// The program runs.
    Started,
    /// The process is a job with this number.
    Job(u32),
    /// The process has ended, with this status.
    Exited(u8),
    /// The process tree was killed at its time limit.
    TimedOut,
    /// Whether the command has a terminal, and takes input.
    Attached { terminal: bool, input: bool },
    /// Names and values as JSON in this message's memory file: they may exceed a message.
    Values,
    /// Names and values.
    Environment(#[serde(with = "variables")] Vec<(OsString, OsString)>),
}

impl Reply {
    pub(in crate::sandbox) fn version() -> Reply {
        Reply::Version { messages: VERSION, brig: env!("CARGO_PKG_VERSION").into() }
    }
}

#[derive(Debug)]
pub(crate) enum ClientMessage {
    Request(Request),
    /// Bytes for the command; empty at the end.
    Input(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Peer(Channel);

impl Peer {
    pub(crate) fn new(socket: OwnedFd) -> Peer {
        Peer(Channel::from(socket))
    }

    pub(crate) fn ask(&self, request: &Request) -> Result<()> {
        self.send(request, None).failing(Kind::Lost, || "ask the sandbox")
    }

    /// Empty at the end. EAGAIN: try again later.
    pub(crate) fn input(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.0.send(&[&[INPUT], bytes].concat(), None)
    }

    pub(crate) fn reply(&self, reply: &Reply, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        self.send(reply, descriptor)
    }

    fn send<T: Serialize>(&self, words: &T, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut bytes = vec![JSON];
        serde_json::to_writer(&mut bytes, words).map_err(|_| Errno::INVAL)?;
        match bytes.len() {
            ..=LARGEST => self.0.send(&bytes, descriptor),
            ..=LARGEST_DOCUMENT if descriptor.is_none() => {
                let memory = in_memory(&bytes[1..]).map_err(|_| Errno::NOMEM)?;
                self.0.send(&[MEMORY], Some(memory.as_fd()))
            }
            _ => Err(Errno::MSGSIZE),
        }
    }

    /// `None` when the client is gone.
    pub(crate) fn receive(&self) -> Result<Option<ClientMessage>> {
        let packet = self.0.receive_up_to(LARGEST).failing(Kind::Lost, || "receive from a client")?;
        let Some(packet) = packet else { return Ok(None) };
        match packet.bytes.split_first() {
            Some((&INPUT, bytes)) => Ok(Some(ClientMessage::Input(bytes.to_vec()))),
            Some((&JSON, bytes)) => parse(bytes).map(|request| Some(ClientMessage::Request(request))),
            Some((&MEMORY, _)) => {
                parse(&of_memory(packet.descriptor)?).map(|request| Some(ClientMessage::Request(request)))
            }
            _ => Err(Error::new(Kind::Lost, "a client said nothing that is known")),
        }
    }

    /// Returns only a short request, and does not consume it.
    pub(crate) fn peek(&self) -> Option<Request> {
        let mut bytes = [0_u8; 256];
        let (length, _) = recv(&self.0, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
        serde_json::from_slice(bytes.get(..length)?.strip_prefix(&[JSON])?).ok()
    }

    /// `None` when the sandbox is gone.
    pub(crate) fn answer(&self) -> Result<Option<(Reply, Option<OwnedFd>)>> {
        let packet = self.0.receive_up_to(LARGEST).failing(Kind::Lost, || "receive from the sandbox")?;
        let Some(packet) = packet else { return Ok(None) };
        match packet.bytes.split_first() {
            Some((&MEMORY, _)) => Ok(Some((parse(&of_memory(packet.descriptor)?)?, None))),
            Some((&JSON, bytes)) => Ok(Some((parse(bytes)?, packet.descriptor))),
            _ => Ok(Some((parse(&[])?, None))),
        }
    }
}

fn in_memory(document: &[u8]) -> Result<OwnedFd> {
    let memory = new_sealable_memory("message").failing(Kind::Internal, || "make a message")?;
    write_memory(&memory, document)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).failing(Kind::Internal, || "seal a message")?;
    Ok(memory)
}

/// Refuses other files, which could block the reader, and one that could shrink.
fn of_memory(memory: Option<OwnedFd>) -> Result<Vec<u8>> {
    let refused = |why: &str| Error::new(Kind::Lost, format!("a message without its file in memory: {why}"));
    let memory = memory.ok_or_else(|| refused("it has no descriptor"))?;
    match fcntl_get_seals(&memory) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return Err(refused("it is not sealed")),
    }
    let length = fstat(&memory).failing(Kind::Lost, || "measure a message")?.st_size;
    if length > LARGEST_DOCUMENT as i64 {
        return Err(refused("it is too long"));
    }
    read_memory(&memory)
}

fn parse<'bytes, T: Deserialize<'bytes>>(bytes: &'bytes [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|cause| {
        Error::new(Kind::Lost, format!("words that are not understood: {cause}"))
            .hint("use one version of brig for both")
    })
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// Words and variables in messages: text, or an array of bytes for what is not UTF-8.

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Bytes(Vec<u8>),
}

impl Word {
    fn new(word: &OsStr) -> Word {
        match word.to_str() {
            Some(text) => Word::Text(text.into()),
            None => Word::Bytes(word.as_bytes().into()),
        }
    }

    fn into_os(self) -> OsString {
        match self {
            Word::Text(text) => text.into(),
            Word::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

pub(super) mod words {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub(in crate::sandbox::control) fn serialize<S: Serializer>(words: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(words.iter().map(|word| Word::new(word)))
    }

    pub(in crate::sandbox::control) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<OsString>, D::Error> {
        Ok(Vec::<Word>::deserialize(from)?.into_iter().map(Word::into_os).collect())
    }
}

pub(super) mod variables {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub(in crate::sandbox::control) fn serialize<S: Serializer>(
        variables: &[(OsString, OsString)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(variables.iter().map(|(name, value)| (Word::new(name), Word::new(value))))
    }

    pub(in crate::sandbox::control) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let variables = Vec::<(Word, Word)>::deserialize(from)?;
        Ok(variables.into_iter().map(|(name, value)| (name.into_os(), value.into_os())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Peer, Peer) {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Peer::new(one), Peer::new(other))
    }

    #[test]
    fn words_input_and_descriptors_arrive_as_they_were_said() {
        let (ours, theirs) = pair();
        ours.ask(&Request::Kill { signal: 15 }).unwrap();
        ours.input(b"keys").unwrap();
        assert!(matches!(theirs.receive(), Ok(Some(ClientMessage::Request(Request::Kill { signal: 15 })))));
        assert!(matches!(theirs.receive(), Ok(Some(ClientMessage::Input(bytes))) if bytes == b"keys"));
        theirs.reply(&Reply::Stream(Some(1)), Some(std::io::stdin().as_fd())).unwrap();
        assert!(matches!(ours.answer(), Ok(Some((Reply::Stream(Some(1)), Some(_))))));
        drop(theirs);
        assert!(matches!(ours.answer(), Ok(None)));
    }

    #[test]
    fn words_are_text_or_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let raw = OsString::from_vec(vec![b'a', 0xff]);
        let exec = Exec {
            command: vec!["sh".into(), raw.clone()],
            environment: vec![("NAME".into(), raw.clone())],
            ..Exec::default()
        };
        let json = serde_json::to_value(&exec).unwrap();
        assert_eq!(json["command"], serde_json::json!(["sh", [97, 255]]));
        let back: Exec = serde_json::from_value(json).unwrap();
        assert_eq!((back.command, back.environment), (exec.command, exec.environment));
    }

    #[test]
    fn what_is_too_long_or_unknown_is_an_error_and_no_hang() {
        let (ours, theirs) = pair();
        let exec = |length| Request::Exec(Exec { command: vec!["x".repeat(length).into()], ..Exec::default() });
        assert!(ours.ask(&exec(LARGEST_DOCUMENT)).is_err());
        ours.ask(&exec(LARGEST)).unwrap();
        let long = theirs.receive().unwrap();
        assert!(matches!(long, Some(ClientMessage::Request(Request::Exec(exec))) if exec.command[0].len() == LARGEST));
        ours.0.send(b"J{\"dance\":1}", None).unwrap();
        assert!(theirs.receive().is_err());
        ours.0.send(b"?", None).unwrap();
        assert!(theirs.receive().is_err());
        ours.0.send(b"M", None).unwrap();
        assert!(theirs.receive().is_err());
        // A pipe would block the supervisor, and a file that shrinks would fail it.
        let (pipe, _to_it) = rustix::pipe::pipe().unwrap();
        let unsealed = new_sealable_memory("unsealed").unwrap();
        write_memory(&unsealed, b"\"stats\"").unwrap();
        for other in [&pipe, &unsealed] {
            ours.0.send(b"M", Some(other.as_fd())).unwrap();
            assert!(theirs.receive().is_err());
        }
    }
}
