//! What this machine's cgroups can do for a container, found out without making one.

use crate::cgroup::{Hierarchy, Purpose};
use crate::error::Result;
use crate::spec::resources::Resources;

/// The cgroups of this machine, and what of some limits they cannot enforce.
#[derive(Debug)]
pub(crate) struct Possible {
    /// The layout in words.
    pub groups: String,
    /// Each limit that cannot be had: its name, the reason, and what to do, one action.
    pub refused: Vec<(&'static str, String, String)>,
}

/// Asks what a start with `limits` would ask, and changes nothing.
pub(crate) fn possible(limits: &Resources) -> Result<Possible> {
    let hierarchy = Hierarchy::probe()?;
    let refusals = hierarchy.refusals(Purpose::Task, limits)?;
    let refused = refusals.into_iter().map(|refusal| (refusal.limit, refusal.reason, refusal.fix)).collect();
    Ok(Possible { groups: hierarchy.description(), refused })
}
