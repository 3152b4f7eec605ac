//! Hooks: programs of the caller (runtime-spec, "POSIX-platform Hooks").
//!
//! A hook on the host gets the configuration's environment: not brig's and not the container's (CVE-2025-23266). A hook
//! inside the container without `env` gets that of the container's process, as with runc.

use crate::error::{Context, Error, Kind, Result};
use crate::files::{is_ready_by, new_memory, new_sealable_memory};
use crate::spec::config::Hook;
use crate::spec::state::State;
use rustix::event::PollFlags;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Of a failed hook, in bytes.
const MAX_OUTPUT: usize = 4096;

/// `moment` is the name of the list, for errors.
pub(crate) fn run(moment: &str, hooks: &[Hook], state: &State) -> Result<()> {
    run_inside(moment, hooks, state, &[])
}

pub(crate) fn run_inside(moment: &str, hooks: &[Hook], state: &State, environment: &[CString]) -> Result<()> {
    for (index, hook) in hooks.iter().enumerate() {
        run_one(hook, state, environment)
            .map_err(|error| error.doing(format!("error running {moment} hook #{index}")))?;
    }
    Ok(())
}

fn run_one(hook: &Hook, state: &State, environment: &[CString]) -> Result<()> {
    let mut command = Command::new(&hook.path);
    if let Some((name, arguments)) = hook.args.split_first() {
        command.arg0(name).args(arguments);
    }
    if !crate::sys::weaken::is_off("hook-environment") {
        command.env_clear();
    }
    match &hook.env {
        Some(given) => command.envs(given.iter().filter_map(|each| each.split_once('='))),
        None => command.envs(environment.iter().filter_map(|each| split_variable(each.to_bytes()))),
    };
    // stdout and stderr are the container's already: keep the hook's output for the error.
    let output: File =
        new_memory("hook").map_err(|error| error.of_kind(Kind::Hook).doing("collect its output"))?.into();
    let copy = || output.try_clone().failing(Kind::Hook, || "make a file for its output");
    let mut child = command
        .stdin(state_file(state)?)
        .stdout(copy()?)
        .stderr(copy()?)
        .spawn()
        .failing(Kind::Hook, || format!("fork/exec {}", hook.path))?;
    if let Some(seconds) = hook.timeout {
        let time = Duration::from_secs(seconds.unsigned_abs());
        wait_within(&child, time).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
    }
    let status = child.wait().failing(Kind::Hook, || "wait for it")?;
    if status.success() {
        return Ok(());
    }
    let words = status.to_string().replace("exit status:", "exit status");
    let mut bytes = [0_u8; MAX_OUTPUT];
    let length = output.read_at(&mut bytes, 0).unwrap_or(0);
    let output = String::from_utf8_lossy(&bytes[..length]);
    Err(Error::new(
        Kind::Hook,
        if length == 0 {
            format!("{words} (`{}`)", hook.path)
        } else {
            format!("{words}, output: {} (`{}`)", escape_controls(output.trim_end()), hook.path)
        },
    ))
}

/// A hook inside the container may print anything, and engines print it on a terminal. The log escapes what its format
/// needs.
fn escape_controls(text: &str) -> String {
    let is_kept = |each: char| matches!(each, '\n' | '\t') || !each.is_control();
    text.chars().flat_map(|each| if is_kept(each) { vec![each] } else { each.escape_default().collect() }).collect()
}

fn split_variable(variable: &[u8]) -> Option<(&OsStr, &OsStr)> {
    let at = variable.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&variable[..at]), OsStr::from_bytes(&variable[at + 1..])))
}

/// A sealed file, not a pipe: a write could block beyond the time limit. SIGPIPE, with its default action before the
/// last hooks, would kill brig if the hook ended first.
fn state_file(state: &State) -> Result<File> {
    let step = || "write the state for its stdin";
    let text = serde_json::to_vec(state).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    let mut file: File = new_sealable_memory("state").failing(Kind::Hook, step)?.into();
    file.write_all(&text).failing(Kind::Hook, step)?;
    file.rewind().failing(Kind::Hook, step)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)
        .failing(Kind::Hook, step)?;
    Ok(file)
}

/// The caller kills the hook after an error.
fn wait_within(child: &std::process::Child, time: Duration) -> Result<()> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| Error::new(Kind::Internal, "a hook without a pid"))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).failing(Kind::Hook, || "watch it")?;
    let Some(end) = Instant::now().checked_add(time) else { return Ok(()) }; // beyond every clock
    if is_ready_by(&process, PollFlags::IN, end).failing(Kind::Hook, || "watch it")? {
        return Ok(());
    }
    let words =
        format!("hook ran past specified timeout of {0}.0s: it took longer than {0} s and was killed", time.as_secs());
    Err(Error::new(Kind::Hook, words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::seccomp::{Instruction, add_filter};
    use rustix::io::Errno;

    /// Makes pidfd_open(2) fail for this thread.
    fn deny_watching() {
        let line = |code, jump_false, operand| Instruction { code, jump_true: 0, jump_false, operand };
        let number = libc::SYS_pidfd_open as u32;
        let refused = libc::SECCOMP_RET_ERRNO | libc::EMFILE as u32;
        let all = [line(0x20, 0, 0), line(0x15, 1, number), line(0x06, 0, refused), line(0x06, 0, 0x7fff_0000)];
        rustix::thread::set_no_new_privs(true).unwrap();
        add_filter(&all, 0).unwrap();
    }

    #[test]
    fn hook_that_cannot_be_watched_is_killed_and_reaped() {
        let hook: Hook =
            serde_json::from_str(r#"{"path": "/bin/sleep", "args": ["sleep", "100"], "timeout": 50}"#).unwrap();
        let run = || {
            deny_watching();
            let error = run("prestart", &[hook], &State::default()).unwrap_err();
            assert_eq!(error.errno(), Some(Errno::MFILE.raw_os_error()), "{error}");
            let thread = rustix::thread::gettid().as_raw_nonzero();
            std::fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap()
        };
        let children = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert_eq!(children, "");
    }
}
