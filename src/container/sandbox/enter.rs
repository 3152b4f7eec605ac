//! Another process in a running sandbox: in its namespaces and cgroups, as its user, under its filter, Landlock rules
//! and limits (`process::join`). It is our child, and ends with the sandbox at the latest. Never: a host descriptor
//! inside but the three given ones.

use super::running::Running;
use crate::cgroup::{Cgroup, Evidence, Usage};
use crate::container::check::privileged;
use crate::container::tree;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::process::{self, Errand, Identity, Join, Message, OomScore, Spawned, Stdio, Vectors};
use crate::spec::Confinement;
use crate::spec::resources::Resources;
use crate::sys::clone::{is_over, wait};
use crate::sys::weaken;
use rustix::fs::{Gid, Uid, fchown};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For the command to become dumpable: much longer than it takes, and too short to be noticed.
const A_MOMENT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Visit {
    /// The program and its arguments, or the name of the built-in work.
    pub command: Vec<OsString>,
    /// Added to the command's, or replacing them.
    pub environment: Vec<(OsString, OsString)>,
    /// If it differs from the command's.
    pub directory: Option<PathBuf>,
    /// Instead of a program.
    pub errand: Option<Errand>,
    /// With group and supplementary groups; `None` for the command's.
    pub user: Option<(u32, u32, Vec<u32>)>,
    pub stdio: Stdio,
    /// Of the process tree, below the sandbox's.
    pub limits: Option<Resources>,
}

#[derive(Debug)]
pub(crate) struct Entered {
    spawned: Spawned,
    group: Option<Cgroup>,
}

impl Running {
    /// A later error arrives as a message.
    pub(crate) fn enter(&self, visit: Visit) -> Result<Entered> {
        let step = || {
            format!(
                "enter the sandbox with `{}`",
                visit.command.first().map_or("".into(), |word| word.to_string_lossy())
            )
        };
        let words = step();
        let entry = self.entry();
        let mut environment = entry.environment.clone();
        // Only the command has the descriptor of this variable.
        environment.retain(|(name, _)| {
            name != crate::spec::process::EVENTS && !visit.environment.iter().any(|(other, _)| other == name)
        });
        let given = visit.environment;
        environment.extend(given.iter().cloned());
        let visit_directory = visit.directory;
        let mut directory = visit_directory.clone().unwrap_or_else(|| entry.directory.clone());
        let mut command = visit.command;
        let mut errand = visit.errand;
        if visit.limits.is_some() && matches!(entry.confinement, Confinement::Cell { .. }) {
            return Err(no_own_limits("another runtime has its container").doing(words));
        }
        if let Confinement::Cell { exec, directory: own, process, files } = &entry.confinement {
            let terminal = matches!(visit.stdio, Stdio::Terminal(_));
            if errand.take().is_some() {
                // The files are the container's; brig is a separate program there.
                command = vec![files.into()];
            }
            let own = visit_directory.as_deref().unwrap_or(own);
            environment = entry.environment.clone();
            command = if given.is_empty() {
                // runc, crun and runsc have these in common.
                let mut flags: Vec<OsString> = terminal.then(|| "--tty".into()).into_iter().collect();
                flags.extend(["--cwd".into(), own.as_os_str().to_owned()]);
                through_shell(exec, flags, command)
            } else {
                let process = process_of(process, terminal, own, &command, &given).doing(|| words.clone())?;
                environment.push((PROCESS.into(), process.into()));
                through_shell(exec, vec!["--process".into(), "/proc/self/fd/9".into()], Vec::new())
            };
            directory = "/".into();
        }
        let vectors = Vectors::new(&command, &environment)?;
        let others = visit.user.map(|user| entry.of_user(user)).transpose().doing(|| words.clone())?;
        let command = process::Command { errand, ..others.as_ref().unwrap_or(entry).command(directory, vectors)? };
        let (uid, gid) = (command.identity.uid, command.identity.gid);
        self.give_pipes(&visit.stdio, uid, gid)?;
        let (init, pid) = self.member().doing(|| words.clone())?;
        let limits = visit.limits.as_ref();
        let group = self.make_entrance(limits.unwrap_or(&Resources::default())).doing(|| words.clone())?;
        if group.is_none() && limits.is_some() {
            return Err(no_own_limits("it runs without a cgroup").doing(words));
        }
        let (mut cgroup, mut cgroup_tasks) = (self.clone_into()?, self.join_files()?);
        if let Some(group) = &group {
            // The last one moves the process from the sandbox's cgroup of that hierarchy.
            cgroup_tasks.extend(group.join_files()?);
            let own = group.clone_into().map(|directory| directory.try_clone_to_owned()).transpose();
            cgroup = own.failing(Kind::Cgroup, || "keep the group of the process open")?.or(cgroup);
        }
        let plan = Join {
            init,
            pid,
            adopts: group.is_none(),
            cgroup,
            cgroup_tasks,
            full_group: None,
            first_affinity: None,
            entering: if entry.is_single { Identity { uid, gid, ..Identity::default() } } else { Identity::default() },
            oom_score: OomScore::Unprotected,
            command,
            stdio: visit.stdio,
        };
        match process::join(plan) {
            Ok(spawned) => Ok(Entered { spawned, group }),
            Err((refused, _)) => {
                // An ending helper may be in it; the sandbox's removal then removes it.
                let _ = group.is_some_and(|group| group.try_remove());
                let error = refused.into_error();
                let has_ended = error.kind() == Kind::Namespace && self.ends_within(A_MOMENT);
                Err(if has_ended { Error::new(Kind::State, "it has ended meanwhile") } else { error }.doing(words))
            }
        }
    }

    /// Opening `/dev/stderr` needs the pipe's owner.
    fn give_pipes(&self, stdio: &Stdio, uid: u32, gid: u32) -> Result<()> {
        let (Stdio::Descriptors { input, output, error }, Some(base)) = (stdio, self.first_id()) else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(base + uid), Gid::from_raw(base + gid));
        [input, output, error].into_iter().try_for_each(|pipe| {
            fchown(pipe, Some(uid), Some(gid)).failing(Kind::Identity, || "give a pipe to the sandbox's user")
        })
    }

    /// Pid 1 for the machine's root. For an ordinary user it is undumpable, so its first dumpable child.
    fn member(&self) -> Result<(OwnedFd, i32)> {
        let first = self.pid();
        // Dumpable when its program runs, a moment after pid 1 reports ready.
        let end = Instant::now() + A_MOMENT;
        loop {
            let is_hidden = !privileged() || self.entry().is_single;
            let candidates = if is_hidden { tree::children(first) } else { vec![first] };
            for pid in candidates {
                let Some(pidfd) = (if is_hidden { hold_child(first, pid) } else { hold(pid) }) else { continue };
                if rustix::fs::stat(format!("/proc/{pid}/ns/mnt")).is_ok() {
                    return Ok((pidfd, pid));
                }
            }
            if Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Error::new(Kind::State, "no process of the sandbox can be looked into")
            .hint("an ordinary user enters a sandbox by way of its command, which must run and must not hide itself"))
    }
}

const PROCESS: &str = "BRIG_PROCESS";

/// Waits at most ten seconds until the runtime has its container, then runs its `exec`. In: the number of words before
/// that verb, the container's name, all words. A `process` comes as a pipe: every user could read variables among
/// arguments.
const ENTER: &str = r#"
is_there() {
    count=$1 name=$2
    shift 2
    all=$# number=0
    for word; do
        if [ $number -lt "$count" ]; then set -- "$@" "$word"; fi
        number=$((number + 1))
    done
    shift "$all"
    case $("$@" state "$name" 2>/dev/null </dev/null) in *'"running"'*) return 0 ;; esac
    return 1
}
tries=200
until is_there "$@" || [ $tries = 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
shift 2
if [ -n "${BRIG_PROCESS:-}" ]; then
    exec 9<<END
$BRIG_PROCESS
END
    unset BRIG_PROCESS
fi
exec "$@"
"#;

fn through_shell(exec: &[OsString], flags: Vec<OsString>, command: Vec<OsString>) -> Vec<OsString> {
    let Some((container, words)) = exec.split_last() else { return command };
    let verb = words.iter().position(|word| word == "exec").unwrap_or(words.len());
    // A `process` replaces the flags after the verb.
    let kept = if flags.first().is_some_and(|flag| flag == "--process") { verb + 1 } else { words.len() };
    let mut all: Vec<OsString> = ["/bin/sh", "-c", ENTER, "sh"].map(OsString::from).into();
    all.extend([verb.to_string().into(), container.clone()]);
    all.extend(words.iter().take(kept).cloned());
    all.extend(flags);
    all.push(container.clone());
    all.extend(command);
    all
}

/// runtime-spec, "process".
fn process_of(
    process: &str,
    terminal: bool,
    directory: &Path,
    command: &[OsString],
    given: &[(OsString, OsString)],
) -> Result<String> {
    let text = |word: &std::ffi::OsStr| {
        word.to_str().map(str::to_owned).ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{}` is not UTF-8, which the other runtime needs", word.to_string_lossy()))
        })
    };
    let wrong = |cause: serde_json::Error| Error::new(Kind::Internal, cause.to_string());
    let mut process: serde_json::Value = serde_json::from_str(process).map_err(wrong)?;
    let mut variables: Vec<String> = serde_json::from_value(process["env"].take()).map_err(wrong)?;
    for (name, value) in given {
        let start = format!("{}=", text(name)?);
        variables.retain(|each| !each.starts_with(&start));
        variables.push(start + &text(value)?);
    }
    process["env"] = variables.into();
    process["args"] = command.iter().map(|word| text(word)).collect::<Result<Vec<_>>>()?.into();
    process["cwd"] = text(directory.as_os_str())?.into();
    process["terminal"] = terminal.into();
    Ok(process.to_string())
}

fn no_own_limits(why: &str) -> Error {
    Error::new(Kind::LimitUnenforceable, format!("a process of this sandbox has no separate limits: {why}"))
        .hint("leave the job's own limits out: those of the task hold for it")
}

fn hold(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Checks the parent again, as the pid may be reused before it is opened: an open pidfd's process keeps its pid.
fn hold_child(parent: i32, pid: i32) -> Option<OwnedFd> {
    hold(pid).filter(|_| tree::children(parent).contains(&pid))
}

impl Entered {
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.spawned.channel()
    }

    /// `None` when its program runs, or after its end.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        self.spawned.receive()
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.spawned.pidfd()
    }

    /// Signals the process group, as a terminal does. An ended process is not an error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // Its pid cannot be reused before it is reaped.
        match Pid::from_raw(self.spawned.pid).map(|leader| kill_process_group(leader, signal)) {
            Some(Ok(())) => Ok(()),
            _ => self.spawned.signal(signal), // it does not lead a group yet
        }
    }

    /// Daemons included. Does not wait for their end.
    pub(crate) fn end(&self) -> Result<()> {
        let ended = match &self.group {
            Some(group) => group.kill(),
            None if weaken::is_off("exec-tree") => Ok(()),
            None => {
                tree::end(self.spawned.pid);
                Ok(())
            }
        };
        self.spawned.signal(Signal::KILL).and(ended)
    }

    pub(crate) fn counters(&self) -> Result<Option<(Usage, Evidence)>> {
        self.group.as_ref().map(|group| Ok((group.usage()?, group.evidence()?))).transpose()
    }

    /// After [`Entered::end`]: also removes the cgroup. Never waits.
    pub(crate) fn is_gone(&self) -> bool {
        is_over(self.spawned.pidfd()) && self.group.as_ref().is_none_or(Cgroup::try_remove)
    }

    /// Returns a shell's exit status.
    pub(crate) fn reap(&self) -> Result<u8> {
        let status = wait(self.spawned.pidfd()).failing(Kind::Lost, || "wait for a process of the sandbox")?;
        let code = status
            .and_then(|status| status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)));
        Ok(code.unwrap_or(255) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_is_not_a_child_is_not_held() {
        use std::io::{BufRead, BufReader};
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (parent, child): (i32, i32) = (shell.id() as i32, line.trim().parse().unwrap());
        assert!(hold_child(parent, child).is_some());
        assert!(hold_child(child, parent).is_none() && hold_child(1, child).is_none());
        assert!(hold(parent).is_some());
        let pidfd = hold(child).unwrap();
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
        shell.wait().unwrap();
    }
}
