//! User, groups, capabilities, and limits on privileges of a container's process.

use super::attributes::Attributes;
use super::message::Channel;
use crate::error::{Context, Error, Kind, Result};
use crate::seccomp::Program;
use crate::sys::attributes::{leave_real_time, leave_session_keyring};
use crate::sys::clone::exit;
use crate::sys::weaken;
use caps::{CapSet, Capability};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capability_is_in_bounding_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid, set_thread_uid,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary.
    pub groups: Vec<u32>,
    /// Already set at birth: the process makes no call for them, which a filter may refuse.
    pub born_with_groups: bool,
    /// `None` keeps it.
    pub umask: Option<u32>,
    pub capabilities: Capabilities,
    pub no_new_privileges: bool,
}

impl Identity {
    /// A task's command: no groups, no capabilities, no way to gain any.
    pub(crate) fn powerless(uid: u32, gid: u32) -> Identity {
        Identity { uid, gid, no_new_privileges: true, ..Identity::default() }
    }
}

/// capabilities(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub bounding: u64,
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

/// Where setgroups is denied (an ordinary user's namespace), supplementary groups stay; unmapped, they appear as the
/// overflow group.
///
/// If `filter`, already in force, refuses setresuid(2) or setresgid(2), call setuid(2) or setgid(2) as runc does: with
/// the capability these set all three ids.
pub(super) fn become_user(identity: &Identity, filter: Option<&Program>) -> Result<()> {
    #[cfg(feature = "weakened")]
    let identity = &Identity { uid: named_so(identity.uid), ..identity.clone() };
    if !identity.born_with_groups {
        let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
        match set_thread_groups(&groups) {
            Err(rustix::io::Errno::PERM) if groups.is_empty() || has_groups(&groups) => Ok(()),
            other => other,
        }
        .failing(Kind::Identity, || "set the supplementary groups")?;
    }
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let allows = |call, id: u32| filter.is_none_or(|filter| filter.allows(call, [u64::from(id); 6]));
    if allows(libc::SYS_setresgid, identity.gid) { set_thread_res_gid(gid, gid, gid) } else { set_thread_gid(gid) }
        .failing(Kind::Identity, || format!("become group {}", gid.as_raw()))?;
    if allows(libc::SYS_setresuid, identity.uid) { set_thread_res_uid(uid, uid, uid) } else { set_thread_uid(uid) }
        .failing(Kind::Identity, || format!("become user {}", uid.as_raw()))
}

/// An ordinary user cannot set its groups, so compare them.
fn has_groups(groups: &[Gid]) -> bool {
    let sorted = |groups: &[Gid]| {
        let mut all: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
        all.sort_unstable();
        all
    };
    rustix::process::getgroups().is_ok_and(|own| sorted(&own) == sorted(groups))
}

/// The user with this number as its name, for a test (CVE-2016-3697). The C library reads the container's files, and
/// loads the libraries of its nsswitch.conf (CVE-2019-14271).
#[cfg(feature = "weakened")]
fn named_so(uid: u32) -> u32 {
    let find = || nix::unistd::User::from_name(&uid.to_string()).ok().flatten();
    let found = weaken::is_off("no-name-service").then(find).flatten();
    found.map_or(uid, |user| user.uid.as_raw())
}

/// Keeps the other sets over the change of user that follows.
pub(super) fn bound_capabilities(capabilities: &Capabilities) -> Result<()> {
    if weaken::is_off("capabilities") {
        return Ok(());
    }
    limit_bounding_set(capabilities.bounding)?;
    if capabilities.permitted | capabilities.inheritable == 0 {
        return Ok(());
    }
    set_keep_capabilities(true).failing(Kind::Identity, || "keep capabilities over the change of user")
}

/// Capabilities that the caller lacks are left out.
pub(super) fn take_capabilities(capabilities: &Capabilities) -> Result<()> {
    if weaken::is_off("capabilities") {
        // A user other than 0 keeps only the ambient set across execve.
        let held = caps::read(None, CapSet::Permitted).map_err(refused)?;
        caps::set(None, CapSet::Inheritable, &held).map_err(refused)?;
        return caps::set(None, CapSet::Ambient, &held).map_err(refused);
    }
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    if *capabilities == Capabilities::default() {
        return keep_capabilities(&[]);
    }
    let own = rustix::thread::capabilities(None).failing(Kind::Identity, || "read our own capabilities")?;
    let set = |bits: u64, own: CapabilitySet| CapabilitySet::from_bits_retain(bits) & own;
    let sets = CapabilitySets {
        effective: set(capabilities.effective & capabilities.permitted, own.permitted),
        permitted: set(capabilities.permitted, own.permitted),
        inheritable: set(capabilities.inheritable, own.permitted | own.inheritable),
    };
    set_capabilities(None, sets).failing(Kind::Identity, || "set the capabilities")?;
    set_keep_capabilities(false).failing(Kind::Identity, || "no longer keep capabilities")?;
    // Only a capability in both other sets can be ambient; runc warns about the rest.
    for capability in (sets.permitted & sets.inheritable & CapabilitySet::from_bits_retain(capabilities.ambient)).iter()
    {
        configure_capability_in_ambient_set(capability, true)
            .failing(Kind::Identity, || "raise an ambient capability")?;
    }
    Ok(())
}

pub(super) fn set_umask(identity: &Identity) {
    if let Some(mask) = identity.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    }
}

/// Without execve no smaller bounding set is needed.
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

/// One call a capability, not two as in the caps crate, up to the first that the kernel does not know
/// (capabilities(7)).
fn limit_bounding_set(kept: u64) -> Result<()> {
    let step = || "limit the capability bounding set";
    for number in (0..u64::BITS).filter(|number| kept & 1 << number == 0) {
        let bit = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(bit) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            // A process born without the capability may lack the right to remove it.
            Err(rustix::io::Errno::PERM) => match capability_is_in_bounding_set(bit) {
                Ok(false) => {}
                Err(rustix::io::Errno::INVAL) => break,
                _ => return Err(rustix::io::Errno::PERM).failing(Kind::Identity, step),
            },
            Err(errno) => return Err(errno).failing(Kind::Identity, step),
        }
    }
    Ok(())
}

/// prctl(2), PR_SET_NO_NEW_PRIVS: setuid and file capabilities have no effect.
pub(super) fn gain_nothing() -> Result<()> {
    if weaken::is_off("no-new-privs") {
        return Ok(());
    }
    set_no_new_privs(true).failing(Kind::Identity, || "set no_new_privs")
}

/// Processes inside can then not trace us, nor read our memory and descriptors (CVE-2016-9962). A change of user and
/// execve reset this.
pub(super) fn be_undumpable() -> Result<()> {
    if weaken::is_off("undumpable") {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).failing(Kind::Identity, || "become undumpable")
}

/// Lets an ordinary user's processes join our namespaces and take our descriptors. The container's processes could
/// trace us meanwhile: see the callers.
pub(super) fn be_dumpable() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::Dumpable).failing(Kind::Identity, || "become dumpable")
}

/// Until its drop, this process and new children are undumpable.
pub(super) struct Hidden;

impl Hidden {
    /// For the machine's root alone: an ordinary user's parent must write files of /proc that root would own meanwhile.
    pub(super) fn begin() -> Result<Option<Hidden>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        be_undumpable().map(|()| Some(Hidden))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Staying undumpable does no harm.
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
}

/// `create` ends, and the container stays.
pub(super) fn outlive_parent() -> Result<()> {
    set_parent_process_death_signal(None).failing(Kind::Identity, || "unbind our life from the parent's")
}

/// A change of user resets this (prctl(2), PR_SET_PDEATHSIG).
pub(super) fn die_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).failing(Kind::Identity, || "bind our life to the parent's")
}

/// For a parent outside our PID namespace. It may have died before prctl(2), and getppid(2) returns 0 either way, so
/// ask the channel.
pub(super) fn die_with_supervisor(parent: &Channel) -> Result<()> {
    die_with_parent()?;
    if parent.is_open() { Ok(()) } else { exit(1) }
}

/// proc_pid_oom_score_adj(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OomScore {
    Inherited,
    /// A service manager's protection of the caller is not for the sandbox.
    Unprotected,
    Adjusted(i32),
}

/// `Unprotected` also gives up the caller's real-time priority.
pub(super) fn score(score: OomScore) -> Result<()> {
    const PATH: &str = "/proc/self/oom_score_adj";
    let step = || "give up the protection from the out-of-memory killer";
    match score {
        OomScore::Inherited => Ok(()),
        OomScore::Unprotected => {
            if !weaken::is_off("real-time") {
                leave_real_time().failing(Kind::Identity, || "give up the caller's real-time priority")?;
            }
            if std::fs::read_to_string(PATH).failing(Kind::Identity, step)?.starts_with('-')
                && !weaken::is_off("oom-score")
            {
                std::fs::write(PATH, "0").failing(Kind::Identity, step)?;
            }
            Ok(())
        }
        OomScore::Adjusted(value) => match std::fs::write(PATH, value.to_string()) {
            // Only a privileged caller may lower the score; its higher score stays.
            Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            other => other.failing(Kind::Identity, || format!("set oom_score_adj to {value}")),
        },
    }
}

pub(super) fn leave_keyring(attributes: &Attributes) -> Result<()> {
    if weaken::is_off("keyring") {
        return Ok(());
    }
    attributes.label_keys()?;
    match leave_session_keyring() {
        Ok(()) | Err(rustix::io::Errno::NOSYS) => Ok(()),
        // A filter around us that refuses keyctl also keeps the container from the keyring.
        Err(rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).failing(Kind::Identity, || "leave the session keyring"),
    }
}
