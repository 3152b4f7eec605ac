//! A checkout of one commit: made once, copied out by descriptors, then shown copy-on-write only.

use super::courier::Courier;
use super::mirror::Found;
use super::remote::{Remote, local_path, name_of};
use super::shell::{FETCH_MISSING, LFS_FROM, PACK_NAMES, most_names};
use super::{GitJob, mirror, submodule};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{self, Remains};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A checkout. No agent writes it.
pub(crate) struct Base {
    pub path: PathBuf,
    pub commit: String,
    /// Device and inode of a repository on this machine. A push goes only to that repository.
    pub identity: Option<(u64, u64)>,
}

/// Device and inode of a repository on this machine.
pub(crate) fn identity(path: &Path) -> Result<(u64, u64)> {
    let status = std::fs::metadata(path).map_err(|cause| {
        Error::os(Kind::Workspace, cause).doing(format!("open the repository `{}`", path.display()))
    })?;
    Ok((status.dev(), status.ino()))
}

/// The error of a push that goes to the default branch.
pub(super) fn to_default(branch: &str) -> Error {
    Error::new(Kind::Workspace, "it is the remote's default branch")
        .doing(format!("push to `{branch}`"))
        .hint("push to another one, or allow it by name: --push-default-branch")
}

/// Refuses a push to the default branch before the task runs.
fn check_push(errand: &GitJob<'_>, found: &Found) -> Result<()> {
    let Some(push) = errand.options.push.as_ref().filter(|push| !push.default_branch) else { return Ok(()) };
    let is_default = found.default.as_deref().and_then(|name| name.strip_prefix("refs/heads/")) == Some(&push.branch);
    if is_default { Err(to_default(&push.branch)) } else { Ok(()) }
}

/// Where the courier sees the repository.
const SOURCE: &str = "/source";

/// Clones the full history for the agent. No link to the source's objects: the agent could break them.
/// The other side of the clone is a second git process, which `-c` does not reach.
///
/// In a partial clone, fetches by id the contents that the commit itself needs. Without them git ignores the rest.
const CLONE: &str = r#"
printf '[safe]\n\tdirectory = *\n[uploadpack]\n\tallowAnySHA1InWant = true\n\tallowFilter = true\n' > ~/.gitconfig
fetch_from() { # URL COMMIT FILTER
    from=$1 commit=$2 filter=$3
    shift 3
    set -- "$@" fetch --quiet --no-tags --no-auto-gc
    if [ -n "$DEPTH" ]; then set -- "$@" --depth="$DEPTH"; else set -- "$@" --update-shallow; fi
    if [ -n "$filter" ]; then set -- "$@" --filter="$filter"; fi
    git "$@" -- "$from" '+refs/heads/*:refs/remotes/origin/*' '+refs/tags/*:refs/tags/*' "+$commit:refs/brig/base"
}
git "$@" init --quiet --template= .
fetch_from file:///source "$COMMIT" "$FILTER" "$@"
pack_names "$@"
fetch_missing "$COMMIT" file:///source "$@"
lfs_from file:///source "$COMMIT" "$@"
git "$@" checkout --quiet --progress --detach "$COMMIT"
git "$@" update-ref -d refs/brig/base
if [ -n "$FILTER" ]; then
    git config --remove-section remote.file:///source
    git config extensions.partialClone origin
    git config remote.origin.promisor true
    git config remote.origin.partialCloneFilter "$FILTER"
    git config remote.origin.url "$ORIGIN"
fi
rm -f .git/FETCH_HEAD .git/ORIG_HEAD
"#;

/// Lays out the submodules, parents first, as `git submodule update` does: each repository below its parent's, and
/// a file in the folder that leads there. The folder must be the empty one that the parent's checkout made, and no
/// component of its path may be a link (CVE-2024-32002).
const SUBMODULES: &str = r#"
here=$(pwd -P)
tab=$(printf '\t')
while IFS=$tab read -r number commit path directory above name to_directory to_work url <&3; do
    if [ "$(cd -P -- "$path" 2>/dev/null && pwd)" != "$here/$path" ] || [ -n "$(ls -A -- "$path")" ] || [ -e "$directory" ]; then
        echo "the place of the submodule \`$path\` is no empty folder of its own" >&2
        exit 1
    fi
    git "$@" init --quiet --template= --bare "$directory"
    git --git-dir="$directory" config core.bare false
    git --git-dir="$directory" config core.worktree "$to_work"
    printf 'gitdir: %s\n' "$to_directory" > "$path/.git"
    (
        cd -- "$path"
        fetch_from "file:///modules/$number" "$commit" '' "$@"
        pack_names "$@"
        lfs_from "file:///modules/$number" "$commit" "$@"
        git "$@" checkout --quiet --progress --detach "$commit"
        git "$@" update-ref -d refs/brig/base
        rm -f "$to_directory/FETCH_HEAD" "$to_directory/ORIG_HEAD"
    ) 3<&-
    git --git-dir="$above" config "submodule.$name.url" "$url"
    git --git-dir="$above" config "submodule.$name.active" true
done 3<<END
$MODULES
END
"#;

/// Prints the commit, and on request the default branch.
const RESOLVE: &str = r#"
git "$@" -C /source rev-parse --verify --end-of-options "$REF^{commit}"
if [ -n "$DEFAULT" ]; then git "$@" -C /source symbolic-ref --quiet HEAD || :; fi
"#;

/// The repository of a task, by its pinned descriptor if there is one, else by its name.
pub(super) fn named_path(errand: &GitJob<'_>, path: &Path) -> Result<PathBuf> {
    if errand.pinned.has(path) { Ok(path.to_owned()) } else { local_path(path) }
}

/// The checkout of a reference: an existing one, or a new one.
pub(crate) fn base(errand: &GitJob<'_>, remote: &Remote, reference: Option<&str>) -> Result<Base> {
    let reference = reference.unwrap_or("HEAD");
    if reference.starts_with(['-', '+']) || reference.contains([':', '\n', '\0']) {
        return Err(Error::new(Kind::Usage, format!("`{}` is not a commit name", reference.escape_debug()))
            .hint("give a branch, a tag or a commit"));
    }
    let mut place = None;
    let found = match remote {
        Remote::Local(path) => {
            let path = named_path(errand, path)?;
            place = Some(identity(&errand.pinned.path(&path))?);
            let resolved = Courier::new(errand, RESOLVE)
                .show(&path, SOURCE)
                .with("REF", reference)
                .with("DEFAULT", if errand.options.push.is_some() { "yes" } else { "" })
                .run(None)
                .doing(|| format!("find `{reference}` in the repository `{}`", path.display()))?;
            Found::read(path, &resolved).doing(|| format!("find `{reference}`"))?
        }
        Remote::Far(far) => mirror::fetch(errand, far, reference)?,
    };
    check_push(errand, &found)?;
    let Found { source, commit, .. } = found;
    let bases = errand.store.bases();
    files::create_directories(&bases, 0o700)?;
    let name = format!("{}-{commit}{}", name_of(&source.to_string_lossy()), errand.options.of_base());
    // One lock for each commit: checkouts of different commits do not wait for each other.
    let lock = errand
        .budget
        .lock(&bases.join(format!(".{name}.lock")), || errand.is_asked_to_end())
        .doing(|| format!("use the checkout of `{commit}`"))?;
    lock.touch();
    let finished = bases.join(name);
    if !finished.exists() {
        make(errand, remote, &source, &commit, &finished).doing(|| format!("check out `{commit}`"))?;
    }
    Ok(Base { path: finished, commit, identity: place })
}

fn make(errand: &GitJob<'_>, remote: &Remote, source: &Path, commit: &str, finished: &Path) -> Result<()> {
    let origin = match remote {
        Remote::Far(far) => far.url.clone(),
        Remote::Local(path) => path.to_string_lossy().into_owned(),
    };
    let unfinished = errand.store.unfinished_base(errand.id);
    let mut collect =
        |left: Remains<'_>| crate::task::output::tree::copy(left.scratch, Path::new(sandbox::FILES), &unfinished);
    let modules = match errand.options.submodules {
        true => submodule::modules(errand, remote, source, commit)?,
        false => Vec::new(),
    };
    let script =
        format!("{PACK_NAMES}{FETCH_MISSING}{LFS_FROM}{CLONE}{}", if modules.is_empty() { "" } else { SUBMODULES });
    let mut courier = Courier::new(errand, &script)
        .show(source, SOURCE)
        .with("COMMIT", commit)
        .with("ORIGIN", origin)
        .with("MOST_NAMES", most_names())
        .with("LFS", if errand.options.lfs { "yes" } else { "" })
        .with("MODULES", submodule::table(&modules)?.trim_end());
    for (number, module) in modules.iter().enumerate() {
        courier = courier.show(&module.source, &format!("/modules/{number}"));
    }
    let cloned = courier.with_portion().run(Some(&mut collect));
    let named = cloned.and_then(|_| {
        std::fs::rename(&unfinished, finished).map_err(|cause| files::failed(cause, "keep the checkout".to_owned()))
    });
    if named.is_err() {
        // The step has failed already, and no task takes the remaining folder for a checkout.
        let _ = files::remove_directory(&unfinished);
    }
    named
}
