//! `brig task diff`

use crate::cli::output;
use brig::error::{Error, Kind, Result};
use brig::task::{PatchOptions, Selection, Store};
use clap::Args;
use rustix::termios::isatty;
use std::ffi::OsString;
use std::process::ExitCode;

/// Show what a task changed in its workspace, as a patch for `git apply` or `patch -p1`
#[derive(Args, Default)]
#[command(after_help = "\
Examples:
  brig task diff 1a2b -- src docs/guide.md
  brig task diff 1a2b --exclude '*.lock' -- '*.rs'

Not taken out of a workspace, and told: devices, sockets and FIFOs, files over 2 GiB, what is over 16 GiB or 500,000 names in all.

The exit status is 1 if a changed file is missing in the patch: what it was made from has changed, and no
copy of that was kept (of binary files, of those over 16 MiB, and of what is over 256 MiB in all).")]
pub(super) struct Arguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// List the paths instead, with those that could run later on a host
    #[arg(long)]
    stat: bool,
    /// Print the paths of --stat as JSON
    #[arg(long, requires = "stat")]
    json: bool,
    /// Put binary files in whole
    #[arg(long, conflicts_with = "stat")]
    binary: bool,
    /// Show what is in `.git` too; `git apply` takes none of that
    #[arg(long)]
    include_git: bool,
    #[command(flatten)]
    paths: Paths,
}

impl Arguments {
    /// The whole patch of a task.
    pub(super) fn of(id: &str) -> Arguments {
        Arguments { id: id.to_owned(), ..Arguments::default() }
    }
}

pub(super) fn main(store: &Store, arguments: &Arguments) -> Result<ExitCode> {
    brig::task::reap(store)?;
    let id = store.find(&arguments.id)?;
    if arguments.json && !arguments.stat {
        return Err(
            Error::new(Kind::Usage, "--json is the form of the list of --stat").hint("add --stat, or leave --json out")
        );
    }
    if arguments.stat {
        let rows = brig::task::changed_paths(store, &id, arguments.include_git, &arguments.paths.selection())?;
        if arguments.json {
            output::json(&rows);
        } else {
            let cells = rows
                .iter()
                .map(|row| [row.change.to_owned(), row.path.clone(), row.runnable.unwrap_or_default().to_owned()]);
            output::table(["CHANGE", "PATH", "COULD RUN LATER"], cells);
        }
        super::tell_not_taken(store, &id)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (binary, selection) = (arguments.binary, arguments.paths.selection());
    let options = PatchOptions { include_git: arguments.include_git, binary, selection };
    let out = output::Patient(std::io::stdout().lock());
    let notes = if isatty(rustix::stdio::stdout()) {
        let mut safe = output::Safe::new(out);
        let notes = brig::task::patch(store, &id, &options, &mut safe);
        safe.finish();
        notes?
    } else {
        let mut out = out;
        brig::task::patch(store, &id, &options, &mut out)?
    };
    let noted = notes.noted.iter().map(|path| format!("`{path}` is binary or too large: only a note is in the patch"));
    let changed = notes
        .base_changed
        .iter()
        .map(|path| format!("`{path}` is not in the patch: what it was made from has changed"));
    let since = notes.edited_since.iter();
    let since =
        since.map(|path| format!("`{path}` has changed since: the patch is for what it was (brig task apply --merge)"));
    let meanwhile = notes.edited_meanwhile.iter().map(|path| edited_meanwhile(path));
    let git =
        (notes.in_git > 0).then(|| format!("{} changes in .git are not in the patch (--include-git)", notes.in_git));
    let rest = not_selected(notes.not_selected, "in the patch");
    let is_whole = notes.base_changed.is_empty();
    noted
        .chain(changed)
        .chain(since)
        .chain(meanwhile)
        .chain(git)
        .chain(rest)
        .for_each(|line| tell!("brig: {}", output::escaped(&line)));
    super::tell_not_taken(store, &id)?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The words about a file whose base is not known.
pub(super) fn edited_meanwhile(path: &str) -> String {
    format!(
        "`{path}` was edited while the agent ran, and what it was at the start is not known: the patch removes what of that edit the agent did not see"
    )
}

/// Which changes.
#[derive(Args, Default)]
pub(super) struct Paths {
    /// Leave out what matches this pattern of gitignore(5); may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Only these files and folders of the workspace, or patterns of gitignore(5); one that matches no change is an error
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Paths {
    pub(super) fn selection(&self) -> Selection {
        Selection { paths: self.paths.clone(), exclude: self.exclude.clone() }
    }

    /// Whether all changes are meant.
    pub(super) fn is_all(&self) -> bool {
        self.paths.is_empty() && self.exclude.is_empty()
    }
}

/// What is not selected, in words.
pub(super) fn not_selected(count: usize, verb: &str) -> Option<String> {
    let changes = if count == 1 { "change is" } else { "changes are" };
    (count > 0).then(|| format!("{count} other {changes} not {verb}"))
}
