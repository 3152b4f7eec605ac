//! The agent's commits, taken by their id out of its object store into a file of our own.
//!
//! The store is hostile: loose objects, packs, alternates, everything in it may be made to break whoever reads it. A courier without network
//! copies objects by their names into a new store, makes a bundle of what is new since the base, and takes that in again in another new store, which
//! checks every object and that nothing is missing (git-fsck(1)). Configuration, hooks, alternates and references of the agent's are not looked at.

use super::GitJob;
use super::courier::Courier;
use super::shell::OVER_BASE;
use crate::error::{Context, Kind, Result, Step};
use crate::files;
use crate::sandbox;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Makes `out/commits.bundle`: the commit on one branch, without what the base has. Nothing of the agent's is an argument but the id.
const MAKE: &str = r#"
printf '[safe]\n\tdirectory = *\n' > ~/.gitconfig
over_base taken "$@"
if [ -d /taken ]; then
    hex='[0-9a-f][0-9a-f]'
    for folder in /taken/$hex; do
        if [ -L "$folder" ] || [ ! -d "$folder" ]; then continue; fi
        mkdir -p "taken/objects/${folder##*/}"
        find "$folder" -maxdepth 1 -type f -regex '.*/[0-9a-f]*' -exec cp -n -t "taken/objects/${folder##*/}" {} +
    done
    for pack in /taken/pack/pack-*.pack; do
        if [ -f "$pack" ] && [ ! -L "$pack" ]; then git "$@" --git-dir=taken index-pack --stdin --fix-thin --strict < "$pack" >/dev/null; fi
    done
fi
if ! git --git-dir=taken rev-parse --verify --quiet --end-of-options "$COMMIT^{commit}" >/dev/null; then
    echo "the commit is not in the workspace" >&2; exit 1
fi
mkdir out
if git --git-dir=taken merge-base --is-ancestor "$COMMIT" "$BASE"; then exit 0; fi
git --git-dir=taken update-ref "refs/heads/$BRANCH" "$COMMIT"
git "$@" --git-dir=taken bundle create --quiet out/commits.bundle "refs/heads/$BRANCH" "^$BASE"
over_base checked "$@"
git "$@" --git-dir=checked fetch --quiet --no-tags --no-auto-gc "$PWD/out/commits.bundle" "+refs/heads/$BRANCH:refs/heads/checked"
[ "$(git --git-dir=checked rev-parse refs/heads/checked)" = "$COMMIT" ]
git "$@" --git-dir=checked fsck --strict --no-dangling --connectivity-only refs/heads/checked >/dev/null
"#;

/// The folder of the file, below the task's directory: a courier that pushes sees nothing else of the task.
pub(crate) const DIRECTORY: &str = "commits";
const NAME: &str = "commits.bundle";

/// What the commits are taken from.
pub(crate) struct Work<'run> {
    /// The checkout that the workspace began as.
    pub base: &'run Path,
    /// The commit of it.
    pub base_commit: &'run str,
    /// The plain copies of what changed.
    pub changes: &'run Path,
    /// The commit that is wanted.
    pub commit: &'run str,
    /// The branch's name in the bundle.
    pub branch: &'run str,
}

/// Makes the bundle of an ended workspace's commits, in the task's directory; `None` if all of them are in the base.
pub(crate) fn bundle(errand: &GitJob<'_>, work: &Work<'_>) -> Result<Option<PathBuf>> {
    let task = errand.store.task(errand.id);
    let unfinished = task.join(".new-bundle");
    let finished = task.join(DIRECTORY);
    let objects = work.changes.join("files/.git/objects");
    let mut courier = Courier::new(errand, &format!("{OVER_BASE}{MAKE}"))
        .show(work.base, "/base")
        .with("BASE", work.base_commit)
        .with("COMMIT", work.commit)
        .with("BRANCH", work.branch);
    if objects.is_dir() {
        courier = courier.show(&objects, "/taken");
    }
    let out = Path::new(sandbox::FILES).join("out");
    let mut collect = |scratch: BorrowedFd<'_>| {
        // One that a killed run left.
        if unfinished.exists() {
            files::remove_directory(&unfinished).failing(Kind::Store, || "remove an unfinished bundle")?;
        }
        match crate::task::output::tree::copy(scratch, &out, &unfinished) {
            // A courier that failed has made nothing; its own words say why.
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(()),
            copied => copied,
        }
    };
    let made = courier.run(Some(&mut collect)).and_then(|_| {
        if finished.exists() {
            files::remove_directory(&finished).failing(Kind::Store, || "replace the bundle of the commits")?;
        }
        std::fs::rename(&unfinished, &finished).failing(Kind::Store, || "keep the bundle of the commits")
    });
    if made.is_err() {
        // Nobody looks at what is left of one that failed.
        let _ = files::remove_directory(&unfinished);
    }
    made.doing(|| format!("take the commit `{}` out of the workspace", work.commit))?;
    let bundle = finished.join(NAME);
    Ok(bundle.exists().then_some(bundle))
}
