//! A container's command and its user.

use crate::error::{Error, Kind};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Has the number of the descriptor for a command's progress reports.
pub(crate) const EVENTS: &str = "BRIG_EVENTS_FD";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The program is looked up in the environment's PATH if it has no slash.
    pub arguments: Vec<OsString>,
    /// Whole: the command inherits no other variable.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory in the container.
    pub directory: PathBuf,
    /// User id in the container.
    pub uid: u32,
    pub gid: u32,
    /// Only if more than one id is mapped.
    pub groups: Vec<u32>,
    /// The process waits for a signal instead of a program.
    pub holds: bool,
    pub rlimits: Vec<(Resource, Rlimit)>,
}

/// Names in a config.json (runtime-spec, "process.rlimits").
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

/// Soft and hard alike.
pub(crate) fn fixed(resource: Resource, value: u64) -> (Resource, Rlimit) {
    (resource, Rlimit { current: Some(value), maximum: Some(value) })
}

pub(crate) fn not_executed(name: &str, errno: Errno) -> Error {
    let (kind, hint) = match errno {
        Errno::NOENT => (Kind::CommandNotFound, "name a program that the sandbox has, or give its absolute path"),
        Errno::NOEXEC => (Kind::CommandNotExecutable, "begin a script with `#!` and its interpreter"),
        Errno::ACCESS => (Kind::CommandNotExecutable, "give a file that is executable (`chmod +x`), not a directory"),
        _ => (Kind::CommandNotExecutable, "check that the file is a program for this machine"),
    };
    Error::os(kind, errno).doing(format!("execute `{name}`")).hint(hint)
}

/// Where execvp(3) would look for `program`, in order, relative to a root or a working directory.
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
