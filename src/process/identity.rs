//! Who a process of the container is: user, groups, capabilities, and what it can never gain.

use super::message::Channel;
use crate::error::{Context, Error, Kind, Result};
use crate::sys::clone::exit;
use crate::sys::{keyring, weaken};
use caps::{CapSet, Capability};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Becomes a user of the container without groups of the caller's. In a namespace where setgroups is denied (an ordinary user's) the
/// supplementary groups cannot be dropped; they are unmapped there and show as the overflow group.
pub(super) fn become_user(uid: u32, gid: u32) -> Result<()> {
    match set_thread_groups(&[]) {
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(errno).failing(Kind::Identity, || "drop the supplementary groups"),
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid).failing(Kind::Identity, || format!("become group {}", gid.as_raw()))?;
    set_thread_res_uid(uid, uid, uid).failing(Kind::Identity, || format!("become user {}", uid.as_raw()))
}

/// Gives up every capability, in every set, for good.
pub(super) fn drop_capabilities() -> Result<()> {
    if weaken::is_off("capabilities") {
        // A user who is not 0 keeps them across execve only in the ambient set.
        let held = caps::read(None, CapSet::Permitted).map_err(refused)?;
        caps::set(None, CapSet::Inheritable, &held).map_err(refused)?;
        return caps::set(None, CapSet::Ambient, &held).map_err(refused);
    }
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    empty_bounding_set()?;
    keep_capabilities(&[])
}

/// Gives up every capability but `kept`. A process that never executes anything needs no more: the bounding set acts on execve alone.
pub(super) fn keep_capabilities(kept: &[Capability]) -> Result<()> {
    if weaken::is_off("capabilities") {
        return Ok(());
    }
    let mut sets = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    for capability in kept {
        let bit = CapabilitySet::from_bits_retain(capability.bitmask());
        sets.effective |= bit;
        sets.permitted |= bit;
    }
    set_capabilities(None, sets).failing(Kind::Identity, || "drop the capabilities")
}

fn refused(cause: caps::errors::CapsError) -> Error {
    Error::new(Kind::Identity, cause.to_string()).doing("drop the capabilities")
}

/// One call a capability, where the caps crate makes two; ends at the first that the kernel does not know (capabilities(7)).
fn empty_bounding_set() -> Result<()> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(errno) => return Err(errno).failing(Kind::Identity, || "empty the capability bounding set"),
        }
    }
    Ok(())
}

/// No program that we start gains anything by being setuid or having file capabilities. prctl(2), PR_SET_NO_NEW_PRIVS.
pub(super) fn gain_nothing() -> Result<()> {
    if weaken::is_off("no-new-privs") {
        return Ok(());
    }
    set_no_new_privs(true).failing(Kind::Identity, || "set no_new_privs")
}

/// Nobody inside may trace us or look into our memory and descriptors (CVE-2016-9962). A change of user sets this back, and so
/// does execve.
pub(super) fn be_undumpable() -> Result<()> {
    if weaken::is_off("undumpable") {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).failing(Kind::Identity, || "become undumpable")
}

/// Dies when the parent does. A change of user sets this back, so it is called after each (prctl(2), PR_SET_PDEATHSIG).
pub(super) fn die_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).failing(Kind::Identity, || "bind our life to the parent's")
}

/// The same for a parent outside our PID namespace, which may have died before the kernel knew our wish; getppid(2) tells nothing
/// there, so the channel is asked.
pub(super) fn die_with_supervisor(parent: &Channel) -> Result<()> {
    die_with_parent()?;
    if parent.is_open() { Ok(()) } else { exit(1) }
}

/// Leaves behind what would make us dearer to the kernel than any other program: a protection from the out-of-memory killer that our caller has
/// (a service manager gives it) is not the sandbox's. proc_pid_oom_score_adj(5).
pub(super) fn be_killable() -> Result<()> {
    const PATH: &str = "/proc/self/oom_score_adj";
    let step = || "give up the protection from the out-of-memory killer";
    if std::fs::read_to_string(PATH).failing(Kind::Identity, step)?.starts_with('-') && !weaken::is_off("oom-score") {
        std::fs::write(PATH, "0").failing(Kind::Identity, step)?;
    }
    Ok(())
}

/// Leaves the caller's session keyring. Kernels without keyrings have nothing to leave.
pub(super) fn leave_keyring() -> Result<()> {
    if weaken::is_off("keyring") {
        return Ok(());
    }
    match keyring::leave_session_keyring() {
        Ok(()) | Err(rustix::io::Errno::NOSYS) => Ok(()),
        // A seccomp filter around us that refuses keyctl keeps the container from using the keyring as well.
        Err(rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).failing(Kind::Identity, || "leave the session keyring"),
    }
}
