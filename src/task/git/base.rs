//! A checkout of one commit: made once, copied out by descriptors, then shown copy-on-write only.

use super::courier::Courier;
use super::head::is_id;
use super::mirror::Found;
use super::remote::{Remote, local_path, name_of};
use super::shell::{FETCH_MISSING, LFS_FROM, PACK_NAMES, SERVE, SOURCE, most_names};
use super::{GitJob, mirror, submodule, tree};
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, DIRECTORY};
use crate::host::is_off;
use crate::sandbox::{self, Remains};
use crate::task::output::worktree;
use rustix::fs::{AtFlags, Mode, ResolveFlags, Timespec, Timestamps, UTIME_NOW, linkat, openat2, statat, utimensat};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// No agent writes it.
pub(crate) struct Base {
    pub path: PathBuf,
    pub commit: String,
    /// Device and inode of a repository on this machine. A push goes only to that repository.
    pub identity: Option<(u64, u64)>,
}

pub(crate) fn identity(path: &Path) -> Result<(u64, u64)> {
    let status = std::fs::metadata(path).map_err(|cause| {
        Error::os(Kind::Workspace, cause).doing(format!("open the repository `{}`", path.display()))
    })?;
    Ok((status.dev(), status.ino()))
}

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

/// Clones the full history.
///
/// A mirror often has just the objects of this clone. Then nothing is packed, sent and hashed again: git reads the
/// mirror's packs meanwhile, and prints their names for [`link_packs`].
///
/// A partial clone fetches by id what the commit itself needs. Without that git ignores the rest.
///
/// A copy of the checkout has other inodes, and a sandbox sees another owner. With `core.checkStat` git does not read
/// each file again for that.
const CLONE: &str = r#"
fetch_from() { # URL COMMIT FILTER
    from=$1 commit=$2 filter=$3
    shift 3
    set -- "$@" fetch --quiet --no-tags --no-auto-gc --upload-pack="$SERVER"
    if [ -n "$DEPTH" ]; then set -- "$@" --depth="$DEPTH"; else set -- "$@" --update-shallow; fi
    if [ -n "$filter" ]; then set -- "$@" --filter="$filter"; fi
    git "$@" -- "$from" '+refs/heads/*:refs/remotes/origin/*' '+refs/tags/*:refs/tags/*' "+$commit:refs/brig/base"
}
borrow_packs() { # COMMIT
    commit=$1
    shift
    if [ -z "$SHARE" ] || [ -n "$DEPTH$FILTER" ] || [ -e /source/shallow ]; then return 1; fi
    counted=$(git "$@" -C /source count-objects -v) || return 1
    case "$counted" in *alternate:*) return 1 ;; *'count: 0
'*) ;; *) return 1 ;; esac
    has=$(printf '%s\n' "$counted" | sed -n 's/^in-pack: //p')
    git "$@" -C /source rev-list --objects --no-object-names --branches --tags "$commit" > ~/wanted || return 1
    if [ "$(wc -l < ~/wanted)" != "$has" ] && [ "$SHARE" != all ]; then return 1; fi
    git "$@" -C /source for-each-ref --format='create %(refname) %(objectname)' refs/heads refs/tags |
        sed 's,^create refs/heads/,create refs/remotes/origin/,' > ~/names
    echo /source/objects > .git/objects/info/alternates
    git "$@" update-ref --stdin < ~/names || { rm .git/objects/info/alternates; return 1; }
    ls /source/objects/pack
}
git "$@" init --quiet --template= .
mkdir -p .git/objects/info
if ! borrow_packs "$COMMIT" "$@"; then
    fetch_from file:///source "$COMMIT" "$FILTER" "$@"
    git "$@" update-ref -d refs/brig/base
fi
pack_names "$@"
fetch_missing "$COMMIT" file:///source "$@"
lfs_from file:///source "$COMMIT" "$@"
git "$@" -c checkout.workers=0 checkout --quiet --progress --detach "$COMMIT"
git config core.checkStat minimal
if [ -n "$FILTER" ]; then
    git config --remove-section remote.file:///source
    git config extensions.partialClone origin
    git config remote.origin.promisor true
    git config remote.origin.partialCloneFilter "$FILTER"
    git config remote.origin.url "$ORIGIN"
fi
rm -f .git/FETCH_HEAD .git/ORIG_HEAD .git/objects/info/alternates
"#;

/// Lays out submodules, parents first, as `git submodule update` does: each repository below its parent's, and a file
/// in the folder that leads there. The folder must be the empty one of the parent's checkout, without a link in its
/// path (CVE-2024-32002).
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
        git "$@" -c checkout.workers=0 checkout --quiet --progress --detach "$commit"
        git config core.checkStat minimal
        git "$@" update-ref -d refs/brig/base
        rm -f "$to_directory/FETCH_HEAD" "$to_directory/ORIG_HEAD"
    ) 3<&-
    git --git-dir="$above" config "submodule.$name.url" "$url"
    git --git-dir="$above" config "submodule.$name.active" true
done 3<<END
$MODULES
END
"#;

/// In KiB. With such packs, a repository on this machine gets a mirror: a task on a later commit takes only what is new.
/// A smaller one is fetched sooner as a whole.
const LARGE: u64 = 64 << 10;

/// Prints the size of the packs in KiB. For the variable see [`SERVE`].
const MEASURE: &str = r#"
export GIT_WORK_TREE=/source
git "$@" -C /source count-objects -v | sed -n 's/^size-pack: //p'
"#;

/// Prints the commit and, on request, the default branch.
const RESOLVE: &str = r#"
export GIT_WORK_TREE=/source
git "$@" -C /source rev-parse --verify --end-of-options "$REF^{commit}"
if [ -n "$DEFAULT" ]; then git "$@" -C /source symbolic-ref --quiet HEAD || :; fi
"#;

/// Takes the pinned descriptor if there is one, else the name.
pub(super) fn named_path(errand: &GitJob<'_>, path: &Path) -> Result<PathBuf> {
    if errand.pinned.has(path) { Ok(path.to_owned()) } else { local_path(path) }
}

/// The folder with the repository on this machine that `path` is, and the HEAD of a worktree.
///
/// A worktree's repository is elsewhere (git-worktree(1)). A pinned folder has none: the operator's rules are about the
/// named folder.
pub(super) fn repository(errand: &GitJob<'_>, path: &Path) -> Result<(PathBuf, Option<String>)> {
    let file = errand.pinned.path(path).join(".git");
    if !file.symlink_metadata().is_ok_and(|status| status.is_file()) {
        return Ok((path.to_owned(), None));
    }
    let found = if errand.pinned.has(path) { None } else { worktree::directories(path) };
    let (own, repository) = found.ok_or_else(|| {
        Error::new(Kind::Workspace, "its `.git` is a file that names a repository elsewhere")
            .doing(format!("open the repository `{}`", path.display()))
            .hint("give that repository's folder, for a submodule a folder below `.git/modules`")
    })?;
    Ok((repository, worktree::head(&own)))
}

pub(crate) fn base(errand: &GitJob<'_>, remote: &Remote, reference: Option<&str>) -> Result<Base> {
    let mut source = None;
    let mut place = None;
    let mut head = None;
    if let Remote::Local(path) = remote {
        let path = named_path(errand, path)?;
        place = Some(identity(&errand.pinned.path(&path))?);
        (source, head) = repository(errand, &path).map(|(source, head)| (Some(source), head))?;
    }
    let reference = reference.or(head.as_deref()).unwrap_or("HEAD");
    if reference.starts_with(['-', '+']) || reference.contains([':', '\n', '\0']) {
        return Err(Error::new(Kind::Usage, format!("`{}` is not a commit name", reference.escape_debug()))
            .hint("give a branch, a tag or a commit"));
    }
    let found = match source {
        Some(path) => {
            let resolved = Courier::new(errand, RESOLVE)
                .show(&path, SOURCE)
                .with("REF", reference)
                .with("DEFAULT", if errand.options.push.is_some() { "yes" } else { "" })
                .run(None)
                .doing(|| format!("find `{reference}` in the repository `{}`", path.display()))?;
            Found::read(path, &resolved).doing(|| format!("find `{reference}`"))?
        }
        None => mirror::fetch(errand, remote, reference)?,
    };
    check_push(errand, &found)?;
    let Found { source, commit, .. } = found;
    let bases = errand.store.bases();
    files::create_directories(&bases, 0o700)?;
    let name = format!("{}-{commit}{}", name_of(&source.to_string_lossy()), errand.options.of_base());
    // One lock per commit: checkouts of different commits do not wait for each other.
    let lock = errand
        .budget
        .lock(&bases.join(format!(".{name}.lock")), || errand.is_asked_to_end())
        .doing(|| format!("use the checkout of `{commit}`"))?;
    lock.touch();
    let finished = bases.join(name);
    if !finished.exists() {
        let source = match remote {
            Remote::Local(_) if is_large(errand, &source)? => {
                mirror::fetch(errand, &Remote::Local(source), &commit)?.source
            }
            _ => source,
        };
        make(errand, remote, &source, &commit, &finished).doing(|| format!("check out `{commit}`"))?;
    }
    renew_index(&finished);
    Ok(Base { path: finished, commit, identity: place })
}

/// Whether a checkout of a repository on this machine comes by way of a mirror.
fn is_large(errand: &GitJob<'_>, path: &Path) -> Result<bool> {
    let options = errand.options;
    if options.depth.is_some() || options.filter.is_some() || options.lfs || options.submodules {
        return Ok(false);
    }
    let packed = Courier::new(errand, MEASURE)
        .show(path, SOURCE)
        .run(None)
        .doing(|| format!("measure the repository `{}`", path.display()))?;
    Ok(packed.trim().parse().is_ok_and(|size: u64| size >= LARGE))
}

fn make(errand: &GitJob<'_>, remote: &Remote, source: &Path, commit: &str, finished: &Path) -> Result<()> {
    let origin = match remote {
        Remote::Far(far) => far.url.clone(),
        Remote::Local(path) => path.to_string_lossy().into_owned(),
    };
    let unfinished = errand.store.unfinished_base(errand.id);
    let mut collect = |left: Remains<'_>| tree::copy(left.scratch, Path::new(sandbox::FILES), &unfinished);
    let modules = match errand.options.submodules {
        true => submodule::modules(errand, remote, source, commit)?,
        false => Vec::new(),
    };
    let script = format!(
        "{SERVE}{PACK_NAMES}{FETCH_MISSING}{LFS_FROM}{CLONE}{}",
        if modules.is_empty() { "" } else { SUBMODULES }
    );
    let table = submodule::table(&modules)?;
    let share = if is_off("mirror-packs") { "all" } else { "yes" };
    let mut clone = |shares: bool| {
        let mut courier = Courier::new(errand, &script)
            .show(source, SOURCE)
            .with("COMMIT", commit)
            .with_hash_of(commit)
            .with("ORIGIN", &origin)
            .with("SHARE", if shares { share } else { "" })
            .with("MOST_NAMES", most_names())
            .with("LFS", if errand.options.lfs { "yes" } else { "" })
            .with("MODULES", table.trim_end());
        for (number, module) in modules.iter().enumerate() {
            courier = courier.show(&module.source, &format!("/modules/{number}"));
        }
        courier.with_portion().run(Some(&mut collect))
    };
    // The objects of a local repository are not checked yet, those of a mirror are.
    let cloned = match clone(source.starts_with(errand.store.mirrors())) {
        Ok(packs) if !packs.is_empty() && !link_packs(source, &packs, &unfinished) => {
            files::remove_directory(&unfinished)
                .map_err(|cause| files::failed(cause, "remove an unfinished checkout".to_owned()))
                .and_then(|_| clone(false))
        }
        cloned => cloned,
    };
    let named = cloned.and_then(|_| {
        std::fs::rename(&unfinished, finished).map_err(|cause| files::failed(cause, "keep the checkout".to_owned()))
    });
    if named.is_err() {
        // The step has failed already, and no task takes the rest for a checkout.
        let _ = files::remove_directory(&unfinished);
    }
    named
}

/// Makes the index newer than the checkout, once. Git reads a file of the same second again, because it may have changed
/// after the index (git's Documentation/technical/racy-git.txt). `config` was written after the last file. Without this
/// git only reads more.
fn renew_index(checkout: &Path) {
    let renew = || -> rustix::io::Result<()> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let top = rustix::fs::open(checkout, DIRECTORY, Mode::empty())?;
        let directory = openat2(top, ".git", DIRECTORY, Mode::empty(), resolve)?;
        let modified = |name: &str| statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|status| status.st_mtime);
        if modified("index")? > modified("config")? {
            return Ok(());
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(directory, "index", &times, AtFlags::SYMLINK_NOFOLLOW)
    };
    let _ = renew();
}

/// Links packs, one name a line, into a checkout without objects: they are stored once. `false` if one cannot be
/// linked: a task that tidies the mirror may have removed it.
///
/// A mirror's courier can write the packs. It fetched the checkout's objects too.
fn link_packs(mirror: &Path, names: &str, checkout: &Path) -> bool {
    let open = |path: &Path, below: &str| {
        let top = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        // The courier made the tree.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(top, below, DIRECTORY, Mode::empty(), resolve)
    };
    let (Ok(from), Ok(to)) = (open(mirror, "objects/pack"), open(checkout, ".git/objects/pack")) else { return false };
    let is_pack = |name: &&str| {
        let digits = ["pack", "idx", "rev"].iter().find_map(|end| name.strip_suffix(end)?.strip_suffix('.'));
        digits.and_then(|name| name.strip_prefix("pack-")).is_some_and(|id| is_id(id.as_bytes()))
    };
    names.lines().filter(is_pack).all(|name| linkat(&from, name, &to, name, AtFlags::empty()).is_ok())
}
