//! `brig task export` and `push`: a task's changes to a folder, an archive or a remote.

use super::flags::{PUSHED, SettingFlags};
use crate::cli::output;
use brig::error::{Context, Error, Kind, Result, Step};
use brig::sandbox::counted;
use brig::task::{PatchOptions, PushState, Store};
use clap::Args;
use rustix::termios::isatty;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write what a task did to a file: its changes as a patch, or its commits as a git bundle
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task export 1a2b -o work.patch && git apply work.patch
  brig task export 1a2b -o docs.patch -- docs
  brig task export 1a2b --bundle -o work.bundle && git fetch work.bundle 'refs/heads/*:refs/heads/agent/*'

A bundle has the commits that the repository did not have, each object checked; nothing of the agent's configuration or hooks is in it.")]
pub(super) struct ExportArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// The changed files, for `git apply`, binary ones whole [default]
    #[arg(long, conflicts_with = "bundle")]
    patch: bool,
    /// The commits, for `git fetch FILE`
    #[arg(long)]
    bundle: bool,
    /// Also if a secret of the task's stands in a changed file
    #[arg(long)]
    with_secrets: bool,
    /// Write to this file, which must not be there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    paths: super::diff::Paths,
}

pub(super) fn export(store: &Store, arguments: &ExportArguments) -> Result<ExitCode> {
    if arguments.output.is_some() {
        brig::task::refuse_host_path(
            "`export -o` would make a file of the host",
            "leave -o out, and redirect the output",
        )?;
    }
    if arguments.bundle && !arguments.paths.is_all() {
        return Err(Error::new(Kind::Usage, "paths and `--exclude` select files; a bundle has whole commits")
            .hint("leave out --bundle for a patch of these files, or leave out the paths"));
    }
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if !arguments.with_secrets {
        check_secrets(store, &id, arguments)?;
    }
    let mut out: Box<dyn Write> = match &arguments.output {
        Some(path) => Box::new(
            std::fs::File::create_new(path)
                .failing(Kind::Store, || format!("make the file `{}`", path.display()))
                .hint(|| "name a file that is not there yet, in a folder that you can write")?,
        ),
        None if isatty(rustix::stdio::stdout()) => {
            return Err(Error::new(Kind::Usage, "a terminal is no place for it").hint("name a file: -o FILE"));
        }
        None => Box::new(output::Patient(std::io::stdout().lock())),
    };
    let written = write(store, &id, arguments, &mut out);
    if let (Err(_), Some(path)) = (&written, &arguments.output) {
        // The error is on its way; half a file is worse than none.
        let _ = std::fs::remove_file(path);
    }
    written.map(|()| ExitCode::SUCCESS)
}

/// Refuses what would carry a secret on; the value itself nobody has any more, so what is exported cannot be redacted.
fn check_secrets(store: &Store, id: &str, arguments: &ExportArguments) -> Result<()> {
    if arguments.bundle {
        return refuse_secrets(store, id, "export", "export");
    }
    refuse(&brig::task::secrets_in(store, id, &arguments.paths.selection())?, id, ("export", "export"))
}

/// Refuses to let commits out of a task with a secret in a changed file.
fn refuse_secrets(store: &Store, id: &str, doing: &str, verb: &str) -> Result<()> {
    let changes = store.receipt(id)?.and_then(|receipt| receipt.changes);
    let lists = changes.map(|changes| [changes.secrets, changes.unsearched]).unwrap_or_default();
    refuse(&lists, id, (doing, verb))
}

fn refuse([found, unsearched]: &[Vec<String>; 2], id: &str, (doing, verb): (&str, &str)) -> Result<()> {
    let (words, all) = match found.is_empty() {
        false => ("a secret is in the changed file", found),
        true => ("the time was too short to search for secrets in the changed file", unsearched),
    };
    let Some(first) = all.first() else { return Ok(()) };
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    Err(Error::new(Kind::Secret, format!("{words} `{}`{more}", first.escape_debug()))
        .doing(format!("{doing} the task `{id}`"))
        .hint(format!("look at them: `brig task diff ID`; {verb} them all the same with --with-secrets")))
}

fn write(store: &Store, id: &str, arguments: &ExportArguments, out: &mut dyn Write) -> Result<()> {
    if arguments.bundle {
        let exported = brig::task::export_bundle(store, id)?;
        let step = || "write the bundle";
        let mut file = std::fs::File::open(&exported.path).failing(Kind::Store, step)?;
        std::io::copy(&mut file, out).failing(Kind::Store, step)?;
        let words = format!("commit {} on refs/heads/{}", exported.commit, exported.branch);
        tell!("brig: {}", output::escaped(&words));
    } else {
        let options = PatchOptions { include_git: false, binary: true, selection: arguments.paths.selection() };
        let notes = brig::task::patch(store, id, &options, out)?;
        if let Some(first) = notes.base_changed.first() {
            return Err(incomplete(id, first, notes.base_changed.len()));
        }
        for path in &notes.edited_meanwhile {
            let words = super::diff::edited_meanwhile(path);
            tell!("brig: {}", output::escaped(&words));
        }
        tell!("brig: {}", counted(notes.files as u64, "file", "files"));
        if let Some(words) = super::diff::not_selected(notes.not_selected, "in the patch") {
            tell!("brig: {words}");
        }
        super::tell_not_taken(store, id)?;
    }
    out.flush().failing(Kind::Store, || "write the file")
}

/// A patch says what a file was before, so a file that was changed since cannot be in it. Half of the work is worse than none.
fn incomplete(id: &str, first: &str, count: usize) -> Error {
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    Error::new(Kind::State, format!("what `{first}`{more} was made from has changed since the task began"))
        .doing(format!("export the changes of the task `{id}`"))
        .hint("put it back as it was, or apply the rest: brig task apply ID names what is in the way; brig task diff ID leaves it out")
}

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
pub(super) struct PushArguments {
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

pub(super) fn push(store: &Store, arguments: PushArguments) -> Result<ExitCode> {
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
    output::line(&words);
    for left in &pushed.left_behind {
        tell!("brig: not pushed: {}", output::escaped(left));
    }
    Ok(ExitCode::SUCCESS)
}
