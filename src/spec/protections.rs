//! Protections without a field in config.json: its annotations `dev.brig.*`. All are off by default.
//!
//! A key with the prefix `dev.brig.` that is not in [`KEYS`] is an error: it could be meant to forbid something.

use super::config::Config;
use super::config::check::{has, has_separate_network};
use super::config::linux::NamespaceKind;
use super::config::process::{Capabilities, Process};
use super::landlock::{ANNOTATION as LANDLOCK, Landlock};
use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::collections::BTreeMap;
use std::path::{Component, PathBuf};

const PREFIX: &str = "dev.brig.";
/// `agent` adds the system call filter of tasks.
pub(crate) const SECCOMP: &str = "dev.brig.seccomp";
/// Bytes of the root file system, such as `10G`.
pub(crate) const DISK: &str = "dev.brig.disk";
/// Files, directories and links of the root file system.
pub(crate) const DISK_INODES: &str = "dev.brig.disk.inodes";
/// Hosts that the container may reach, separated by commas or spaces.
pub(crate) const EGRESS: &str = "dev.brig.egress.allow";
/// Whether containers of the same network are reached, `true` or `false`.
pub(crate) const PEERS: &str = "dev.brig.egress.peers";
/// Host directory.
pub(crate) const RECEIPT: &str = "dev.brig.receipt";
/// With a name behind it: a secret for requests through the gateway, as the keys of a profile's `[secrets.NAME]`.
pub(crate) const SECRET: &str = "dev.brig.secret.";

const KEYS: [&str; 7] = [LANDLOCK, SECCOMP, DISK, DISK_INODES, EGRESS, PEERS, RECEIPT];

/// Default limit of files, directories and links, as for a task.
const INODES: u64 = 1_000_000;
/// In bytes: ext4 needs this for itself and some files.
const SMALLEST_DISK: u64 = 1 << 20;
/// Files, directories and links: ext4 needs eleven itself.
const FEWEST_INODES: u64 = 64;

/// The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protections {
    pub landlock: Option<Landlock>,
    pub agent_filter: bool,
    pub disk: Option<DiskCap>,
    /// Rules in the form of `--allow`; an empty list allows none. `None` leaves the network unchanged.
    pub egress: Option<Vec<String>>,
    /// Whether containers of the same network and this one reach each other.
    pub peers: bool,
    /// The receipt is `<directory>/<id>.json`.
    pub receipt: Option<PathBuf>,
    /// Names, and texts with source and hosts.
    pub secrets: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskCap {
    pub bytes: u64,
    pub inodes: u64,
}

impl Protections {
    /// Errors are of [`Kind::Spec`] and name the key.
    pub(crate) fn parse(annotations: &BTreeMap<String, String>) -> Result<Protections> {
        if let Some(key) = annotations.keys().find(|key| key.starts_with(PREFIX) && !is_known(key)) {
            let known = KEYS.join(", ");
            let words = format!("unknown annotation `{}`: the keys are {known}, {SECRET}NAME", key.escape_debug());
            return Err(Error::new(Kind::Spec, words));
        }
        // Podman before 5 reads its flag as CSV and takes quotes away. A later one keeps them in the key.
        let quoted = |key: &&String| key.starts_with(is_quote) && key.trim_start_matches(is_quote).starts_with(PREFIX);
        if let Some(key) = annotations.keys().find(quoted) {
            let words = format!("annotation `{}` begins with a quote or a space: remove it", key.escape_debug());
            return Err(Error::new(Kind::Spec, words));
        }
        let get = |key: &str| annotations.get(key).map(String::as_str);
        let agent_filter = match get(SECCOMP) {
            None => false,
            Some("agent") => true,
            Some(other) => return Err(wrong(SECCOMP, other, "it has one value, `agent`")),
        };
        let inodes = get(DISK_INODES).map(|text| number(DISK_INODES, text, FEWEST_INODES)).transpose()?;
        let disk = match get(DISK) {
            Some(text) => Some(DiskCap { bytes: bytes(text)?, inodes: inodes.unwrap_or(INODES) }),
            None if inodes.is_some() => {
                let words = format!("`{DISK_INODES}` is set without `{DISK}`: set that too, such as 10G");
                return Err(Error::new(Kind::Spec, words));
            }
            None => None,
        };
        let peers = match get(PEERS) {
            None | Some("false") => false,
            Some("true") if get(EGRESS).is_some() => true,
            Some("true") => {
                let words = format!("`{PEERS}` is set without `{EGRESS}`: set that too; an empty value allows no host");
                return Err(Error::new(Kind::Spec, words));
            }
            Some(other) => return Err(wrong(PEERS, other, "write true or false")),
        };
        let secrets =
            annotations.iter().filter_map(|(key, text)| Some((key.strip_prefix(SECRET)?.to_owned(), text.clone())));
        let secrets: Vec<_> = secrets.collect();
        if let Some((name, _)) = secrets.first().filter(|_| get(EGRESS).is_none()) {
            let words =
                format!("`{SECRET}{name}` is set without `{EGRESS}`: set that too; an empty value adds no other host");
            return Err(Error::new(Kind::Spec, words));
        }
        Ok(Protections {
            secrets,
            landlock: get(LANDLOCK).map(Landlock::parse).transpose()?,
            agent_filter,
            disk,
            egress: get(EGRESS).map(rules),
            peers,
            receipt: get(RECEIPT).map(directory).transpose()?,
        })
    }

    /// A process must watch the container until its end.
    pub(crate) fn needs_monitor(&self) -> bool {
        self.egress.is_some() || self.receipt.is_some()
    }

    /// Takes CAP_NET_RAW if the gateway serves the network: a packet socket passes every fence.
    pub(crate) fn restrict(&self, process: &mut Process) {
        let Some(sets) =
            process.capabilities.as_mut().filter(|_| self.egress.is_some() && !weaken::is_off("egress-raw"))
        else {
            return;
        };
        let Capabilities { bounding, effective, inheritable, permitted, ambient } = sets;
        for set in [bounding, effective, permitted, ambient].into_iter().chain(inheritable) {
            set.retain(|name| name != "CAP_NET_RAW");
        }
    }

    /// Refuses capabilities that make a protection useless, also for `exec`.
    pub(crate) fn check_process(&self, process: &Process, config: &Config) -> Result<()> {
        let held = [(SECCOMP, self.agent_filter), (DISK, self.disk.is_some()), (EGRESS, self.egress.is_some())];
        let is_root_of_host = !has(config, NamespaceKind::User) && has_capability(process, "CAP_SYS_ADMIN");
        if let Some((key, _)) = held.into_iter().find(|(_, is_set)| *is_set && is_root_of_host) {
            let words = format!(
                "`{key}` cannot hold a container with CAP_SYS_ADMIN over the host (--privileged): leave one of the two out"
            );
            return Err(Error::new(Kind::Spec, words));
        }
        if self.egress.is_some() && has_capability(process, "CAP_NET_ADMIN") {
            let words = format!(
                "`{EGRESS}` cannot hold a process that may change its network (--cap-add NET_ADMIN): leave one of the two out"
            );
            return Err(Error::new(Kind::Spec, words));
        }
        Ok(())
    }

    /// Refuses a protection that the rest of the configuration makes useless.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        config.process.iter().try_for_each(|process| self.check_process(process, config))?;
        if self.egress.is_some() && !has_separate_network(config) {
            let words = format!("`{EGRESS}` is set, but the network is the host's: leave --network host out");
            return Err(Error::new(Kind::Spec, words));
        }
        if self.disk.is_some() && config.linux.rootfs_propagation.ends_with("shared") {
            let words = format!(
                "`{DISK}` is set, but `linux.rootfsPropagation` shares the root's mounts with the host: leave one of the two out"
            );
            return Err(Error::new(Kind::Spec, words));
        }
        if self.disk.is_some() && !has(config, NamespaceKind::Mount) {
            let words =
                format!("`{DISK}` is set, but the container has no mount namespace: add `mount` to `linux.namespaces`");
            return Err(Error::new(Kind::Spec, words));
        }
        Ok(())
    }
}

fn is_quote(letter: char) -> bool {
    matches!(letter, '"' | '\'' | ' ')
}

fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || key.strip_prefix(SECRET).is_some_and(|name| !name.is_empty())
}

/// In any set from which a process can have it.
fn has_capability(process: &Process, wanted: &str) -> bool {
    process.capabilities.as_ref().is_some_and(|sets| {
        [&sets.bounding, &sets.effective, &sets.permitted, &sets.ambient]
            .into_iter()
            .any(|set| set.iter().any(|name| name == wanted))
    })
}

fn wrong(key: &str, value: &str, hint: impl Into<String>) -> Error {
    let words = format!("invalid value `{}` of the annotation `{key}`: {}", value.escape_debug(), hint.into());
    Error::new(Kind::Spec, words)
}

fn bytes(text: &str) -> Result<u64> {
    let hint = "write a number of bytes with K, M or G, such as 10G, and at least 1M";
    let size = super::parse_size(text).map_err(|_| wrong(DISK, text, hint))?;
    if size < SMALLEST_DISK { Err(wrong(DISK, text, hint)) } else { Ok(size) }
}

fn number(key: &str, text: &str, least: u64) -> Result<u64> {
    let hint = || format!("write a number of at least {least}");
    text.parse().ok().filter(|number| *number >= least).ok_or_else(|| wrong(key, text, hint()))
}

fn rules(text: &str) -> Vec<String> {
    text.split([',', ' ', '\n']).filter(|rule| !rule.is_empty()).map(str::to_owned).collect()
}

fn directory(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    if is_plain { Ok(path) } else { Err(wrong(RECEIPT, text, "write an absolute path without `..`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Protections> {
        Protections::parse(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn values_are_read_and_all_protections_are_off_without_annotations() {
        assert_eq!(parse(&[("a", "b"), ("dev.brigade", "c")]).unwrap(), Protections::default());
        let all = parse(&[
            (SECCOMP, "agent"),
            (DISK, "10G"),
            (DISK_INODES, "5000"),
            (EGRESS, "a.example:443, *.b.example"),
            (RECEIPT, "/var/lib/receipts"),
            ("dev.brig.secret.KEY", "source = 'file:/k', host = 'a.example'"),
        ]);
        let expected = Protections {
            landlock: None,
            agent_filter: true,
            disk: Some(DiskCap { bytes: 10 << 30, inodes: 5000 }),
            egress: Some(vec!["a.example:443".to_owned(), "*.b.example".to_owned()]),
            peers: false,
            receipt: Some("/var/lib/receipts".into()),
            secrets: vec![("KEY".to_owned(), "source = 'file:/k', host = 'a.example'".to_owned())],
        };
        assert_eq!(all.unwrap(), expected);
        assert_eq!(parse(&[(EGRESS, "")]).unwrap().egress, Some(Vec::new()));
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_errors_that_name_the_key() {
        for (key, value) in [
            ("dev.brig.seccom", "agent"),
            ("dev.brig.", ""),
            ("'dev.brig.disk", "1G'"),
            (" dev.brig.disk", "1G"),
            (SECCOMP, "none"),
            (SECCOMP, ""),
            (DISK, "much"),
            (DISK, "1K"),
            (DISK_INODES, "100"),
            (PEERS, "yes"),
            (PEERS, "true"),
            (RECEIPT, "receipts"),
            (RECEIPT, "/a/../b"),
            (LANDLOCK, "{}"),
            (SECRET, "source = 'file:/k'"),
            ("dev.brig.secret.KEY", "source = 'file:/k', host = 'a.example'"),
        ] {
            let error = parse(&[(key, value)]).unwrap_err();
            assert!(error.kind() == Kind::Spec && error.to_string().contains(key), "{key}={value}: {error}");
        }
        assert!(parse(&[(DISK, "1G"), (DISK_INODES, "3")]).is_err());
    }

    #[test]
    fn protections_that_cannot_hold_are_refused_by_name() {
        let check = |annotation: (&str, &str), config: &str, expected: Option<&str>| {
            let found = parse(&[annotation]).unwrap().check(&serde_json::from_str(config).unwrap());
            assert_eq!(found.as_ref().err().is_some(), expected.is_some(), "{config}");
            if let (Err(error), Some(words)) = (found, expected) {
                assert!(error.to_string().contains(words) && error.to_string().contains(annotation.0), "{error}");
            }
        };
        let privileged = r#"{"process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}, "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]}}"#;
        let apart = r#"{"process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}, "linux": {"namespaces": [{"type": "user"}, {"type": "network"}]}}"#;
        let plain = r#"{"linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]}}"#;
        for annotation in [(SECCOMP, "agent"), (DISK, "1G"), (EGRESS, "a.example")] {
            check(annotation, privileged, Some("--privileged"));
            check(annotation, plain, None);
        }
        check((EGRESS, "a.example"), apart, None);
        let network = r#"{"process": {"capabilities": {"bounding": ["CAP_NET_ADMIN"]}}, "linux": {"namespaces": [{"type": "network"}]}}"#;
        check((EGRESS, "a.example"), network, Some("NET_ADMIN"));
        check((DISK, "1G"), &network.replace(r#""network"}"#, r#""mount"}"#), None);
        check((EGRESS, "a.example"), "{}", Some("the network is the host's"));
        check((DISK, "1G"), "{}", Some("no mount namespace"));
        check((RECEIPT, "/r"), privileged, None);
    }
}
