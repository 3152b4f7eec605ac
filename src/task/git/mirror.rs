//! The bare mirror of a remote or large repository in the store: made once, then updated.

use super::courier::Courier;
use super::courier::{Growth, exceeds};
use super::elsewhere::lfs_url;
use super::remote::{Remote, name_of};
use super::shell::{FETCH_MISSING, LFS_INTO_MIRROR, PACK_NAMES, SERVE, SOURCE, most_names};
use super::{GitJob, head::is_id};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::host::is_off;
use crate::sandbox::{Limits, size};
use std::path::{Path, PathBuf};

pub(super) struct Found {
    pub source: PathBuf,
    pub commit: String,
    /// The branch of its HEAD, as a reference.
    pub default: Option<String>,
}

impl Found {
    /// The commit, and the default branch if there is one.
    pub(super) fn read(source: PathBuf, text: &str) -> Result<Found> {
        let mut lines = text.lines();
        let commit = lines.next().unwrap_or_default().to_owned();
        if !is_id(commit.as_bytes()) {
            return Err(Error::new(Kind::Workspace, "git gave no commit"));
        }
        Ok(Found { source, commit, default: lines.next().map(str::to_owned) })
    }
}

/// Fetches all branches and tags, and the requested reference. The mirror's HEAD becomes the remote's.
///
/// Removes the temporary pack of a killed fetch. Only `ulimit` caps writes to a lent folder: one pack is one file, and
/// objects arrive in packs only. A fetched name is first a file with folders. So names arrive on the courier's capped
/// disk, in a repository that borrows the mirror's objects. The mirror gets them as one file.
const FETCH: &str = r#"
ulimit -f "$MOST_BLOCKS"
git "$@" ls-remote --symref -- "$URL" HEAD 'refs/heads/*' 'refs/tags/*' > ~/told
bound_names ~/told
if grep -q '^[0-9a-f]\{64\}[[:space:]]' ~/told; then hash=sha256; else hash=sha1; fi
if [ ! -e /mirror/HEAD ]; then git "$@" init --quiet --bare --template= --object-format="$hash" /mirror >&2; fi
rm -f /mirror/objects/pack/tmp_* /mirror/objects/pack/.tmp-* /mirror/*.lock /mirror/*.new
mkdir ~/names
cd ~/names
ln -s /mirror/objects objects
cp -r /mirror/refs .
for file in $KEPT; do if [ -f "/mirror/$file" ]; then cp "/mirror/$file" .; fi; done
default=$(sed -n 's/^ref: \(refs\/heads\/[^[:cntrl:]]*\)[[:space:]]HEAD$/\1/p' ~/told | head -n 1)
detached= # the mirror's HEAD is not the remote's
if [ -z "$default" ] && [ "$REF" = HEAD ]; then detached=1; fi
(
    ulimit -f "$BLOCKS"
    set -- "$@" fetch --progress --no-tags --force --no-auto-gc --no-write-fetch-head
    if [ -n "$DEPTH" ]; then set -- "$@" --depth="$DEPTH"; else set -- "$@" --update-shallow; fi
    if [ -n "$FILTER" ]; then set -- "$@" --filter="$FILTER"; fi
    case $URL in file:*) set -- "$@" --upload-pack="$SERVER" ;; esac
    git "$@" --prune -- "$URL" '+refs/heads/*:refs/heads/*' '+refs/tags/*:refs/tags/*' >&2
    git update-ref -d refs/brig/asked
    if [ -n "$default" ]; then git symbolic-ref HEAD "$default"; fi
    if [ -n "$detached" ] || ! git rev-parse --verify --quiet --end-of-options "$REF^{commit}" >/dev/null; then
        git "$@" -- "$URL" "+$REF:refs/brig/asked" >/dev/null 2>&1 || true
    fi
)
keep_names "$@"
tidy "$@"
for name in "$REF" refs/brig/asked; do
    if [ -n "$detached" ] && [ "$name" = HEAD ]; then continue; fi
    if id=$(git rev-parse --verify --quiet --end-of-options "$name^{commit}"); then
        fetch_missing "$id" "$URL" "$@"
        lfs_into_mirror "$id" "$URL" "$@"
        echo "$id"
        echo "$default"
        exit 0
    fi
done
if [ ! -s ~/told ] && [ -z "$(git for-each-ref --count=1)" ]; then
    echo "the repository is empty" >&2
else
    echo "the repository has no \`$REF\`" >&2
fi
exit 1
"#;
/// Writes the names into the mirror as one file, if they are not too many. Removes name files of earlier versions.
const KEEP_NAMES: &str = r#"
KEPT='config shallow packed-refs HEAD'
keep_names() {
    pack_names "$@"
    if [ -z "$MOST_NAMES" ]; then cp -r refs /mirror; return; fi
    for file in $KEPT; do
        if [ -f "$file" ]; then
            cp "$file" "/mirror/$file.new"
            mv -f "/mirror/$file.new" "/mirror/$file"
        else
            rm -f "/mirror/$file"
        fi
    done
    if [ -e /mirror/refs/heads ]; then rm -rf /mirror/refs; mkdir /mirror/refs; fi
}
"#;
/// Each fetch with new objects leaves a pack, and git searches all. Of many, those not much larger than the newer ones
/// are merged (git-repack(1), `--geometric`): a large pack is rarely rewritten. Unnamed objects stay, for a checkout
/// that runs now. A partial mirror is packed as a whole: otherwise git leaves out what came from a promisor. A failure
/// has no effect: many packs still work.
const TIDY: &str = r#"
tidy() {
    if [ "$(find objects/pack -name '*.pack' | wc -l)" -le "$PACKS" ]; then return; fi
    how='--geometric=2'
    if [ -n "$FILTER" ]; then how='-a'; fi
    timeout 600 git "$@" -c pack.threads=1 -c pack.windowMemory=128m repack -d -l -q "$how" >&2 || rm -f objects/pack/.tmp-* objects/pack/tmp_*
}
"#;
/// Above this number, some are merged.
const PACKS: usize = 10;
/// Unit of `ulimit -f` in bytes (POSIX).
const BLOCK: u64 = 512;
/// Packs, and large files if they are fetched.
const MOST_FILES: u64 = 10_000;
const MOST_LARGE_FILES: u64 = 1_000_000;
/// The deepest path is `lfs/objects/ab/cd/NAME`.
const DEEPEST: usize = 6;

/// Returns path, commit of `reference` and default branch.
pub(super) fn fetch(errand: &GitJob<'_>, remote: &Remote, reference: &str) -> Result<Found> {
    let shown = match remote {
        Remote::Local(path) => path.to_string_lossy(),
        Remote::Far(far) => far.url.as_str().into(),
    };
    let mirrors = errand.store.mirrors();
    files::create_directories(&mirrors, 0o700)?;
    // A shallow or partial mirror would cut the history of tasks that want all of it.
    let name = format!("{}{}", name_of(&shown), errand.options.portion());
    let mirror = mirrors.join(&name);
    let lock = errand
        .budget
        .lock(&mirrors.join(format!(".{name}.lock")), || errand.is_asked_to_end())
        .doing(|| format!("fetch the repository `{shown}`"))?;
    lock.touch();
    files::create_directories(&mirror, 0o700)?;
    let room = Limits::DISK.saturating_sub(measured(&mirror)?.bytes);
    let script = format!("{SERVE}{PACK_NAMES}{FETCH_MISSING}{LFS_INTO_MIRROR}{KEEP_NAMES}{TIDY}{FETCH}");
    let courier = Courier::new(errand, &script)
        .lend(&mirror, "/mirror")
        .with("REF", reference)
        .with_portion()
        .with("PACKS", PACKS.to_string())
        .with("MOST_BLOCKS", (Limits::DISK / BLOCK).to_string())
        .with("BLOCKS", (room / BLOCK).to_string())
        .with("MOST_NAMES", most_names())
        .bound(Growth::new(&mirror, most(errand)));
    let courier = match remote {
        Remote::Local(path) => courier.show(path, SOURCE).with("URL", format!("file://{SOURCE}")).with("LFS", ""),
        Remote::Far(far) => {
            let lfs = if errand.options.lfs { lfs_url(far) } else { String::new() };
            courier.with("URL", &far.url).with("LFS", lfs).reach(far)?
        }
    };
    let answer = courier.run(None);
    // Also after a failure: the files of a failed courier stay.
    let answer = check(errand, &mirror).and(answer).doing(|| format!("fetch the repository `{shown}`"))?;
    Found::read(mirror, &answer).doing(|| format!("fetch `{reference}`"))
}

fn measured(mirror: &Path) -> Result<files::Contents> {
    files::contents(mirror).map_err(|cause| files::failed(cause, format!("count the files of `{}`", mirror.display())))
}

fn most(errand: &GitJob<'_>) -> files::Contents {
    let entries = if errand.options.lfs { MOST_LARGE_FILES } else { MOST_FILES };
    files::Contents { entries, bytes: 2 * Limits::DISK, depth: DEEPEST }
}

fn described(contents: &files::Contents) -> String {
    format!("{} files of {} in {} levels", contents.entries, size(contents.bytes), contents.depth)
}

/// Removes a mirror over its bounds: git writes it from the remote's data.
fn check(errand: &GitJob<'_>, mirror: &Path) -> Result<()> {
    let (found, most) = (measured(mirror)?, most(errand));
    if !exceeds(&found, &most) || is_off("courier-names") {
        return Ok(());
    }
    let step = || format!("remove the mirror `{}`", mirror.display());
    files::remove_directory(mirror).map_err(|cause| files::failed(cause, step()))?;
    let words = format!("its mirror had {}: at most {} are allowed", described(&found), described(&most));
    Err(Error::new(Kind::Workspace, words).hint("see what the remote sends, or fetch less: --depth 1"))
}
