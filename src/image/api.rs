//! Verbs for images in files of this machine.

use super::config::{Overrides, Process};
use super::load::{self, LoadOptions};
use super::progress::{Event, Report};
use super::source::{Local, Offer, choose};
use super::store::{ImageRecord, Store, Temporary};
use super::{Reference, unpack};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use serde::Serialize;
use std::path::Path;

/// A loaded image and its names.
#[derive(Debug, Serialize)]
pub struct Loaded {
    /// The image.
    #[serde(flatten)]
    pub record: ImageRecord,
    /// Its new names.
    pub names: Vec<String>,
}

/// Loads every image of an OCI layout (folder or tar) or docker-archive; `-` is standard input. `name` is for images
/// without a complete one.
pub fn load(
    store: &Store,
    path: &Path,
    name: Option<&Reference>,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<Vec<Loaded>> {
    let spool;
    let mut path = path;
    let mut spooled = None;
    if path == Path::new("-") {
        let work = Temporary::new(store)?;
        spool = work.path().join("spool");
        let mut file =
            std::fs::File::create(&spool).map_err(|cause| files::failed(cause, "spool standard input".into()))?;
        std::io::copy(&mut std::io::stdin().lock(), &mut file)
            .map_err(|cause| files::failed(cause, "spool standard input".into()))?;
        spooled = Some(work);
        path = &spool;
    }
    let local = Local::open(path)?;
    let mut loaded = Vec::new();
    if local.offers().is_empty() {
        return Err(Error::new(Kind::NotFound, "it contains no image").doing(format!("load `{}`", path.display())));
    }
    for offer in local.offers() {
        let names = names(offer, name, local.offers().len())?;
        if let (true, [tag, ..]) = (names.is_empty(), offer.names.as_slice()) {
            let tag = tag.escape_debug();
            report(Event::Note(&format!(
                "the tag `{tag}` is not a complete name: name the image with --name NAME:TAG"
            )));
        }
        let record = load::add(store, local.source(), &offer.descriptor, &names, options, report)
            .doing(|| format!("load `{}`", names.first().map_or_else(|| local.source().name(), Reference::familiar)))?;
        loaded.push(Loaded { record, names: names.iter().map(Reference::familiar).collect() });
    }
    drop(spooled);
    Ok(loaded)
}

fn names(offer: &Offer, name: Option<&Reference>, count: usize) -> Result<Vec<Reference>> {
    match name {
        Some(name) if count == 1 => Ok(vec![name.clone()]),
        Some(name) => match name.tag() {
            // Each of several images keeps its tag below the caller's repository.
            Some(_) => offer.names.iter().map(|tag| format!("{}:{tag}", name.name()).parse()).collect(),
            None => Err(Error::new(Kind::Usage, "a name with a digest cannot be given to an image")),
        },
        // A bare tag (image-spec, "org.opencontainers.image.ref.name") would parse as a name: `1.0` as
        // `docker.io/library/1.0:latest`. A digest other than the image's would falsify a pin.
        None => {
            let is_own = |name: &Reference| name.digest().is_none_or(|digest| *digest == offer.descriptor.digest);
            let whole = offer.names.iter().filter(|text| text.contains(['/', ':']));
            Ok(whole.filter_map(|text| text.parse().ok()).filter(is_own).collect())
        }
    }
}

/// Unpacks such an image without a store. `tag` chooses among several.
pub fn unpack_local(
    path: &Path,
    tag: Option<&str>,
    target: &Path,
    options: &LoadOptions,
    overrides: &Overrides,
    report: Report<'_>,
) -> Result<Process> {
    let local = Local::open(path)?;
    let fits = |offer: &&Offer| {
        tag.is_none_or(|tag| offer.names.iter().any(|name| name == tag || name.ends_with(&format!(":{tag}"))))
    };
    let fitting: Vec<&Offer> = local.offers().iter().filter(fits).collect();
    let all = || local.offers().iter().flat_map(|offer| offer.names.clone()).collect::<Vec<_>>().join(", ");
    let offer = match fitting.as_slice() {
        [offer] => offer,
        [] => {
            return Err(Error::new(Kind::NotFound, format!("`{}` has no such image, only: {}", path.display(), all())));
        }
        _ => {
            return Err(Error::new(
                Kind::Usage,
                format!("there are several images in `{}`: {}", path.display(), all()),
            )
            .hint("choose one: oci:PATH:TAG"));
        }
    };
    let chosen = choose(local.source(), &offer.descriptor, options.platform.as_ref())?;
    unpack::from_source(local.source(), &chosen, target, options, overrides, report)
}
