//! The `[agent]` table of a preset: a program, the keys of its provider, and the command line that it gets. Pure.

use serde::Deserialize;
use std::collections::BTreeMap;

/// `[agent]` of a preset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTable {
    /// Its name for a person.
    #[serde(default)]
    pub title: String,
    /// The program, as the caller's PATH has it.
    pub program: String,
    /// The command that installs it, for an error.
    #[serde(default)]
    pub install: String,
    /// Arguments before those of the caller. `{url:KEY}` is the URL of a key.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// What switches the program's own questions and its own sandbox off, for a message.
    #[serde(default)]
    pub unattended: String,
    /// The keys. At least one of them must be set.
    #[serde(default)]
    pub keys: Vec<KeyTable>,
    /// Variables with the URLs of keys, in the same form.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Variables of the caller that are passed on. They are not secrets.
    #[serde(default)]
    pub pass: Vec<String>,
    /// Files of the home that are made if they are missing, with their content. `{folder}` is the path of the folder that
    /// the agent works on, as a string of JSON has it.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// `[[agent.keys]]`: a credential that the broker adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyTable {
    /// The variable of the caller with the value.
    pub variable: String,
    /// The URL of the provider, unless a variable below names another one.
    pub url: String,
    /// Variables that name another URL, the first one that is set.
    #[serde(default)]
    pub base_url: Vec<String>,
    /// The header, as in `[secrets.NAME]`.
    #[serde(default)]
    pub header: Option<String>,
    /// The value of the variable inside.
    #[serde(default)]
    pub placeholder: Option<String>,
    /// The login file of the program, used if no key of the preset is set.
    #[serde(default)]
    pub login: Option<LoginTable>,
}

/// `[agent.keys.login]`: the file in which the program keeps its own login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginTable {
    /// The file, such as `.codex/auth.json`, in the caller's home.
    pub file: String,
    /// The variable that names the file's folder instead.
    #[serde(default)]
    pub folder: Option<String>,
    /// The JSON pointer of the access token.
    pub token: String,
    /// The JSON pointer of its end, in seconds or milliseconds since 1970. Without it a JWT's own claim holds.
    #[serde(default)]
    pub expires: Option<String>,
    /// Variables inside, with JSON pointers of texts of the file that are not secrets.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}
