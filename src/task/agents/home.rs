//! The agent's home: a volume for each agent and project, so that sessions, settings and history persist.
//!
//! Only the sandbox sees the volume; no program of the host reads it. Another root has another home: its files belong
//! to another user.

use super::Agent;
use crate::error::{Kind, Result};
use crate::files;
use crate::sandbox::{Backend, HOME, LimitName, are_packed, check_owner};
use crate::task::definition::{Definition, WorkspaceSource, hosted};
use crate::task::store::Store;
use std::path::Path;

const DIGITS: usize = 10;
/// The longest first part of a volume's name.
const LONGEST: usize = 40;

/// The home of an agent's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentHome {
    /// The volume that the caller named.
    Given(String),
    /// The volume of agent and project.
    Persistent {
        /// Its name.
        volume: String,
        /// Agent and project.
        purpose: String,
    },
    /// Empty at the start, and discarded with the task.
    Temporary {
        /// Why it does not persist; empty if the caller asked for it.
        reason: String,
    },
}

impl Agent {
    /// Chooses the definition's home; makes nothing.
    pub fn choose_home(&self, is_fresh: bool, definition: &mut Definition) -> AgentHome {
        let home = if is_fresh { temporary("") } else { self.home(definition) };
        definition.sandbox.home = match &home {
            AgentHome::Given(volume) | AgentHome::Persistent { volume, .. } => Some(volume.clone()),
            AgentHome::Temporary { .. } => None,
        };
        home
    }

    fn home(&self, definition: &Definition) -> AgentHome {
        let sandbox = &definition.sandbox;
        if let Some(name) = &sandbox.home {
            return AgentHome::Given(name.clone());
        }
        let project = match &definition.workspace {
            WorkspaceSource::Empty => return temporary("the task works on no project"),
            WorkspaceSource::Directory(folder) => {
                std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone()).display().to_string()
            }
            WorkspaceSource::Repository { url, .. } => url.clone(),
        };
        if sandbox.backend != Backend::Native {
            return temporary("the backend has no volumes");
        }
        if sandbox.mounts.iter().any(|mount| Path::new(HOME).starts_with(&mount.target)) {
            return temporary("a mount is in its place");
        }
        // Root's volume needs what the disk limit needs: mke2fs and a loop device.
        if !are_packed() && sandbox.may_degrade.iter().any(|name| name == LimitName::Disk.word()) {
            return temporary("`--allow-degraded disk`: the machine may have no volumes; --home NAME uses one");
        }
        let root = match (&definition.image, &sandbox.rootfs) {
            (Some(image), _) => format!(", image {}", image.reference),
            (None, Some(root)) => format!(", root {}", root.display()),
            (None, None) => String::new(),
        };
        let user = if sandbox.root_inside { ", root inside" } else { "" };
        let agent = match self.is_own_command {
            true => {
                std::fs::canonicalize(&self.name).map_or_else(|_| self.name.clone(), |path| path.display().to_string())
            }
            false => self.name.clone(),
        };
        let purpose = format!("{agent} on {project}{root}{user}");
        let volume = volume_name(&agent, &purpose);
        if let Err(error) = check_owner(sandbox.root_inside) {
            return temporary(&error.to_string());
        }
        if hosted::check_volume(&volume).is_err() {
            return temporary(&format!("`volumes` of the operator does not list `{volume}`"));
        }
        AgentHome::Persistent { volume, purpose }
    }
}

fn temporary(reason: &str) -> AgentHome {
    AgentHome::Temporary { reason: reason.to_owned() }
}

/// The agent's name, and a digest of agent, project and root.
fn volume_name(agent: &str, purpose: &str) -> String {
    let agent = Path::new(agent).file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = agent.chars().map(|each| if each.is_ascii_alphanumeric() { each } else { '-' }).take(LONGEST);
    let plain: String = plain.collect();
    let first = plain.trim_matches('-');
    let first = if first.is_empty() { "agent" } else { first };
    format!("{first}-{}", &files::digest(purpose.as_bytes())[..DIGITS])
}

/// Makes a persistent home's volume. While another task writes it, the home is temporary.
pub fn prepare_home(store: &Store, home: AgentHome, definition: &mut Definition) -> Result<AgentHome> {
    let AgentHome::Persistent { volume, purpose } = &home else { return Ok(home) };
    match store.prepare_home(volume, purpose) {
        Ok(()) => Ok(home),
        Err(error) if error.kind() == Kind::State => {
            definition.sandbox.home = None;
            Ok(temporary(&error.to_string()))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::check_volume_name;
    use crate::task::definition::AgentTable;

    #[test]
    fn a_home_is_temporary_where_nothing_tells_its_project_or_a_volume_may_be_impossible() {
        let project = tempfile::tempdir().unwrap();
        let agent = Agent { name: "x".into(), table: AgentTable::default(), is_own_command: false };
        let check = |change: &dyn Fn(&mut Definition), words: &str| {
            let mut definition = Definition::new(Vec::new());
            definition.workspace = WorkspaceSource::Directory(project.path().to_owned());
            change(&mut definition);
            let home = agent.choose_home(false, &mut definition);
            let AgentHome::Temporary { reason } = home else { panic!("{home:?}") };
            assert!(reason.contains(words) && definition.sandbox.home.is_none(), "{reason}");
        };
        check(&|it| it.workspace = WorkspaceSource::Empty, "on no project");
        // An ordinary user's volume needs no disk image.
        if !are_packed() {
            check(&|it| it.sandbox.may_degrade.push("disk".into()), "--allow-degraded disk");
        }
        check(&|it| it.sandbox.backend = Backend::Local, "backend");
    }

    #[test]
    fn a_home_has_the_name_of_its_agent_and_one_digest_for_each_purpose() {
        for (agent, first) in [
            ("claude", "claude-"),
            ("mini-swe-agent", "mini-swe-agent-"),
            ("/etc/My agent.toml", "My-agent-"),
            ("../-_-.toml", "agent-"),
            ("é", "agent-"),
        ] {
            let name = volume_name(agent, "x");
            assert!(name.starts_with(first) && name.len() == first.len() + DIGITS, "{agent}: {name}");
            check_volume_name(&name).unwrap();
            assert_eq!(name, volume_name(agent, "x"));
            assert_ne!(name, volume_name(agent, "y"));
        }
    }
}
