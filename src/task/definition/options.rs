//! The profile file, and words of the command line that mean more than themselves.

use super::image::ImageWish;
use super::{Definition, ProfileUsed};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{ExitCodes, LimitName, Limits};
use crate::task::git::{Elsewhere, GitOptions, PushOptions};
use crate::task::secrets::{Secret, Source, Wish};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What a profile may say. An unknown key is an error that shows the line and the keys that there are.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Profile {
    rootfs: Option<PathBuf>,
    image: Option<String>,
    at: Option<PathBuf>,
    workdir: Option<PathBuf>,
    stream_json: Option<bool>,
    limits: BTreeMap<String, toml::Value>,
    env: BTreeMap<String, String>,
    secrets: BTreeMap<String, Spanned<Wish>>,
    git: GitSection,
    push: Option<PushSection>,
    allow_degraded: Vec<String>,
    backend: Option<String>,
    grace: Option<String>,
    exit_codes: ExitCodes,
    network: super::network::Section,
    result: ResultSection,
    changes: Option<bool>,
    ignored: Option<bool>,
    canary: Option<bool>,
    artifacts: Vec<String>,
    artifact_bytes: Option<toml::Value>,
}

/// Where a task leaves its result.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResultSection {
    path: Option<String>,
    schema: Option<PathBuf>,
}

/// The agent's identity and settings, and how remotes are reached.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GitSection {
    name: Option<String>,
    email: Option<String>,
    settings: BTreeMap<String, String>,
    credential: Option<String>,
    ssh_key: Option<String>,
    known_hosts: Option<PathBuf>,
    ca: Option<PathBuf>,
    addresses: Vec<IpAddr>,
    depth: Option<NonZeroU32>,
    filter: Option<String>,
    submodules: Option<bool>,
    lfs: Option<bool>,
    from: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PushSection {
    branch: String,
    #[serde(default)]
    default_branch: bool,
}

impl GitSection {
    /// Puts it into a definition; relative paths are meant from `folder`.
    fn apply(self, git: &mut GitOptions, folder: &Path) -> Result<()> {
        let named = [("user.name", self.name), ("user.email", self.email)];
        let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        git.settings.extend(named.chain(self.settings));
        git.credential = self.credential.as_deref().map(Source::parse).transpose()?.or(git.credential.take());
        git.ssh_key = self.ssh_key.as_deref().map(Source::parse).transpose()?.or(git.ssh_key.take());
        let absolute = |path: PathBuf| folder.join(path);
        git.known_hosts = self.known_hosts.map(absolute).or(git.known_hosts.take());
        git.ca = self.ca.map(absolute).or(git.ca.take());
        git.addresses.extend(self.addresses);
        git.depth = self.depth.or(git.depth);
        git.filter = self.filter.or(git.filter.take());
        git.submodules = self.submodules.unwrap_or(git.submodules);
        git.lfs = self.lfs.unwrap_or(git.lfs);
        for text in &self.from {
            git.elsewhere.push(match Elsewhere::parse(text)? {
                Elsewhere::Folder(path) => Elsewhere::Folder(absolute(path)),
                host => host,
            });
        }
        Ok(())
    }
}

/// Longer than any profile.
const LONGEST: u64 = 1 << 20;

/// The file of a profile, and the open file if it was named: a word without `/` and `.` is the NAME of `~/.config/brig/NAME.toml` (`$XDG_CONFIG_HOME`),
/// anything else a path. A file in the working folder is `./NAME`: what lies in a workspace never stands for a profile of the user's.
///
/// A named file must be the caller's or root's, and no other user may write it: root with another user's HOME takes no settings from there. It is open
/// when that is checked, so that no other file is read.
fn profile_file(word: &Path) -> Result<(PathBuf, Option<File>)> {
    let bytes = word.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.iter().any(|byte| matches!(byte, b'/' | b'.')) {
        return Ok((word.to_owned(), None));
    }
    let path = config_folder()?.join(word).with_extension("toml");
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let open = opened.and_then(|file| file.metadata().map(|status| (file, status)));
    let (file, status) = open
        .map_err(|cause| files::failed(cause, format!("open `{}`", path.display())).of_kind(Kind::Profile))
        .hint(|| format!("make that file, or name a file by its path: ./{}", word.display()))?;
    let caller = rustix::process::geteuid().as_raw();
    if (status.uid() == caller || status.uid() == 0) && status.mode() & 0o022 == 0 {
        return Ok((path, Some(file)));
    }
    let cause = format!("`{}` is another user's, or others may write it", path.display());
    let hint = "take the right to write away from others (chmod go-w), or name the file by its path";
    Err(Error::new(Kind::Profile, cause).hint(hint))
}

/// The folder of the caller's profiles.
fn config_folder() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("brig")).ok_or_else(|| {
        Error::new(Kind::Profile, "neither HOME nor XDG_CONFIG_HOME is set").hint("name a file by its path")
    })
}

/// Reads a profile, by its path or its name, into a definition. No error shows the text of a file that the caller may not read.
pub fn read_profile(word: &Path, definition: &mut Definition) -> Result<()> {
    let (path, named) = profile_file(word).doing(|| format!("find the profile `{}`", word.display()))?;
    let path = path.as_path();
    let (pinned, may_show) = super::hosted::pin_profile(path)?;
    let held = pinned.path(path);
    let named = named.filter(|_| !pinned.has(path));
    let opened = named.as_ref().map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
    let text = files::read_bounded(opened.as_deref().unwrap_or(&held), LONGEST)
        .and_then(|bytes| String::from_utf8(bytes).map_err(|cause| Error::new(Kind::Profile, cause.to_string())));
    text.and_then(|text| {
        let sha256 = files::digest(text.as_bytes());
        definition.profile =
            Some(ProfileUsed { path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()), sha256 });
        take_profile(&text, path, definition).map_err(|error| match may_show {
            true => error,
            false => Error::new(error.kind(), "it is not a valid profile; its text is not shown to this caller"),
        })
    })
    .map_err(|error| error.of_kind(Kind::Profile))
    .doing(|| format!("read the profile `{}`", path.display()))
    .hint(|| "see docs/profile.md for every key and its form")
}

fn take_profile(text: &str, path: &Path, definition: &mut Definition) -> Result<()> {
    let wrong = |cause: String| Error::new(Kind::Profile, cause);
    let profile: Profile = toml::from_str(text).map_err(|cause| wrong(place(text, &cause)))?;
    for (key, value) in &profile.limits {
        let name = limit(key)?;
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            other => return Err(wrong(format!("`limits.{key}` is a {}, not a text or a number", other.type_str()))),
        };
        definition.limits.set(name, &text)?;
    }
    agrees_with_itself(&profile, &definition.limits)?;
    for (name, value) in profile.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(wrong(format!("`env.{}` is no variable", name.escape_debug())));
        }
        definition.environment.push((name.into(), value.into()));
    }
    // A relative path is meant from the profile's own folder, wherever it is used.
    let folder = path.parent().unwrap_or(Path::new("."));
    profile.git.apply(&mut definition.git, folder)?;
    if let Some(push) = profile.push {
        definition.git.push = Some(PushOptions { branch: push.branch, default_branch: push.default_branch });
    }
    for (name, wish) in profile.secrets {
        let line = line_at(text, wish.span().start);
        let secret = wish.into_inner().into_secret(&name, folder, &super::hosted::pin_now);
        definition.secrets.push(secret.doing(|| format!("line {line}"))?);
    }
    for name in &profile.allow_degraded {
        definition.may_degrade.push(degradable(name)?);
    }
    if let Some(backend) = profile.backend {
        definition.backend = backend.parse()?;
    }
    if let Some(grace) = profile.grace {
        definition.grace = humantime::parse_duration(&grace)
            .map_err(|cause| wrong(format!("`grace`: {cause}")).hint("give it like `10s`"))?;
    }
    profile.network.apply(text, &mut definition.network)?;
    if let Some(place) = profile.result.path {
        definition.result.path = place;
    }
    definition.result.schema = profile.result.schema.map(|file| folder.join(file)).or(definition.result.schema.take());
    definition.changes = profile.changes.unwrap_or(definition.changes);
    definition.ignored = profile.ignored.unwrap_or(definition.ignored);
    definition.canary = profile.canary.unwrap_or(definition.canary);
    definition.stream_json = profile.stream_json.unwrap_or(definition.stream_json);
    definition.at = profile.at.or(definition.at.take());
    definition.directory = profile.workdir.or(definition.directory.take());
    definition.artifacts.patterns.extend(profile.artifacts);
    match profile.artifact_bytes {
        None => {}
        Some(toml::Value::Integer(bytes)) => definition.artifacts.bytes = super::network::size(&bytes.to_string())?,
        Some(toml::Value::String(text)) => definition.artifacts.bytes = super::network::size(&text)?,
        Some(other) => return Err(wrong(format!("`artifact_bytes` is a {}, not a size", other.type_str()))),
    }
    definition.artifacts.check(&files::Pinned::default())?;
    if let Some((code, one, other)) = profile.exit_codes.conflict() {
        return Err(wrong(format!("`exit_codes`: {code} means `{one}` and cannot mean `{other}` too")));
    }
    definition.exit_codes = profile.exit_codes;
    if let Some(reference) = profile.image {
        definition.image = Some(ImageWish { reference, ..ImageWish::default() });
    }
    if let Some(rootfs) = profile.rootfs {
        definition.rootfs = Some(folder.join(rootfs));
    }
    Ok(())
}

/// A limit that can never be reached because of another one is a mistake of whoever wrote both.
fn agrees_with_itself(profile: &Profile, limits: &Limits) -> Result<()> {
    let says = |name: LimitName| profile.limits.contains_key(name.word());
    let useless = |name: LimitName, because: &str| {
        Err(Error::new(Kind::Profile, format!("`{}` can never be reached: {because}", name.word()))
            .hint("leave one of the two out, or change it"))
    };
    if says(LimitName::Idle) && says(LimitName::Wall) && limits.idle > limits.wall {
        return useless(LimitName::Idle, "`wall` is shorter");
    }
    let most = limits.wall.mul_f64(limits.cpus);
    if says(LimitName::CpuTime) && says(LimitName::Wall) && says(LimitName::Cpus) && limits.cpu_time > most {
        return useless(LimitName::CpuTime, "`wall` times `cpus` is less");
    }
    Ok(())
}

/// The number, from 1 on, of the line in which a byte of a text is.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

/// The parser's words with the line that they are about, on one line.
pub(crate) fn place(text: &str, cause: &toml::de::Error) -> String {
    let number = cause.span().map_or(1, |span| line_at(text, span.start));
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let line: String = line.chars().take(60).collect();
    format!("line {number} (`{}`): {}", line.escape_debug(), cause.message().replace('\n', " "))
}

/// The limit of that name.
pub(crate) fn limit(key: &str) -> Result<LimitName> {
    LimitName::ALL.into_iter().find(|name| name.word() == key).ok_or_else(|| {
        let all: Vec<_> = LimitName::ALL.iter().map(|name| name.word()).collect();
        Error::new(Kind::Profile, format!("there is no limit `{key}`"))
            .hint(format!("the limits are {}", all.join(", ")))
    })
}

/// The name of a limit or protection that may be missing, in the form of receipts (`cpu-time` and `cpu_time` are one).
pub fn degradable(name: &str) -> Result<String> {
    let word = name.replace('-', "_");
    let limits = [
        LimitName::Cpus,
        LimitName::CpuTime,
        LimitName::Memory,
        LimitName::Swap,
        LimitName::Pids,
        LimitName::Disk,
        LimitName::Inodes,
        LimitName::IoBps,
        LimitName::IoIops,
    ];
    let mut all: Vec<_> = limits.iter().map(|limit| limit.word()).collect();
    all.extend(["landlock", "network", "isolation"]);
    if all.contains(&word.as_str()) {
        return Ok(word);
    }
    Err(Error::new(Kind::Usage, format!("`{name}` is nothing that may be missing"))
        .hint(format!("these may: {}", all.join(", "))))
}

/// A variable of the command line, by how it is given.
pub enum Variable {
    /// `NAME=VALUE`
    Set(OsString, OsString),
    /// `NAME`: the caller's own value, which is a secret.
    Passed(Secret),
}

/// `NAME=VALUE`, or `NAME` for the caller's own value.
pub fn variable(text: &OsStr) -> Result<(OsString, OsString)> {
    match given_variable(text)? {
        Variable::Set(name, value) => Ok((name, value)),
        Variable::Passed(secret) => {
            let name = OsString::from(secret.name);
            let value = std::env::var_os(&name).unwrap_or_default();
            Ok((name, value))
        }
    }
}

/// The same for a task, where the caller's own value is hidden in all output.
pub fn given_variable(text: &OsStr) -> Result<Variable> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(Error::new(Kind::Usage, format!("`{}` has no name", text.to_string_lossy()))
            .hint("give it like `-e NAME=VALUE`"));
    }
    match value {
        Some(value) => Ok(Variable::Set(name.to_owned(), value)),
        None if std::env::var_os(name).is_some() => Ok(Variable::Passed(Secret::of_caller(&name.to_owned())?)),
        None => Err(Error::new(Kind::Usage, format!("the variable `{}` is not set", name.to_string_lossy()))
            .hint("set it, or give the value: -e NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/profile.md");

    fn parse(text: &str) -> Result<Definition> {
        let mut definition = Definition::new(vec!["true".into()]);
        take_profile(text, Path::new("/etc/brig/p.toml"), &mut definition).map(|()| definition)
    }

    #[test]
    fn the_example_of_the_page_is_a_profile_and_says_what_it_seems_to() {
        let example = PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let definition = parse(example).unwrap();
        assert_eq!(definition.rootfs.as_deref(), Some(Path::new("/etc/brig/roots/debian")));
        assert_eq!(definition.limits.memory, 2 << 30);
        assert_eq!((definition.network.policy.allowed.len(), definition.network.total), (3, Some(2 << 30)));
        assert_eq!(definition.may_degrade, ["swap"]);
        assert_eq!(definition.environment, [("API_MODE".into(), "test".into())]);
    }

    #[test]
    fn the_page_has_a_row_for_every_key_and_every_limit_with_its_default() {
        let unknown = parse("bogus = 1").unwrap_err().to_string();
        let keys: Vec<_> = unknown.split("expected one of").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(keys.contains(&"limits") && keys.len() >= 6, "{unknown}");
        for key in keys {
            assert!(PAGE.contains(&format!("\n| `{key}` | ")), "docs/profile.md has no row for `{key}`");
        }
        for (name, default) in Limits::default().rows() {
            let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{}` | ", name.word())));
            let row = row.unwrap_or_else(|| panic!("docs/profile.md has no row for `{}`", name.word()));
            let default = if name == LimitName::Disk { "10G" } else { &default };
            assert!(row.contains(default), "{row} must say {default}");
        }
    }

    /// Every key of a profile, by what the parser says of one that it does not know.
    fn keys(table: &str) -> Vec<String> {
        let text = if table.is_empty() { "bogus = 1".to_owned() } else { format!("[{table}]\nbogus = 1") };
        let error = parse(&text).unwrap_err();
        let said = format!("{error} {}", error.advice().unwrap_or_default());
        match said.split_once("expected one of").or_else(|| said.split_once("expected ")) {
            Some((_, keys)) => keys.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
            None => LimitName::ALL.iter().map(|name| name.word().to_owned()).collect(),
        }
    }

    #[test]
    fn every_key_of_a_profile_has_a_rule_for_hosted_mode() {
        let tables = ["limits", "network", "git", "push", "result", "exit_codes", "secrets.NAME"];
        let mut all: Vec<_> =
            keys("").into_iter().filter(|key| !tables.contains(&key.as_str()) && key != "secrets").collect();
        for table in tables {
            all.extend(keys(table).into_iter().map(|key| format!("{}.{key}", table.replace("NAME", "*"))));
        }
        assert!(all.len() > 55, "{all:?}");
        for key in all {
            let rule = crate::task::hosted_rule_of_key(&key);
            assert!(
                rule.is_some(),
                "`{key}` has no rule: add it to ROWS of src/task/hosted/table.rs and to docs/host.md"
            );
        }
    }
}
