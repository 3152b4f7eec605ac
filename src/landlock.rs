//! Landlock: a second fence around files, abstract sockets and signals, even if a mount is wrong. See landlock(7) and
//! Documentation/userspace-api/landlock.rst.
//!
//! It runs after the mounts (a restricted process cannot mount) and before seccomp.

use crate::error::{Error, Kind, Result};
pub(crate) use crate::host::{landlock_abi as abi, landlock_lacks as lacks};
use crate::spec::landlock::{ANNOTATION, Access, Landlock};
use crate::sys::weaken;
use ::landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The kernel applies the part of this ABI that it has.
const NEWEST: ABI = ABI::V6;

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforced {
    Fully,
    /// An older kernel: the file rules hold, others are missing: see [`lacks`].
    Partly,
    /// The kernel lacks Landlock, and the rules are optional.
    Not,
}

/// Refuses a kernel that enforces only a part, unless the rules are optional.
pub(crate) fn check(rules: &Landlock) -> Result<()> {
    match lacks().filter(|_| !rules.optional) {
        Some(lack) => Err(Error::new(Kind::Landlock, format!("this kernel has {lack}"))
            .doing(format!("enforce `{ANNOTATION}`"))
            .hint("run a kernel of 6.12 or newer; or accept what this one has: agent,optional, or \"optional\": true beside rules")),
        None => Ok(()),
    }
}

/// Counts the domains around this process: fills the kernel's limit (LANDLOCK_MAX_NUM_LAYERS), so this process can do
/// nothing with files afterwards. Sets no_new_privs.
pub(crate) fn layers() -> u32 {
    const MOST: u32 = 16;
    let nothing = Landlock { rules: Vec::new(), optional: false };
    if abi().is_none() {
        return 0;
    }
    let added = (0..MOST).take_while(|_| restrict(&nothing, true).is_ok()).count();
    MOST.saturating_sub(added as u32)
}

/// Fails without Landlock in the kernel, unless the rules are optional. Needs no_new_privs, which it sets if
/// `gains_nothing`, or CAP_SYS_ADMIN in the user namespace.
pub(crate) fn restrict(rules: &Landlock, gains_nothing: bool) -> Result<Enforced> {
    if weaken::is_off("landlock") {
        return Ok(Enforced::Not);
    }
    let failed = |cause: String| Error::new(Kind::Landlock, cause).doing("restrict files with Landlock");
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(|cause| failed(cause.to_string()))?;
    for rule in &rules.rules {
        // Not the crate's PathFd: on musl the standard library drops O_PATH as a part of O_ACCMODE. Then a folder that
        // only its owner can read could not be opened.
        let place = match rustix::fs::open(&rule.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(place) => place,
            // A missing path needs no permission.
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(cause) => return Err(failed(format!("`{}`: {cause}", rule.path.display()))),
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(place, rights(rule.access)))
            .map_err(|cause| failed(format!("`{}`: {cause}", rule.path.display())))?;
    }
    let status = ruleset.no_new_privs(gains_nothing).restrict_self().map_err(|cause| failed(cause.to_string()))?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(Enforced::Fully),
        RulesetStatus::PartiallyEnforced => Ok(Enforced::Partly),
        RulesetStatus::NotEnforced if rules.optional => Ok(Enforced::Not),
        RulesetStatus::NotEnforced => Err(failed("this kernel has no Landlock".into())
            .hint("boot with `lsm=landlock,…` on a kernel of 5.13 or newer, or pass --allow-degraded landlock")),
    }
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    match access {
        Access::ReadExecute => AccessFs::from_read(NEWEST),
        Access::Write => AccessFs::from_all(NEWEST) & !AccessFs::IoctlDev,
        Access::Device => AccessFs::from_read(NEWEST) | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate,
    }
}
