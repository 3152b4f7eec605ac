//! Files and folders of the host at places in a sandbox: `--mount` and `--ro`.
//!
//! A folder with `ro` or `cow` is an overlay: through a bind mount the command could reach the host's sockets and
//! FIFOs. A file is a bind mount, with `cow` of a copy on the sandbox's disk. `rw` is a bind mount that writes to the
//! host: the command may not set set-user-ID bits ([`Confinement::Sharing`](crate::spec::Confinement::Sharing)).

use super::image::ImageRoot;
use super::location::{SECRETS, WORKSPACE};
use super::mount::{Mount, MountMode};
use super::options::{Backend, Options};
use super::{HOME, system};
use crate::error::{Error, Kind, Result};
use crate::host::is_off;
use crate::spec::landlock::{Access, Rule};
use crate::spec::root::HiddenFiles;
use crate::spec::root::{Attributes, MOUNTS, Owner, Shown, Source, Step};
use std::path::{Component, Path};

/// Bytes; init makes a folder for each component.
const LONGEST: usize = 1024;
/// The kernel's file systems and secrets: nothing is mounted there or below.
const CLOSED: [&str; 4] = ["/proc", "/sys", "/dev", SECRETS];
/// No mount may cover these folders. Below them it may be.
const OWN: [&str; 9] = ["/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run", "/tmp", "/var/tmp"];

#[derive(Clone, Copy, Debug)]
pub(super) struct SourceFacts {
    pub owner: (u32, u32),
    pub is_folder: bool,
}

/// Looks at no source.
pub(super) fn check(options: &Options) -> Result<()> {
    let mounts = &options.mounts;
    if mounts.len() > MOUNTS.len() {
        let words = format!("there are {} mounts, and a sandbox has at most {}", mounts.len(), MOUNTS.len());
        return Err(Error::new(Kind::Usage, words).hint("mount a folder that contains several of them"));
    }
    for (number, mount) in mounts.iter().enumerate() {
        let target = mount.target.as_path();
        let reason = refusal_beside(target, options, &mounts[..number]);
        if let Some(reason) = reason {
            return Err(Error::new(Kind::Usage, reason)
                .doing(format!("mount `{}` at `{}`", mount.source.display(), target.display()))
                .hint("name another place inside, such as `/data` or `/home/agent/data`"));
        }
        if mount.mode == MountMode::Writable && options.backend != Backend::Native {
            return Err(Error::new(
                Kind::Backend,
                format!("the backend `{}` cannot keep a mount from set-user-ID bits", options.backend),
            )
            .doing(format!("mount `{mount}`"))
            .hint("use `ro` or `cow`, or the backend native"));
        }
    }
    Ok(())
}

/// Why no volume can be mounted at `target`: the sandbox's own places, and the mounts.
pub(super) fn refusal(target: &Path, options: &Options) -> Option<String> {
    refusal_beside(target, options, &options.mounts)
}

fn refusal_beside(target: &Path, options: &Options, mounts: &[Mount]) -> Option<String> {
    let others = mounts.iter().map(|other| other.target.as_path());
    let mut others = others.chain(options.shown.iter().map(|(_, at)| at.as_path()));
    let overlap = || {
        let other = others.find(|other| overlaps(target, other))?;
        Some(format!("it overlaps the mount at `{}`", other.display()))
    };
    let of_system = || {
        let is_hosts_root = options.image.is_none() && options.rootfs.is_none();
        let system = is_hosts_root.then(system::find_folders)?;
        let folder = system.folders.iter().chain(&system.settings).find(|folder| target.starts_with(folder))?;
        Some(format!("`{}` is the host's own, read-only", folder.display()))
    };
    misplaced(target, options).or_else(overlap).or_else(of_system)
}

pub(super) fn overlaps(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn misplaced(target: &Path, options: &Options) -> Option<String> {
    let text = target.to_str().filter(|text| text.len() <= LONGEST && !text.contains(char::is_control));
    let mut parts = target.components();
    let is_plain = parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)));
    if text.is_none() || !is_plain {
        return Some(format!("a target is an absolute path of at most {LONGEST} bytes, without `..`"));
    }
    if let Some(closed) = CLOSED.iter().find(|closed| target.starts_with(closed)) {
        return Some(format!("nothing can be mounted in `{closed}`"));
    }
    let home = options.image.is_none().then_some(HOME);
    if let Some(own) = OWN.iter().chain(&CLOSED).copied().chain(home).find(|own| Path::new(own).starts_with(target)) {
        return Some(format!("it would cover the sandbox's own `{own}`"));
    }
    [options.at.as_path(), Path::new(WORKSPACE)]
        .into_iter()
        .find(|at| overlaps(target, at))
        .map(|at| format!("it overlaps the workspace at `{}`", at.display()))
}

/// Where a sandbox shows files of `folder`, a path without links, besides the workspace.
pub(crate) fn also_shows(options: &Options, folder: &Path) -> Option<String> {
    let real = |path: &Path| std::fs::canonicalize(options.pinned.path(path)).unwrap_or_else(|_| path.to_owned());
    let mount = options.mounts.iter().find(|mount| overlaps(&real(&mount.source), folder));
    if let Some(mount) = mount {
        return Some(format!("`{}`", mount.target.display()));
    }
    match &options.rootfs {
        Some(root) => overlaps(&real(root), folder).then(|| "its root file system".to_owned()),
        None if options.image.is_some() => None,
        None => {
            let system = system::find_folders().folders;
            system.iter().find(|shown| folder.starts_with(shown)).map(|shown| format!("`{}`", shown.display()))
        }
    }
}

pub(super) fn steps(options: &Options, facts: &[SourceFacts]) -> Vec<Step> {
    let mut steps = Vec::new();
    for ((mount, facts), changes) in options.mounts.iter().zip(facts).zip(MOUNTS) {
        let at = mount.target.clone();
        let shown = Shown::Users { uid: facts.owner.0, gid: facts.owner.1 };
        let attributes = match mount.mode {
            MountMode::ReadOnly => Attributes::READ_ONLY,
            MountMode::CopyOnWrite | MountMode::Writable => Attributes::WRITABLE,
        };
        steps.extend(folders_above(&at, options));
        steps.push(match mount.mode {
            MountMode::ReadOnly | MountMode::CopyOnWrite if facts.is_folder && !is_off("mount-overlay") => {
                Step::Overlay {
                    lower: mount.source.clone(),
                    changes,
                    at,
                    attributes,
                    shown,
                    hidden: HiddenFiles::default(),
                }
            }
            MountMode::CopyOnWrite if !facts.is_folder => {
                let source = Source::Copied { from: mount.source.clone(), to: changes };
                Step::Bind { source, at, attributes, shown: Shown::Stored }
            }
            _ => Step::Bind { source: Source::Host(mount.source.clone()), at, attributes, shown },
        });
    }
    steps
}

/// Such folders in the command's home and in `/tmp` belong to the command.
pub(super) fn folders_above(at: &Path, options: &Options) -> impl Iterator<Item = Step> {
    let home = options.image.as_ref().map_or(Path::new(HOME), ImageRoot::home);
    let writable = [home, Path::new("/tmp")].into_iter().find(|folder| at.starts_with(folder));
    let above = at.ancestors().skip(1).take_while(|above| writable.is_some_and(|folder| *above != folder));
    let above: Vec<_> = above.filter(|_| writable.is_some()).map(Path::to_owned).collect();
    above.into_iter().rev().map(|at| Step::Directory { at, mode: 0o755, owner: Owner::User })
}

pub(super) fn landlock(options: &Options) -> impl Iterator<Item = Rule> {
    let writable = options.mounts.iter().filter(|mount| mount.mode != MountMode::ReadOnly);
    writable.map(|mount| Rule { path: mount.target.clone(), access: Access::Write })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mounts: &[&str]) -> Options {
        let mounts = mounts.iter().map(|text| text.parse().unwrap()).collect();
        Options { mounts, ..Options::new(vec!["true".into()]) }
    }

    #[test]
    fn a_target_covers_nothing_of_the_sandbox() {
        for target in ["/data", "/home/agent/.cache/x", "/tmp/x", "/etc/tool.conf", "/srv/a/b", "/opt", "/home/user/x"]
        {
            check(&options(&[&format!("/src:{target}")])).unwrap();
        }
        for (target, words) in [
            ("/", "would cover"),
            ("/home", "`/home/agent`"),
            ("/home/agent", "would cover"),
            ("/tmp", "would cover"),
            ("/var", "`/var/tmp`"),
            ("/etc", "would cover"),
            ("/run", "would cover"),
            ("/proc", "in `/proc`"),
            ("/proc/1/x", "in `/proc`"),
            ("/sys/x", "in `/sys`"),
            ("/dev/shm/x", "in `/dev`"),
            ("/run/secrets/x", "in `/run/secrets`"),
            ("/workspace", "workspace"),
            ("/workspace/x", "workspace"),
            ("/usr/local/x", "read-only"),
            ("/a/../b", "without `..`"),
            ("/a\u{7}b", "absolute path"),
        ] {
            let error = check(&options(&[&format!("/src:{target}")])).unwrap_err();
            assert!(error.to_string().contains(words) && error.kind() == Kind::Usage, "{target}: {error}");
        }
    }

    #[test]
    fn overlapping_targets_and_too_many_mounts_are_refused() {
        for pair in [["/a:/x", "/b:/x"], ["/a:/x", "/b:/x/y"], ["/a:/x/y", "/b:/x"]] {
            assert!(check(&options(&pair)).unwrap_err().to_string().contains("overlaps the mount at"), "{pair:?}");
        }
        check(&options(&["/a:/x", "/a:/xy", "/b:/y"])).unwrap();
        let many: Vec<_> = (0..=MOUNTS.len()).map(|number| format!("/a:/m{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(check(&options(&many)).unwrap_err().to_string().contains("at most"));
        check(&options(&many[1..])).unwrap();
    }

    #[test]
    fn another_backend_gets_no_mount_that_writes_to_the_host() {
        let mut options = options(&["/a:/x:rw"]);
        check(&options).unwrap();
        options.backend = Backend::Oci("/usr/bin/crun".into());
        assert!(check(&options).unwrap_err().to_string().contains("`oci:/usr/bin/crun`"));
        options.mounts[0].mode = MountMode::CopyOnWrite;
        check(&options).unwrap();
    }

    #[test]
    fn folders_above_a_mount_in_the_home_belong_to_the_command() {
        let facts = [SourceFacts { owner: (7, 8), is_folder: true }];
        let steps = steps(&options(&["/src:/home/agent/.a/b/c"]), &facts);
        let folders: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Directory { at, owner: Owner::User, .. } => at.to_str(),
                _ => None,
            })
            .collect();
        assert_eq!(folders, ["/home/agent/.a", "/home/agent/.a/b"]);
        let shown = Shown::Users { uid: 7, gid: 8 };
        assert!(matches!(steps.last(), Some(Step::Overlay { shown: is, .. }) if *is == shown), "{steps:?}");
    }
}
