//! Landlock rules as data.

use crate::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::path::{Component, PathBuf};

pub(crate) const ANNOTATION: &str = "dev.brig.landlock";
/// A value of the annotation: the agent's rules, as far as the kernel enforces them.
pub(crate) const OPTIONAL: &str = "agent,optional";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    /// Read, list and execute.
    ReadExecute,
    /// Everything on files and directories, but no device ioctl.
    Write,
    /// Read, write and ioctl of existing files; no file is made or removed.
    Device,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// In the container.
    pub path: PathBuf,
    pub access: Access,
}

/// Access without a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Landlock {
    pub rules: Vec<Rule>,
    /// Accepts a kernel that enforces a part (before 6.12) or nothing (before 5.13, or switched off).
    #[serde(default)]
    pub optional: bool,
}

impl Landlock {
    /// For a root in a user namespace: files by their modes, devices below /dev alone, and the scopes.
    pub(crate) fn for_root(optional: bool) -> Landlock {
        let rule = |path: &str, access| Rule { path: path.into(), access };
        Landlock { rules: vec![rule("/", Access::Write), rule("/dev", Access::Device)], optional }
    }

    /// Parses `agent`, `agent,optional` or JSON. Unlike in the rest of a config.json, an unknown property is refused: it could be meant
    /// to forbid.
    pub(crate) fn parse(text: &str) -> Result<Landlock> {
        let failed = |words: String| {
            Error::new(Kind::Spec, words).doing(format!("read the annotation `{ANNOTATION}`")).hint(
                "write agent, or {\"rules\": [{\"path\": \"/usr\", \"access\": \"read-execute\"}]}; access is read-execute, write or device",
            )
        };
        if let "agent" | OPTIONAL = text {
            return Ok(Landlock::for_root(text == OPTIONAL));
        }
        let rules: Landlock = serde_json::from_str(text).map_err(|cause| failed(cause.to_string()))?;
        for rule in &rules.rules {
            if !rule.path.is_absolute() || rule.path.components().any(|part| part == Component::ParentDir) {
                return Err(failed(format!("the path `{}` is not absolute or holds `..`", rule.path.display())));
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_strictly() {
        let rules = Landlock::parse(r#"{"rules": [{"path": "/usr", "access": "read-execute"}]}"#).unwrap();
        let expected = Rule { path: "/usr".into(), access: Access::ReadExecute };
        assert_eq!((rules.rules, rules.optional), (vec![expected], false));
        assert_eq!(Landlock::parse("agent").unwrap(), Landlock::for_root(false));
        assert_eq!(Landlock::parse("agent,optional").unwrap(), Landlock::for_root(true));
        for wrong in [
            "",
            "[]",
            r#"{"rules": [{"path": "usr", "access": "write"}]}"#,
            r#"{"rules": [{"path": "/a/../b", "access": "write"}]}"#,
            r#"{"rules": [{"path": "/a", "access": "all"}]}"#,
            r#"{"rules": [], "deny": []}"#,
        ] {
            assert_eq!(Landlock::parse(wrong).unwrap_err().kind(), Kind::Spec, "{wrong}");
        }
    }
}
