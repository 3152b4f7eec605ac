//! The command of a container and what it runs as.

use crate::error::{Error, Kind};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The variable that names the descriptor on which a command tells of its progress.
pub(crate) const EVENTS: &str = "BRIG_EVENTS_FD";

/// A command, as execve(2) will get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The program, looked up in the environment's PATH if it has no slash, and its arguments.
    pub arguments: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory, as the container sees it.
    pub directory: PathBuf,
    /// User id inside the container.
    pub uid: u32,
    /// Group id inside the container.
    pub gid: u32,
    /// Supplementary groups; only where more than one id is mapped.
    pub groups: Vec<u32>,
    /// Whether nothing is executed: the process stays as it is until a signal ends it.
    pub holds: bool,
    /// Limits of setrlimit(2).
    pub rlimits: Vec<(Resource, Rlimit)>,
}

/// The names that a config.json has for the limits of setrlimit(2) (runtime-spec, "process.rlimits").
pub(crate) const RLIMITS: [(&str, Resource); 16] = [
    ("RLIMIT_AS", Resource::As),
    ("RLIMIT_CORE", Resource::Core),
    ("RLIMIT_CPU", Resource::Cpu),
    ("RLIMIT_DATA", Resource::Data),
    ("RLIMIT_FSIZE", Resource::Fsize),
    ("RLIMIT_LOCKS", Resource::Locks),
    ("RLIMIT_MEMLOCK", Resource::Memlock),
    ("RLIMIT_MSGQUEUE", Resource::Msgqueue),
    ("RLIMIT_NICE", Resource::Nice),
    ("RLIMIT_NOFILE", Resource::Nofile),
    ("RLIMIT_NPROC", Resource::Nproc),
    ("RLIMIT_RSS", Resource::Rss),
    ("RLIMIT_RTPRIO", Resource::Rtprio),
    ("RLIMIT_RTTIME", Resource::Rttime),
    ("RLIMIT_SIGPENDING", Resource::Sigpending),
    ("RLIMIT_STACK", Resource::Stack),
];

/// One limit of setrlimit(2), soft and hard alike.
pub(crate) fn fixed(resource: Resource, value: u64) -> (Resource, Rlimit) {
    (resource, Rlimit { current: Some(value), maximum: Some(value) })
}

/// The error of a command that cannot be executed, from what execve(2) says of its program.
pub(crate) fn not_executed(name: &str, errno: Errno) -> Error {
    let (kind, hint) = match errno {
        Errno::NOENT => (Kind::CommandNotFound, "name a program that the sandbox has, or give its absolute path"),
        Errno::NOEXEC => (Kind::CommandNotExecutable, "begin a script with `#!` and its interpreter"),
        Errno::ACCESS => (Kind::CommandNotExecutable, "give a file that is executable (`chmod +x`), not a directory"),
        _ => (Kind::CommandNotExecutable, "check that the file is a program for this machine"),
    };
    Error::os(kind, errno).doing(format!("execute `{name}`")).hint(hint)
}

/// Where execvp(3) would look for `program` with this PATH: the places in their order, not yet below a root or a working directory.
pub(crate) fn places(program: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
    let name = program.as_bytes();
    if name.contains(&b'/') {
        return vec![program.to_owned()];
    }
    let path = path.map_or(&b"/usr/local/bin:/usr/bin:/bin"[..], OsStr::as_bytes);
    path.split(|&byte| byte == b':')
        .filter(|directory| !directory.is_empty() && !name.is_empty())
        .map(|directory| OsString::from_vec([directory, b"/", name].concat()))
        .collect()
}
