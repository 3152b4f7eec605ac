//! Engines with brig as their runtime.
//!
//! The [`Edit`]s of their configuration are shown first and then applied; `remove` restores the file. Not here: what an
//! annotation does (`container`).

mod check;
mod configuration;
mod daemon;

use crate::container::landlock_layers;
use crate::error::{Context, Error, Kind, Result, words};
use crate::files::{self, Durability};
use crate::sandbox::{Network, NetworkMode};
use crate::spec::landlock::{ANNOTATION as LANDLOCK, OPTIONAL};
use crate::spec::protections::{DISK, DISK_INODES, EGRESS, Protections, RECEIPT, SECCOMP};
use crate::task::{Definition, config_home};
pub use check::{Finding, check};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Larger than any configuration.
const LONGEST: u64 = 1 << 20;
pub(crate) const RUNTIME: &str = "brig";

words! {
    /// An engine.
    pub enum Engine {
        /// Podman and Buildah.
        Podman = "podman",
        /// Docker.
        Docker = "docker",
        /// containerd, for Kubernetes by CRI.
        Containerd = "containerd",
        /// CRI-O.
        Crio = "cri-o",
    }
}

impl Engine {
    /// Shows that the engine is installed.
    fn program(self) -> &'static str {
        match self {
            Engine::Podman => "podman",
            Engine::Docker => "dockerd",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
        }
    }
}

/// Annotations by key.
pub type Annotations = BTreeMap<String, String>;

/// What to register.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The engine.
    pub engine: Engine,
    /// In the caller's configuration, not the machine's.
    pub for_user: bool,
    /// The runtime's absolute path.
    pub program: PathBuf,
    /// Of every container.
    pub annotations: Annotations,
    /// For containers without a named runtime.
    pub is_default: bool,
}

/// A change of one file. `None`: the file does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The file.
    pub path: PathBuf,
    /// Its bytes now.
    pub before: Option<Vec<u8>>,
    /// Its bytes afterwards.
    pub after: Option<Vec<u8>>,
    access: Access,
}

/// Mode, and user and group. A file with passwords of a proxy stays closed to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    mode: u32,
    owner: Option<(u32, u32)>,
}

impl Access {
    /// Of the file, or of a new one with this mode.
    fn of(path: &Path, mode: u32) -> Access {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).map_or(Access { mode, owner: None }, |found| Access {
            mode: found.mode() & 0o777,
            owner: Some((found.uid(), found.gid())),
        })
    }
}

/// brig's entry in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The file.
    pub path: PathBuf,
    /// The runtime's program.
    pub program: PathBuf,
    /// Of every container.
    pub annotations: Annotations,
}

/// For a profile's limits and rules, and a folder for receipts. A profile switches on the agent's filter and Landlock.
///
/// # Errors
/// The folder does not exist, or an annotation cannot hold a value.
pub fn annotations(profile: Option<&Definition>, receipts: Option<&Path>) -> Result<Annotations> {
    let mut all = Annotations::new();
    if let Some(definition) = profile {
        all.insert(SECCOMP.into(), "agent".into());
        let landlock = if crate::host::landlock_lacks().is_some() { OPTIONAL } else { "agent" };
        all.insert(LANDLOCK.into(), landlock.into());
        let limits = &definition.sandbox.limits;
        if let Some(bytes) = limits.disk {
            all.insert(DISK.into(), bytes.to_string());
            all.insert(DISK_INODES.into(), limits.inodes.to_string());
        }
        let network = &definition.sandbox.network;
        if let Some(key) = lost(network) {
            return Err(Error::new(Kind::Profile, format!("the profile has `{key}`, which no annotation can hold"))
                .hint("leave it out of the profile for engines, or run the work by `brig task run`"));
        }
        // A task without rules reaches no host either.
        if network.mode != NetworkMode::Host || !network.policy.allowed.is_empty() {
            let rules: Vec<_> = network.policy.allowed.iter().map(ToString::to_string).collect();
            all.insert(EGRESS.into(), rules.join(","));
        }
        if !definition.secrets.is_empty() {
            return Err(Error::new(
                Kind::Profile,
                "the profile has secrets, and a default for all containers of an engine would give each of them",
            )
            .hint("leave them out; give the containers that need one the annotation `dev.brig.secret.NAME`"));
        }
    }
    if let Some(folder) = receipts {
        let folder = std::fs::canonicalize(folder)
            .failing(Kind::NotFound, || format!("find the folder for receipts `{}`", folder.display()))?;
        all.insert(RECEIPT.into(), folder.to_string_lossy().into_owned());
    }
    Protections::parse(&all)?;
    // Docker before 23 runs its runtime by an unquoted line of shell, and containerd's wrapper is a shell script.
    if let Some((key, value)) = all.iter().find(|(_, value)| !value.chars().all(is_plain)) {
        let words = format!("the value `{}` of `{key}` has a character that a shell reads", value.escape_debug());
        return Err(Error::new(Kind::Usage, words).hint("use a path of letters, digits, `.`, `_`, `-` and `/`"));
    }
    Ok(all)
}

/// The first key that is set and that no annotation has.
fn lost(network: &Network) -> Option<&'static str> {
    let policy = &network.policy;
    let all = [
        ("network.mode", matches!(network.mode, NetworkMode::Veth | NetworkMode::Pasta)),
        ("network.deny", !policy.denied.is_empty()),
        ("network.resolver", policy.resolver.is_some()),
        ("network.ech", policy.ech.is_some()),
        ("network.publish", !network.publish.is_empty()),
        ("network.rate", network.rate.is_some()),
        ("network.bytes", network.total.is_some()),
    ];
    all.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-/:,*@[]".contains(character)
}

/// The edits that register brig.
///
/// # Errors
/// The engine is not installed, its configuration does not parse, or it has no place for what is wanted.
pub fn setup(setup: &Setup) -> Result<Vec<Edit>> {
    if !is_installed(setup.engine) {
        let words = format!("{} is not installed: `{}` is not in PATH", setup.engine.word(), setup.engine.program());
        return Err(Error::new(Kind::NotFound, words).hint("install the engine first, or name another one"));
    }
    match setup.engine {
        Engine::Docker => daemon::setup(setup),
        _ => configuration::setup(setup),
    }
}

/// The edits that undo [`setup`].
///
/// # Errors
/// The configuration has no entry of brig in the form that [`setup`] writes.
pub fn remove(engine: Engine, for_user: bool) -> Result<Vec<Edit>> {
    match engine {
        Engine::Docker => daemon::remove(for_user),
        _ => configuration::remove(engine, for_user),
    }
}

/// brig's entry. If there are two, the user's or the machine's.
pub fn registered(engine: Engine, for_user: bool) -> Option<Registered> {
    let of = |for_user| match engine {
        Engine::Docker => daemon::registered(for_user),
        _ => configuration::registered(engine, for_user),
    };
    of(for_user).or_else(|| of(!for_user))
}

/// Applies all edits, or none after the first that fails.
pub fn apply(edits: &[Edit]) -> Result<()> {
    for (index, edit) in edits.iter().enumerate() {
        let Err(error) = put(edit, edit.after.as_deref()) else { continue };
        let earlier = edits[..index].iter().rev();
        let changed = earlier.filter(|edit| put(edit, edit.before.as_deref()).is_err());
        let changed: Vec<_> = changed.map(|edit| format!("`{}`", edit.path.display())).collect();
        return Err(match changed.is_empty() {
            true => error,
            false => error.with_hint(format!("restore by hand what was changed: {}", changed.join(", "))),
        });
    }
    Ok(())
}

/// A symbolic link stays one: its target changes.
fn put(edit: &Edit, bytes: Option<&[u8]>) -> Result<()> {
    let step = || format!("write `{}`", edit.path.display());
    let Some(bytes) = bytes else {
        return std::fs::remove_file(&edit.path)
            .map_err(|cause| files::failed(cause, format!("remove `{}`", edit.path.display())));
    };
    files::create_directories(edit.path.parent().unwrap_or(Path::new("/")), 0o755)?;
    let path = match edit.path.is_symlink() {
        true => std::fs::canonicalize(&edit.path).map_err(|cause| files::failed(cause, step()))?,
        false => edit.path.clone(),
    };
    let Access { mode, owner } = edit.access;
    // Its owner first: no other user reads it meanwhile, and chown(2) may clear bits of the mode.
    files::replace_by(&path, 0o600, Durability::Synced, |file| {
        owner.map_or(Ok(()), |(user, group)| fchown(&*file, Some(user), Some(group)))?;
        file.set_permissions(PermissionsExt::from_mode(mode))?;
        file.write_all(bytes)
    })
}

/// `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => files::read_bounded(path, LONGEST).map(Some),
    }
}

fn user_folder() -> Result<PathBuf> {
    config_home().ok_or_else(|| Error::new(Kind::Usage, "neither HOME nor XDG_CONFIG_HOME is set").hint("set HOME"))
}

fn is_installed(engine: Engine) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.any(|folder| folder.join(engine.program()).is_file())
}

/// For documentation (RFC 5737). A network with a route takes the packet and never answers.
const UNREACHABLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 443);
/// For a connection that no rule allows.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is in force around a process in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Filters of system calls.
    pub filters: u32,
    /// Whether execve(2) gives no new privileges.
    pub no_new_privileges: bool,
    /// Landlock domains.
    pub landlock: u32,
    /// Bytes of the root file system.
    pub disk_bytes: u64,
    /// Its files, directories and links.
    pub disk_inodes: u64,
    /// The first name server of /etc/resolv.conf.
    pub resolver: String,
    /// The result of a connection that no rule allows.
    pub outside: String,
    /// The first line of /proc/self/uid_map.
    pub users: String,
}

/// Puts Landlock domains in force: the process must end soon.
pub fn probe() -> Result<Inside> {
    let status = std::fs::read_to_string("/proc/self/status").failing(Kind::NotFound, || "read /proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0_u32)
    };
    let root = rustix::fs::statvfs("/").failing(Kind::Disk, || "look at the root file system")?;
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let resolver =
        text("/etc/resolv.conf").lines().find_map(|line| line.strip_prefix("nameserver ").map(str::to_owned));
    let outside = match TcpStream::connect_timeout(&UNREACHABLE, PATIENCE) {
        Ok(_) => "answered".to_owned(),
        Err(cause) if cause.kind() == std::io::ErrorKind::TimedOut => "sent".to_owned(),
        Err(cause) => cause.to_string(),
    };
    let users =
        text("/proc/self/uid_map").lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Inside {
        filters: field("Seccomp_filters"),
        no_new_privileges: field("NoNewPrivs") == 1,
        disk_bytes: root.f_blocks.saturating_mul(root.f_frsize),
        disk_inodes: root.f_files,
        resolver: resolver.unwrap_or_default(),
        outside,
        users,
        landlock: landlock_layers(), // last: it restricts this process
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_edits_are_undone_and_the_error_names_each_file_that_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let edit = |name: &str, before: Option<&str>, after: Option<&str>| Edit {
            path: path(name),
            before: before.map(Into::into),
            after: after.map(Into::into),
            access: Access { mode: 0o644, owner: None },
        };
        for name in ["kept", "a", "b", "file"] {
            std::fs::write(path(name), "old").unwrap();
        }
        let failing = edit("file/x", None, Some("new"));
        let one = [edit("kept", Some("old"), Some("new")), edit("made", None, Some("new")), failing.clone()];
        assert!(!apply(&one).unwrap_err().advice().is_some_and(|hint| hint.contains("by hand")));
        assert_eq!(std::fs::read_to_string(path("kept")).unwrap(), "old");
        assert!(!path("made").exists());
        // The directories that replace the files stay.
        let removed = |name: &str| edit(name, Some("old"), None);
        let below = |name: &str| edit(&format!("{name}/x"), None, Some("new"));
        let all = [removed("a"), below("a"), removed("b"), below("b"), failing];
        let error = apply(&all).unwrap_err();
        for name in ["a", "b"] {
            let name = format!("`{}`", path(name).display());
            assert!(error.advice().is_some_and(|hint| hint.contains(&name)), "{name}: {:?}", error.advice());
        }
    }

    #[test]
    fn a_file_keeps_mode_and_owner_and_a_link_stays_one() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let owner = rustix::process::geteuid().is_root().then_some((7, 9));
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&file, Some(user), Some(group)).unwrap();
        }
        std::os::unix::fs::symlink("file", &link).unwrap();
        let access = Access::of(&link, 0o644);
        let edit = Edit { path: link.clone(), before: Some("old".into()), after: Some("new".into()), access };
        apply(std::slice::from_ref(&edit)).unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"new");
        let found = std::fs::metadata(&file).unwrap();
        assert_eq!(found.mode() & 0o777, 0o640);
        assert!(owner.is_none_or(|owner| owner == (found.uid(), found.gid())), "{found:?}");
        // The copy beside has the same.
        let copy = Edit { path: folder.path().join("copy"), before: None, ..edit };
        apply(&[copy]).unwrap();
        assert_eq!(std::fs::metadata(folder.path().join("copy")).unwrap().mode() & 0o777, 0o640);
        // Not the file of a link without a target.
        std::fs::remove_file(&file).unwrap();
        let edit = Edit { path: link, before: None, after: Some("new".into()), access };
        assert!(apply(&[edit]).unwrap_err().to_string().contains("link"));
    }

    #[test]
    fn annotations_hold_the_network_of_a_profile_or_it_is_refused() {
        let of = |change: &dyn Fn(&mut Network)| {
            let mut definition = Definition::new(Vec::new());
            change(&mut definition.sandbox.network);
            annotations(Some(&definition), None).map(|all| all.get(EGRESS).cloned())
        };
        let allow =
            |network: &mut Network| network.policy.allowed = crate::sandbox::Rule::parse_all("a.example:443").unwrap();
        assert_eq!(of(&|_| {}).unwrap().as_deref(), Some(""));
        assert_eq!(of(&|network| network.mode = NetworkMode::Egress).unwrap().as_deref(), Some(""));
        assert_eq!(of(&allow).unwrap().as_deref(), Some("a.example:443"));
        assert_eq!(of(&|network| network.mode = NetworkMode::Host).unwrap(), None);
        type Change = fn(&mut Network);
        let refused: [(&str, Change); 8] = [
            ("network.mode", |network| network.mode = NetworkMode::Veth),
            ("network.mode", |network| network.mode = NetworkMode::Pasta),
            ("network.deny", |it| it.policy.denied = crate::sandbox::Rule::parse_all("a.example").unwrap()),
            ("network.resolver", |network| network.policy.resolver = Some(UNREACHABLE)),
            ("network.ech", |network| network.policy.ech = Some("pass".parse().unwrap())),
            ("network.publish", |network| network.publish = vec!["127.0.0.1:8080:80".parse().unwrap()]),
            ("network.rate", |network| network.rate = Some(1 << 20)),
            ("network.bytes", |network| network.total = Some(1 << 20)),
        ];
        for (key, change) in refused {
            let error = of(&|network| {
                allow(network);
                change(network);
            });
            assert!(error.unwrap_err().to_string().contains(&format!("`{key}`")), "{key}");
        }
    }
}
