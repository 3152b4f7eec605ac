//! The bare mirror of a remote repository in the store: made once, then only brought up to date.

use super::courier::Courier;
use super::elsewhere::lfs_url;
use super::remote::{Far, name_of};
use super::shell::{FETCH_MISSING, LFS_INTO_MIRROR};
use super::{Errand, head::is_id};
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Lock};
use crate::sandbox::Limits;
use std::path::PathBuf;

/// Fetches everything that is on a branch or a tag, and what was asked for by another name. The mirror's HEAD becomes the remote's.
///
/// What was left by a fetch that was killed is a temporary pack, which the next one removes. Nothing caps what a courier writes to a folder that was
/// lent to it but `ulimit`: one pack is one file, and no object comes in but in a pack.
const FETCH: &str = r#"
ulimit -f "$BLOCKS"
cd /mirror
if [ ! -e HEAD ]; then git "$@" init --quiet --bare --template= . >&2; fi
rm -f objects/pack/tmp_* objects/pack/.tmp-* shallow.lock packed-refs.lock HEAD.lock
told=$(git "$@" ls-remote --symref -- "$URL" HEAD)
default=$(printf '%s\n' "$told" | sed -n 's/^ref: \(refs\/heads\/[^[:cntrl:]]*\)[[:space:]]HEAD$/\1/p' | head -n 1)
(
    set -- "$@" fetch --quiet --no-tags --force --no-auto-gc --no-write-fetch-head
    if [ -n "$DEPTH" ]; then set -- "$@" --depth="$DEPTH"; fi
    if [ -n "$FILTER" ]; then set -- "$@" --filter="$FILTER"; fi
    git "$@" --prune -- "$URL" '+refs/heads/*:refs/heads/*' '+refs/tags/*:refs/tags/*' >&2
    git update-ref -d refs/brig/asked
    if [ -n "$default" ]; then git symbolic-ref HEAD "$default"; fi
    if ! git rev-parse --verify --quiet --end-of-options "$REF^{commit}" >/dev/null; then
        git "$@" -- "$URL" "+$REF:refs/brig/asked" >/dev/null 2>&1 || true
    fi
)
tidy "$@"
for name in "$REF" refs/brig/asked; do
    if id=$(git rev-parse --verify --quiet --end-of-options "$name^{commit}"); then
        fetch_missing "$id" "$URL" "$@"
        lfs_into_mirror "$id" "$URL" "$@"
        echo "$id"
        exit 0
    fi
done
if [ -z "$told" ] && [ -z "$(git for-each-ref --count=1)" ]; then
    echo "the repository is empty" >&2
else
    echo "the repository has no \`$REF\`" >&2
fi
exit 1
"#;
/// Every fetch that brings something leaves a pack, and git looks into all of them. Some of them become one when they are many: those that are not
/// much larger than the newer ones (git-repack(1), `--geometric`), so that a large pack is rarely written again. Objects without a name stay, for whoever
/// checks one out right now. A partial mirror is packed as a whole, because what a promisor has given is left out otherwise.
///
/// It is bounded in memory and time, and a mirror with many packs is a mirror: what fails here fails nothing.
const TIDY: &str = r#"
tidy() {
    if [ "$(find objects/pack -name '*.pack' | wc -l)" -le "$PACKS" ]; then return; fi
    how='--geometric=2'
    if [ -n "$FILTER" ]; then how='-a'; fi
    timeout 600 git "$@" -c pack.threads=1 -c pack.windowMemory=128m repack -d -l -q "$how" >&2 || rm -f objects/pack/.tmp-* objects/pack/tmp_*
}
"#;
/// So many packs a mirror may have before some of them become one.
const PACKS: usize = 10;
/// Bytes of the unit of `ulimit -f` (POSIX).
const BLOCK: u64 = 512;

/// Brings the mirror up to date. Returns where it is, and the commit that `reference` names.
pub(super) fn fetch(errand: &Errand<'_>, far: &Far, reference: &str) -> Result<(PathBuf, String)> {
    let mirrors = errand.store.mirrors();
    files::create_directories(&mirrors, 0o700)?;
    // A shallow or partial mirror would make the others' history end where its own does.
    let name = format!("{}{}", name_of(&far.url), errand.options.portion());
    let mirror = mirrors.join(&name);
    let lock = Lock::wait(&mirrors.join(format!(".{name}.lock")))?;
    lock.touch();
    files::create_directories(&mirror, 0o700)?;
    let courier = Courier::new(errand, &format!("{FETCH_MISSING}{LFS_INTO_MIRROR}{TIDY}{FETCH}"))
        .lend(&mirror, "/mirror")
        .with("URL", &far.url)
        .with("REF", reference)
        .with_portion()
        .with("LFS", if errand.options.lfs { lfs_url(far) } else { String::new() })
        .with("PACKS", PACKS.to_string())
        .with("BLOCKS", (Limits::DISK / BLOCK).to_string())
        .reach(far)?;
    let answer = courier.run(None).doing(|| format!("fetch the repository `{}`", far.url))?;
    let commit = answer.trim().to_owned();
    if !is_id(commit.as_bytes()) {
        return Err(Error::new(Kind::Workspace, "git gave no commit").doing(format!("fetch `{reference}`")));
    }
    Ok((mirror, commit))
}
