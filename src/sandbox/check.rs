//! The check of the options as a whole.

use super::mount::MountMode;
use super::options::{Backend, Options, Workspace};
use super::{backend, host_mounts, profile, volumes};
use crate::container;
use crate::error::{Context, Error, Kind, Result, Step as _};
use crate::host::subordinate_range;
use rustix::fs::{Access, AtFlags, CWD, FileType};
use std::path::Path;

impl Options {
    /// Makes nothing. The error names the first wrong option.
    pub(crate) fn check(&self) -> Result<()> {
        match self.command.first() {
            None => {
                return Err(
                    Error::new(Kind::Usage, "no command is given").hint("put it after `--`, like `-- make test`")
                );
            }
            Some(program) if program.is_empty() => {
                return Err(
                    Error::new(Kind::CommandNotFound, "the command is an empty word").hint("name a program after `--`")
                );
            }
            Some(_) => {}
        }
        if let Workspace::Directory(path) = &self.workspace {
            directory(path, Kind::Workspace, "workspace").map_err(|error| error.doing("use a workspace"))?;
        }
        if let Some(path) = &self.rootfs {
            directory(path, Kind::NotFound, "root file system")
                .map_err(|error| error.doing("use a root file system"))?;
        }
        if let Some(image) = &self.image {
            image.check()?;
        }
        self.check_root_inside()?;
        host_mounts::check(self)?;
        volumes::check(self)?;
        self.network.check()?;
        self.backend.isolates().check(self)?;
        let _ = backend::given_up(self)?;
        let limits = &self.limits;
        descriptors(limits.open_files)?;
        if limits.disk.is_some_and(|disk| !profile::on_disk() && disk > limits.memory) {
            return Err(Error::new(
                Kind::Profile,
                "`disk` is larger than `memory`, but without root privilege files are kept in memory",
            )
            .hint("raise --memory, or lower --disk"));
        }
        Ok(())
    }

    /// Root inside needs a root file system that it can change, and more ids than one.
    fn check_root_inside(&self) -> Result<()> {
        if !self.root_inside {
            return Ok(());
        }
        if self.image.is_none() && self.rootfs.is_none() {
            return Err(Error::new(Kind::Usage, "root inside cannot change the host's own system folders")
                .hint("give it a root file system: --image debian:12, or --rootfs DIR"));
        }
        if let Some(mount) = self.mounts.iter().find(|mount| mount.mode == MountMode::Writable) {
            let words = "root inside could give files of the host to other users, and set-user-ID bits";
            return Err(Error::new(Kind::Usage, words)
                .doing(format!("mount `{mount}`"))
                .hint("use `ro` or `cow`, or leave --root-inside out"));
        }
        if self.backend != Backend::Native {
            return Err(Error::new(Kind::Backend, format!("the backend `{}` cannot give root inside", self.backend))
                .hint("leave --backend or --root-inside out"));
        }
        if !container::privileged() {
            for file in ["/etc/subuid", "/etc/subgid"] {
                subordinate_range(file).doing(|| "be root inside as an ordinary user")?;
            }
        }
        Ok(())
    }
}

/// In its own user namespace, no process may raise the caller's limit of setrlimit(2).
fn descriptors(asked: u64) -> Result<()> {
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    match ours.filter(|&ours| asked > ours) {
        None => Ok(()),
        Some(ours) => Err(Error::new(
            Kind::LimitUnenforceable,
            format!("`open_files` is {asked}, but no more than {ours} open files may be had here"),
        )
        .hint(format!("give --open-files {ours}, or raise it first: ulimit -Hn {asked}"))),
    }
}

fn directory(path: &Path, kind: Kind, what: &str) -> Result<()> {
    let step = || format!("open `{}`", path.display());
    let status = rustix::fs::stat(path).failing(kind, step).map_err(|error| error.hint("name a folder that exists"))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(Error::new(kind, format!("it is not a folder, and a {what} must be one"))
            .doing(step())
            .hint("name the folder that holds it"));
    }
    rustix::fs::accessat(CWD, path, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .failing(kind, step)
        .map_err(|error| error.hint("give yourself the right to read it, or name another one"))
}
