//! Pushes an ended task's commits, for the first time or after a failed push.
//!
//! The steps are those at the end of a task: commits are copied by id into a checked bundle, which a courier pushes. A
//! push is fast-forward only, so it may be repeated.

use super::export::{EXPORT_LOCK, bundle_of, hold_base, work_of};
use super::keep::unchanged_profile;
use super::reconcile::begin_again;
use crate::error::{Error, Kind, Result, Step};
use crate::sandbox::Limits;
use crate::task::definition::hosted::admit;
use crate::task::definition::settings::{GivenFlags, set_each};
use crate::task::definition::{Definition, WorkspaceSource, plan};
use crate::task::git::{self, Base, Budget, GitJob, Push, PushOptions, PushState, Remote};
use crate::task::output::folder_snapshot::FolderIdentity;
use crate::task::records::record::Record;
use crate::task::redact::Redactor;
use crate::task::store::{Store, json};
use serde::Serialize;
use std::cell::RefCell;

/// A push of an ended task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// Its result.
    pub state: PushState,
    /// The last commit of the workspace.
    pub commit: String,
    /// The remote branch.
    pub branch: String,
    /// What the commits name and a push leaves, as in [`Push`].
    pub left_behind: Vec<String>,
}

/// Pushes an ended task's commits to its own repository, or a folder's to `to`. `flags` name the branch and the way to
/// the remote. The receipt names the last push. Needs a process with one thread.
pub fn push_commits(store: &Store, id: &str, to: Option<&str>, flags: &GivenFlags) -> Result<Pushed> {
    crate::process::require_one_thread()?;
    let step = || format!("push the commits of `{id}`");
    let mut receipt = store.final_receipt(id).doing(step)?;
    let record = store.record(id)?;
    let mut definition = Definition::new(vec!["true".into()]);
    if let Some(profile) = unchanged_profile(&record) {
        definition.git = profile.git;
        definition.sandbox.network.policy.resolver = profile.sandbox.network.policy.resolver;
    }
    definition.workspace = WorkspaceSource::Repository { url: remote_of(&record, to).doing(step)?, reference: None };
    definition.sandbox.may_degrade = record.may_degrade.clone();
    let before = receipt.push.as_ref().map(|push| push.branch.clone());
    let before = before.or(definition.git.push.take().map(|push| push.branch));
    definition.git.push = before.map(|branch| PushOptions { branch, default_branch: false });
    set_each(flags, &mut definition)?;
    let Some(wanted) = definition.git.push.clone() else {
        let error = Error::new(Kind::Usage, "the task was not to push, so that it names no branch");
        return Err(error.doing(step()).hint("name one: --push-branch agent/NAME"));
    };
    // The machine's rules hold for the remote, its address and the secrets' sources, as for a new task.
    let admitted = admit(store, &definition)?;
    let is_hosted = admitted.is_some();
    let (definition, mut pinned) =
        admitted.map_or((definition, Default::default()), |admitted| (admitted.definition, admitted.pinned));
    plan::check_git(&definition).doing(step)?;
    let nothing = |why: &str, hint: &str| Err(Error::new(Kind::State, why.to_owned()).doing(step()).hint(hint));
    let Some(changes) = &receipt.changes else {
        return nothing("it ended without handing anything back", "see why: `brig task show ID`");
    };
    let Some(commit_in) = receipt.commit_in.clone() else {
        return nothing("it made no commit, or did not work on a repository", "see its changes: `brig task diff ID`");
    };
    let Some(base) = changes.base.clone().filter(|path| path.exists()) else {
        return nothing("the checkout or the folder that it began with is gone", "see `brig task diff ID`");
    };
    pinned.extend(hold_base(store, id, &base).doing(step)?);
    let head = work_of(&receipt, changes, &pinned.path(&base)).doing(step)?;
    let remote = plan::remote(&definition)?.ok_or_else(|| Error::new(Kind::Internal, "no remote"))?;
    let identity = match (&remote, &record.workspace) {
        (Remote::Local(_), WorkspaceSource::Repository { .. }) => record.folder.map(FolderIdentity::numbers),
        (Remote::Local(path), _) => Some(git::identity(&pinned.path(path))?),
        (Remote::Far(_), _) => None,
    };
    let (options, redactor) = (definition.git.pinned(&pinned, is_hosted), Redactor::new());
    let (account, budget) = (RefCell::default(), Budget::new(&Limits::default()));
    let errand = GitJob {
        store,
        id,
        may_degrade: &definition.sandbox.may_degrade,
        pinned: &pinned,
        options: &options,
        resolver: definition.sandbox.network.policy.resolver,
        account: &account,
        redactor: &redactor,
        progress: &|_| {},
        budget: &budget,
        control: &RefCell::default(), // the task has ended
    };
    // Against concurrent removal, export or push.
    let _lock = crate::files::Lock::wait(&store.task(id).join(EXPORT_LOCK))?;
    // After a kill the next command reaps the couriers.
    let _alive = begin_again(store, id)?;
    let mut push = Push::failed(&wanted.branch);
    push.bundle = receipt.push.take().and_then(|push| push.bundle); // a retry may end before it makes the bundle again
    let base = Base { path: base, commit: commit_in, identity };
    let done = (|| {
        if head.commit == base.commit {
            return Ok(PushState::NothingNew);
        }
        push.bundle = bundle_of(&errand, changes, (&base.path, &base.commit), &head.commit, &wanted.branch)?;
        match push.bundle {
            None => Ok(PushState::NothingNew),
            Some(_) => git::push(&errand, &remote, &wanted, &base, &head.commit, &mut push.left_behind),
        }
    })();
    match &done {
        Ok(state) => push.state = *state,
        Err(error) => push.error = Some(error.to_string()),
    }
    let left_behind = push.left_behind.clone();
    receipt.push = Some(push);
    json::write(&store.task(id).join("receipt.json"), &receipt)?;
    Ok(Pushed { state: done.doing(step)?, commit: head.commit, branch: wanted.branch, left_behind })
}

fn remote_of(record: &Record, to: Option<&str>) -> Result<String> {
    let usage = |why: &str, hint: &str| Err(Error::new(Kind::Usage, why.to_owned()).hint(hint));
    match (&record.workspace, to) {
        (WorkspaceSource::Repository { url, .. }, None) => Ok(url.clone()),
        (WorkspaceSource::Repository { .. }, Some(_)) => {
            usage("the commits of a clone go to its own repository", "leave --push-to out")
        }
        (WorkspaceSource::Directory(_), Some(to)) => Ok(git::absolute_repository(to)),
        (WorkspaceSource::Directory(_), None) => {
            usage("it worked on a folder, which names no repository", "name one: --push-to PATH or URL")
        }
        (WorkspaceSource::Empty, _) => usage("its workspace was empty, and has no repository", "use --repo or --dir"),
    }
}
