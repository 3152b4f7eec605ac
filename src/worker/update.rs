//! Updates a worker's image, and takes the old one back if the new one does not become healthy.

use super::file::Folder;
use super::state::{history, tasks, worker_of};
use super::unit::{systemctl, unit_name};
use crate::error::{Error, Kind, Result, Step};
use crate::image::{self, Reference};
use crate::task::{Status, Store};
use serde::Serialize;

/// The result of an update.
#[derive(Clone, Debug, Serialize)]
pub struct Update {
    /// The worker.
    pub worker: String,
    /// `unchanged`, `updated` or `rolled_back`.
    pub result: &'static str,
    /// The former image's digest.
    pub from: String,
    /// The new image's digest.
    pub to: String,
    /// Why the new image was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Updates a running worker. `fetch` brings the named image into the store.
///
/// The former image keeps a name, so that neither this update nor `brig image prune` removes it.
pub fn update(folder: &Folder, store: &Store, name: &str, fetch: &mut dyn FnMut(&str) -> Result<()>) -> Result<Update> {
    let worker = folder.read(name)?;
    let Some(wish) = worker.definition.image else {
        return Err(Error::new(Kind::Usage, format!("the worker `{name}` has no image"))
            .hint("restart it to apply other changes: brig worker apply"));
    };
    let reference: Reference = wish.reference.parse()?;
    // Its name cannot go back to the former image.
    if reference.digest().is_some() {
        let words = format!("the worker `{name}` has the pinned image `{}`, which never changes", wish.reference);
        return Err(
            Error::new(Kind::Usage, words).hint("write another digest into its file, and run `brig worker apply`")
        );
    }
    let rows = tasks(store)?;
    let running = rows.iter().rev().find(|row| worker_of(row) == Some(name) && row.status == Status::Running);
    let running = running.ok_or_else(|| {
        Error::new(Kind::State, format!("the worker `{name}` does not run"))
            .hint("start it: brig worker apply. If no start succeeds: the next one takes what `brig image pull` brings")
    })?;
    let used = store.record(&running.id)?.image.ok_or_else(|| {
        Error::new(Kind::State, format!("the worker `{name}` runs without an image")).hint("run `brig worker apply`")
    })?;
    if used.reference != wish.reference {
        let words = format!("the worker `{name}` runs `{}`, and its file names `{}`", used.reference, wish.reference);
        return Err(Error::new(Kind::State, words).hint("start the other image: brig worker apply"));
    }
    let images = image::Store::open(store.root())?;
    let from = images.find(&used.digest)?.digest;
    fetch(&wish.reference)?;
    let to = images.find(&wish.reference)?.digest;
    let done = |result, reason| {
        Ok(Update { worker: name.to_owned(), result, from: from.to_string(), to: to.to_string(), reason })
    };
    if from == to {
        return done("unchanged", None);
    }
    let former: Reference = format!("localhost/brig-worker/{}:former", name.to_lowercase()).parse()?;
    images.put_name(&former, &from)?;
    let unit = unit_name(name);
    // Waits for the drain, and until the new sandbox is ready: Type=notify.
    let Err(error) = systemctl(&["restart", &unit]) else { return done("updated", None) };
    images.put_name(&reference, &from)?;
    systemctl(&["restart", &unit]).doing(|| format!("go back to the image {from}"))?;
    // An older death is not the new image's.
    let deaths = history(store, name).unwrap_or_default();
    let death = deaths.into_iter().find(|death| death.began > running.created);
    done("rolled_back", Some(death.map_or_else(|| error.to_string(), |death| death.words())))
}
