//! What holds a command of a sandbox: the same for its first one and for those that enter later.

use crate::error::Result;
use crate::process::{Capabilities, Identity};
use crate::seccomp;
use crate::spec::Confinement;
use crate::spec::landlock::Landlock;
use std::borrow::Cow;

/// Who a command is, and its two fences.
pub(super) struct Held {
    pub identity: Identity,
    pub landlock: Option<Landlock>,
    pub seccomp: Cow<'static, seccomp::Program>,
}

const EVERY: Capabilities = {
    let all = u64::MAX;
    Capabilities { bounding: all, effective: all, permitted: all, inheritable: 0, ambient: 0 }
};

impl Held {
    /// For a sandbox whose user has these ids and groups.
    pub(super) fn by(
        confinement: &Confinement,
        (uid, gid): (u32, u32),
        groups: &[u32],
        landlock: &Landlock,
    ) -> Result<Held> {
        let open = |identity| Held { identity, landlock: None, seccomp: Cow::Owned(seccomp::Program::empty()) };
        Ok(match confinement {
            Confinement::Agent => Held {
                identity: Identity { groups: groups.to_vec(), ..Identity::powerless(uid, gid) },
                landlock: Some(landlock.clone()),
                seccomp: Cow::Borrowed(seccomp::profile::agent()?),
            },
            // All of it in the cell's user namespace, which has power over nothing that is not the cell's own.
            Confinement::Cell { .. } => open(Identity { capabilities: EVERY, ..Identity::powerless(0, 0) }),
            Confinement::Nothing => open(Identity {
                uid,
                gid,
                groups: groups.to_vec(),
                born_with_groups: false,
                umask: None,
                capabilities: if uid == 0 { EVERY } else { Capabilities::default() },
                no_new_privileges: false,
            }),
        })
    }
}
