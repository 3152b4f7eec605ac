//! Loads an image into the store: unpacks in parallel, commits layers from the bottom up. An interrupted load continues
//! at the first missing layer.

use super::blob_writer::BlobWriter;
use super::digest::chain;
use super::layer::{Budget, Extractor, Limits, Measured, decode, finish_layer};
use super::manifest::{Descriptor, OCI_LAYER, mismatch};
use super::progress::{Event, Report, ReportingReader};
use super::source::{Blob, SelectedImage, Source, choose};
use super::store::{Image, ImageRecord, LayerRecord, Store, Temporary, pinned, put_record};
use super::tar::Reader;
use super::union::Stack;
use super::{Digest, Platform, Reference};
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Durability, Lock, in_parallel};
use crate::sys::weaken;
use std::iter::zip;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Options of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The image of an index; by default this machine's.
    pub platform: Option<Platform>,
    /// The bounds of the image.
    pub limits: Limits,
    /// Waits until everything is on disk. Otherwise layers are unpacked again after a power cut in the next seconds.
    pub sync: bool,
}

pub(crate) fn add(
    store: &Store,
    source: &dyn Source,
    descriptor: &Descriptor,
    names: &[Reference],
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<ImageRecord> {
    let chosen = choose(source, descriptor, options.platform.as_ref())?;
    store.sweep()?;
    let blobs = chosen.manifest.layers.iter().chain([&chosen.manifest.config, &chosen.descriptor]);
    let chains = chain(&chosen.config.diff_ids);
    let _reservation = store.reserve(blobs.map(|blob| &blob.digest).chain(&chains).chain([&descriptor.digest]))?;
    let lock = store.path().join("temporary").join(format!("image-{}", chosen.descriptor.digest.hex()));
    let _one_at_a_time = Lock::wait(&lock)?;
    let is = |pinned: &Digest| *pinned == descriptor.digest || *pinned == chosen.descriptor.digest;
    if let Some(name) = names.iter().find(|name| !name.digest().is_none_or(is)) {
        return Err(pinned(name));
    }
    let there = store.image(&chosen.descriptor.digest)?;
    let mut record = match there.filter(|record| is_complete(store, record)) {
        Some(record) => record,
        None => bring(store, source, &chosen, options, report)?,
    };
    if options.sync {
        store.sync_image(&mut record)?;
    }
    if record.found_by != descriptor.digest {
        record.found_by = descriptor.digest.clone();
        store.put_image(&record)?;
    }
    for name in names {
        store.put_name(name, &record.digest)?;
    }
    Ok(record)
}

/// The image of a name in the store, if the name still means it at the source.
pub(crate) fn current(
    store: &Store,
    name: &Reference,
    digest: &Digest,
    options: &LoadOptions,
) -> Result<Option<ImageRecord>> {
    let record = match store.find(&name.to_string()) {
        Ok(record) => record,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let same = record.found_by == *digest || record.digest == *digest;
    let Platform { os, architecture, variant } = &record.platform();
    // In doubt `add` chooses again.
    let fits = match &options.platform {
        Some(wanted) => *wanted == record.platform(),
        None => record.digest == *digest || Platform::host().distance(os, architecture, variant) == Some(0),
    };
    let is_synced = !options.sync || record.unsynced_boot.is_none();
    let is_current =
        same && fits && is_synced && is_complete(store, &record) && store.name_too(name, &record.digest)?;
    Ok(is_current.then_some(record))
}

fn is_complete(store: &Store, record: &ImageRecord) -> bool {
    record.is_trusted()
        && zip(&record.chain, &record.layer_blobs)
            .all(|(chain, blob)| matches!(store.layer_of(chain, blob), Ok(Some(_))))
        && record.blobs().all(|blob| store.has_blob(blob))
}

/// After a power cut, or when layers were damaged.
fn rebuild(store: &Store, record: &ImageRecord) -> Result<ImageRecord> {
    let source = FromStore(store);
    let options = LoadOptions { sync: true, limits: Limits::highest(), ..LoadOptions::default() };
    let descriptor = &record.manifest;
    add(store, &source, descriptor, &[], &options, &|_| {})
        .doing(|| format!("unpack `{}` again", record.digest.short()))
        .hint(|| "pull or load the image again")
}

impl Store {
    /// The image that `text` names, locked against `prune`. Waits for no other lock. Unpacks layers again that a power
    /// cut may have damaged.
    pub fn resolve(&self, text: &str) -> Result<Image> {
        let mut record = self.find(text)?;
        // Before the lease: it keeps the layers from being replaced.
        if !record.is_trusted() {
            record = rebuild(self, &record)?;
        }
        let lease = self.lease(&record.digest).map_err(|error| error.doing(format!("use the image `{text}`")))?;
        Ok(self.leased(record, lease))
    }
}

pub(crate) struct FromStore<'a>(pub(crate) &'a Store);

impl Source for FromStore<'_> {
    fn open(&self, descriptor: &Descriptor, from: u64) -> Result<Blob<'_>> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.0.open_blob(&descriptor.digest)?;
        file.seek(SeekFrom::Start(from)).map_err(|cause| files::failed(cause, "read a blob".into()))?;
        Ok(Box::new(file))
    }

    fn name(&self) -> String {
        "the store".into()
    }

    fn is_store(&self) -> bool {
        true
    }
}

/// A layer with verified digests that waits for those below.
struct Unpacked {
    work: Temporary,
    extractor: Extractor,
    measured: Measured,
}

struct Work<'a> {
    store: &'a Store,
    source: &'a dyn Source,
    layers: &'a [Descriptor],
    diff_ids: &'a [Digest],
    chain: Vec<Digest>,
    budget: Arc<Budget>,
    report: Report<'a>,
    /// The largest first.
    queue: Vec<usize>,
    next: AtomicUsize,
    failed: AtomicBool,
    slots: Vec<Mutex<Option<Unpacked>>>,
    committed: Mutex<usize>,
}

fn bring(
    store: &Store,
    source: &dyn Source,
    chosen: &SelectedImage,
    options: &LoadOptions,
    report: Report<'_>,
) -> Result<ImageRecord> {
    let layers = &chosen.manifest.layers;
    let chain = chain(&chosen.config.diff_ids);
    let budget = Budget::new(options.limits);
    budget.check_announced(layers.iter().map(|layer| layer.size))?;
    let mut queue = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        if layer.is_foreign() {
            return Err(Error::new(
                Kind::Image,
                format!("the layer `{}` must not be passed on and is fetched from nowhere else", layer.digest),
            ));
        }
        if let Some(record) = store.layer_of(&chain[index], layer)? {
            budget.take_layer(layer.size, record.size, record.entries)?;
            report(Event::There { digest: &layer.digest, size: layer.size });
            continue;
        }
        // A damaged blob in the store would be read again each time.
        if !source.is_store() && store.drop_damaged(layer)? {
            report(Event::Note(&format!(
                "the store's copy of {} was damaged; it is fetched again",
                layer.digest.short()
            )));
        }
        queue.push(index);
    }
    queue.sort_by_key(|index| std::cmp::Reverse(layers[*index].size));
    let work = Work {
        store,
        source,
        layers,
        diff_ids: &chosen.config.diff_ids,
        chain,
        budget,
        report,
        queue,
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        slots: layers.iter().map(|_| Mutex::new(None)).collect(),
        committed: Mutex::new(0),
    };
    in_parallel(work.queue.len(), || work.run())?;
    work.commit_ready()?;
    finish(&work, chosen)
}

impl Work<'_> {
    fn run(&self) -> Result<()> {
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = self.queue.get(turn) else { return Ok(()) };
            if self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let done = self.unpack(index).and_then(|()| self.commit_ready());
            if let Err(error) = done {
                self.failed.store(true, Ordering::Relaxed);
                let digest = &self.layers[index].digest;
                return Err(error.doing(format!("unpack the layer `{digest}`")));
            }
        }
    }

    fn unpack(&self, index: usize) -> Result<()> {
        let descriptor = &self.layers[index];
        let mut reused = 0;
        if descriptor.toc.is_some() {
            let budget = self.budget.fork();
            match self.unpack_with(index, &budget, Some(&mut reused)) {
                // Another encoder can make another blob of the same content.
                Err(error) if reused > 0 && error.kind() == Kind::Image => {
                    budget.refund();
                    let short = descriptor.digest.short();
                    let note = format!("{short}: parts of other layers do not fit; fetching it whole");
                    (self.report)(Event::Note(&note));
                    reused = 0;
                    self.unpack_with(index, &self.budget, None)?;
                }
                done => done?,
            }
        } else {
            self.unpack_with(index, &self.budget, None)?;
        }
        (self.report)(Event::Done { digest: &descriptor.digest, reused });
        Ok(())
    }

    /// `reused` becomes the number of bytes of other blobs in the store, if they may be used.
    fn unpack_with(&self, index: usize, budget: &Arc<Budget>, reused: Option<&mut u64>) -> Result<()> {
        let descriptor = &self.layers[index];
        let work = Temporary::new(self.store)?;
        std::fs::create_dir(work.path().join("layer"))
            .map_err(|cause| files::failed(cause, "make a directory".into()))?;
        let root = work.make("layer/fs")?;
        (self.report)(Event::Begin { digest: &descriptor.digest, size: descriptor.size });
        let mut keeping = BlobWriter::open(self.store, self.source, descriptor, work.path())?;
        let watched =
            Box::new(ReportingReader { inner: keeping.blob(reused)?, digest: &descriptor.digest, report: self.report });
        let mut extractor = Extractor::new(root, self.store.form(), budget);
        let algorithm = descriptor.digest.algorithm();
        let decoded = decode(watched, algorithm, Some(descriptor.size), budget, |stream| {
            extractor.apply(&mut Reader::new(stream))
        });
        let (outcome, measured) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => return Err(keeping.give_up(error)),
        };
        let checked = check(descriptor, &self.diff_ids[index], &measured, outcome);
        keeping.finish(checked.is_ok())?;
        checked?;
        if let Ok(mut slot) = self.slots[index].lock() {
            *slot = Some(Unpacked { work, extractor, measured });
        }
        Ok(())
    }

    fn commit_ready(&self) -> Result<()> {
        let Ok(mut committed) = self.committed.lock() else { return Ok(()) };
        while *committed < self.layers.len() {
            let index = *committed;
            let ready = self.slots[index].lock().ok().and_then(|mut slot| slot.take());
            match ready {
                Some(unpacked) => self.commit(index, unpacked)?,
                None if self.queue.contains(&index) => return Ok(()),
                None => {}
            }
            *committed += 1;
        }
        Ok(())
    }

    fn commit(&self, index: usize, unpacked: Unpacked) -> Result<()> {
        let Unpacked { work, extractor, measured } = unpacked;
        let below: Vec<PathBuf> =
            self.chain[..index].iter().rev().map(|chain| self.store.layer_path(chain).join("fs")).collect();
        let finished = finish_layer(extractor, &Stack::open(&below, self.store.form())?)?;
        let record = LayerRecord::new(measured, finished);
        let staged = work.path().join("layer");
        put_record(&staged, &record, Durability::Cached)?;
        self.store.put_layer(&self.chain[index], &self.layers[index].digest, &staged, work.path())
    }
}

/// Digests first: the errors of unpacking a corrupt blob are misleading.
pub(super) fn check(descriptor: &Descriptor, diff_id: &Digest, measured: &Measured, outcome: Result<()>) -> Result<()> {
    let check = !weaken::is_off("image-digest");
    // On a full disk the rest of the blob was never read.
    if outcome.as_ref().is_err_and(|error| error.kind() == Kind::Disk) {
        return outcome;
    }
    if check && measured.blob_size != descriptor.size {
        let (found, wanted) = (measured.blob_size, descriptor.size);
        return Err(mismatch(&descriptor.digest, format!("it has {found} bytes where {wanted} were announced")));
    }
    if check && measured.blob != descriptor.digest {
        return Err(mismatch(&descriptor.digest, format!("its content is `{}`", measured.blob)));
    }
    let is_plain = descriptor.media_type == OCI_LAYER && !weaken::is_off("image-tar-readers");
    if is_plain && measured.size != measured.blob_size {
        let words = "its type is a plain tar, and it is compressed: readers disagree about it";
        return Err(Error::new(Kind::Image, words));
    }
    outcome?;
    if check && measured.diff_id != *diff_id {
        return Err(mismatch(
            &descriptor.digest,
            format!("it unpacks to `{}`, but the config has `{diff_id}`", measured.diff_id),
        ));
    }
    Ok(())
}

fn finish(work: &Work<'_>, chosen: &SelectedImage) -> Result<ImageRecord> {
    let store = work.store;
    store.put_blob(&chosen.manifest.config.digest, &chosen.config_bytes)?;
    store.put_blob(&chosen.descriptor.digest, &chosen.bytes)?;
    let mut size = 0;
    for chain in &work.chain {
        let missing = || Error::new(Kind::Internal, "a layer that was just committed is gone");
        size += store.layer(chain)?.ok_or_else(missing)?.size;
    }
    let record = ImageRecord::new(
        chosen.descriptor.clone(),
        chosen.manifest.config.clone(),
        chosen.manifest.layers.clone(),
        chosen.config.clone(),
        size,
    );
    store.put_image(&record)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::{OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};

    #[derive(Default)]
    struct Documents(Vec<Vec<u8>>);

    impl Source for Documents {
        fn open(&self, descriptor: &Descriptor, _: u64) -> Result<Blob<'_>> {
            let found = self.0.iter().find(|bytes| Digest::of(bytes) == descriptor.digest);
            Ok(Box::new(found.unwrap().as_slice()))
        }

        fn name(&self) -> String {
            "documents".into()
        }
    }

    impl Documents {
        /// Returns its entry, without the closing brace.
        fn put(&mut self, media_type: &str, text: String) -> String {
            let (digest, size) = (Digest::of(text.as_bytes()), text.len());
            self.0.push(text.into_bytes());
            format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size}"#)
        }

        fn image(&mut self, platform: &Platform, run: &str) -> String {
            let Platform { os, architecture, variant } = platform;
            let platform = format!(r#""os":"{os}","architecture":"{architecture}","variant":"{variant}""#);
            let root = r#""rootfs":{"type":"layers","diff_ids":[]}"#;
            let config = self.put(OCI_CONFIG, format!(r#"{{{platform},{root},"config":{run}}}"#));
            let manifest =
                format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{config}}},"layers":[]}}"#);
            self.put(OCI_MANIFEST, manifest) + &format!(r#","platform":{{{platform}}}"#)
        }
    }

    fn descriptor(entry: &str) -> Descriptor {
        Descriptor::new(&serde_json::from_str(&format!("{entry}}}")).unwrap()).unwrap()
    }

    #[test]
    fn another_platform_of_an_index_is_not_current() {
        let (scratch, mut source) = (tempfile::tempdir().unwrap(), Documents::default());
        let store = Store::open(scratch.path()).unwrap();
        let platforms = ["linux/arm/v6", "linux/arm/v7", "linux/other"].map(|text| text.parse::<Platform>().unwrap());
        let all: Vec<String> =
            [Platform::host()].iter().chain(&platforms).map(|each| source.image(each, "{}") + "}").collect();
        let index = format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{}]}}"#, all.join(","));
        let index = descriptor(&source.put(OCI_INDEX, index));
        let name: Reference = "x".parse().unwrap();
        let choices = || [None].into_iter().chain(platforms.iter().cloned().map(Some));
        for chosen in choices() {
            let options = LoadOptions { platform: chosen.clone(), ..LoadOptions::default() };
            add(&store, &source, &index, std::slice::from_ref(&name), &options, &|_| {}).unwrap();
            for asked in choices() {
                let options = LoadOptions { platform: asked.clone(), ..LoadOptions::default() };
                let found = current(&store, &name, &index.digest, &options).unwrap();
                assert_eq!(found.is_some(), asked == chosen, "{chosen:?} {asked:?}");
            }
        }
    }

    #[test]
    fn digest_of_an_image_names_no_other_image() {
        let (scratch, mut source) = (tempfile::tempdir().unwrap(), Documents::default());
        let store = Store::open(scratch.path()).unwrap();
        let mut load = |run: &str| {
            let image = descriptor(&source.image(&Platform::host(), run));
            add(&store, &source, &image, &["x".parse().unwrap()], &LoadOptions::default(), &|_| {}).unwrap().digest
        };
        let (one, other) = (load("{}"), load(r#"{"User":"1"}"#));
        let pinned = format!("x@{other}");
        assert_eq!(store.put_name(&pinned.parse().unwrap(), &one).unwrap_err().kind(), Kind::Usage);
        store.put_name(&pinned.parse().unwrap(), &other).unwrap();
        assert_eq!(store.find(&pinned).unwrap().digest, other);
    }

    #[test]
    fn image_whose_record_could_not_be_read_again_is_refused() {
        let (scratch, mut source) = (tempfile::tempdir().unwrap(), Documents::default());
        let store = Store::open(scratch.path()).unwrap();
        let mut load = |run: String| {
            let image = descriptor(&source.image(&Platform::host(), &run));
            add(&store, &source, &image, &["x".parse().unwrap()], &LoadOptions::default(), &|_| {})
        };
        let many = |text: &str, count: usize| vec![text; count].join(",");
        // 1e15 is written as 1000000000000000.0.
        let error = load(format!(r#"{{"Healthcheck":[{}]}}"#, many("1e15", 1_000_000))).unwrap_err();
        assert_eq!(error.kind(), Kind::Image, "{error}");
        assert!(error.advice().is_some(), "{error:?}");
        assert!(store.names().unwrap().is_empty() && store.images().unwrap().is_empty());
        // An indented record would be longer than the limit.
        load(format!(r#"{{"Env":[{}]}}"#, many(r#""""#, 1_500_000))).unwrap();
        assert_eq!(store.images().unwrap().len(), 1);
    }
}
