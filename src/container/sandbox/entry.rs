//! The first and later commands of a sandbox have the same identity, restrictions and limits.

use crate::container::OWN_USERS;
use crate::error::{Error, Kind, Result};
use crate::process::attributes::Attributes;
use crate::process::{self, Capabilities, Identity, Vectors};
use crate::seccomp;
use crate::spec::Confinement;
use crate::spec::landlock::Landlock;
use crate::spec::state::State;
use crate::sys::weaken;
use rustix::process::{Resource, Rlimit};
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

const EVERY: Capabilities = {
    let all = u64::MAX;
    Capabilities { bounding: all, effective: all, permitted: all, inheritable: 0, ambient: 0 }
};

/// As Docker (moby, oci/caps/defaults.go). Those over devices, time and the network have no power: their objects belong
/// to the machine's user namespace.
fn dockers_capabilities() -> u64 {
    use caps::Capability::*;
    [
        CAP_CHOWN,
        CAP_DAC_OVERRIDE,
        CAP_FSETID,
        CAP_FOWNER,
        CAP_MKNOD,
        CAP_NET_RAW,
        CAP_SETGID,
        CAP_SETUID,
        CAP_SETFCAP,
        CAP_SETPCAP,
        CAP_NET_BIND_SERVICE,
        CAP_SYS_CHROOT,
        CAP_KILL,
        CAP_AUDIT_WRITE,
    ]
    .iter()
    .fold(0, |all, one| all | one.bitmask())
}

/// Kept for later commands.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub confinement: Confinement,
    pub user: (u32, u32),
    /// Supplementary.
    pub groups: Vec<u32>,
    /// Only that one id is mapped, as for an ordinary user.
    pub is_single: bool,
    /// setrlimit(2).
    pub rlimits: Vec<(Resource, Rlimit)>,
    pub landlock: Landlock,
    pub environment: Vec<(OsString, OsString)>,
    pub directory: PathBuf,
    /// `None` for all.
    pub affinity: Option<Vec<u64>>,
}

impl Entry {
    pub(super) fn command(&self, directory: PathBuf, vectors: Vectors) -> Result<process::Command> {
        let (identity, landlock, seccomp) = self.confine()?;
        let mut attributes = Attributes::default();
        attributes.affinity.clone_from(&self.affinity);
        Ok(process::Command {
            identity,
            attributes,
            rlimits: self.rlimits.clone(),
            landlock,
            seccomp,
            directory,
            vectors,
            handed: None,
            errand: None,
            outlives_parent: false,
            preserved: 0,
            home_is_missing: false,
            gate: None,
            hooks: Vec::new(),
            state: State::default(),
            controlling_terminal: true,
            shows_listener: false,
        })
    }

    /// Refuses an id outside of the sandbox's map, or of brig's processes.
    pub(super) fn of_user(&self, (uid, gid, groups): (u32, u32, Vec<u32>)) -> Result<Entry> {
        let refuse = |words: String, hint: &str| Err(Error::new(Kind::Identity, words).hint(hint));
        if (uid, gid) == self.user && (self.is_single || groups.iter().all(|group| self.groups.contains(group))) {
            // An ordinary user's sandbox cannot set groups.
            return Ok(if self.is_single { self.clone() } else { Entry { groups, ..self.clone() } });
        }
        if self.is_single {
            let words = format!(
                "an ordinary user's sandbox has the one user {} and the one group {}",
                self.user.0, self.user.1
            );
            return refuse(words, "leave --user out, or run the task as root");
        }
        if !matches!(self.confinement, Confinement::Agent | Confinement::Sharing | Confinement::Root) {
            return refuse("the backend decides about the users of its sandbox".to_owned(), "leave --user out");
        }
        let largest = groups.iter().chain([&uid, &gid]).max().copied().unwrap_or_default();
        if largest >= crate::container::IDS {
            let words = format!("the id {largest} is beyond the {} ids that a sandbox has", crate::container::IDS);
            return refuse(words, "name another user of the sandbox");
        }
        if OWN_USERS.contains(&uid) && !weaken::is_off("exec-user") {
            return refuse(
                format!("the user id {uid} belongs to brig's own processes"),
                "name another user of the sandbox",
            );
        }
        Ok(Entry { user: (uid, gid), groups, ..self.clone() })
    }

    fn confine(&self) -> Result<(Identity, Option<Landlock>, Cow<'static, seccomp::Program>)> {
        let (uid, gid) = self.user;
        let groups = self.groups.clone();
        let open = |identity| (identity, None, Cow::Owned(seccomp::Program::empty()));
        let confined = |filter| {
            let identity = Identity { groups: groups.clone(), ..Identity::powerless(uid, gid) };
            (identity, Some(self.landlock.clone()), Cow::Borrowed(filter))
        };
        Ok(match self.confinement {
            Confinement::Agent => confined(seccomp::profile::agent()?),
            Confinement::Sharing => confined(seccomp::profile::sharing()?),
            Confinement::Root => {
                let limit = dockers_capabilities();
                let own = if uid == 0 { limit } else { 0 };
                let capabilities =
                    Capabilities { bounding: limit, effective: own, permitted: own, ..Capabilities::default() };
                let identity = Identity { uid, gid, groups, capabilities, ..Identity::default() };
                (identity, Some(self.landlock.clone()), Cow::Borrowed(seccomp::profile::root_inside()?))
            }
            // In the cell's user namespace, with power only over the cell.
            Confinement::Cell { .. } => open(Identity { capabilities: EVERY, ..Identity::powerless(0, 0) }),
            Confinement::Nothing => {
                let capabilities = if uid == 0 { EVERY } else { Capabilities::default() };
                open(Identity { uid, gid, groups, umask: None, capabilities, ..Identity::default() })
            }
        })
    }
}
