//! An image as the root of a sandbox: its configuration's part of the spec. Pure.

use super::HOME;
use crate::container;
use crate::error::{Error, Kind, Result};
use crate::spec::landlock::{Access, Rule};
use crate::spec::root::{Attributes, Layers, Owner, Root, Shown, Source, Step};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// An image cannot set them: the kernel's own are mounted there.
const KERNELS: [&str; 3] = ["proc", "sys", "dev"];

/// The layers of an image, and its configuration as far as it is in force.
#[derive(Clone, Debug)]
pub struct ImageRoot {
    /// The directory of the layers on the host. The caller keeps it while the sandbox runs.
    pub directory: PathBuf,
    /// The access to the files.
    pub files: Files,
    /// The layers, topmost first.
    pub layers: Vec<String>,
    /// The root's mode.
    pub mode: u32,
    /// Names of the real directories in the root.
    pub folders: Vec<String>,
    /// Names of all others in the root.
    pub others: Vec<String>,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The user's home, if the configuration names an existing one; else an empty one.
    pub home: Option<PathBuf>,
    /// The start folder without a workspace.
    pub working_directory: Option<PathBuf>,
    /// Whether that holds also with a workspace.
    pub always_starts_there: bool,
    /// The image's variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Directories that exist even if the image lacks them.
    pub volumes: Vec<PathBuf>,
    /// The signal that asks the command to end; default SIGTERM.
    pub stop_signal: Option<i32>,
}

/// A sandbox's access to the files of an image.
#[derive(Clone, Debug)]
pub enum Files {
    /// The layers are mounted.
    Mounted,
    /// A copy of the layers for this sandbox alone: they cannot be mounted with its ids.
    Copied(PathBuf),
    /// A copy in memory, made at the start and counted by the memory limit: an ordinary user cannot mount layers.
    Gathered,
}

impl ImageRoot {
    pub(super) fn root(&self) -> Root {
        let layers = || Layers {
            directory: self.directory.clone(),
            names: self.layers.clone(),
            shown: Shown::Inside,
            mode: self.mode,
        };
        match &self.files {
            Files::Mounted => Root::Layers(layers()),
            Files::Copied(tree) => Root::Copy(tree.clone()),
            Files::Gathered => Root::Gathered(layers()),
        }
    }

    pub(super) fn home(&self) -> &Path {
        self.home.as_deref().unwrap_or(Path::new(HOME))
    }

    /// The image's applies only without a workspace, unless `always_starts_there`.
    pub(super) fn start(&self, has_workspace: bool, at: &Path) -> PathBuf {
        match &self.working_directory {
            Some(directory) if !has_workspace || self.always_starts_there => directory.clone(),
            _ => at.to_owned(),
        }
    }

    /// Everything is copy-on-write on the capped disk, so a volume only has to exist. It begins with the image's
    /// content, and ends with the sandbox.
    pub(super) fn steps(&self, hostname: &str) -> Vec<Step> {
        let file = |at: &str, content: String| Step::File { at: at.into(), content: content.into(), mode: 0o644 };
        let mut steps = vec![
            file("/etc/hosts", format!("127.0.0.1 localhost {hostname}\n::1 localhost\n")),
            file("/etc/hostname", format!("{hostname}\n")),
            file("/etc/resolv.conf", String::new()),
        ];
        for at in self.volumes.iter().chain(&self.working_directory) {
            // Each missing folder on the way belongs to the image's root too.
            let mut way: Vec<_> = at.ancestors().filter(|above| *above != Path::new("/")).collect();
            way.reverse();
            steps.extend(way.into_iter().map(|at| Step::Directory {
                at: at.to_owned(),
                mode: 0o755,
                owner: Owner::Administrator,
            }));
        }
        if self.home.is_none() {
            steps.push(Step::Bind {
                source: Source::Scratch("home"),
                at: HOME.into(),
                attributes: Attributes::WRITABLE,
                shown: Shown::Stored,
            });
        }
        steps
    }

    pub(super) fn check(&self) -> Result<()> {
        let largest = self.groups.iter().chain([&self.uid, &self.gid]).max().copied().unwrap_or(0);
        if container::privileged() && largest >= container::IDS {
            return Err(Error::new(
                Kind::Identity,
                format!("the id {largest} of the image is beyond the {} ids that a sandbox has", container::IDS),
            )
            .hint("name another user of the image: --user NAME"));
        }
        if container::privileged() && container::OWN_USERS.contains(&self.uid) {
            return Err(Error::new(
                Kind::Identity,
                format!("the user id {} belongs to brig's own processes", self.uid),
            )
            .hint("name another user of the image: --user NAME"));
        }
        Ok(())
    }

    /// Permits writes below each real directory of the root. A link there could lead to the kernel's folders.
    pub(super) fn landlock(&self) -> Vec<Rule> {
        let made = self.volumes.iter().chain(&self.working_directory).filter_map(|path| top(path));
        let mut names: Vec<&str> = self.folders.iter().map(String::as_str).chain(made).collect();
        names.sort_unstable();
        names.dedup();
        names
            .into_iter()
            .filter(|name| !KERNELS.contains(name) && !self.others.iter().any(|other| other == name))
            .map(|name| Rule { path: Path::new("/").join(name), access: Access::Write })
            .collect()
    }
}

fn top(path: &Path) -> Option<&str> {
    path.strip_prefix("/").ok()?.iter().next()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> ImageRoot {
        ImageRoot {
            directory: "/s/layers".into(),
            files: Files::Mounted,
            layers: vec!["a/fs".into()],
            mode: 0o755,
            folders: ["etc", "proc", "dev", "usr"].map(str::to_owned).to_vec(),
            others: vec!["link".to_owned()],
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: None,
            working_directory: Some("/app/src".into()),
            always_starts_there: false,
            environment: Vec::new(),
            volumes: ["/data", "/link/x"].map(PathBuf::from).to_vec(),
            stop_signal: None,
        }
    }

    #[test]
    fn only_true_folders_of_the_image_and_what_we_make_may_be_written() {
        let paths: Vec<_> = image().landlock().into_iter().map(|rule| rule.path).collect();
        assert_eq!(paths, ["/app", "/data", "/etc", "/usr"].map(PathBuf::from));
    }

    #[test]
    fn the_images_directory_is_where_a_command_without_a_workspace_starts() {
        let at = Path::new("/srv/app");
        assert_eq!(image().start(false, at), Path::new("/app/src"));
        assert_eq!(image().start(true, at), at);
        assert_eq!(ImageRoot { working_directory: None, ..image() }.start(false, at), at);
    }
}
