//! The input of init, complete before init exists.

use super::attributes::Attributes;
use super::identity::{Identity, OomScore};
use crate::error::{Error, Kind, Result};
use crate::files::Channel;
use crate::ns::{Maps, Namespaces};
use crate::spec::config::Hook;
use crate::spec::landlock::Landlock;
use crate::spec::network::{Fence, Served};
use crate::spec::process::places;
use crate::spec::state::State;
use crate::sys::exec::Vector;
use crate::{mounts, net, seccomp};
use rustix::process::{Resource, Rlimit};
use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The plan of one container's first processes.
pub(crate) struct Plan {
    /// The namespaces without the user namespace.
    pub namespaces: Namespaces,
    /// The network namespace to enter, if it was made ahead.
    pub network: Option<OwnedFd>,
    /// The cgroup namespace to enter after the process has joined its groups. On a v2 tree with `nsdelegate` a process
    /// cannot leave a cgroup namespace for an outside group.
    pub cgroup_namespace: Option<OwnedFd>,
    /// The container's user namespace.
    pub user_namespace: UserNamespace,
    /// The v2 cgroup of its birth.
    pub cgroup: Option<OwnedFd>,
    /// Whether init waits for the parent's setup: systemd needs the pid first.
    pub waits: bool,
    /// How it joins its v1 cgroups.
    pub joins: Joins,
    /// Host name inside; `None` keeps the caller's.
    pub hostname: Option<String>,
    /// NIS domain name inside; `None` keeps the caller's.
    pub domainname: Option<String>,
    /// Whether a new session keyring replaces the caller's.
    pub new_keyring: bool,
    /// Its adjustment for the out-of-memory killer.
    pub oom_score: OomScore,
    /// Routes and sockets in the network namespace for a server outside.
    pub inside: Option<Inside>,
    /// The connection of the network namespace to the outside.
    pub uplink: Option<Uplink>,
    /// Kernel parameters of the namespaces: paths below /proc/sys, and values.
    pub sysctls: Vec<(String, String)>,
    /// The mounts.
    pub root: mounts::Root,
    /// The caller's programs that run while the root is built.
    pub hooks: BuildHooks,
    /// The command of the last process.
    pub command: Command,
    /// The command's standard streams.
    pub stdio: Stdio,
    /// The role of pid 1.
    pub first: First,
}

/// A connection of the network namespace to the outside.
pub(crate) enum Uplink {
    /// One end of an existing pair of devices.
    Veth(net::Inside),
    /// Rules around a network that another program makes.
    Fenced(Fence),
    /// A network that an engine makes and the parent closes: it gets connections to the tables inside.
    Engines,
}

/// How init gets into its v1 cgroups.
pub(crate) enum Joins {
    /// It writes itself into their `tasks` files first of all.
    AtOnce(Vec<OwnedFd>),
    /// It joins after its root is built: the parent makes the groups meanwhile and sends the files
    /// ([`super::Spawned::admit`]).
    Told,
}

/// Objects in the network namespace for a server outside.
pub(crate) struct Inside {
    /// The objects.
    pub wish: Served,
    /// The receiver of the sockets.
    pub gateway: Channel,
}

/// The role of the container's first process once the root is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Stays as pid 1, reaps, and reports how its child, the command, ended.
    Reaper,
    Command,
    /// Becomes the command in an existing PID namespace, born when its preparing process has dropped everything of the
    /// host.
    Newcomer,
}

/// The caller's programs around the built root.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildHooks {
    /// Whether the parent has hooks for its own namespaces.
    pub of_parent: bool,
    /// The hooks of init, in the container's namespaces.
    pub of_container: Vec<Hook>,
    /// Their input on stdin.
    pub state: State,
}

/// The input of the command's process.
pub(crate) struct Command {
    /// Its identity.
    pub identity: Identity,
    /// Scheduling, memory policy, labels.
    pub attributes: Attributes,
    /// setrlimit(2). A process that may not raise a hard limit asks its parent to set all of them.
    pub rlimits: Vec<(Resource, Rlimit)>,
    /// File rules; `None` has no restriction.
    pub landlock: Option<Landlock>,
    /// The compiled filter.
    pub seccomp: Cow<'static, seccomp::Program>,
    /// Working directory.
    pub directory: PathBuf,
    /// The program, its arguments and environment.
    pub vectors: Vectors,
    /// A descriptor that the command keeps under its number, beside the three standard ones.
    pub handed: Option<OwnedFd>,
    /// Built-in work instead of a program, with only the three standard descriptors.
    pub errand: Option<Errand>,
    /// Whether it outlives its parent, as an engine's container does. A task's command ends with its supervisor.
    pub outlives_parent: bool,
    /// The number of descriptors from 3 on that stay open.
    pub preserved: u32,
    /// Whether the container's passwd decides HOME, because the environment has none.
    pub home_is_missing: bool,
    /// Where it waits for `start`; `None` starts at once.
    pub gate: Option<Gate>,
    /// startContainer hooks: programs in the container right before the command.
    pub hooks: Vec<Hook>,
    /// The input of the hooks on stdin.
    pub state: State,
    /// Whether a terminal on standard input becomes the controlling terminal.
    pub controlling_terminal: bool,
    /// Whether it is dumpable while the parent fetches the filter's listener: an ordinary user can take descriptors
    /// only from dumpable processes. No other process may see it then.
    pub shows_listener: bool,
}

/// Built-in work in the sandbox, with the user and restrictions of its commands. Returns the exit status.
pub(crate) type Errand = fn() -> i32;

/// Waits until a signal ends the process.
pub(crate) fn hold() -> i32 {
    loop {
        std::thread::park();
    }
}

/// The byte by which an ordinary user's `exec` asks init, at its gate, to become dumpable. That user cannot join its
/// namespaces otherwise.
pub(crate) const SHOW: u8 = b'n';

/// Where a created container waits for `start`.
#[derive(Debug)]
pub(crate) struct Gate {
    /// A FIFO, open in both directions: any byte but [`SHOW`] opens the gate. The open reader shows `start` that init
    /// waits.
    pub fifo: OwnedFd,
    /// The file for an error after the gate has opened.
    pub report: OwnedFd,
}

/// The origin of the container's user namespace.
#[derive(Debug)]
pub(crate) enum UserNamespace {
    /// The caller's namespace.
    Callers,
    /// New with the process. A parent that may map any range writes the maps. Everything is built inside it.
    Mapped(Maps),
    /// New with the process, with one mapped id. Everything is built inside it: the only choice of an ordinary user.
    Born(Maps),
    /// An existing one. A helper enters it and makes the process there, so that it owns all other new namespaces.
    Joined(OwnedFd),
    /// Made ahead and entered when everything is built. The machine's root then owns mounts, network and cgroup
    /// namespaces, and no capability inside has power over them.
    Entered(OwnedFd),
}

/// The three standard descriptors of the command.
#[derive(Debug)]
pub(crate) enum Stdio {
    /// Pipes, or the caller's descriptors.
    Descriptors {
        input: OwnedFd,
        output: OwnedFd,
        error: OwnedFd,
    },
    /// A terminal of the container; its master goes to the parent.
    Terminal(Terminal),
    Inherited,
}

/// The size of a new terminal in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
    /// Whether newlines pass unchanged: the caller's terminal adds the carriage returns.
    pub passes_newlines: bool,
}

/// The command in the form of execve(2).
pub(crate) struct Vectors {
    /// Every possible path of the program, in the order of PATH.
    pub candidates: Vec<CString>,
    /// The program's name as given, for errors.
    pub name: String,
    /// Arguments.
    pub arguments: Vector,
    /// Environment.
    pub environment: Vector,
}

impl Vectors {
    /// Prepares a command. A NUL in any string is an error before anything starts.
    pub(crate) fn new(arguments: &[OsString], environment: &[(OsString, OsString)]) -> Result<Vectors> {
        let program = arguments
            .first()
            .ok_or_else(|| Error::new(Kind::Usage, "no command is given").hint("put it after `--`"))?;
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let strings = |all: &[OsString]| all.iter().map(|each| terminated(each.as_bytes())).collect::<Result<Vec<_>>>();
        let pairs: Vec<_> = environment
            .iter()
            .map(|(name, value)| OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect();
        Ok(Vectors {
            candidates: candidates(program, path)?,
            name: program.to_string_lossy().into_owned(),
            arguments: Vector::new(strings(arguments)?),
            environment: Vector::new(strings(&pairs)?),
        })
    }
}

fn candidates(program: &OsStr, path: Option<&OsStr>) -> Result<Vec<CString>> {
    // Without PATH no program is found, as with runc.
    places(program, Some(path.unwrap_or_default())).iter().map(|place| terminated(place.as_bytes())).collect()
}

fn terminated(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| {
        Error::new(Kind::Usage, format!("`{}` contains a NUL byte", String::from_utf8_lossy(bytes).escape_debug()))
            .doing("prepare the command")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_execvp_would() {
        let check = |name: &str, path: Option<&str>, expected: &[&str]| {
            let found = candidates(OsStr::new(name), path.map(OsStr::new)).unwrap();
            assert_eq!(found.iter().map(|each| each.to_str().unwrap()).collect::<Vec<_>>(), expected, "{name}");
        };
        check("sh", Some("/a:/b"), &["/a/sh", "/b/sh"]);
        check("sh", Some("/a::/b:"), &["/a/sh", "/b/sh"]);
        check("./sh", Some("/a"), &["./sh"]);
        check("", Some("/a"), &[]);
        check("sh", None, &[]);
    }

    #[test]
    fn a_nul_is_refused_before_anything_starts() {
        let Err(error) = Vectors::new(&["a\0b".into()], &[]) else { panic!("a NUL went through") };
        assert_eq!(error.kind(), Kind::Usage);
    }
}
