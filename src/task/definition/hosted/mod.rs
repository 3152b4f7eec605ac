//! The machine's own rules: `/etc/brig/brig.toml` limits what any task may ask for.
//!
//! Only the machine's root can write the file. Without it, everything is allowed. An unreadable or untrusted file
//! refuses every task. No variable and no flag names another path: the caller could set it.

mod amounts;
mod network;
mod paths;
mod table;
#[cfg(test)]
mod tests;

pub(super) use paths::real;
pub(in crate::task) use paths::{PinnedProfile, pin_now, pin_profile};
pub use table::hosted_rule_of_flag;

use super::Definition;
use super::settings::values::{degradable, place};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::Pinned;
use crate::host::is_off;
use crate::image::{Reference, rootless};
use crate::sandbox::{self, Backend, Ech, Guarantee, Rule};
use crate::task::definition::receiver::Receiver;
use crate::task::secrets::Source;
use crate::task::store::Store;
use amounts::{Amount, Ceilings};
use network::{Addresses, Ports};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const PATH: &str = "/etc/brig/brig.toml";
/// Bytes; longer than any set of rules.
const LONGEST: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// The caller decides what a task may do.
    Open,
    /// Agents of strangers: what weakens isolation is refused unless this file allows it by name.
    Hosted,
}

/// An unknown key is an error: a rule that is not understood would hold nothing back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    mode: Mode,
    /// The least isolation of a task.
    #[serde(default = "full")]
    guarantee: Guarantee,
    #[serde(default = "default_store")]
    store: PathBuf,
    /// Host folders below which workspaces, roots, repositories and folders for artifacts may be.
    #[serde(default)]
    folders: Vec<PathBuf>,
    /// For `--mount …:rw`, with all below them. They must be in `folders` too.
    #[serde(default)]
    writable_folders: Vec<PathBuf>,
    /// Names, for tasks and for `brig volume`.
    #[serde(default)]
    volumes: Vec<String>,
    /// Allows every public address.
    #[serde(default)]
    allow_network_open: bool,
    #[serde(default)]
    allow_network_host: bool,
    /// For tasks, their repositories and their resolvers.
    #[serde(default)]
    networks: Vec<Addresses>,
    #[serde(default)]
    publish: Vec<Ports>,
    #[serde(default)]
    registries: Vec<String>,
    #[serde(default)]
    allow_root_inside: bool,
    /// The commands run on the host.
    #[serde(default)]
    allow_secret_commands: bool,
    /// Variables of the caller that a task may have; by default each.
    variables: Option<Vec<String>>,
    /// The host renews tokens at the server that their file names.
    #[serde(default)]
    allow_oauth: bool,
    /// The host itself reaches the endpoints.
    #[serde(default)]
    allow_event_endpoints: bool,
    /// Behind an encrypted hello another server may be meant.
    #[serde(default = "refuse_ech")]
    ech: Ech,
    /// Other backends, with the level that the operator declares: `"oci:/usr/bin/runsc" = "full"`.
    #[serde(default)]
    backends: BTreeMap<String, Guarantee>,
    /// What may be missing although a task asks for it.
    #[serde(default)]
    allow_degraded: Vec<String>,
    #[serde(default)]
    max: BTreeMap<String, Amount>,
    #[serde(skip)]
    ceilings: Ceilings,
}

fn refuse_ech() -> Ech {
    Ech::Refuse
}

/// The default of tasks for encrypted TLS hellos.
pub(crate) fn ech() -> Result<Ech> {
    Ok(rules()?.map_or(Ech::Pass, |rules| rules.ech))
}

fn full() -> Guarantee {
    Guarantee::Full
}

fn default_store() -> PathBuf {
    crate::task::store::OF_ROOT.into()
}

/// `None` without the file, or if its mode is `open`. Read once per process.
pub(crate) fn rules() -> Result<Option<&'static Rules>> {
    static RULES: OnceLock<Option<Rules>> = OnceLock::new();
    if let Some(rules) = RULES.get() {
        return Ok(rules.as_ref());
    }
    let rules = read()?;
    if rules.is_some() {
        crate::host::ignore_callers_network();
    }
    Ok(RULES.get_or_init(|| rules).as_ref())
}

fn read() -> Result<Option<Rules>> {
    let mut file = match std::fs::File::open(PATH) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause).failing(Kind::Policy, step).hint(|| "let everybody read it: chmod 644"),
    };
    let status = file.metadata().failing(Kind::Policy, step)?;
    if !is_writable_by_root_alone(status.uid(), status.mode(), rootless::is_mapped("uid_map", OVERFLOW_ID)) {
        return Err(Error::new(Kind::Policy, "it could have been written by somebody else than root")
            .doing(step())
            .hint(format!("chown root: {PATH}; chmod 644 {PATH}")));
    }
    let mut text = String::new();
    (&mut file).take(LONGEST).read_to_string(&mut text).failing(Kind::Policy, step)?;
    let rules = Rules::parse(&text).doing(step)?;
    Ok(Some(rules).filter(|rules| rules.mode == Mode::Hosted))
}

fn step() -> String {
    format!("read the machine's rules `{PATH}`")
}

/// Where the overflow id is mapped, it is an account like others.
fn is_writable_by_root_alone(owner: u32, mode: u32, overflow_id_is_mapped: bool) -> bool {
    (owner == 0 || owner == OVERFLOW_ID && !overflow_id_is_mapped) && mode & 0o022 == 0
}

/// user_namespaces(7): the owner that a namespace shows for ids it does not map, such as the machine's root. Owner 0 is not
/// that root there.
const OVERFLOW_ID: u32 = 65534;

pub(crate) struct Admitted {
    /// Defaults above a ceiling are lowered to it.
    pub definition: Definition,
    /// Declared by the rules for the backend.
    pub declared: Option<Guarantee>,
    /// Open host paths of the definition.
    pub pinned: Pinned,
}

/// Refuses what the rules forbid. `None` without rules.
pub(crate) fn admit(store: &Store, definition: &Definition) -> Result<Option<Admitted>> {
    let Some(rules) = rules()? else { return Ok(None) };
    rules.check_store(store.root())?;
    let (definition, pinned) = rules.check(definition, sandbox::guarantee())?;
    let declared = rules.declared(&definition.sandbox.backend);
    Ok(Some(Admitted { definition, declared, pinned }))
}

/// The store that the command line or `BRIG_STORE` names, or the default; in hosted mode only the operator's.
pub fn open_store(named: Option<PathBuf>) -> Result<Store> {
    let named = named.or_else(Store::of_environment);
    match (named, rules()?) {
        (named, None) => Ok(Store::at(named.map_or_else(Store::default_path, Ok)?)),
        (None, Some(rules)) => Ok(Store::at(rules.store.clone())),
        (Some(named), Some(rules)) => rules.check_store(&named).map(|()| Store::at(rules.store.clone())),
    }
}

pub(crate) fn check_live_rule(rule: &Rule) -> Result<()> {
    rules()?.map_or(Ok(()), |rules| rules.check_rule(rule))
}

/// Refuses a registry that the rules do not list. Returns whether there are rules.
pub fn check_registry(reference: &str) -> Result<bool> {
    let Some(rules) = rules()? else { return Ok(false) };
    let host = reference.parse::<Reference>()?.host().to_owned();
    match rules.registries.contains(&host) {
        true => Ok(true),
        false => refuse(
            &format!("the image `{}` would be fetched from `{host}`", reference.escape_debug()),
            "use an image of the store: `brig image ls`",
            &format!("registries = [\"{host}\"]"),
        ),
    }
}

/// In hosted mode, refuses a host path that brig opens by its name for the caller.
pub fn refuse_host_path(what: &str, instead: &str) -> Result<()> {
    match rules()? {
        None => Ok(()),
        Some(_) => Err(Error::new(Kind::Policy, format!("hosted mode: {what}")).hint(instead.to_owned())),
    }
}

/// An image can ask for root inside too.
pub(crate) fn check_root_inside() -> Result<()> {
    rules()?.map_or(Ok(()), Rules::check_root_inside)
}

pub(crate) fn check_volume(name: &str) -> Result<()> {
    rules()?.map_or(Ok(()), |rules| rules.check_volume(name))
}

/// Refuses `NAME` for a variable of the caller that the rules do not list; accepts `NAME=VALUE`.
pub fn check_variable(text: &OsStr) -> Result<()> {
    match rules()? {
        Some(rules) if !text.as_bytes().contains(&b'=') => rules.check_variable(text),
        _ => Ok(()),
    }
}

/// Refuses more tasks from one command than the rules allow.
pub fn check_number(number: u32) -> Result<()> {
    rules()?.map_or(Ok(()), |rules| rules.check_number(number))
}

fn refuse<T>(what: &str, instead: &str, key: &str) -> Result<T> {
    let hint = format!("{instead}, or let the operator set `{key}` in {PATH}");
    Err(Error::new(Kind::Policy, format!("hosted mode: {what}")).hint(hint))
}

fn over((words, hint): (String, String)) -> Error {
    Error::new(Kind::Policy, format!("hosted mode: {words}")).hint(hint)
}

impl Rules {
    fn parse(text: &str) -> Result<Rules> {
        let mut rules: Rules = toml::from_str(text)
            .map_err(|cause| Error::new(Kind::Policy, place(text, &cause)).hint("docs/host.md has every key"))?;
        rules.allow_degraded = rules.allow_degraded.iter().map(|name| degradable(name)).collect::<Result<_>>()?;
        rules.ceilings = Ceilings::parse(&rules.max).hint(|| "docs/host.md has every key")?;
        if let Some(name) = rules.backends.keys().find(|name| name.parse::<Backend>().is_err() || *name == "native") {
            return Err(Error::new(Kind::Policy, format!("`backends.\"{name}\"` is no other backend"))
                .hint("write it like \"oci:/usr/bin/runsc\" = \"full\""));
        }
        let folders = rules.folders.iter().chain(&rules.writable_folders);
        if let Some(folder) = folders.chain([&rules.store]).find(|folder| !folder.is_absolute()) {
            return Err(Error::new(Kind::Policy, format!("the folder `{}` is no absolute path", folder.display()))
                .hint("begin it with `/`"));
        }
        Ok(rules)
    }

    /// A store leads to trees and disk images that brig shows to agents.
    fn check_store(&self, store: &Path) -> Result<()> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if store == self.store || real(store) == real(&self.store) {
            return Ok(());
        }
        let words = format!("the store `{}` is not the operator's", store.display());
        refuse(&words, "leave `--store` and `BRIG_STORE` out", &format!("store = \"{}\"", store.display()))
    }

    /// Returns the definition with lowered defaults, and its host paths.
    fn check(&self, definition: &Definition, guarantee: Guarantee) -> Result<(Definition, Pinned)> {
        let backend = &definition.sandbox.backend;
        let guarantee = match (backend, self.declared(backend)) {
            (Backend::Native, _) => guarantee,
            (_, Some(declared)) => declared,
            (_, None) => {
                let words = format!("the backend `{backend}` is not allowed");
                return refuse(
                    &words,
                    "use native",
                    &format!("\"{backend}\" = the level that it gives, in `[backends]`,"),
                );
            }
        };
        if guarantee < self.guarantee {
            let (word, least) = (guarantee.word(), self.guarantee.word());
            let words = format!("the guarantee would be `{word}`, and `{least}` is the least");
            return refuse(&words, "run it as the machine's root", &format!("guarantee = \"{word}\""));
        }
        self.check_network(definition)?;
        if definition.sandbox.root_inside {
            self.check_root_inside()?;
        }
        if let Some(name) = definition.sandbox.may_degrade.iter().find(|name| !self.allow_degraded.contains(name)) {
            let words = format!("`--allow-degraded {name}` is not allowed");
            return refuse(&words, "leave it out", &format!("allow_degraded = [\"{name}\"]"));
        }
        if let Some(name) = commanded(definition).filter(|_| !self.allow_secret_commands) {
            let words = format!("the value of `{name}` would come from a command on the host");
            return refuse(&words, "use env:VARIABLE", "allow_secret_commands = true");
        }
        for (_, source) in sources(definition) {
            if let Source::Environment(name) = source {
                self.check_variable(name)?;
            }
        }
        let has_endpoint = definition.events.iter().any(|receiver| matches!(receiver, Receiver::Http(_)));
        if has_endpoint && !self.allow_event_endpoints {
            let words = "events to an HTTP endpoint are not allowed";
            return refuse(words, "read them with `brig task events`", "allow_event_endpoints = true");
        }
        let asks = sources(definition).find(|(_, source)| matches!(source, Source::OAuth(_)));
        if let Some((name, _)) = asks.filter(|_| !self.allow_oauth) {
            let words = format!("for the token of `{name}` the host would ask the server that its file names");
            return refuse(&words, "use env:VARIABLE", "allow_oauth = true");
        }
        if definition.git.submodules && is_local(definition)? {
            let words = "submodules of a local repository are opened by their names";
            return refuse(words, "leave `--submodules` out", "mode = \"open\"");
        }
        let pinned = self.pin(definition)?;
        self.check_mounts(definition, &pinned)?;
        let volumes = definition.sandbox.volumes.iter().map(|volume| &volume.name);
        volumes.chain(&definition.sandbox.home).try_for_each(|name| self.check_volume(name))?;
        let mut admitted = definition.clone();
        self.ceilings.admit(&mut admitted).map_err(over)?;
        Ok((admitted, pinned))
    }

    fn check_root_inside(&self) -> Result<()> {
        if self.allow_root_inside {
            return Ok(());
        }
        let instead = "leave `--root-inside` out; for an image that asks for it, name its user: --user USER";
        refuse("a command that is root inside is not allowed", instead, "allow_root_inside = true")
    }

    fn check_volume(&self, name: &str) -> Result<()> {
        if self.volumes.iter().any(|each| each == name) || is_off("hosted-volumes") {
            return Ok(());
        }
        let words = format!("the volume `{}` is not in the list", name.escape_debug());
        refuse(&words, "use one of the list", &format!("volumes = [\"{}\"]", name.escape_debug()))
    }

    fn check_variable(&self, name: &OsStr) -> Result<()> {
        if self.variables.as_ref().is_none_or(|all| all.iter().any(|each| name == each.as_str())) {
            return Ok(());
        }
        let name = name.to_string_lossy().escape_debug().to_string();
        let words = format!("the task would have the variable `{name}` of brig's own environment");
        refuse(&words, "give its value, or use a variable of the list", &format!("variables = [\"{name}\"]"))
    }

    fn check_number(&self, number: u32) -> Result<()> {
        if u64::from(number) <= self.ceilings.number {
            return Ok(());
        }
        Err(over(amounts::above("number", &number.to_string(), &self.ceilings.number.to_string())))
    }

    fn declared(&self, backend: &Backend) -> Option<Guarantee> {
        self.backends.get(&backend.to_string()).copied()
    }

    /// For `brig doctor`: why every task is refused, if it is.
    pub(crate) fn objection(&self, guarantee: Guarantee) -> Option<Error> {
        self.check(&Definition::new(vec!["true".into()]), guarantee).err()
    }

    pub(crate) fn words(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let mut words = format!("hosted: at least `{}`", self.guarantee.word());
        words += &match folders.len() {
            0 => "; no folder of the host".to_owned(),
            _ => format!("; folders {}", folders.join(", ")),
        };
        if !self.writable_folders.is_empty() {
            let folders: Vec<_> = self.writable_folders.iter().map(|folder| folder.display().to_string()).collect();
            words += &format!("; writable folders {}", folders.join(", "));
        }
        if self.allow_network_open {
            words += "; network open";
        }
        if self.allow_network_host {
            words += "; network host";
        }
        if self.ech == Ech::Pass {
            words += "; encrypted TLS hellos";
        }
        for (is_on, what) in [
            (self.allow_secret_commands, "secrets from commands"),
            (self.allow_oauth, "tokens of OAuth"),
            (self.allow_event_endpoints, "events to endpoints"),
        ] {
            words += &if is_on { format!("; {what}") } else { String::new() };
        }
        for (backend, level) in &self.backends {
            words += &format!("; {backend} as `{}`", level.word());
        }
        for (what, count) in
            [("networks", self.networks.len()), ("published ports", self.publish.len()), ("ceilings", self.max.len())]
        {
            words += &if count > 0 { format!("; {count} {what}") } else { String::new() };
        }
        if !self.registries.is_empty() {
            words += &format!("; images from {}", self.registries.join(", "));
        }
        if let Some(variables) = &self.variables {
            words += &format!("; variables {}", variables.join(", "));
        }
        if !self.allow_degraded.is_empty() {
            words += &format!("; without {}", self.allow_degraded.join(", "));
        }
        words
    }
}

fn sources(definition: &Definition) -> impl Iterator<Item = (&str, &Source)> {
    let secrets = definition.secrets.iter().map(|secret| (secret.name.as_str(), &secret.source));
    let git = &definition.git;
    secrets
        .chain(git.credential.iter().map(|source| ("git-credential", source)))
        .chain(git.ssh_key.iter().map(|source| ("git-ssh-key", source)))
}

fn is_local(definition: &Definition) -> Result<bool> {
    match &definition.workspace {
        super::WorkspaceSource::Repository { url, .. } => {
            Ok(matches!(crate::task::git::Remote::parse(url)?, crate::task::git::Remote::Local(_)))
        }
        _ => Ok(false),
    }
}

fn commanded(definition: &Definition) -> Option<&str> {
    sources(definition).find_map(|(name, source)| matches!(source, Source::Command(_)).then_some(name))
}
