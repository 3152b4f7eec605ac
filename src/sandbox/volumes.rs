//! The volumes of a sandbox: their checks, steps and rules.

use super::host_mounts::SourceFacts;
use super::image::ImageRoot;
use super::options::Options;
use super::volume::{Volume, VolumeAccess, check_volume_name};
use super::{HOME, ROOTS_HOME, USER, host_mounts};
use crate::container;
use crate::error::{Error, Kind, Result, Step as _};
use crate::spec::landlock::{Access, Rule};
use crate::spec::root::{Attributes, Ids, MountPoint, Step, VOLUMES};
use std::path::{Path, PathBuf};

pub(super) fn home(options: &Options) -> &Path {
    let own = if options.root_inside { ROOTS_HOME } else { HOME };
    options.image.as_ref().map_or(Path::new(own), ImageRoot::home)
}

impl Options {
    pub(crate) fn user(&self) -> (u32, u32) {
        let own = if self.root_inside { 0 } else { USER };
        self.image.as_ref().map_or((own, own), |image| (image.uid, image.gid))
    }

    /// Follows the order of the sandbox's mounts: the home first.
    pub(crate) fn all_volumes(&self) -> Vec<Volume> {
        let home = self.home.iter().map(|name| Volume {
            name: name.clone(),
            target: home(self).to_owned(),
            access: VolumeAccess::Writable,
        });
        home.chain(self.volumes.iter().cloned()).collect()
    }
}

/// An ordinary user may mount no image: volumes are archives, which init unpacks into memory.
pub(crate) fn are_packed() -> bool {
    !container::privileged()
}

/// Refuses files of many owners in an archive of one.
pub(crate) fn check_owner(root_inside: bool) -> Result<()> {
    if !root_inside || !are_packed() {
        return Ok(());
    }
    let words = "an ordinary user's volume has one owner, and a command that is root inside has many";
    Err(Error::new(Kind::State, words)
        .hint("leave --root-inside out, or run brig as root; or share a folder: --mount DIR:TARGET:rw"))
}

/// Makes nothing.
pub(super) fn check(options: &Options) -> Result<()> {
    let volumes = options.all_volumes();
    if volumes.is_empty() {
        return Ok(());
    }
    check_owner(options.root_inside).doing(|| format!("use the volume `{}`", volumes[0].name))?;
    if volumes.len() > VOLUMES.len() {
        let words = format!("there are {} volumes, and a sandbox has at most {}", volumes.len(), VOLUMES.len());
        return Err(Error::new(Kind::Usage, words).hint("use folders of one volume"));
    }
    for (number, volume) in volumes.iter().enumerate() {
        check_volume_name(&volume.name)?;
        let refused = |reason: String, hint: &str| {
            let step = format!("mount the volume `{}` at `{}`", volume.name, volume.target.display());
            Err(Error::new(Kind::Usage, reason).doing(step).hint(hint.to_owned()))
        };
        if volumes[..number].iter().any(|other| other.name == volume.name) {
            return refused("it is mounted twice".to_owned(), "name each volume once");
        }
        if options.home.is_some() && number == 0 {
            let mut covering = options.mounts.iter().map(|mount| mount.target.as_path()).chain([options.at.as_path()]);
            if let Some(at) = covering.find(|at| volume.target.starts_with(at)) {
                let reason = format!("`{}` would cover the home", at.display());
                return refused(reason, "name another place for it, or leave --home out");
            }
            if volume.target == Path::new("/") {
                return refused(
                    "the user's home is the root".to_owned(),
                    "name another user: --user, or leave --home out",
                );
            }
            continue;
        }
        if let Some(reason) = host_mounts::refusal(&volume.target, options) {
            return refused(reason, "name another place inside, such as `/data` or `/home/agent/data`");
        }
        if let Some(other) = volumes[..number].iter().find(|other| overlaps(volume, other, options)) {
            return refused(format!("it overlaps the volume at `{}`", other.target.display()), "name another place");
        }
    }
    Ok(())
}

/// A volume below the home is the usual place of a cache.
fn overlaps(one: &Volume, other: &Volume, options: &Options) -> bool {
    let is_home = options.home.as_ref() == Some(&other.name);
    host_mounts::overlaps(&one.target, &other.target) && !(is_home && one.target != other.target)
}

fn step(number: usize, volume: &Volume) -> Step {
    let changes = (!volume.access.writes() && volume.access == VolumeAccess::Cache).then(|| VOLUMES[number]);
    let attributes = match volume.access {
        VolumeAccess::ReadOnly => Attributes::READ_ONLY,
        _ => Attributes::WRITABLE,
    };
    Step::Volume { number, at: volume.target.clone(), attributes, changes, points: Vec::new() }
}

/// The home contains the places of other mounts.
pub(super) fn home_step(options: &Options, mounts: &[SourceFacts]) -> Option<Step> {
    options.home.as_ref()?;
    let (uid, gid) = options.user();
    let home = options.all_volumes().first()?.clone();
    let kinds = mounts.iter().map(|facts| facts.is_folder);
    let of_mounts = options.mounts.iter().map(|mount| &mount.target).zip(kinds);
    let folders = options.volumes.iter().map(|volume| &volume.target).chain([&options.at]);
    let folders = folders.chain(options.shown.iter().map(|(_, at)| at)).map(|at| (at, true));
    let point = |(at, is_directory): (&PathBuf, bool)| {
        let path = at.strip_prefix(&home.target).ok().filter(|path| !path.as_os_str().is_empty())?.to_owned();
        Some(MountPoint { path, is_directory, owner: Ids { uid, gid } })
    };
    let all = of_mounts.chain(folders).filter_map(point).collect();
    match step(0, &home) {
        Step::Volume { number, at, attributes, changes, .. } => {
            Some(Step::Volume { number, at, attributes, changes, points: all })
        }
        other => Some(other),
    }
}

/// With the folders that lead to the volumes.
pub(super) fn steps(options: &Options) -> Vec<Step> {
    let mut steps = Vec::new();
    let first = usize::from(options.home.is_some());
    for (number, volume) in options.all_volumes().iter().enumerate().skip(first) {
        steps.extend(host_mounts::folders_above(&volume.target, options));
        steps.push(step(number, volume));
    }
    steps
}

pub(super) fn landlock(options: &Options) -> Vec<Rule> {
    let volumes = options.all_volumes().into_iter().filter(|volume| volume.access != VolumeAccess::ReadOnly);
    volumes.map(|volume| Rule { path: volume.target, access: Access::Write }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_covers_nothing_of_the_sandbox_and_no_other_one() {
        let refused = |volumes: &[&str], home: Option<&str>, words: &str| {
            let volumes = volumes.iter().map(|text| Volume::parse(text, true).unwrap()).collect();
            let home = home.map(str::to_owned);
            let options = Options { volumes, home, ..Options::new(vec!["true".into()]) };
            match check(&options) {
                Ok(()) => assert!(words.is_empty(), "{words}"),
                Err(error) => assert!(!words.is_empty() && error.to_string().contains(words), "{words}: {error}"),
            }
        };
        refused(&["a:/data", "b:/data2"], None, "");
        refused(&["a:/home/agent/.npm"], Some("me"), "");
        refused(&["a:/data", "a:/data2"], None, "twice");
        refused(&["a:/data", "b:/data/x"], None, "overlaps the volume at `/data`");
        refused(&["a:/proc/x"], None, "in `/proc`");
        refused(&["a:/workspace/x"], None, "workspace");
        refused(&["a:/home/agent"], Some("me"), "would cover");
        refused(&["a:/usr/x"], None, "read-only");
        let many: Vec<_> = (0..=VOLUMES.len()).map(|number| format!("v{number}:/v{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        refused(&many, None, "at most");
        refused(&many[1..], None, "");
    }
}
