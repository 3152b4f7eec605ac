//! The name of a new task, and the end of its earlier holder.

use crate::error::{Result, Step};
use crate::task::definition::naming::Naming;
use crate::task::ended::reconcile;
use crate::task::store::{Status, Store};

/// Ends and removes the task that has the name, if the definition replaces it. Everything else is checked before: a
/// refused task ends no other.
pub(super) fn replace_holder(store: &Store, naming: &Naming) -> Result<()> {
    let Some(name) = naming.name.as_deref().filter(|_| naming.replaces) else { return Ok(()) };
    let Some(holder) = store.named(name) else { return Ok(()) };
    let step = || format!("replace the task `{holder}`, which has the name `{name}`");
    if store.status(&holder)? == Status::Running {
        // It may end by itself meanwhile, with a receipt.
        let asked = store.reach(&holder).and_then(|live| live.stop(None));
        if store.status(&holder)? == Status::Running {
            asked.doing(step)?;
        }
        store.wait(&holder, None).doing(step)?;
    }
    reconcile::reap(store)?;
    if store.task(&holder).exists() {
        store.remove(&holder).doing(step)?;
    }
    Ok(())
}

/// Returns the name that the task gets. An optional name that another running task has is left out.
pub(super) fn claim(store: &Store, naming: &Naming, id: &str) -> Result<Option<String>> {
    let Some(name) = &naming.name else { return Ok(None) };
    match store.claim_name(name, id) {
        Err(_) if naming.is_optional => Ok(None),
        done => done.map(|()| Some(name.clone())),
    }
}
