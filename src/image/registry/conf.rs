//! containers-registries.conf(5) and its drop-ins. An unknown key of a registry may forbid something: it is an error.
//! Top-level keys are about short names and credentials, which do not apply here.

use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::image::Reference;
use serde::Deserialize;
use std::path::{Path, PathBuf};

const LARGEST_FILE: u64 = 1 << 20;
const SYSTEM: &str = "/etc/containers";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Conf {
    registry: Vec<Registry>,
    /// The format of version 1.
    registries: Lists,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Registry {
    prefix: String,
    /// Empty means the prefix itself.
    pub(super) location: String,
    pub(super) insecure: bool,
    pub(super) blocked: bool,
    mirror: Vec<Mirror>,
    mirror_by_digest_only: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Mirror {
    pub(super) location: String,
    pub(super) insecure: bool,
    pull_from_mirror: Option<For>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum For {
    #[serde(alias = "")]
    All,
    DigestOnly,
    TagOnly,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lists {
    insecure: List,
    block: List,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    registries: Vec<String>,
}

impl Conf {
    /// containers-registries.conf.d(5).
    pub(super) fn read() -> Result<Conf> {
        let chosen = std::env::var_os("CONTAINERS_REGISTRIES_CONF").filter(|path| !path.is_empty()).map(PathBuf::from);
        let own = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/containers"));
        Conf::from(chosen.as_deref(), own.as_deref(), Path::new(SYSTEM))
    }

    fn from(chosen: Option<&Path>, own: Option<&Path>, system: &Path) -> Result<Conf> {
        let mut conf = Conf::default();
        let mut is_own = false;
        match (chosen, own) {
            (Some(path), _) => drop(conf.add_file(path)?),
            (None, Some(own)) if conf.add_file(&own.join("registries.conf"))? => is_own = true,
            _ => drop(conf.add_file(&system.join("registries.conf"))?),
        }
        // A user with an own file has own drop-ins only.
        let folders = [Some(system).filter(|_| !is_own), own];
        for folder in folders.into_iter().flatten() {
            for path in drop_ins(&folder.join("registries.conf.d"))? {
                conf.add_file(&path)?;
            }
        }
        Ok(conf)
    }

    fn add_file(&mut self, path: &Path) -> Result<bool> {
        match files::read_bounded(path, LARGEST_FILE) {
            Ok(bytes) => {
                self.add(&String::from_utf8_lossy(&bytes)).doing(|| format!("read `{}`", path.display()))?;
                Ok(true)
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces former tables of the same prefix.
    pub(super) fn add(&mut self, text: &str) -> Result<()> {
        let file: Conf =
            toml::from_str(text).map_err(|cause| Error::new(Kind::Registry, cause.message().to_owned()))?;
        let Lists { insecure, block } = file.registries;
        let named = |prefix: &String| Registry { prefix: prefix.clone(), ..Registry::default() };
        // In version 1 the strictest list wins: a registry may be in both lists.
        let insecure = insecure.registries.iter().map(|prefix| Registry { insecure: true, ..named(prefix) });
        let block = block.registries.iter().map(|prefix| Registry { blocked: true, ..named(prefix) });
        for registry in file.registry.into_iter().chain(insecure).chain(block) {
            let registry = registry.checked()?;
            self.registry.retain(|other| other.prefix != registry.prefix);
            self.registry.push(registry);
        }
        Ok(())
    }

    /// The table with the longest match, and the rest of the name after it.
    pub(super) fn find(&self, reference: &Reference) -> Option<(&Registry, String)> {
        let whole = reference.to_string();
        let fitting = self.registry.iter().filter_map(|each| Some((each, matched(&whole, &each.prefix)?)));
        let (registry, end) = fitting.max_by_key(|(_, end)| *end)?;
        // A prefix may include the tag, which does not belong to a location.
        Some((registry, reference.name().get(end..).unwrap_or_default().to_owned()))
    }
}

impl Registry {
    fn checked(mut self) -> Result<Registry> {
        let wrong = |why: String| Err(Error::new(Kind::Registry, why));
        let from = if self.prefix.is_empty() { &self.location } else { &self.prefix };
        let plain = from.strip_prefix("https://").or(from.strip_prefix("http://")).unwrap_or(from);
        let prefix = plain.trim_end_matches('/').to_owned();
        if prefix.is_empty() {
            return wrong("a [[registry]] has neither `prefix` nor `location`".into());
        }
        let domain = prefix.strip_prefix("*.").unwrap_or(&prefix);
        if domain.contains('*') || (domain != prefix && domain.contains(['/', ':', '@'])) {
            let shown = prefix.escape_debug();
            return wrong(format!("the prefix `{shown}` is invalid: a `*` may only stand before a domain"));
        }
        let restricted = self.mirror.iter().any(|mirror| mirror.pull_from_mirror.is_some_and(|of| of != For::All));
        if self.mirror_by_digest_only && restricted {
            return wrong(format!(
                "`{prefix}` has `mirror-by-digest-only` and `pull-from-mirror`, which exclude each other"
            ));
        }
        self.prefix = prefix;
        self.location.truncate(self.location.trim_end_matches('/').len());
        Ok(self)
    }

    pub(super) fn name(&self) -> &str {
        &self.prefix
    }

    /// By digest all, by tag only some.
    pub(super) fn mirrors(&self, reference: &Reference) -> impl Iterator<Item = &Mirror> {
        let has_digest = reference.digest().is_some();
        let by_digest_only = self.mirror_by_digest_only;
        self.mirror.iter().filter(move |mirror| match mirror.pull_from_mirror {
            Some(For::DigestOnly) => has_digest,
            Some(For::TagOnly) => !has_digest,
            Some(For::All) | None => has_digest || !by_digest_only,
        })
    }
}

/// The end of a prefix's match, before a port, a folder, a tag or a digest.
fn matched(whole: &str, prefix: &str) -> Option<usize> {
    let end = match prefix.strip_prefix('*') {
        Some(domain) => {
            let host = whole.split('/').next()?;
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            let is_below = name.len() > domain.len() && ends_with(name, domain);
            is_below.then_some(name.len())?
        }
        None => ends_with(whole.get(..prefix.len())?, prefix).then_some(prefix.len())?,
    };
    (end == whole.len() || whole[end..].starts_with([':', '/', '@'])).then_some(end)
}

/// Hosts match in any case.
fn ends_with(text: &str, end: &str) -> bool {
    text.len().checked_sub(end.len()).and_then(|at| text.get(at..)).is_some_and(|rest| rest.eq_ignore_ascii_case(end))
}

/// Sorted by name.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |cause| files::failed(cause, format!("list `{}`", folder.display()));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(failed(cause)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> Result<Conf> {
        let mut conf = Conf::default();
        conf.add(text).map(|()| conf)
    }

    #[test]
    fn the_longest_match_decides_and_ends_where_a_part_ends() {
        let check = |prefix: &str, reference: &str, rest: Option<&str>| {
            let conf = conf(&format!("[[registry]]\nprefix = \"{prefix}\"")).unwrap();
            let reference = reference.parse().unwrap();
            let found = conf.find(&reference).map(|(_, rest)| rest);
            assert_eq!(found.as_deref(), rest, "{prefix} {reference}");
        };
        check("*.evil.test", "reg.evil.test/a", Some("/a"));
        check("*.evil.test", "a.reg.evil.test:5000/a", Some(":5000/a"));
        check("*.evil.test", "REG.Evil.test/a", Some("/a"));
        check("*.evil.test", "evil.test/a", None);
        check("*.evil.test", "notevil.test/a", None);
        check("*.evil.test", "reg.evil.test.org/a", None);
        check("*.evil.test", "good.org/reg.evil.test/a", None);
        check("evil.test", "evil.test:5000/a", Some(":5000/a"));
        check("evil.test/", "evil.test/a/b", Some("/a/b"));
        check("https://evil.test", "evil.test/a", Some("/a"));
        check("a.org/team", "a.org/team/x", Some("/x"));
        check("a.org/team", "a.org/teams/x", None);
        check("a.org/x:1", "a.org/x:1", Some(""));
        check("a.org/x:1", "a.org/x:10", None);
        check("a.org/x:1", "a.org/x:2", None);
        let tables = "[[registry]]\nprefix = \"*.org\"\n[[registry]]\nprefix = \"a.org/x\"\nblocked = true";
        let both = conf(tables).unwrap();
        assert!(both.find(&"a.org/x".parse().unwrap()).unwrap().0.blocked);
        assert!(!both.find(&"a.org/y".parse().unwrap()).unwrap().0.blocked);
    }

    #[test]
    fn a_key_or_a_word_that_is_not_known_is_refused_by_its_name() {
        let refused = |text: &str, why: &str| {
            let error = conf(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("[[registry]]\nlocation = \"a.org\"\nblokced = true", "`blokced`");
        refused("[[registry]]\nlocation = \"a.org\"\n[[registry.mirror]]\nlocation = \"b\"\npull = \"x\"", "`pull`");
        refused("[[registry]]\nlocation = \"a.org\"\n[[registry.mirror]]\npull-from-mirror = \"never\"", "`never`");
        refused("[[registry]]\nblocked = true", "neither `prefix` nor `location`");
        for prefix in ["a.*.org", "*.a.org/x", "*.a.org:5000", "*"] {
            refused(&format!("[[registry]]\nprefix = \"{prefix}\""), "is invalid");
        }
        let both = "[[registry]]\nprefix = \"a.org\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"b.org\"\n\
                    pull-from-mirror = \"tag-only\"";
        refused(both, "exclude each other");
        conf("unqualified-search-registries = [\"a.org\"]\nshort-name-mode = \"enforcing\"\n[aliases]\n\"a\" = \"b.org/a\"").unwrap();
    }

    #[test]
    fn version_1_blocks_too() {
        let conf =
            conf("[registries.insecure]\nregistries = ['a.org', 'b.org']\n[registries.block]\nregistries = ['a.org']");
        let conf = conf.unwrap();
        assert!(conf.find(&"a.org/x".parse().unwrap()).unwrap().0.blocked);
        assert!(conf.find(&"b.org/x".parse().unwrap()).unwrap().0.insecure);
    }

    #[test]
    fn drop_ins_are_read_in_their_order_and_the_last_word_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let (own, system) = (scratch.path().join("own"), scratch.path().join("system"));
        let write = |path: PathBuf, blocked: &[(&str, bool)]| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let tables =
                blocked.iter().map(|(name, word)| format!("[[registry]]\nprefix = \"{name}\"\nblocked = {word}\n"));
            std::fs::write(path, tables.collect::<String>()).unwrap();
        };
        let blocked = |chosen: Option<&Path>| {
            let conf = Conf::from(chosen, Some(&own), &system).unwrap();
            let is =
                |name: &&str| conf.find(&format!("{name}/x").parse().unwrap()).is_some_and(|(found, _)| found.blocked);
            ["a.org", "b.org", "c.org", "d.org"]
                .iter()
                .filter(|name| is(name))
                .map(|name| &name[..1])
                .collect::<String>()
        };
        assert_eq!(blocked(None), "");
        write(system.join("registries.conf"), &[("a.org", true)]);
        write(system.join("registries.conf.d/50-x.conf"), &[("a.org", false), ("b.org", true)]);
        write(system.join("registries.conf.d/60-x.conf"), &[("c.org", true)]);
        write(system.join("registries.conf.d/70-x.conf.old"), &[("b.org", false)]);
        assert_eq!(blocked(None), "bc");
        write(own.join("registries.conf.d/10-x.conf"), &[("c.org", false), ("d.org", true)]);
        assert_eq!(blocked(None), "bd");
        let chosen = scratch.path().join("chosen");
        write(chosen.clone(), &[("b.org", false)]);
        assert_eq!(blocked(Some(&chosen)), "bd");
        write(own.join("registries.conf"), &[("a.org", true)]);
        assert_eq!(blocked(None), "ad");
    }
}
