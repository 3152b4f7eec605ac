//! `brig task apply`

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::sandbox::counted;
use brig::task::{ApplyOptions, Store};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a task's changes in the folder or repository that it worked on; all of them or none
#[derive(Args, Default)]
#[command(after_help = "\
What is in `.git` is never applied, nor is a link that leads out of the folder. A path that is not
as the task found it is a conflict, and nothing is written. --merge joins both edits of a text where
they are of different lines. For an edit that you made while the task ran, it needs what the file was
before: that is known of files that git tracks (docs/git.md). --force overwrites such paths, and takes
what is there of changes that were too many to be collected whole.
Of some paths (`-- PATH…`, --exclude) all or none is applied too; the rest can be applied later.
Look at `brig task diff ID` and `brig task diff ID --stat` first: it is text from a sandbox.")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// Make them in this folder instead
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Check only, and tell what would be done; exit 1 if something is in the way
    #[arg(long)]
    dry_run: bool,
    /// Overwrite what was changed meanwhile
    #[arg(long)]
    force: bool,
    /// Join the task's edits with those that were made meanwhile, where they are of different lines
    #[arg(long, conflicts_with = "force")]
    merge: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    paths: super::diff::Paths,
}

impl Arguments {
    /// All changes of a task, without any of the flags.
    pub(super) fn of(id: &str) -> Arguments {
        Arguments { id: id.to_owned(), ..Arguments::default() }
    }
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    let into =
        arguments.into.as_ref().map(std::path::absolute).transpose().map_err(|cause| Error::os(Kind::Usage, cause))?;
    let options = ApplyOptions {
        dry_run: arguments.dry_run,
        force: arguments.force,
        merge: arguments.merge,
        selection: arguments.paths.selection(),
    };
    let applied = brig::task::apply(store, &id, into.as_deref(), &options)?;
    if arguments.json {
        output::json(&applied);
    } else {
        let is_merged = |path: &String| if applied.merged.contains(path) { "merge" } else { "change" };
        let changed = applied.changed.iter().map(|path| (is_merged(path), path.clone(), ""));
        // A commit alone is many files.
        let is_in_git = |path: &str| path.split('/').any(|part| part == ".git");
        let (in_git, out): (Vec<_>, Vec<_>) = applied.left_out.iter().partition(|(path, _)| is_in_git(path));
        let out = out.into_iter().map(|(path, why)| ("left out", path.clone(), *why));
        let conflicts = applied.conflicts.iter().map(|(path, how)| ("conflict", path.clone(), *how));
        output::lines(changed.chain(out).chain(conflicts).map(|(word, path, why)| {
            format!("{word:8}  {}{}{why}", output::escaped(&path), if why.is_empty() { "" } else { ": " })
        }));
        if !in_git.is_empty() {
            tell!("brig: {} in `.git` left out", counted(in_git.len() as u64, "change", "changes"));
        }
        let words = if arguments.dry_run { "would be changed" } else { "changed" };
        tell!(
            "brig: {} {words} in {}, {} as they should be already",
            applied.changed.len(),
            output::escaped(&applied.tree.display().to_string()),
            applied.already
        );
        if let Some(words) = super::diff::not_selected(applied.not_selected, "selected, and can be applied later") {
            tell!("brig: {words}: brig task apply {id}");
        }
    }
    super::tell_not_taken(store, &id)?;
    if let Some(receipt) =
        store.receipt(&id)?.filter(|receipt| receipt.commit_out.is_some() && receipt.commit_out != receipt.commit_in)
    {
        tell!(
            "brig: its commits are not applied, only their files; to have the commits: brig task export {} --bundle -o FILE && git fetch FILE",
            receipt.id
        );
    }
    let stopped = arguments.dry_run && !arguments.force && !applied.conflicts.is_empty();
    Ok(if stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
