//! Applies a record, which may have been edited, and its copies to the user's tree.
//!
//! 1. Check all entries ([`super::check`]).
//! 2. Stage all new content in the target ([`super::commit`]).
//! 3. Delete, make directories, move files and links.
//!
//! Never: a link followed, a byte outside the target, `.git` without the option.

use super::applied::{Applied, Conflict, Difference, Options};
use super::check;
use super::commit;
use super::merge;
use super::record::Changes;
use super::store::Store;
use crate::error::{Error, Kind, Result, Step};
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;

const LISTED: usize = 20;

/// Applies all recorded changes, or none.
///
/// `base` is the tree that the task began with, for a merge.
pub(crate) fn apply(
    changes: &Changes,
    into: &Path,
    (base, target): (Option<BorrowedFd<'_>>, BorrowedFd<'_>),
    options: Options,
) -> Result<Applied> {
    let step = || format!("apply the changes in `{}`", into.display());
    if !changes.complete && !options.force && !options.dry_run {
        return Err(Error::new(Kind::State, "the record is incomplete: a limit was hit when it was made")
            .doing(step())
            .hint("apply with --force to take the part that is there"));
    }
    let mut plan = check::check(changes, target, options).doing(step)?;
    if options.merge {
        merge::resolve(&mut plan, changes, into, (base, target));
    }
    let in_the_way =
        plan.applied.conflicts.iter().filter(|conflict| !(options.force && conflict.difference.yields_to_force()));
    if !options.dry_run {
        refuse(&in_the_way.collect::<Vec<_>>()).doing(step)?;
        let store = Store::open(into)?;
        commit::commit(&plan, &store, target).doing(step)?;
    }
    Ok(plan.applied)
}

fn refuse(conflicts: &[&Conflict]) -> Result<()> {
    if conflicts.is_empty() {
        return Ok(());
    }
    let mut words = String::from("the tree is not as the agent found it: ");
    for (index, conflict) in conflicts.iter().take(LISTED).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(words, "{comma}`{}` {}", conflict.path, conflict.difference.words());
    }
    if conflicts.len() > LISTED {
        let _ = write!(words, ", and {} more", conflicts.len() - LISTED);
    }
    let error = Error::new(Kind::State, words);
    let can_force = conflicts.iter().all(|conflict| conflict.difference.yields_to_force());
    let can_merge = conflicts.iter().any(|conflict| conflict.difference == Difference::Changed);
    let meanwhile = conflicts.iter().find(|conflict| conflict.difference == Difference::EditedMeanwhile);
    Err(if let (Some(conflict), true) = (meanwhile, can_force) {
        error.hint(format!(
            "what it was at the start is not known, so it cannot be merged; known is what git tracks, if the agent ran for some seconds before the \
             edit. Leave it out with `--exclude '/{}'`, or apply to a checkout of what the task began with and merge there: --into DIR --force",
            conflict.path
        ))
    } else if can_force && can_merge {
        error.hint("join both edits with --merge, overwrite with --force, or apply to a copy of the folder: --into DIR")
    } else if can_force {
        error.hint("look at the patch, then overwrite with --force, or apply to a copy of the folder: --into DIR")
    } else {
        error.hint("move these away first")
    })
}
