//! The machine's own rules: `/etc/brig/brig.toml`, by which its operator says what no task of anybody may ask for.
//!
//! In: the file, which only the machine's root can have written. Out: a refusal that names the rule and the switch, or nothing.
//! Without the file everything may be asked for. A file that cannot be read or believed refuses every task: nobody knows what it would have said.
//! Never: another place for it. No variable and no flag names one, because whoever starts a task could give them.

use super::definition::{Definition, WorkspaceSource};
use super::forward::Receiver;
use super::git::Remote;
use super::options::degradable;
use super::secrets::Source;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::sandbox::{self, Backend, Guarantee, NetworkMode};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PATH: &str = "/etc/brig/brig.toml";
/// Longer than any set of rules.
const LONGEST: u64 = 1 << 20;

/// What the machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// Whoever may start brig says what a task may do.
    Open,
    /// Agents of strangers: what weakens isolation is refused unless it is switched on here by name.
    Hosted,
}

/// The file. An unknown key is an error: a rule that is not understood would hold nothing back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    mode: Mode,
    /// The least isolation with which a task may run.
    #[serde(default = "full")]
    guarantee: Guarantee,
    /// Folders of the host below which workspaces, roots, repositories and folders for artifacts may be.
    #[serde(default)]
    folders: Vec<PathBuf>,
    /// Whether a task may reach every public address.
    #[serde(default)]
    allow_network_open: bool,
    /// Whether a task may have the host's own network.
    #[serde(default)]
    allow_network_host: bool,
    /// Whether the values of secrets may come from commands, which run on the host.
    #[serde(default)]
    allow_secret_commands: bool,
    /// Whether events may go to HTTP endpoints: the host itself reaches them.
    #[serde(default)]
    allow_event_endpoints: bool,
    /// Who else than brig may isolate, and the level that the operator declares for each: `"oci:/usr/bin/runsc" = "full"`.
    #[serde(default)]
    backends: BTreeMap<String, Guarantee>,
    /// What may be missing although it was asked for, by name.
    #[serde(default)]
    allow_degraded: Vec<String>,
}

fn full() -> Guarantee {
    Guarantee::Full
}

/// The machine's rules; `None` where nobody has made any, or they are `open`.
pub(crate) fn rules() -> Result<Option<Rules>> {
    let mut file = match std::fs::File::open(PATH) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause).failing(Kind::Policy, step).hint(|| "let everybody read it: chmod 644"),
    };
    let status = file.metadata().failing(Kind::Policy, step)?;
    // Another owner is 65534 in a user namespace without the machine's root, where 0 is not the machine's root either.
    if !believable(status.uid(), status.mode()) {
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

fn believable(owner: u32, mode: u32) -> bool {
    (owner == 0 || owner == NOBODY) && mode & 0o022 == 0
}

/// How a user namespace shows an owner that it does not know: there the machine's root is one of them.
const NOBODY: u32 = 65534;

/// Refuses what the machine's rules forbid. Returns the level of isolation that they declare for the task's backend, if they do.
pub(super) fn check(definition: &Definition) -> Result<Option<Guarantee>> {
    let Some(rules) = rules()? else { return Ok(None) };
    rules.check(definition, sandbox::guarantee())?;
    Ok(rules.declared(&definition.backend))
}

impl Rules {
    fn parse(text: &str) -> Result<Rules> {
        let mut rules: Rules = toml::from_str(text).map_err(|cause| {
            Error::new(Kind::Policy, super::options::place(text, &cause)).hint("docs/host.md has every key")
        })?;
        rules.allow_degraded = rules.allow_degraded.iter().map(|name| degradable(name)).collect::<Result<_>>()?;
        if let Some(name) = rules.backends.keys().find(|name| name.parse::<Backend>().is_err() || *name == "native") {
            return Err(Error::new(Kind::Policy, format!("`backends.\"{name}\"` is no other backend"))
                .hint("write it like \"oci:/usr/bin/runsc\" = \"full\""));
        }
        if let Some(folder) = rules.folders.iter().find(|folder| !folder.is_absolute()) {
            return Err(Error::new(Kind::Policy, format!("the folder `{}` is no absolute path", folder.display()))
                .hint("begin it with `/`"));
        }
        Ok(rules)
    }

    fn check(&self, definition: &Definition, guarantee: Guarantee) -> Result<()> {
        let refuse =
            |what: String, hint: String| Err(Error::new(Kind::Policy, format!("hosted mode: {what}")).hint(hint));
        let backend = &definition.backend;
        let guarantee = match (backend, self.declared(backend)) {
            (Backend::Native, _) => guarantee,
            (_, Some(declared)) => declared,
            (_, None) => {
                return refuse(
                    format!("the backend `{backend}` is not allowed"),
                    format!(
                        "use native, or let the operator add it to `[backends]` in {PATH} with the level that it gives"
                    ),
                );
            }
        };
        if guarantee < self.guarantee {
            return refuse(
                format!("the guarantee would be `{}`, and `{}` is the least", guarantee.word(), self.guarantee.word()),
                format!("run it as the machine's root, or let the operator set `guarantee` in {PATH}"),
            );
        }
        if definition.network.mode == NetworkMode::Host && !self.allow_network_host {
            return refuse(
                "`network = \"host\"` is not allowed".to_owned(),
                format!("use `egress`, or let the operator set `allow_network_host = true` in {PATH}"),
            );
        }
        if definition.network.mode.is_open() && !self.allow_network_open {
            return refuse(
                format!("`network = \"{}\"` is not allowed", definition.network.mode.word()),
                format!("use `egress`, or let the operator set `allow_network_open = true` in {PATH}"),
            );
        }
        if let Some(name) = definition.may_degrade.iter().find(|name| !self.allow_degraded.contains(name)) {
            return refuse(
                format!("`--allow-degraded {name}` is not allowed"),
                format!("leave it out, or let the operator add \"{name}\" to `allow_degraded` in {PATH}"),
            );
        }
        if let Some(name) = commanded(definition).filter(|_| !self.allow_secret_commands) {
            return refuse(
                format!("the value of `{name}` would come from a command on the host"),
                format!("use env:VARIABLE, or let the operator set `allow_secret_commands = true` in {PATH}"),
            );
        }
        let has_endpoint = definition.events.iter().any(|receiver| matches!(receiver, Receiver::Http(_)));
        if has_endpoint && !self.allow_event_endpoints {
            return refuse(
                "events to an HTTP endpoint are not allowed".to_owned(),
                format!(
                    "read them with `brig task events`, or let the operator set `allow_event_endpoints = true` in {PATH}"
                ),
            );
        }
        for (what, path) in host_paths(definition)? {
            if !self.covers(&path) {
                return refuse(
                    format!("the {what} `{}` is below no folder that is allowed", path.display()),
                    format!("use a folder of the list, or let the operator add it to `folders` in {PATH}"),
                );
            }
        }
        Ok(())
    }

    /// Whether a path, with its links resolved, is in a folder of the list, or is one. What is not there yet is where its parent is.
    fn covers(&self, path: &Path) -> bool {
        let mut known = path;
        let real = loop {
            match std::fs::canonicalize(known) {
                Ok(real) => break real,
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => match known.parent() {
                    // A path that climbs from where nothing is could come out anywhere.
                    Some(parent) if !path.components().any(|part| part == std::path::Component::ParentDir) => {
                        known = parent
                    }
                    _ => return false,
                },
                Err(_) => return false,
            }
        };
        self.folders
            .iter()
            .filter_map(|folder| std::fs::canonicalize(folder).ok())
            .any(|folder| real.starts_with(folder))
    }

    fn declared(&self, backend: &Backend) -> Option<Guarantee> {
        self.backends.get(&backend.to_string()).copied()
    }

    /// What a start would be told at once, for `brig doctor`: nothing, or why every task is refused.
    pub(crate) fn objection(&self, guarantee: Guarantee) -> Option<Error> {
        self.check(&Definition::new(vec!["true".into()]), guarantee).err()
    }

    /// The rules in words.
    pub(crate) fn words(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let mut words = format!("hosted: at least `{}`", self.guarantee.word());
        words += &match folders.len() {
            0 => "; no folder of the host".to_owned(),
            _ => format!("; folders {}", folders.join(", ")),
        };
        if self.allow_network_open {
            words += "; network open";
        }
        if self.allow_network_host {
            words += "; network host";
        }
        for (is_on, what) in
            [(self.allow_secret_commands, "secrets from commands"), (self.allow_event_endpoints, "events to endpoints")]
        {
            words += &if is_on { format!("; {what}") } else { String::new() };
        }
        for (backend, level) in &self.backends {
            words += &format!("; {backend} as `{}`", level.word());
        }
        if !self.allow_degraded.is_empty() {
            words += &format!("; without {}", self.allow_degraded.join(", "));
        }
        words
    }
}

/// Every path of the host that a task reads a tree from, or writes one to.
fn host_paths(definition: &Definition) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut paths = Vec::new();
    match &definition.workspace {
        WorkspaceSource::Directory(path) => paths.push(("folder", path.clone())),
        WorkspaceSource::Repository { url, .. } => {
            if let Remote::Local(path) = Remote::parse(url)? {
                paths.push(("repository", super::git::local_path(&path)?));
            }
        }
        WorkspaceSource::Empty => {}
    }
    paths.extend(definition.rootfs.iter().map(|path| ("root file system", path.clone())));
    paths.extend(definition.artifacts.directory.iter().map(|path| ("folder for artifacts", path.clone())));
    paths.extend(definition.result.schema.iter().map(|path| ("schema", path.clone())));
    paths.extend(definition.events.iter().filter_map(|receiver| match receiver {
        Receiver::File(path) => Some(("file for events", path.clone())),
        Receiver::Socket(path) => Some(("socket for events", path.clone())),
        Receiver::Http(_) => None,
    }));
    paths.extend(sources(definition).filter_map(|(_, source)| match source {
        Source::File(path) | Source::OAuth(path) => Some(("file of a secret", path.clone())),
        Source::Environment(_) | Source::Command(_) | Source::Made(_) => None,
    }));
    let git = &definition.git;
    paths.extend(git.elsewhere.iter().filter_map(|place| Some(("folder of submodules", place.folder()?.to_owned()))));
    paths.extend(git.ca.iter().chain(&git.known_hosts).map(|path| ("file about a remote", path.clone())));
    Ok(paths)
}

/// Where every value comes from, by the name of what it is for.
fn sources(definition: &Definition) -> impl Iterator<Item = (&str, &Source)> {
    let secrets = definition.secrets.iter().map(|secret| (secret.name.as_str(), &secret.source));
    let git = &definition.git;
    secrets
        .chain(git.credential.iter().map(|source| ("git-credential", source)))
        .chain(git.ssh_key.iter().map(|source| ("git-ssh-key", source)))
}

/// The first secret that a command would give.
fn commanded(definition: &Definition) -> Option<&str> {
    sources(definition).find_map(|(name, source)| matches!(source, Source::Command(_)).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap()
    }

    fn definition(change: impl Fn(&mut Definition)) -> Definition {
        let mut definition = Definition::new(vec!["true".into()]);
        change(&mut definition);
        definition
    }

    #[test]
    fn hosted_refuses_what_weakens_until_it_is_switched_on_by_name() {
        let check = |switch: &str, change: &dyn Fn(&mut Definition), guarantee, words: &[&str]| {
            let definition = definition(change);
            let error = rules("mode = \"hosted\"").check(&definition, guarantee).unwrap_err();
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
            assert!(error.kind() == Kind::Policy && error.advice().is_some_and(|hint| hint.contains(PATH)), "{error}");
            let allowed = rules(&format!("mode = \"hosted\"\n{switch}\n"));
            assert!(allowed.check(&definition, guarantee).is_ok(), "{switch}");
        };
        let nothing = |_: &mut Definition| {};
        check("guarantee = \"rootless\"", &nothing, Guarantee::Rootless, &["`rootless`", "`full` is the least"]);
        check("guarantee = \"none\"", &nothing, Guarantee::Nested, &["`nested`"]);
        let host = |definition: &mut Definition| definition.network.mode = NetworkMode::Host;
        check("allow_network_host = true", &host, Guarantee::Full, &["network", "host"]);
        let open = |definition: &mut Definition| definition.network.mode = NetworkMode::Pasta;
        check("allow_network_open = true", &open, Guarantee::Full, &["network", "pasta"]);
        let swap = |definition: &mut Definition| definition.may_degrade.push("swap".to_owned());
        check("allow_degraded = [\"swap\"]", &swap, Guarantee::Full, &["--allow-degraded swap"]);
        let folder =
            |definition: &mut Definition| definition.workspace = WorkspaceSource::Directory("/usr/share".into());
        check("folders = [\"/usr\"]", &folder, Guarantee::Full, &["`/usr/share`"]);
        let root = |definition: &mut Definition| definition.rootfs = Some("/usr".into());
        check("folders = [\"/usr\"]", &root, Guarantee::Full, &["root file system"]);
        let out = |definition: &mut Definition| definition.artifacts.directory = Some("/usr/none/yet".into());
        check("folders = [\"/usr\"]", &out, Guarantee::Full, &["artifacts"]);
        let backend =
            |word: &'static str| move |definition: &mut Definition| definition.backend = word.parse().unwrap();
        let level = "guarantee = \"none\"\n[backends]\nlocal = \"none\"";
        check(level, &backend("local"), Guarantee::Full, &["backend `local`"]);
        let runsc = "[backends]\n\"oci:/usr/bin/runsc\" = \"full\"";
        check(runsc, &backend("oci:/usr/bin/runsc"), Guarantee::Full, &["backend `oci:/usr/bin/runsc`"]);
        let low = rules("mode = \"hosted\"\n[backends]\n\"oci:/usr/bin/runsc\" = \"nested\"");
        let refused = low.check(&definition(backend("oci:/usr/bin/runsc")), Guarantee::Full).unwrap_err();
        assert!(refused.to_string().contains("`nested`, and `full` is the least"), "{refused}");
        let secret = |word: &'static str| {
            move |definition: &mut Definition| {
                definition.secrets.push(crate::task::Secret::parse(&format!("K={word}")).unwrap());
            }
        };
        check("allow_secret_commands = true", &secret("cmd:id"), Guarantee::Full, &["`K`", "command"]);
        check("folders = [\"/usr\"]", &secret("file:/usr/share/none"), Guarantee::Full, &["file of a secret"]);
        let events = |word: &'static str| {
            move |definition: &mut Definition| definition.events.push(Receiver::parse(word).unwrap())
        };
        check("allow_event_endpoints = true", &events("http://127.0.0.1/"), Guarantee::Full, &["endpoint"]);
        check("folders = [\"/usr\"]", &events("/usr/none/events"), Guarantee::Full, &["file for events"]);
        check("folders = [\"/usr\"]", &events("unix:/usr/none/socket"), Guarantee::Full, &["socket for events"]);
        let ca = |definition: &mut Definition| definition.git.ca = Some("/usr/ca.pem".into());
        check("folders = [\"/usr\"]", &ca, Guarantee::Full, &["about a remote"]);
        assert!(rules("mode = \"hosted\"").check(&definition(nothing), Guarantee::Full).is_ok());
    }

    #[test]
    fn a_folder_is_allowed_by_where_it_really_is() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("allowed/below")).unwrap();
        std::fs::create_dir_all(at("allowed-not")).unwrap();
        std::os::unix::fs::symlink(at("allowed-not"), at("allowed/link")).unwrap();
        std::os::unix::fs::symlink(at("allowed/below"), at("into")).unwrap();
        let rules = rules(&format!("mode = \"hosted\"\nfolders = [\"{}\"]", at("allowed").display()));
        for (path, expected) in [
            ("allowed", true),
            ("allowed/below", true),
            ("allowed/new/deeper", true),
            ("into", true),
            ("allowed-not", false),
            ("allowed/link", false),
            ("allowed/../allowed-not", false),
            ("allowed/none/../../allowed-not", false),
            ("", false),
        ] {
            assert_eq!(rules.covers(&at(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_file_that_is_not_understood_or_not_roots_refuses_everything() {
        let check = |text: &str, words: &str| {
            let error = Rules::parse(text).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        };
        check("", "mode");
        check("mode = \"safe\"", "line 1");
        check("mode = \"hosted\"\nallow_everything = true", "allow_everything");
        check("mode = \"hosted\"\nallow_degraded = [\"seccomp\"]", "seccomp");
        check("mode = \"hosted\"\nfolders = [\"work\"]", "absolute");
        check("mode = \"hosted\"\n[backends]\ndocker = \"full\"", "docker");
        check("mode = \"hosted\"\n[backends]\nnative = \"full\"", "native");
        for (owner, mode, expected) in
            [(0, 0o644, true), (0, 0o664, false), (0, 0o646, false), (1000, 0o644, false), (NOBODY, 0o644, true)]
        {
            assert_eq!(believable(owner, mode), expected, "{owner} {mode:o}");
        }
    }
}
