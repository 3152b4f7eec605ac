//! The settings of a task: one table behind flags, keys of profiles, rules of hosted mode and docs.
//!
//! A new setting is one row of `rows.rs`. Keys are set before flags, both in the table's order.

mod rows;
pub(in crate::task) mod values;

use super::Definition;
use super::image::ImageWish;
use crate::error::{Error, Kind, Result, Step};
use crate::sandbox::{LimitName, Limits, NetworkMode};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// What hosted mode does about a flag or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedRule {
    /// It reaches and uses nothing of the host.
    Free,
    /// Its path must be in one of the operator's `folders`.
    Folder,
    /// Refused unless the operator sets this key.
    Key(&'static str),
    /// At most the operator's value in `[max]`, or else this default.
    AtMost(&'static str, &'static str),
    /// Refused always.
    Never,
}

/// The parsers of the command line and of TOML check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `true` or `false`. The flag has no value and means this one.
    Switch(bool),
    /// Text.
    Text,
    /// Several texts.
    Texts,
    /// Text that may be a secret: no error shows it.
    Secret,
    /// Several of these.
    Secrets,
    /// Several `NAME=VALUE` as bytes, which no error shows; in a profile a table.
    Variable,
    /// A table of texts; profiles only.
    Table,
    /// A host path. A relative one starts at the working folder, or at the profile's folder.
    Path,
    /// A number from 1 on.
    Number,
    /// The same, for a number of tasks.
    Count,
    /// Exit codes; profiles only.
    Codes,
    /// Bytes.
    Size,
    /// A limit, with its own form.
    Limit(LimitName),
    /// A time such as `10s`.
    Time,
    /// IP addresses.
    Addresses,
    /// A backend.
    Backend,
    /// When an image is fetched.
    Pull,
}

impl ValueKind {
    /// Values of flags are added to those of a profile.
    pub fn is_list(self) -> bool {
        use ValueKind::{Addresses, Codes, Secrets, Texts, Variable};
        matches!(self, Texts | Secrets | Variable | Codes | Addresses)
    }
}

type Setter = fn(&mut Definition, &Given<'_>) -> Result<()>;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Such as `--dir`; empty for profiles only.
    pub flag: &'static str,
    /// The flag's letter.
    pub short: Option<char>,
    /// Such as `network.mode`; empty for the command line only. `*` is the name of a secret.
    pub key: &'static str,
    /// The type of the value.
    pub kind: ValueKind,
    /// The flag's value in the help, such as `PATH`.
    pub form: &'static str,
    /// Heading of the help.
    pub group: Option<&'static str>,
    /// The flag that this one needs.
    pub needs: Option<&'static str>,
    /// Flags that contradict it.
    pub excludes: &'static [&'static str],
    /// The rule of hosted mode.
    pub hosted: HostedRule,
    words: &'static str,
    set: Setter,
}

impl Setting {
    const fn short(self, letter: char) -> Setting {
        Setting { short: Some(letter), ..self }
    }

    const fn group(self, group: &'static str) -> Setting {
        Setting { group: Some(group), ..self }
    }

    const fn needs(self, flag: &'static str) -> Setting {
        Setting { needs: Some(flag), ..self }
    }

    const fn excludes(self, flags: &'static [&'static str]) -> Setting {
        Setting { excludes: flags, ..self }
    }

    const fn help(self, help: &'static str) -> Setting {
        Setting { words: help, ..self }
    }
}

impl Setting {
    /// For the help and the docs.
    pub fn description(&self) -> String {
        match self.kind {
            ValueKind::Limit(name @ LimitName::Disk) => {
                format!("{} [default: 10G; half of --memory for an ordinary user]", name.meaning())
            }
            ValueKind::Limit(name) => format!("{} [default: {}]", name.meaning(), Limits::default().value(name)),
            _ => self.words.to_owned(),
        }
    }

    /// The error names the flag, and shows the value unless it may be a secret.
    fn set_flag(&self, definition: &mut Definition, word: &OsStr) -> Result<()> {
        let done = (self.set)(definition, &Given { setting: self, name: None, word, folder: None });
        let flag = self.flag;
        match self.kind {
            ValueKind::Switch(_) => done,
            ValueKind::Secret | ValueKind::Secrets | ValueKind::Variable => {
                done.map_err(|error| error.of_kind(Kind::Usage)).doing(|| format!("invalid value for `{flag}`"))
            }
            _ => done
                .map_err(|error| error.of_kind(Kind::Usage))
                .doing(|| format!("invalid value `{}` for `{flag}`", word.to_string_lossy().escape_debug())),
        }
    }

    /// `name` is that of the entry, where the key is a table.
    pub(super) fn set_key(
        &self,
        definition: &mut Definition,
        name: Option<&str>,
        word: &str,
        folder: &Path,
    ) -> Result<()> {
        (self.set)(definition, &Given { setting: self, name, word: word.as_ref(), folder: Some(folder) })
    }
}

struct Given<'a> {
    setting: &'a Setting,
    /// Name of a table's entry.
    name: Option<&'a str>,
    word: &'a OsStr,
    /// The profile's; `None` for a flag.
    folder: Option<&'a Path>,
}

impl<'a> Given<'a> {
    fn is_flag(&self) -> bool {
        self.folder.is_none()
    }

    fn text(&self) -> Result<&'a str> {
        self.word.to_str().ok_or_else(|| Error::new(Kind::Usage, "it is not UTF-8").hint("use letters of UTF-8"))
    }

    fn put<T>(&self, place: &mut T, parser: impl FnOnce(&str) -> Result<T>) -> Result<()> {
        *place = parser(self.text()?)?;
        Ok(())
    }

    fn some<T>(&self, place: &mut Option<T>, parser: impl FnOnce(&str) -> Result<T>) -> Result<()> {
        self.put(place, |text| parser(text).map(Some))
    }

    fn push<T>(&self, place: &mut Vec<T>, parser: impl FnOnce(&str) -> Result<T>) -> Result<()> {
        place.push(parser(self.text()?)?);
        Ok(())
    }

    fn extend<T>(&self, place: &mut Vec<T>, parser: impl FnOnce(&str) -> Result<Vec<T>>) -> Result<()> {
        place.extend(parser(self.text()?)?);
        Ok(())
    }

    fn switch(&self, place: &mut bool) -> Result<()> {
        self.put(place, checked)
    }

    /// A path in the sandbox.
    fn inside(&self, place: &mut Option<PathBuf>) -> Result<()> {
        *place = Some(self.word.into());
        Ok(())
    }

    /// A path of the host.
    fn path(&self, place: &mut Option<PathBuf>) -> Result<()> {
        *place = Some(self.absolute()?);
        Ok(())
    }

    /// A task in the background has another working folder.
    fn absolute(&self) -> Result<PathBuf> {
        self.absolute_of(self.word.as_ref())
    }

    fn absolute_of(&self, path: &Path) -> Result<PathBuf> {
        let path = self.folder.map_or_else(|| path.to_owned(), |folder| folder.join(path));
        std::path::absolute(&path)
            .map_err(|cause| Error::os(Kind::Usage, cause).doing(format!("find `{}`", path.display())))
    }

    fn limit(&self, limits: &mut Limits) -> Result<()> {
        match self.setting.kind {
            ValueKind::Limit(name) => limits.set(name, self.text()?),
            _ => Err(Error::new(Kind::Internal, format!("`{}` is not a limit", self.setting.flag))),
        }
    }

    fn git_setting(&self, definition: &mut Definition, name: &str) -> Result<()> {
        self.push(&mut definition.git.settings, |value| Ok((name.to_owned(), value.to_owned())))
    }

    fn of_image(&self, definition: &mut Definition, place: fn(&mut ImageWish) -> &mut Option<String>) -> Result<()> {
        definition.image.iter_mut().try_for_each(|image| self.some(place(image), owned))
    }
}

fn owned(text: &str) -> Result<String> {
    Ok(text.to_owned())
}

/// For what another parser has checked.
fn checked<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T> {
    text.parse().map_err(|cause: T::Err| Error::new(Kind::Usage, cause.to_string()))
}

fn time(text: &str) -> Result<Duration> {
    let wrong = |cause: humantime::DurationError| Error::new(Kind::Usage, cause.to_string()).hint("give it like `10s`");
    humantime::parse_duration(text).map_err(wrong)
}

/// Every setting, in the order of the help.
pub fn settings() -> &'static [Setting] {
    rows::ROWS
}

pub(super) fn setting_of_key(key: &str) -> Option<&'static Setting> {
    settings().iter().find(|setting| setting.key == key)
}

/// Flags with their values.
pub type GivenFlags = Vec<(&'static str, Vec<OsString>)>;

/// How to reach the remote of a push, besides its host and branch.
pub const REMOTE_FLAGS: [&str; 6] =
    ["--git-credential", "--git-ssh-key", "--git-known-hosts", "--git-ca", "--git-address", "--resolver"];

/// In the order of the table. What a flag needs is in the existing task's record.
pub(in crate::task) fn set_each(flags: &GivenFlags, definition: &mut Definition) -> Result<()> {
    for setting in settings() {
        let given = flags.iter().filter(|(flag, _)| *flag == setting.flag).flat_map(|(_, words)| words);
        given.into_iter().try_for_each(|word| setting.set_flag(definition, word))?;
    }
    Ok(())
}

/// Overrides what a profile has set.
pub fn set_flags(flags: &GivenFlags, definition: &mut Definition) -> Result<()> {
    let is_given = |flag: &str| flags.iter().any(|(given, _)| *given == flag);
    let given = || {
        settings().iter().filter_map(|setting| {
            flags.iter().find(|(flag, _)| *flag == setting.flag).map(|(_, words)| (setting, words))
        })
    };
    for (flag, about) in
        [("--repo", "a repository, and the task works on none"), ("--image", "an image, and the task has none")]
    {
        // The parser misses this where another flag excludes what this one needs.
        if let Some((idle, _)) = given().find(|(setting, _)| setting.needs == Some(flag) && !is_given(flag)) {
            let idle = idle.flag;
            return Err(Error::new(Kind::Usage, format!("{idle} is about {about}"))
                .hint(format!("name one with {flag}, or leave {idle} out")));
        }
    }
    if is_given("--allow") || is_given("--learn") {
        definition.sandbox.network.mode = NetworkMode::Egress; // unless --network is given, which is set after this
    }
    set_each(flags, definition)?;
    let limits = &mut definition.sandbox.limits;
    // What holds has no output.
    if definition.sandbox.holds && limits.idle == Limits::default().idle && !is_given("--idle") {
        limits.idle = limits.wall;
    }
    if let Some(image) = &mut definition.image {
        let directory = definition.sandbox.directory.take().and_then(|path| path.into_os_string().into_string().ok());
        image.working_directory = directory.or(image.working_directory.take());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn flags_and_keys_are_unique_and_have_help() {
        let mut seen = BTreeSet::new();
        for setting in settings() {
            for name in [setting.flag, setting.key].into_iter().filter(|name| !name.is_empty()) {
                assert!(seen.insert(name), "`{name}` has two rows");
            }
            let names = setting.needs.iter().chain(setting.excludes).filter(|name| name.starts_with("--"));
            for name in names {
                assert!(settings().iter().any(|other| other.flag == *name), "{setting:?}");
            }
            assert!(!setting.description().is_empty(), "{setting:?}");
        }
    }

    #[test]
    fn every_limit_has_a_row_with_its_names() {
        for &name in LimitName::ALL {
            let setting = settings().iter().find(|setting| setting.kind == ValueKind::Limit(name)).unwrap();
            assert_eq!(setting.key, format!("limits.{}", name.word()));
            assert_eq!(setting.flag, format!("--{}", name.word().replace('_', "-")));
        }
    }

    /// Without limits, which have another table.
    fn page() -> String {
        let settings = settings().iter().filter(|setting| !setting.key.is_empty());
        let rows = settings.filter(|setting| !matches!(setting.kind, ValueKind::Limit(_))).map(|setting| {
            let flag = match (setting.flag, setting.form) {
                ("", _) => String::new(),
                (flag, "") => format!("`{flag}`"),
                (flag, form) => format!("`{flag} {}`", form.replace('|', "\\|")),
            };
            let form = match setting.kind {
                ValueKind::Switch(_) => "true or false",
                ValueKind::Table | ValueKind::Variable => "table of texts",
                ValueKind::Number => "number",
                ValueKind::Codes => "list of codes",
                ValueKind::Size => "size",
                ValueKind::Time => "time",
                ValueKind::Path => "path",
                ValueKind::Secrets => "text", // a table for each name
                _ if setting.kind.is_list() => "list of texts",
                _ => "text",
            };
            format!("| `{}` | {form} | {flag} | {} |", setting.key.replace('*', "NAME"), setting.description())
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_page_about_profiles_has_the_table_of_keys() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/profile.md");
        const HEAD: &str = "| key | form | flag | what it sets |\n| --- | --- | --- | --- |\n";
        let text = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = text.split_once(HEAD).unwrap();
        let (rows, after) = rest.split_once("\n\n").unwrap();
        let made = page();
        if std::env::var_os("BRIG_DOCS").is_some_and(|value| value == "write") {
            std::fs::write(PAGE, format!("{before}{HEAD}{made}\n\n{after}")).unwrap();
        } else {
            assert_eq!(rows, made, "run `BRIG_DOCS=write cargo test --lib settings`");
        }
    }
}
