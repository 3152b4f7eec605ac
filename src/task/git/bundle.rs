//! Copies the agent's commits by id out of its object store into a bundle, and reads blobs of a folder's repository.
//!
//! Loose objects, packs and alternates may be made to break their reader. A courier without network copies objects by
//! name into a new store and bundles those since the base. A pack that cannot be read is left out: it may have nothing to
//! do with the commit. Another new store takes the pack of the bundle. It checks that each object is valid and none is
//! missing (git-index-pack(1); before 2.46 git-fetch(1) checks no bundle). git reads no configuration, hook, alternate or
//! reference of the agent's.

use super::GitJob;
use super::courier::Courier;
use super::shell::OVER_BASE;
use crate::error::{Context, Kind, Result, Step};
use crate::files;
use crate::sandbox::{self, Remains};
use crate::task::output::changes::tree;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Makes `out/commits.bundle`: the commit on one branch, without the base's commits. The id is the only argument from
/// the agent.
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
        if [ -f "$pack" ] && [ ! -L "$pack" ]; then git "$@" --git-dir=taken index-pack --stdin --fix-thin < "$pack" >/dev/null 2>&1 || :; fi
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
LC_ALL=C sed '1,/^$/d' out/commits.bundle | git "$@" --git-dir=checked index-pack --stdin --fix-thin --fsck-objects >/dev/null
git "$@" --git-dir=checked rev-list --objects --quiet "$COMMIT" "^$BASE"
"#;

/// Below the task's directory. A courier that pushes sees nothing else of the task.
pub(crate) const DIRECTORY: &str = "commits";
const NAME: &str = "commits.bundle";

pub(crate) struct Work<'run> {
    pub base: &'run Path,
    pub base_commit: &'run str,
    /// Plain copies of the changes.
    pub changes: &'run Path,
    pub commit: &'run str,
    pub branch: &'run str,
}

/// Bundles an ended workspace's commits. `None` if the base has all of them.
pub(crate) fn bundle(errand: &GitJob<'_>, work: &Work<'_>) -> Result<Option<PathBuf>> {
    let task = errand.store.task(errand.id);
    let unfinished = task.join(".new-bundle");
    let finished = task.join(DIRECTORY);
    let objects = work.changes.join("files/.git/objects");
    let mut courier = Courier::new(errand, &format!("{OVER_BASE}{MAKE}"))
        .show(work.base, "/base")
        .with("BASE", work.base_commit)
        .with("COMMIT", work.commit)
        .with_hash_of(work.base_commit)
        .with("BRANCH", work.branch);
    if objects.is_dir() {
        courier = courier.show(&objects, "/taken");
    }
    let out = Path::new(sandbox::FILES).join("out");
    let mut collect = |Remains { scratch, .. }: Remains<'_>| {
        // A killed run left it.
        if unfinished.exists() {
            files::remove_directory(&unfinished).failing(Kind::Store, || "remove an unfinished bundle")?;
        }
        match super::tree::copy(scratch, &out, &unfinished) {
            // A failed courier has made nothing; its output has the reason.
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
        // Nothing reads the remains of a failed attempt.
        let _ = files::remove_directory(&unfinished);
    }
    made.doing(|| format!("take the commit `{}` out of the workspace", work.commit))?;
    let bundle = finished.join(NAME);
    Ok(bundle.exists().then_some(bundle))
}

/// Writes each blob into a file of its name. Skips missing ones, even where a partial clone could fetch them.
const READ_BLOBS: &str = r#"
mkdir blobs
git "$@" init --quiet --bare --template= store
printf '%s\n' "$OBJECTS" > store/objects/info/alternates
printf '%s\n' $BLOBS | git "$@" --git-dir=store cat-file --batch-check > list
while read -r blob type size; do
    if [ "$type" = blob ] && [ "$size" -le "$LARGEST" ]; then
        git "$@" --git-dir=store cat-file blob "$blob" > "blobs/$blob" || rm -f "blobs/$blob"
    fi
done < list
"#;

/// `objects` is a path in `folder`.
pub(crate) struct ObjectStore<'run> {
    pub folder: &'run Path,
    pub objects: &'run str,
}

/// Reads blobs of a folder's repository by name. The repository is the user's, and its objects may be an agent's. A
/// courier without network reads them through a new object store, and reads no configuration, hook or reference.
///
/// Passes on each blob found, none over `largest` bytes. The caller must compare the content with the name.
pub(crate) fn read_blobs(
    errand: &GitJob<'_>,
    store: &ObjectStore<'_>,
    names: &[&str],
    largest: u64,
    take: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
) -> Result<()> {
    let courier = Courier::new(errand, READ_BLOBS)
        .show(store.folder, "/base")
        .with("OBJECTS", format!("/base/{}", store.objects))
        .with("BLOBS", names.join(" "))
        .with_hash_of(names.first().copied().unwrap_or_default())
        .with("LARGEST", largest.to_string());
    let folder = Path::new(sandbox::FILES).join("blobs");
    let mut collect = |left: Remains<'_>| {
        let Ok(folder) = tree::directory(left.scratch, folder.as_os_str().as_encoded_bytes()) else { return Ok(()) };
        for name in names {
            let Ok((file, _)) = tree::file(folder.as_fd(), name.as_bytes()) else { continue };
            let mut bytes = Vec::new();
            if file.take(largest).read_to_end(&mut bytes).is_ok() {
                take(name, &bytes)?;
            }
        }
        Ok(())
    };
    courier.run(Some(&mut collect)).map(|_| ())
}
