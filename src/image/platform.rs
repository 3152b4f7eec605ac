//! Selects the entry of an index for a platform. Pure.
//!
//! The first fitting entry wins (image-spec, "Image Index"), the wanted variant before lower ones. Skips attestations
//! (`unknown/unknown`).

use super::manifest::{DOCKER_LIST, DOCKER_MANIFEST, Descriptor, Entry, Index, OCI_INDEX, OCI_MANIFEST};
use crate::error::{Error, Kind, Result};
use std::fmt;
use std::str::FromStr;

/// `os/architecture[/variant]` in Go's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Such as `linux`.
    pub os: String,
    /// Such as `amd64`.
    pub architecture: String,
    /// Such as `v8`; may be empty.
    pub variant: String,
}

impl Platform {
    /// The platform of this machine.
    pub fn host() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "aarch64" => ("arm64", "v8"),
            "x86" => ("386", ""),
            "powerpc64" => ("ppc64le", ""),
            other => (other, ""),
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: variant.into() }
    }

    /// 0 if equal, more for a lower variant; `None` if it does not run here.
    pub(super) fn distance(&self, os: &str, architecture: &str, variant: &str) -> Option<u32> {
        if os != self.os || architecture != self.architecture {
            return None;
        }
        let (wanted, found) = (self.level(&self.variant)?, self.level(variant)?);
        wanted.checked_sub(found)
    }

    /// The default is the architecture's base.
    fn level(&self, variant: &str) -> Option<u32> {
        let base = match self.architecture.as_str() {
            "arm64" => 8,
            "arm" => 7,
            _ => 1,
        };
        if variant.is_empty() {
            return Some(base);
        }
        // arm64 has v8.1 and so on; the whole number decides.
        let digits = variant.strip_prefix('v')?;
        digits.split('.').next()?.parse().ok()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(out, "/{}", self.variant) }
    }
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Platform> {
        let parts: Vec<&str> = text.split('/').collect();
        let word = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        };
        let platform = match parts.as_slice() {
            [architecture] if word(architecture) => ("linux", *architecture, ""),
            [os, architecture] if word(os) && word(architecture) => (*os, *architecture, ""),
            [os, architecture, variant] if parts.iter().all(word) => (*os, *architecture, *variant),
            _ => {
                return Err(Error::new(Kind::Usage, "it is not OS/ARCHITECTURE[/VARIANT]")
                    .doing(format!("read the platform `{}`", text.escape_debug()))
                    .hint("write for example linux/arm64"));
            }
        };
        let architecture = match platform.1 {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Ok(Platform { os: platform.0.into(), architecture: architecture.into(), variant: platform.2.into() })
    }
}

/// Best first: fitting entries, then entries without a platform.
pub(crate) fn candidates(index: &Index, wanted: &Platform) -> Result<Vec<Descriptor>> {
    let mut found: Vec<(u32, &Entry)> = Vec::new();
    for entry in &index.manifests {
        let media_type = entry.media_type.as_str();
        let nested = matches!(media_type, OCI_INDEX | DOCKER_LIST);
        if !nested && !matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST) {
            continue;
        }
        if entry.annotations.contains_key("vnd.docker.reference.type") {
            continue;
        }
        match &entry.platform {
            Some(platform) => {
                if let Some(distance) = wanted.distance(&platform.os, &platform.architecture, &platform.variant) {
                    found.push((distance, entry));
                }
            }
            None => found.push((u32::MAX, entry)),
        }
    }
    // Stable: of equal entries the first wins (image-spec).
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().map(|(_, entry)| Descriptor::new(entry)).collect()
}

pub(crate) fn offered(index: &Index) -> Vec<String> {
    let platforms = index.manifests.iter().filter_map(|entry| entry.platform.as_ref());
    platforms
        .map(|platform| {
            let (os, architecture) = (platform.os.clone(), platform.architecture.clone());
            Platform { os, architecture, variant: platform.variant.clone() }.to_string()
        })
        .filter(|name| !name.starts_with("unknown/"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_variant_fits_and_a_higher_one_does_not() {
        let rows: &[(&str, &str, &str, Option<u32>)] = &[
            ("linux/amd64", "amd64", "", Some(0)),
            ("linux/amd64", "amd64", "v1", Some(0)),
            ("linux/amd64", "amd64", "v2", None),
            ("linux/amd64/v3", "amd64", "v2", Some(1)),
            ("linux/arm64", "arm64", "v8", Some(0)),
            ("linux/arm64", "arm64", "v9", None),
            ("linux/arm/v7", "arm", "v6", Some(1)),
            ("linux/arm/v6", "arm", "v7", None),
            ("linux/amd64", "386", "", None),
        ];
        for (wanted, architecture, variant, distance) in rows {
            let wanted: Platform = wanted.parse().unwrap();
            assert_eq!(wanted.distance("linux", architecture, variant), *distance, "{wanted} {architecture} {variant}");
        }
    }

    #[test]
    fn the_first_of_equal_entries_wins_and_attestations_are_passed_over() {
        let entry = |digit: &str, platform: &str, extra: &str| {
            let digest = digit.repeat(64);
            format!(
                r#"{{"mediaType":"{OCI_MANIFEST}","digest":"sha256:{digest}","size":1,"platform":{platform}{extra}}}"#
            )
        };
        let amd64 = r#"{"os":"linux","architecture":"amd64"}"#;
        let attestation = r#","annotations":{"vnd.docker.reference.type":"attestation-manifest"}"#;
        let text = format!(
            r#"{{"schemaVersion":2,"manifests":[{},{},{},{}]}}"#,
            entry("1", amd64, attestation),
            entry("2", r#"{"os":"linux","architecture":"arm64"}"#, ""),
            entry("3", amd64, ""),
            entry("4", amd64, "")
        );
        let index: Index = serde_json::from_str(&text).unwrap();
        let found = candidates(&index, &"linux/amd64".parse().unwrap()).unwrap();
        assert_eq!(found.iter().map(|each| &each.digest.hex()[..1]).collect::<String>(), "34");
        assert!(candidates(&index, &"linux/s390x".parse().unwrap()).unwrap().is_empty());
    }
}
