//! The profile file: keys of the table of settings, as TOML.

use super::AgentTable;
use super::hosted::PinnedProfile;
use super::settings::values::{limit, line_at, place, place_at};
use super::settings::{Setting, ValueKind, setting_of_key, settings};
use super::user_file::{config_folder, open_own};
use super::{Definition, ProfileUsed};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{LimitName, Limits, Rule};
use crate::task::secrets::Wish;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// Bytes; longer than any profile.
const LONGEST: u64 = 1 << 20;

/// Returns the open file if the profile was named.
///
/// A word without `/` and `.` is the NAME of `~/.config/brig/NAME.toml`. A file of the working folder is `./NAME`: no
/// file of a workspace replaces a user's profile.
fn profile_file(word: &Path) -> Result<(PathBuf, Option<File>)> {
    let bytes = word.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.iter().any(|byte| matches!(byte, b'/' | b'.')) {
        return Ok((word.to_owned(), None));
    }
    let path = config_folder()?.join(word).with_extension("toml");
    let file = open_own(&path)
        .map_err(|error| error.of_kind(Kind::Profile))
        .hint(|| format!("make that file, or name a file by its path: ./{}", word.display()))?;
    Ok((path, Some(file)))
}

/// Takes a path or a name. No error shows text that the caller may not read.
pub fn read_profile(word: &Path, definition: &mut Definition) -> Result<()> {
    read_named(word, definition, false).map(|_| ())
}

/// Returns the `[agent]` table, if the profile has one.
pub(in crate::task) fn read_preset(word: &Path, definition: &mut Definition) -> Result<Option<AgentTable>> {
    read_named(word, definition, true)
}

fn read_named(word: &Path, definition: &mut Definition, may_be_preset: bool) -> Result<Option<AgentTable>> {
    let (path, named) = profile_file(word).doing(|| format!("find the profile `{}`", word.display()))?;
    read_file(&path, named, definition, may_be_preset)
}

/// Reads `named`, if the file is open already.
pub(in crate::task) fn read_file(
    path: &Path,
    named: Option<File>,
    definition: &mut Definition,
    may_be_preset: bool,
) -> Result<Option<AgentTable>> {
    let PinnedProfile { pinned, may_show, .. } = super::hosted::pin_profile(path)?;
    let held = pinned.path(path);
    let named = named.filter(|_| !pinned.has(path));
    let opened = named.as_ref().map(path_of);
    let text = read_text(opened.as_deref().unwrap_or(&held));
    text.and_then(|text| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        take_text(&text, &path, definition, may_be_preset).map_err(|error| without_text(error, may_show))
    })
    .map_err(|error| error.of_kind(Kind::Profile))
    .doing(|| format!("read the profile `{}`", path.display()))
    .hint(|| "see docs/profile.md for every key and its form")
}

fn without_text(error: Error, may_show: bool) -> Error {
    match may_show {
        true => error,
        false => Error::new(error.kind(), "it is not a valid profile; its text is not shown to this caller"),
    }
}

pub(in crate::task) fn take_text(
    text: &str,
    path: &Path,
    definition: &mut Definition,
    may_be_preset: bool,
) -> Result<Option<AgentTable>> {
    take(text, path, definition, may_be_preset, &[]).map(|profile| profile.agent)
}

fn take<'a>(
    text: &'a str,
    path: &Path,
    definition: &mut Definition,
    may_be_preset: bool,
    own: &'a [&'a str],
) -> Result<Profile<'a>> {
    let sha256 = files::digest(text.as_bytes());
    definition.profile = Some(ProfileUsed { path: path.to_owned(), sha256 });
    set_profile(Profile::parse(text, may_be_preset, own)?, path, definition)
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = files::read_bounded(path, LONGEST)?;
    String::from_utf8(bytes).map_err(|cause| wrong(cause.to_string()))
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Reads a worker's file: a profile that may have the keys `own` too. `complete` gets their values. Its errors show no
/// text of the file either that the caller may not read.
pub(crate) fn read_worker<T>(
    path: &Path,
    own: &[&str],
    mut definition: Definition,
    complete: impl FnOnce(Definition, BTreeMap<String, toml::Value>) -> Result<T>,
) -> Result<T> {
    let PinnedProfile { pinned, may_show, is_operators } = super::hosted::pin_profile(path)?;
    let file = open_own(&pinned.path(path)).map_err(|error| error.of_kind(Kind::Profile))?;
    definition.is_operators = is_operators && file.metadata().is_ok_and(|status| status.uid() == 0);
    let text = read_text(&path_of(&file))?;
    let profile = take(&text, path, &mut definition, false, own).map_err(|error| error.of_kind(Kind::Profile));
    let completed = profile.and_then(|profile| complete(definition, profile.own.1));
    completed.map_err(|error| without_text(error, may_show))
}

fn wrong(cause: String) -> Error {
    Error::new(Kind::Profile, cause)
}

pub(super) struct Profile<'a> {
    text: &'a str,
    pub(super) values: Vec<(&'static Setting, Vec<Value>)>,
    pub(super) secrets: BTreeMap<String, Spanned<Wish>>,
    /// Only in a preset.
    agent: Option<AgentTable>,
    may_be_preset: bool,
    /// Further keys that the caller permits, and their values.
    own: (&'a [&'a str], BTreeMap<String, toml::Value>),
}

pub(super) struct Value {
    /// In a table.
    pub(super) name: Option<String>,
    pub(super) word: String,
    line: usize,
}

impl<'a> Profile<'a> {
    pub(super) fn parse(text: &'a str, may_be_preset: bool, own: &'a [&'a str]) -> Result<Profile<'a>> {
        let table = DeTable::parse(text).map_err(|cause| wrong(place(text, &cause)))?;
        let own = (own, BTreeMap::new());
        let mut profile =
            Profile { text, values: Vec::new(), secrets: BTreeMap::new(), agent: None, may_be_preset, own };
        profile.add("", table.into_inner())?;
        Ok(profile)
    }

    /// An unknown key is an error with its line and the known keys.
    fn add(&mut self, prefix: &str, table: DeTable<'_>) -> Result<()> {
        for (key, value) in table {
            let (word, name) = (key.get_ref(), format!("{prefix}{}", key.get_ref()));
            let is_plain = !word.contains('.');
            let is_table = is_plain && settings().iter().any(|each| each.key.starts_with(&format!("{name}.")));
            let start = value.span().start;
            match (setting_of_key(&name).filter(|_| is_plain), value.get_ref()) {
                (Some(setting), _) => {
                    let values = self.values_of(setting, value)?;
                    self.values.push((setting, values));
                }
                (None, _) if self.own.0.contains(&name.as_str()) => {
                    let read = toml::Value::deserialize(ValueDeserializer::from(value));
                    self.own.1.insert(name, read.map_err(|cause| wrong(place(self.text, &cause)))?);
                }
                (None, _) if name == "secrets" => {
                    let read = BTreeMap::deserialize(ValueDeserializer::from(value));
                    self.secrets = read.map_err(|cause| wrong(place(self.text, &cause)))?;
                }
                (None, _) if name == "agent" && self.may_be_preset => {
                    let read = AgentTable::deserialize(ValueDeserializer::from(value));
                    self.agent = Some(read.map_err(|cause| wrong(place(self.text, &cause)))?);
                }
                (None, DeValue::Table(table)) if is_table => {
                    self.add(&format!("{name}."), table.clone())?;
                    if name == "push" && self.get("push.branch").is_empty() {
                        return Err(wrong(place_at(self.text, start, "missing field `branch`")));
                    }
                }
                (None, other) if is_table => {
                    let words = format!("invalid type: {}, expected a table", other.type_str());
                    return Err(wrong(place_at(self.text, start, &words)));
                }
                (None, _) => {
                    if prefix == "limits." {
                        limit(word)?;
                    }
                    let words =
                        format!("unknown field `{}`, expected {}", word.escape_debug(), known_keys(prefix, self.own.0));
                    return Err(wrong(place_at(self.text, key.span().start, &words)));
                }
            }
        }
        Ok(())
    }

    fn values_of(&self, setting: &Setting, value: Spanned<DeValue<'_>>) -> Result<Vec<Value>> {
        let text = self.text;
        let line = line_at(text, value.span().start);
        let one = |word: String| vec![Value { name: None, word, line }];
        let several = |words: Vec<Spanned<String>>| {
            words
                .into_iter()
                .map(|word| {
                    let line = line_at(text, word.span().start);
                    Value { name: None, word: word.into_inner(), line }
                })
                .collect()
        };
        let from = ValueDeserializer::from(value);
        let values = match setting.kind {
            ValueKind::Switch(_) => bool::deserialize(from).map(|is_on| one(is_on.to_string())),
            ValueKind::Number => NonZeroU32::deserialize(from).map(|number| one(number.to_string())),
            ValueKind::Path => PathBuf::deserialize(from).map(|path| one(path.to_string_lossy().into_owned())),
            ValueKind::Codes => {
                Vec::<u8>::deserialize(from).map(|codes| codes.iter().flat_map(|code| one(code.to_string())).collect())
            }
            ValueKind::Addresses => Vec::<IpAddr>::deserialize(from)
                .map(|addresses| addresses.iter().flat_map(|address| one(address.to_string())).collect()),
            ValueKind::Table | ValueKind::Variable => BTreeMap::<String, String>::deserialize(from)
                .map(|table| table.into_iter().map(|(name, word)| Value { name: Some(name), word, line }).collect()),
            ValueKind::Size | ValueKind::Limit(_) => toml::Value::deserialize(from).and_then(|value| {
                Ok(one(match (value, setting.kind) {
                    (toml::Value::String(text), _) => text,
                    (toml::Value::Integer(number), _) => number.to_string(),
                    (toml::Value::Float(number), ValueKind::Limit(_)) => number.to_string(),
                    (other, kind) => {
                        let form = if kind == ValueKind::Size { "size" } else { "text or a number" };
                        let words = format!("`{}` is a {}, not a {form}", setting.key, other.type_str());
                        return Err(serde::de::Error::custom(words));
                    }
                }))
            }),
            _ if setting.kind.is_list() => Vec::deserialize(from).map(several),
            _ => String::deserialize(from).map(one),
        };
        values.map_err(|cause| wrong(place(text, &cause)))
    }

    fn get(&self, key: &str) -> &[Value] {
        self.values.iter().find(|(setting, _)| setting.key == key).map_or(&[], |(_, values)| values)
    }

    fn has_limit(&self, name: LimitName) -> bool {
        self.values.iter().any(|(setting, _)| setting.kind == ValueKind::Limit(name))
    }

    fn rules(&self, key: &str) -> Result<Vec<(Rule, usize)>> {
        let mut all = Vec::new();
        for value in self.get(key) {
            all.extend(Rule::parse_all(&value.word)?.into_iter().map(|rule| (rule, value.line)));
        }
        Ok(all)
    }
}

/// In serde's words.
fn known_keys(prefix: &str, own: &[&str]) -> String {
    let mut keys: Vec<String> = Vec::new();
    for word in settings().iter().filter_map(|setting| setting.key.strip_prefix(prefix)?.split('.').next()) {
        let key = format!("`{word}`");
        if !word.is_empty() && !keys.contains(&key) {
            keys.push(key);
        }
    }
    if prefix.is_empty() {
        keys.extend(own.iter().map(|word| format!("`{word}`")));
    }
    match keys.as_slice() {
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        all => format!("one of {}", all.join(", ")),
    }
}

fn set_profile<'a>(mut profile: Profile<'a>, path: &Path, definition: &mut Definition) -> Result<Profile<'a>> {
    let text = profile.text;
    // A relative path starts at the profile's own folder, wherever it is used.
    let folder = path.parent().unwrap_or(Path::new("."));
    for setting in settings().iter().filter(|setting| !setting.key.is_empty()) {
        for Value { name, word, line } in profile.get(setting.key) {
            let step = match setting.key {
                "network.allow" | "network.deny" => Some(format!("line {line}")),
                key if key == "network.mode" || setting.kind == ValueKind::Time => Some(format!("read `{key}`")),
                _ => None,
            };
            let done = setting.set_key(definition, name.as_deref(), word, folder);
            match step {
                Some(step) => done.doing(|| step)?,
                None => done?,
            }
        }
    }
    agrees_with_itself(&profile, &definition.sandbox.limits)?;
    check_lines(&profile.rules("network.allow")?, &profile.rules("network.deny")?)?;
    for (name, wish) in std::mem::take(&mut profile.secrets) {
        let line = line_at(text, wish.span().start);
        let secret = wish.into_inner().into_secret(&name, folder, &super::hosted::pin_now);
        definition.secrets.push(secret.doing(|| format!("line {line}"))?);
    }
    definition.artifacts.check(&files::Pinned::default())?;
    if let Some((code, one, other)) = definition.sandbox.exit_codes.conflict() {
        return Err(wrong(format!("`exit_codes`: {code} means `{one}` and cannot mean `{other}` too")));
    }
    Ok(profile)
}

/// Refuses a limit that another one makes unreachable.
fn agrees_with_itself(profile: &Profile<'_>, limits: &Limits) -> Result<()> {
    let says = |name: LimitName| profile.has_limit(name);
    let useless = |name: LimitName, because: &str| {
        Err(Error::new(Kind::Profile, format!("`{}` can never be reached: {because}", name.word()))
            .hint("leave one of the two out, or change it"))
    };
    if says(LimitName::Idle)
        && says(LimitName::Wall)
        && limits.idle > limits.wall
        && limits.idle != Limits::NO_TIME_LIMIT
    {
        return useless(LimitName::Idle, "`wall` is shorter");
    }
    let most = limits.wall.mul_f64(limits.cpus);
    let has_cpu_time = says(LimitName::CpuTime) && limits.cpu_time != Limits::NO_TIME_LIMIT;
    if has_cpu_time && says(LimitName::Wall) && says(LimitName::Cpus) && limits.cpu_time > most {
        return useless(LimitName::CpuTime, "`wall` times `cpus` is less");
    }
    Ok(())
}

/// Refuses a rule that another rule of the file makes pointless. A flag may deny what a profile allows.
fn check_lines(allow: &[(Rule, usize)], deny: &[(Rule, usize)]) -> Result<()> {
    let pointless = "says nothing that the other does not say";
    for (rules, others, words) in
        [(allow, allow, pointless), (deny, deny, pointless), (allow, deny, "allows nothing: the other denies it")]
    {
        for (rule, line) in rules {
            let shadows = |(other, _): &&(Rule, usize)| !std::ptr::eq(other, rule) && other.shadows(rule);
            if let Some((other, at)) = others.iter().find(shadows) {
                return Err(Error::new(Kind::Egress, format!("`{rule}` beside `{other}` of line {at} {words}"))
                    .doing(format!("line {line}"))
                    .hint("leave one of the two out"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::secrets::Source;

    const PAGE: &str = include_str!("../../../docs/profile.md");

    fn parse(text: &str) -> Result<Definition> {
        let mut definition = Definition::new(vec!["true".into()]);
        take_text(text, Path::new("/etc/brig/p.toml"), &mut definition, false).map(|_| definition)
    }

    #[test]
    fn the_example_of_the_page_is_a_profile_and_says_what_it_seems_to() {
        let example = PAGE.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let definition = parse(example).unwrap();
        assert_eq!(definition.sandbox.rootfs.as_deref(), Some(Path::new("/etc/brig/roots/debian")));
        assert_eq!(definition.sandbox.limits.memory, 2 << 30);
        assert_eq!(
            (definition.sandbox.network.policy.allowed.len(), definition.sandbox.network.total),
            (3, Some(2 << 30))
        );
        assert_eq!(definition.sandbox.may_degrade, ["swap"]);
        assert_eq!(definition.sandbox.environment, [("API_MODE".into(), "test".into())]);
    }

    #[test]
    fn a_source_of_a_secret_starts_at_the_folder_of_the_profile() {
        let text =
            "[git]\ncredential = \"file:g\"\n[secrets.A]\nsource = \"file:keys/a\"\n[secrets.B]\nsource = \"file:/b\"";
        let definition = parse(text).unwrap();
        let file = |path: &str| Source::File(path.into());
        assert_eq!(definition.git.credential, Some(file("/etc/brig/g")));
        let sources: Vec<_> = definition.secrets.into_iter().map(|secret| secret.source).collect();
        assert_eq!(sources, [file("/etc/brig/keys/a"), file("/b")]);
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_known_ones() {
        for (text, words) in [
            (
                "bogus = 1",
                "line 1 (`bogus = 1`): unknown field `bogus`, expected one of `at`, `git`, `push`, `mounts`, `read_only`, `volumes`, `caches`, `home`, `hide`, `rootfs`, ",
            ),
            ("[result]\nbogus = 1", "unknown field `bogus`, expected `path` or `schema`"),
            ("[push]\nbogus = 1", "unknown field `bogus`, expected `branch` or `default_branch`"),
            ("\"network.mode\" = \"none\"", "unknown field `network.mode`"),
            ("\"secrets.*\" = {}", "unknown field `secrets.*`"),
            ("[push]\ndefault_branch = true", "line 1 (`[push]`): missing field `branch`"),
            ("network = 1", "line 1 (`network = 1`): invalid type: integer, expected a table"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = parse("[limits]\nbogus = 1").unwrap_err();
        assert!(
            error.to_string().contains("no limit `bogus`") && error.advice().unwrap().contains("cpus, "),
            "{error:?}"
        );
    }

    #[test]
    fn the_page_has_a_row_for_every_limit_with_its_default() {
        for (name, default) in Limits::default().rows() {
            let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{}` | ", name.word())));
            let row = row.unwrap_or_else(|| panic!("docs/profile.md has no row for `{}`", name.word()));
            let default = if name == LimitName::Disk { "10G" } else { &default };
            assert!(row.contains(default), "{row} must say {default}");
        }
    }

    #[test]
    fn every_key_of_a_secret_is_a_setting() {
        let error = parse("[secrets.NAME]\nbogus = 1").unwrap_err().to_string();
        let keys: Vec<_> = error.split("expected one of").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(keys.len() > 8, "{error}");
        for key in keys {
            assert!(setting_of_key(&format!("secrets.*.{key}")).is_some(), "`{key}` has no row in settings/rows.rs");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_its_line() {
        for (text, words) in [
            ("canary = \"yes\"", "line 1 (`canary = \"yes\"`): invalid type: string \"yes\", expected a boolean"),
            ("[git]\ndepth = 0", "line 2 (`depth = 0`): invalid value: integer `0`, expected a nonzero u32"),
            ("[git]\naddresses = [\"x\"]", "line 2"),
            ("artifacts = \"x\"", "expected a sequence"),
            ("artifact_bytes = 1.5", "`artifact_bytes` is a float, not a size"),
            ("[limits]\nmemory = true", "`limits.memory` is a boolean, not a text or a number"),
            ("[network]\nallow = [\n\"a b\"]", "line 3: "),
            ("[network]\nmode = \"x\"", "read `network.mode`: unknown network `x`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
