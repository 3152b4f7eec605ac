//! The `[agent]` table of a preset. Pure.

use serde::Deserialize;
use std::collections::BTreeMap;

/// `[agent]` of a preset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTable {
    /// Display name.
    #[serde(default)]
    pub title: String,
    /// Looked up in the caller's PATH.
    pub program: String,
    /// Install command, for an error.
    #[serde(default)]
    pub install: String,
    /// Arguments before the caller's. `{url:KEY}` is the URL of a key.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// For a message: what switches off the program's own questions and sandbox.
    #[serde(default)]
    pub unattended: String,
    /// At least one of them must be set.
    #[serde(default)]
    pub keys: Vec<KeyTable>,
    /// Variables with the URLs of keys, in the same form.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Variables to pass on from the caller. They are not secrets.
    #[serde(default)]
    pub pass: Vec<String>,
    /// Files to create in the home if they are missing, with their content. `{folder}` is the agent's folder as a JSON
    /// string.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// `[[agent.keys]]`: a credential that the broker adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyTable {
    /// The caller's variable with the value.
    pub variable: String,
    /// The provider's URL, unless a variable of `base_url` is set.
    pub url: String,
    /// Variables with another URL. The first that is set counts.
    #[serde(default)]
    pub base_url: Vec<String>,
    /// As in `[secrets.NAME]`.
    #[serde(default)]
    pub header: Option<String>,
    /// The variable's value inside.
    #[serde(default)]
    pub placeholder: Option<String>,
    /// Used if no key of the preset is set.
    #[serde(default)]
    pub login: Option<LoginTable>,
}

/// `[agent.keys.login]`: the file with the program's own login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginTable {
    /// A path in the caller's home, such as `.codex/auth.json`.
    pub file: String,
    /// The variable that names the file's folder instead.
    #[serde(default)]
    pub folder: Option<String>,
    /// JSON pointer of the access token.
    pub token: String,
    /// JSON pointer of the token's end, in seconds or milliseconds since 1970. Default: the JWT's own claim.
    #[serde(default)]
    pub expires: Option<String>,
    /// Variables inside, with JSON pointers of their values, which are not secrets.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}
