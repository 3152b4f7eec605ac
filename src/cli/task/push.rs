//! `brig task push`

use super::flags::{PUSHED, SettingFlags};
use crate::cli::output;
use brig::error::Result;
use brig::task::{PushState, Store};
use clap::Args;
use std::process::ExitCode;

/// Push the commits of an ended task: once more after a push that failed, or for the first time
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task push k3f                                       the branch that the task was to push to
  brig task push k3f --push-branch agent/fix --git-credential env:TOKEN
  brig task push k3f --push-to https://example.com/repo.git --push-branch agent/fix

The commits of a task with --repo go to that repository. For a task with --dir name a repository: --push-to. A push is
fast-forward only; a second one finds nothing new. The commits are checked, and git runs in a sandbox. Secrets for git are
given again, unless they come from a profile that has not changed.")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The repository for the commits of a task with --dir: a path, https://…, ssh://… or user@host:path
    #[arg(long, value_name = "PATH|URL")]
    push_to: Option<String>,
    /// Also if a secret of the task's is in a changed file
    #[arg(long)]
    with_secrets: bool,
    #[command(flatten)]
    flags: SettingFlags<PUSHED>,
}

pub(super) fn main(store: &Store, arguments: Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if !arguments.with_secrets {
        super::export::refuse_secrets(store, &id, "push the commits of", "push")?;
    }
    let pushed = brig::task::push_commits(store, &id, arguments.push_to.as_deref(), &arguments.flags.0)?;
    let (commit, branch) = (&pushed.commit, &pushed.branch);
    let words = match pushed.state {
        PushState::Pushed => format!("{commit} is on the branch `{branch}`"),
        PushState::UpToDate => format!("nothing new: {commit} is on the branch `{branch}` already"),
        _ => "nothing new: the task made no commit".to_owned(),
    };
    output::lines([output::escaped(&words)]);
    for left in &pushed.left_behind {
        tell!("brig: not pushed: {}", output::escaped(left));
    }
    Ok(ExitCode::SUCCESS)
}
