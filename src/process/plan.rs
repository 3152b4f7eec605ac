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

pub(crate) struct Plan {
    /// All but the user namespace.
    pub namespaces: Namespaces,
    /// Made ahead, to be entered.
    pub network: Option<OwnedFd>,
    /// Entered after the groups are joined: with v2 and `nsdelegate` no process can leave it for an outside group.
    pub cgroup_namespace: Option<OwnedFd>,
    pub user_namespace: UserNamespace,
    /// The v2 cgroup of its birth.
    pub cgroup: Option<OwnedFd>,
    /// Whether init waits for the parent's setup: systemd needs the pid first.
    pub waits: bool,
    pub joins: Joins,
    /// `None` keeps the caller's.
    pub hostname: Option<String>,
    /// NIS; `None` keeps the caller's.
    pub domainname: Option<String>,
    pub new_keyring: bool,
    pub oom_score: OomScore,
    pub inside: Option<Inside>,
    pub uplink: Option<Uplink>,
    /// Paths below /proc/sys, and values.
    pub sysctls: Vec<(String, String)>,
    pub root: mounts::Root,
    pub hooks: BuildHooks,
    pub command: Command,
    pub stdio: Stdio,
    pub first: First,
}

pub(crate) enum Uplink {
    Veth(net::Inside),
    /// Around a network that another program makes.
    Fenced(Fence),
    /// A network that an engine makes and the parent closes: it gets connections to the tables inside.
    Engines,
}

/// How init joins its v1 cgroups.
pub(crate) enum Joins {
    /// First, through their `tasks` files.
    AtOnce(Vec<OwnedFd>),
    /// After its root is built: the parent makes the groups meanwhile and sends the files ([`super::Spawned::admit`]).
    Told,
}

/// For a server outside the network namespace.
pub(crate) struct Inside {
    pub wish: Served,
    /// Receives the sockets.
    pub gateway: Channel,
}

/// The role of the first process once the root is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Pid 1: it reaps, and reports how its child, the command, ended.
    Reaper,
    Command,
    /// The command in an existing PID namespace. Its process is born when the preparing one has dropped everything of
    /// the host.
    Newcomer,
}

/// Run while the root is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildHooks {
    pub of_parent: bool,
    /// Run by init, in the container's namespaces.
    pub of_container: Vec<Hook>,
    /// Their stdin.
    pub state: State,
}

pub(crate) struct Command {
    pub identity: Identity,
    pub attributes: Attributes,
    /// A process that may not raise a hard limit asks its parent to set all.
    pub rlimits: Vec<(Resource, Rlimit)>,
    /// `None` has no restriction.
    pub landlock: Option<Landlock>,
    pub seccomp: Cow<'static, seccomp::Program>,
    pub directory: PathBuf,
    pub vectors: Vectors,
    /// Keeps its number, beside the three standard descriptors.
    pub handed: Option<OwnedFd>,
    /// Replaces the program, with only the three standard descriptors.
    pub errand: Option<Errand>,
    /// Like an engine's container; a task's command ends with its supervisor.
    pub outlives_parent: bool,
    /// Descriptors from 3 on that stay open.
    pub preserved: u32,
    /// The environment has no HOME: the container's passwd decides.
    pub home_is_missing: bool,
    /// `None` starts at once.
    pub gate: Option<Gate>,
    /// startContainer: run in the container right before the command.
    pub hooks: Vec<Hook>,
    /// The hooks' stdin.
    pub state: State,
    /// Whether a terminal on standard input controls the session.
    pub controlling_terminal: bool,
    /// Dumpable while the parent fetches the filter's listener, as an ordinary user can take descriptors only then. No
    /// other process may see it meanwhile.
    pub shows_listener: bool,
}

/// Built-in work, with the confinement of the sandbox's commands. Returns the exit status.
pub(crate) type Errand = fn() -> i32;

pub(crate) fn hold() -> i32 {
    loop {
        std::thread::park();
    }
}

/// Asks init, at its gate, to become dumpable: an ordinary user's `exec` cannot join its namespaces otherwise.
pub(crate) const SHOW: u8 = b'n';

/// Where a created container waits for `start`.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Open in both directions: any byte but [`SHOW`] opens the gate. The open reader shows `start` that init waits.
    pub fifo: OwnedFd,
    /// For an error after the gate has opened.
    pub report: OwnedFd,
}

#[derive(Debug)]
pub(crate) enum UserNamespace {
    Callers,
    /// New, mapped by a parent that may map any range. Everything is built inside it.
    Mapped(Maps),
    /// New, with one mapped id, an ordinary user's only choice. Everything is built inside it.
    Born(Maps),
    /// A helper makes the process in it, so that it owns all other new namespaces.
    Joined(OwnedFd),
    /// Made ahead and entered last. The machine's root then owns mounts, network and cgroup namespaces, beyond every
    /// capability inside.
    Entered(OwnedFd),
}

#[derive(Debug)]
pub(crate) enum Stdio {
    Descriptors {
        input: OwnedFd,
        output: OwnedFd,
        error: OwnedFd,
    },
    /// The container's; its master goes to the parent.
    Terminal(Terminal),
    Inherited,
}

/// In characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    pub rows: u16,
    pub columns: u16,
    /// The caller's terminal adds the carriage returns.
    pub passes_newlines: bool,
}

pub(crate) struct Vectors {
    /// In the order of PATH.
    pub candidates: Vec<CString>,
    /// As given, for errors.
    pub name: String,
    pub arguments: Vector,
    pub environment: Vector,
}

impl Vectors {
    /// Refuses a NUL in any string before anything starts.
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
