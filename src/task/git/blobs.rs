//! Reads blobs of a folder's repository by name.
//!
//! The repository is the user's, and its objects may be an agent's. A courier without network reads them through a new
//! object store, and reads no configuration, hook or reference.

use super::GitJob;
use super::courier::Courier;
use crate::error::Result;
use crate::sandbox::{self, Remains};
use crate::task::output::changes::tree;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

/// Writes each blob into a file of its name. Skips missing ones, even where a partial clone could fetch them.
const READ: &str = r#"
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

/// Passes on each blob found, none over `largest` bytes. The caller must compare the content with the name.
pub(crate) fn read_blobs(
    errand: &GitJob<'_>,
    store: &ObjectStore<'_>,
    names: &[&str],
    largest: u64,
    take: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
) -> Result<()> {
    let courier = Courier::new(errand, READ)
        .show(store.folder, "/base")
        .with("OBJECTS", format!("/base/{}", store.objects))
        .with("BLOBS", names.join(" "))
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
