//! The presets: built in, and the caller's own in `~/.config/brig/agents`, which replace those.

use super::wrong;
use crate::error::{Kind, Result, Step};
use crate::task::definition::AgentTable;
use crate::task::definition::Definition;
use crate::task::definition::profile::{read_file, take_text};
use crate::task::definition::user_file::{config_folder, open_own};
use std::path::{Path, PathBuf};

/// In alphabetical order.
const PRESETS: [(&str, &str); 8] = [
    ("aider", include_str!("../../../rootfs/agents/aider.toml")),
    ("claude", include_str!("../../../rootfs/agents/claude.toml")),
    ("codex", include_str!("../../../rootfs/agents/codex.toml")),
    ("gemini", include_str!("../../../rootfs/agents/gemini.toml")),
    ("goose", include_str!("../../../rootfs/agents/goose.toml")),
    ("mini-swe-agent", include_str!("../../../rootfs/agents/mini-swe-agent.toml")),
    ("opencode", include_str!("../../../rootfs/agents/opencode.toml")),
    ("qwen", include_str!("../../../rootfs/agents/qwen.toml")),
];
const LONGEST: u64 = 1 << 20;

/// A preset in a list.
#[derive(Clone, Debug)]
pub struct PresetSummary {
    /// Its word on the command line.
    pub name: String,
    /// Its name for a person.
    pub title: String,
    /// The program.
    pub program: String,
    /// The caller's file that replaces or adds the preset.
    pub file: Option<PathBuf>,
    /// The text.
    pub text: String,
}

/// A name is one word: it cannot lead to another folder.
/// An empty file is none: a shell makes it before `brig agent show NAME > NAME.toml` runs.
fn own_file(name: &str) -> Option<PathBuf> {
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let path = config_folder().ok().filter(|_| is_word)?.join("agents").join(name).with_extension("toml");
    path.symlink_metadata().is_ok_and(|file| file.len() > 0).then_some(path)
}

pub(super) fn read(name: &str, definition: &mut Definition) -> Result<AgentTable> {
    let table = match (own_file(name), PRESETS.iter().find(|(known, _)| *known == name)) {
        (Some(path), _) => {
            let file = open_own(&path).map_err(|error| error.of_kind(Kind::Profile))?;
            read_file(&path, Some(file), definition, true)?
        }
        (None, Some((_, text))) => take_text(text, &Path::new("preset").join(name), definition, true)
            .doing(|| format!("read the preset `{name}`"))?,
        (None, None) => {
            let known: Vec<_> = PRESETS.iter().map(|(known, _)| *known).collect();
            return Err(wrong(
                format!("unknown agent `{}`", name.escape_debug()),
                format!(
                    "the agents are {}; for another program: brig agent --profile FILE -- COMMAND",
                    known.join(", ")
                ),
            )
            .of_kind(Kind::Usage));
        }
    };
    table.ok_or_else(|| {
        wrong(format!("the preset `{name}` has no `[agent]` table"), format!("see `brig agent show {name}`"))
    })
}

/// The tables of the built-in presets, also of those that a file of the caller replaces.
pub(super) fn built_in() -> Vec<AgentTable> {
    let table = |(name, text): &(&str, &str)| {
        take_text(text, Path::new(name), &mut Definition::new(Vec::new()), true).ok().flatten()
    };
    PRESETS.iter().filter_map(table).collect()
}

/// Every preset: built in, and the caller's own.
pub fn presets() -> Result<Vec<PresetSummary>> {
    let mut names: Vec<String> = PRESETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let folder = config_folder().map(|folder| folder.join("agents")).ok();
    let own = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for path in own.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if own_file(&name).is_some() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort();
    names.into_iter().map(summary).collect()
}

fn summary(name: String) -> Result<PresetSummary> {
    let table = read(&name, &mut Definition::new(Vec::new()))?;
    let file = own_file(&name);
    let text = match (&file, PRESETS.iter().find(|(known, _)| *known == name)) {
        (Some(path), _) => String::from_utf8_lossy(&crate::files::read_bounded(path, LONGEST)?).into_owned(),
        (None, embedded) => embedded.map_or_else(String::new, |(_, text)| (*text).to_owned()),
    };
    Ok(PresetSummary { name, title: table.title, program: table.program, file, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Rule;

    #[test]
    fn every_preset_is_a_profile_and_opens_no_host_besides_those_of_its_keys() {
        for (name, text) in PRESETS {
            let mut definition = Definition::new(Vec::new());
            let path = Path::new("preset").join(name);
            let table = take_text(text, &path, &mut definition, true).unwrap().unwrap();
            assert!(!table.title.is_empty() && !table.install.is_empty(), "{name}");
            assert!(!table.keys.is_empty() && definition.secrets.is_empty(), "{name}");
            assert!(definition.sandbox.mounts.is_empty() && definition.sandbox.network.publish.is_empty(), "{name}");
            let allowed = &definition.sandbox.network.policy.allowed;
            assert!(allowed.iter().all(|rule: &Rule| !rule.to_string().contains('*')), "{name}");
            assert!(text.starts_with("# "), "{name}: the first line names the agent");
        }
        assert!(PRESETS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn an_unknown_agent_is_answered_with_the_known_ones() {
        for name in ["cluade", "", "../x", "a/b"] {
            let error = read(name, &mut Definition::new(Vec::new())).unwrap_err();
            assert!(error.advice().unwrap().contains("aider, claude, codex"), "{error}");
        }
    }
}
