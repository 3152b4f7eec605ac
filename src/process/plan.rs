//! Everything that init needs, decided before it exists.

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

/// The whole plan of one container's first processes.
pub(crate) struct Plan {
    /// The namespaces, but for the user namespace.
    pub namespaces: Namespaces,
    /// The network namespace to enter, where one was made ahead.
    pub network: Option<OwnedFd>,
    /// The cgroup namespace to enter when the process is in its groups: on a v2 tree that keeps namespaces apart (`nsdelegate`) nobody gets from
    /// inside of another one into a group that is outside of it.
    pub cgroup_namespace: Option<OwnedFd>,
    /// How the container gets its user namespace.
    pub user_namespace: UserNamespace,
    /// The v2 cgroup to be born in.
    pub cgroup: Option<OwnedFd>,
    /// Whether the parent has something to do with the new process before that does anything: a group that systemd makes needs a process first.
    pub waits: bool,
    /// How it gets into its v1 cgroups.
    pub joins: Joins,
    /// Name of the machine inside; `None` keeps it.
    pub hostname: Option<String>,
    /// NIS domain name inside; `None` keeps it.
    pub domainname: Option<String>,
    /// Whether the session keyring is left for a new one.
    pub new_keyring: bool,
    /// How ready the kernel is to end it when memory runs out.
    pub oom_score: OomScore,
    /// Routes and sockets that are made in the network namespace for somebody outside.
    pub inside: Option<Inside>,
    /// What init does in the network namespace so that it has a way out.
    pub way_out: Option<WayOut>,
    /// Kernel parameters of the namespaces: paths below /proc/sys, and values.
    pub sysctls: Vec<(String, String)>,
    /// What is mounted.
    pub root: mounts::Root,
    /// Programs of the caller that run while the root is built.
    pub hooks: BuildHooks,
    /// What the last process becomes.
    pub command: Command,
    /// Where its input and output go.
    pub stdio: Stdio,
    /// What pid 1 does.
    pub first: First,
}

/// What is done in the network namespace so that it has a way out.
pub(crate) enum WayOut {
    /// The end of a pair of devices that is there.
    Veth(net::Inside),
    /// A fence around what somebody else makes.
    Fenced(Fence),
}

/// How init gets into its v1 cgroups.
pub(crate) enum Joins {
    /// By writing itself into their `tasks` files, first of all.
    AtOnce(Vec<OwnedFd>),
    /// The same when its root is built: the parent makes the groups meanwhile, and sends the files ([`super::Spawned::admit`]).
    Told,
}

/// What is made in the network namespace for somebody outside who serves it.
pub(crate) struct Inside {
    /// What.
    pub wish: Served,
    /// Where the sockets go.
    pub gateway: Channel,
}

/// What the container's first process becomes when all is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// It stays as pid 1, reaps, and reports how the command, its child, ended.
    Reaper,
    /// The command itself.
    Command,
    /// The command itself, born in a PID namespace that exists when the process that prepared it has nothing of the host any more.
    Newcomer,
}

/// The caller's programs around the built root.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildHooks {
    /// Whether the parent has some to run in its own namespaces.
    pub of_parent: bool,
    /// Those of init's, in the container's namespaces.
    pub of_container: Vec<Hook>,
    /// What they read on stdin.
    pub state: State,
}

/// What the command's own process needs.
pub(crate) struct Command {
    /// Who it is.
    pub identity: Identity,
    /// Scheduling, memory policy, labels.
    pub attributes: Attributes,
    /// setrlimit(2). If the process may not raise a hard limit, it asks its parent for all of them.
    pub rlimits: Vec<(Resource, Rlimit)>,
    /// File rules; `None` restricts nothing.
    pub landlock: Option<Landlock>,
    /// The compiled filter.
    pub seccomp: Cow<'static, seccomp::Program>,
    /// Working directory.
    pub directory: PathBuf,
    /// What is executed.
    pub vectors: Vectors,
    /// A descriptor that the command keeps under its number, beside the three standard ones.
    pub handed: Option<OwnedFd>,
    /// Work of our own that is done instead, by the process that would otherwise execute: with nothing but its three standard descriptors.
    pub errand: Option<Errand>,
    /// Whether it goes on when its parent ends, as a container of an engine does. A task's ends with its supervisor.
    pub outlives_parent: bool,
    /// The number of descriptors from 3 on that stay open.
    pub preserved: u32,
    /// Whether the container's passwd decides HOME, because the environment has none.
    pub home_is_missing: bool,
    /// Where it waits for `start`; `None` goes at once.
    pub gate: Option<Gate>,
    /// startContainer hooks: programs that run in the container just before the command.
    pub hooks: Vec<Hook>,
    /// What the hooks read on stdin.
    pub state: State,
    /// Whether a terminal on its standard input becomes its controlling one.
    pub controlling_terminal: bool,
    /// Whether it is dumpable while the parent fetches the filter's listener: an ordinary user can take a descriptor from no other process. No other
    /// process may see this one then.
    pub shows_listener: bool,
}

/// Work of our own in the sandbox, as its user and under all that holds for its commands; its result is the exit status.
pub(crate) type Errand = fn() -> i32;

/// Stays until a signal ends it.
pub(crate) fn hold() -> i32 {
    loop {
        std::thread::park();
    }
}

/// The byte by which an ordinary user's `exec` asks init, at its gate, to become dumpable: only then may that user join its namespaces.
pub(crate) const SHOW: u8 = b'n';

/// Where a created container waits to be started.
#[derive(Debug)]
pub(crate) struct Gate {
    /// A FIFO, open for both directions: one byte opens the gate, but for [`SHOW`]. Holding it open tells `start` that init waits.
    pub fifo: OwnedFd,
    /// A file for the reason why it could not go on after that.
    pub report: OwnedFd,
}

/// When and how the container's user namespace comes about.
#[derive(Debug)]
pub(crate) enum UserNamespace {
    /// The caller's.
    Callers,
    /// Born with the process; the parent, which may map any range, writes the maps. Everything is built inside it.
    Mapped(Maps),
    /// Born with the process, mapping its one id; everything is built inside it. All that an ordinary user can have.
    Born(Maps),
    /// Somebody else's. A helper of ours enters it and has the process born there, so that all other new namespaces belong to it.
    Joined(OwnedFd),
    /// Made beforehand and entered when everything is built: mounts, network and cgroup namespaces then belong to the machine's root, and
    /// nothing inside, whatever capability it gains, has power over them.
    Entered(OwnedFd),
}

/// The three standard descriptors of the command.
#[derive(Debug)]
pub(crate) enum Stdio {
    /// Pipes, or whatever the caller has.
    Descriptors {
        /// Standard input.
        input: OwnedFd,
        /// Standard output.
        output: OwnedFd,
        /// Standard error.
        error: OwnedFd,
    },
    /// A pseudo-terminal of the container; its master goes to the parent.
    Terminal(Terminal),
    /// The parent's own three.
    Inherited,
}

/// The size of a new terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
    /// Whether newlines pass as they are: the terminal of the caller, if there is one, adds the carriage returns.
    pub passes_newlines: bool,
}

/// The command in the form that execve(2) takes.
pub(crate) struct Vectors {
    /// Every path at which the program may be, in the order of the environment's PATH.
    pub candidates: Vec<CString>,
    /// The program as it was named, for errors.
    pub name: String,
    /// Arguments.
    pub arguments: Vector,
    /// Environment.
    pub environment: Vector,
}

impl Vectors {
    /// Prepares a command. A NUL in any string is an error here, before anything is started.
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
    // Without PATH nothing is found, as with runc.
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
