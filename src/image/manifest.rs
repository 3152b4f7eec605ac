//! Manifests, indexes and descriptors: bounded, checked before parsing, and unambiguous. Pure.
//!
//! Unknown fields are ignored; `null` means absent, since Go programs write it. Tests compare the types with `oci-spec`
//! (docs/decisions/0009).

use super::Digest;
use super::digest::Hasher;
use super::toc::TocPosition;
use crate::error::{Error, Kind, Result};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Registries refuse manifests over 4 MiB; a larger config is a bomb (CVE-2023-25153).
pub(crate) const LARGEST_DOCUMENT: u64 = 8 << 20;
/// The limit of overlayfs (OVL_MAX_STACK).
pub(crate) const MOST_LAYERS: usize = 500;

pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// The digest has passed the grammar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) urls: Vec<String>,
    /// Embedded content of small blobs (image-spec, "Embedded Content"), checked like any other.
    #[serde(skip)]
    pub(crate) data: Option<Vec<u8>>,
    /// Only of a zstd:chunked layer.
    #[serde(skip)]
    pub(crate) toc: Option<TocPosition>,
}

/// image-spec, image-index.md.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Entry>,
}

/// Unchecked (image-spec, descriptor.md).
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    urls: Vec<String>,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Only in an index.
    pub(crate) platform: Option<EntryPlatform>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct EntryPlatform {
    pub(crate) os: String,
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: String,
}

/// image-spec, manifest.md.
#[derive(Deserialize)]
struct ImageManifest {
    config: Entry,
    layers: Vec<Entry>,
}

impl Descriptor {
    pub(crate) fn new(entry: &Entry) -> Result<Descriptor> {
        let data = match &entry.data {
            Some(text) => Some(
                base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|_| Error::new(Kind::Image, "a descriptor's `data` is not base64"))?,
            ),
            None => None,
        };
        Ok(Descriptor {
            media_type: entry.media_type.clone(),
            digest: entry.digest.parse()?,
            size: entry.size,
            urls: entry.urls.clone(),
            data,
            toc: TocPosition::find(&entry.annotations, entry.size),
        })
    }

    /// Size, then digest, both before `bytes` are parsed.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<()> {
        if self.size != bytes.len() as u64 {
            let found = bytes.len();
            return Err(mismatch(&self.digest, format!("it has {found} bytes where {} were announced", self.size)));
        }
        let mut hasher = Hasher::new(self.digest.algorithm());
        hasher.update(bytes);
        let found = hasher.finish();
        if found != self.digest && !crate::sys::weaken::is_off("image-digest") {
            return Err(mismatch(&self.digest, format!("its content is `{found}`")));
        }
        Ok(())
    }

    /// Registries must not distribute such a layer (deprecated). It comes from `urls`, which are followed only on
    /// request.
    pub(crate) fn is_foreign(&self) -> bool {
        self.media_type.contains("nondistributable") || self.media_type.contains(".foreign.")
    }
}

pub(crate) fn mismatch(digest: &Digest, cause: String) -> Error {
    Error::new(Kind::Image, cause)
        .doing(format!("check `{digest}`"))
        .hint("the content is corrupt or was tampered with; fetch it again from a source that you trust")
}

pub(crate) enum Document {
    Index(Index),
    Manifest(Manifest),
}

/// The used parts of an image manifest, checked.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// `bytes` were checked. The document must not contradict `media_type` of the descriptor or the registry's header
/// (CVE-2021-41190).
pub(crate) fn parse(bytes: &[u8], media_type: Option<&str>) -> Result<Document> {
    let value = json(bytes).map_err(|error| error.doing("read a manifest"))?;
    document(value, media_type).map_err(|error| error.doing("read a manifest"))
}

fn document(value: Value, media_type: Option<&str>) -> Result<Document> {
    let wrong = |why: &str| Err(Error::new(Kind::Image, why));
    let own = value.get("mediaType").and_then(Value::as_str);
    if value.get("schemaVersion").and_then(Value::as_u64) == Some(1) {
        return Err(Error::new(Kind::Image, "Docker's schema 1 is not supported")
            .hint("push the image again with a current tool, which writes schema 2 or OCI"));
    }
    if value.get("schemaVersion").and_then(Value::as_u64) != Some(2) {
        return wrong("`schemaVersion` is not 2");
    }
    let lists = value.get("manifests").is_some();
    let layered = value.get("layers").is_some() || value.get("config").is_some();
    if lists && layered && !crate::sys::weaken::is_off("image-ambiguous") {
        return wrong("it has both `manifests` and `layers` or `config`, so its meaning depends on the reader");
    }
    if let (Some(own), Some(announced)) = (own, media_type.filter(|name| is_known(name)))
        && own != announced
    {
        return Err(Error::new(
            Kind::Image,
            format!("it calls itself `{}`, announced was `{announced}`", own.escape_debug()),
        ));
    }
    let kind = media_type.filter(|name| is_known(name)).or(own);
    let is_index = match kind {
        Some(OCI_INDEX | DOCKER_LIST) => true,
        Some(OCI_MANIFEST | DOCKER_MANIFEST) => false,
        Some(other) => return Err(Error::new(Kind::Image, format!("`{}` is not an image", other.escape_debug()))),
        None => lists,
    };
    if is_index != lists || is_index == layered {
        return wrong("its fields do not fit its media type");
    }
    if is_index {
        let index = serde_json::from_value(value).map_err(|cause| Error::new(Kind::Image, cause.to_string()))?;
        return Ok(Document::Index(index));
    }
    let manifest: ImageManifest =
        serde_json::from_value(value).map_err(|cause| Error::new(Kind::Image, cause.to_string()))?;
    Ok(Document::Manifest(checked(&manifest)?))
}

fn checked(manifest: &ImageManifest) -> Result<Manifest> {
    let config = Descriptor::new(&manifest.config)?;
    if config.media_type != OCI_CONFIG && config.media_type != DOCKER_CONFIG {
        let found = config.media_type.escape_debug().to_string();
        return Err(Error::new(Kind::Image, format!("it is an artifact, not an image: its config is `{found}`")));
    }
    if manifest.layers.len() > MOST_LAYERS {
        let found = manifest.layers.len();
        return Err(Error::new(Kind::Image, format!("it has {found} layers; overlayfs stacks at most {MOST_LAYERS}")));
    }
    let layers = manifest.layers.iter().map(Descriptor::new).collect::<Result<Vec<_>>>()?;
    Ok(Manifest { config, layers })
}

fn is_known(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | OCI_MANIFEST | DOCKER_LIST | DOCKER_MANIFEST)
}

/// Bounds the size, and removes the nulls that mean "absent".
pub(crate) fn json(bytes: &[u8]) -> Result<Value> {
    if bytes.len() as u64 > LARGEST_DOCUMENT {
        let found = bytes.len();
        return Err(Error::new(Kind::Image, format!("{found} bytes are more than {LARGEST_DOCUMENT}")));
    }
    let mut value: Value =
        serde_json::from_slice(bytes).map_err(|cause| Error::new(Kind::Image, format!("not valid JSON: {cause}")))?;
    drop_nulls(&mut value);
    Ok(value)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn manifest(extra: &str) -> String {
        format!(
            r#"{{"schemaVersion":2,{extra}"config":{{"mediaType":"{OCI_CONFIG}","digest":"{DIGEST}","size":2}},
            "layers":[{{"mediaType":"{OCI_LAYER_GZIP}","digest":"{DIGEST}","size":0,"annotations":null}}]}}"#
        )
    }

    fn refusal(text: &str, media_type: Option<&str>) -> String {
        match parse(text.as_bytes(), media_type) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_manifest_with_nulls_for_absent_fields_is_read() {
        let Document::Manifest(read) = parse(manifest("\"annotations\":null,").as_bytes(), None).unwrap() else {
            panic!("not a manifest")
        };
        assert_eq!((read.layers.len(), read.config.size), (1, 2));
    }

    /// T-54, CVE-2021-41190.
    #[test]
    fn a_document_that_is_two_things_is_refused() {
        let both = manifest("\"manifests\":[],");
        assert!(refusal(&both, None).contains("both `manifests` and `layers`"));
        assert!(refusal(&manifest(&format!("\"mediaType\":\"{OCI_INDEX}\",")), None).contains("do not fit"));
        let contradiction = manifest(&format!("\"mediaType\":\"{DOCKER_MANIFEST}\","));
        assert!(refusal(&contradiction, Some(OCI_MANIFEST)).contains("announced was"));
        assert!(refusal(r#"{"schemaVersion":1,"name":"x"}"#, None).contains("schema 1"));
    }

    /// T-57, CVE-2024-3727.
    #[test]
    fn a_digest_that_is_a_path_is_refused() {
        let text = manifest("").replace(DIGEST, "sha256:../../x");
        assert!(parse(text.as_bytes(), None).is_err());
    }

    /// T-55, CVE-2023-25153.
    #[test]
    fn a_document_over_the_bound_is_refused_unparsed() {
        let large = vec![b' '; LARGEST_DOCUMENT as usize + 1];
        assert!(json(&large).unwrap_err().to_string().contains("are more than"));
    }

    #[test]
    fn size_is_checked_before_digest() {
        let descriptor = Descriptor {
            media_type: OCI_LAYER.into(),
            digest: Digest::of(b"abc"),
            size: 3,
            urls: Vec::new(),
            data: None,
            toc: None,
        };
        assert!(descriptor.check(b"abc").is_ok());
        assert!(descriptor.check(b"abcd").unwrap_err().to_string().contains("were announced"));
        assert!(descriptor.check(b"abd").unwrap_err().to_string().contains("its content is"));
    }

    proptest! {
        #[test]
        fn a_mutated_manifest_is_read_or_refused_never_worse(at in 0usize..400, byte: u8) {
            let mut bytes = manifest("").into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(Document::Manifest(manifest)) = parse(&bytes, None) {
                prop_assert!(manifest.layers.len() <= MOST_LAYERS);
            }
        }
    }
}
