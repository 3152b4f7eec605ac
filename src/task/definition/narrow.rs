//! A project's settings without the caller's trust: only what narrows a task is set.

use super::Definition;
use super::profile::{Profile, Value};
use super::settings::ValueKind;
use crate::error::Result;
use std::path::Path;

/// Sets keys that leave a task with less: hidden files, denied hosts, lower limits. Returns the other keys.
pub(in crate::task) fn narrow(text: &str, path: &Path, definition: &mut Definition) -> Result<Vec<String>> {
    let profile = Profile::parse(text, false, &[])?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut ignored: Vec<String> = Vec::new();
    for (setting, values) in &profile.values {
        for Value { name, word, .. } in values {
            let limits = &definition.sandbox.limits;
            let narrows = match (setting.key, setting.kind) {
                // In one list of patterns a `!` shows what an earlier pattern hides.
                ("hide", _) => !word.starts_with('!'),
                ("network.deny", _) => true,
                (_, ValueKind::Limit(limit)) => {
                    let mut wanted = limits.clone();
                    wanted.set(limit, word)?;
                    // The default of an ordinary user's disk depends on the memory.
                    wanted.amount(limit) <= limits.amount(limit) && wanted.disk_bytes() <= limits.disk_bytes()
                }
                _ => false,
            };
            if narrows {
                setting.set_key(definition, name.as_deref(), word, folder)?;
            } else if !ignored.iter().any(|key| key == setting.key) {
                ignored.push(setting.key.to_owned());
            }
        }
    }
    ignored.extend(profile.secrets.keys().map(|name| format!("secrets.{}", name.escape_debug())));
    Ok(ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) -> Definition {
        let mut definition = Definition::new(vec!["true".into()]);
        assert_eq!(narrow(text, Path::new("/p/.brig.toml"), &mut definition).unwrap(), expected, "{text}");
        definition
    }

    #[test]
    fn only_what_narrows_is_set() {
        let narrowed = check("hide = [\".env\"]\n[network]\ndeny = [\"a.test\"]\n[limits]\nmemory = \"1G\"", &[]);
        assert_eq!((narrowed.sandbox.hidden.flags.len(), narrowed.sandbox.network.policy.denied.len()), (1, 1));
        assert_eq!(narrowed.sandbox.limits.memory, 1 << 30);
        let plain = Definition::new(vec!["true".into()]);
        let text = "mounts = [\"/x:/y:rw\"]\nread_only = [\"/x\"]\n[env]\nA = \"b\"\n[network]\nmode = \"host\"\nallow = [\"a.test\", \"b.test\"]\n\
                    [limits]\nmemory = \"64G\"\nwall = \"none\"\n[secrets.T]\nsource = \"cmd:id\"";
        let keys = ["env", "limits.memory", "limits.wall", "mounts", "network.allow", "network.mode", "read_only"];
        let mut expected = keys.to_vec();
        expected.push("secrets.T");
        let mut definition = plain.clone();
        let mut ignored = narrow(text, Path::new("/p/.brig.toml"), &mut definition).unwrap();
        ignored[..keys.len()].sort();
        assert_eq!(ignored, expected);
        assert_eq!(definition.sandbox.limits, plain.sandbox.limits);
        assert!(definition.secrets.is_empty() && definition.sandbox.mounts.is_empty());
        let network = &definition.sandbox.network;
        assert!(definition.sandbox.environment.is_empty() && network.mode == plain.sandbox.network.mode);
        assert!(network.policy.allowed.is_empty());
    }

    #[test]
    fn a_project_shows_nothing_that_the_user_hides() {
        let mut definition = Definition::new(vec!["true".into()]);
        definition.sandbox.hidden.flags.push(".env".to_owned());
        let text = "hide = [\"!.env\", \"*.pem\"]";
        assert_eq!(narrow(text, Path::new("/p/.brig.toml"), &mut definition).unwrap(), ["hide"]);
        assert_eq!(definition.sandbox.hidden.flags, [".env", "*.pem"]);
    }

    #[test]
    fn an_unknown_key_and_an_agent_are_errors() {
        for text in ["bogus = 1", "[agent]\nprogram = \"sh\"", "[limits]\nmemory = \"x\""] {
            let mut definition = Definition::new(vec!["true".into()]);
            assert!(narrow(text, Path::new("/p/.brig.toml"), &mut definition).is_err(), "{text}");
        }
    }
}
