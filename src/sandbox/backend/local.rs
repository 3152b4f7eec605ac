//! `local`: the command runs on the host as the caller. Only for development of agents and of brig.
//!
//! The workspace is a copy-on-write view in a mount namespace, so its folder is never written. A PID namespace ends all
//! processes with the task. Limits, collection, redaction and receipt stay.

use super::Isolates;
use crate::error::{Error, Kind, Result};
use crate::sandbox::location::WORKSPACE;
use crate::sandbox::network::NetworkMode;
use crate::sandbox::options::Options;
use crate::sandbox::report::{Degraded, Guarantee};
use crate::spec::network::Network;
use crate::spec::root::{FileSystem, Root, Step};
use crate::spec::{Confinement, Container};
use std::ffi::OsStr;
use std::path::Path;

pub(super) struct Local;

/// Variables of the caller that a program on the host needs.
const CALLERS: [&str; 5] = ["PATH", "HOME", "USER", "LOGNAME", "TMPDIR"];

impl Isolates for Local {
    fn guarantee(&self) -> Guarantee {
        Guarantee::None
    }

    fn lacks(&self, options: &Options) -> Vec<Degraded> {
        let lack = |name: &str, reason: &str| Degraded { name: name.to_owned(), reason: reason.to_owned() };
        let mut all = vec![
            lack("isolation", "the command runs on the host, with all that its user may do there"),
            lack("disk", "it can write outside of its workspace"),
            lack("inodes", "it can make files outside of its workspace"),
        ];
        if options.network.mode != NetworkMode::Host {
            all.push(lack("network", "it has the host's network"));
        }
        all
    }

    fn check(&self, options: &Options) -> Result<()> {
        refuse(options)
    }

    fn shape(&self, asked: Container, options: &Options, stage: &Path) -> Result<Container> {
        refuse(options)?; // secrets were added in between
        let mut container = asked;
        let place = stage.join("workspace");
        let own = |step: Step| match step {
            Step::Overlay { lower, changes, at, attributes, shown, hidden } if at == Path::new(WORKSPACE) => {
                Some(Step::Overlay { lower, changes, at: place.clone(), attributes, shown, hidden })
            }
            Step::Bind { source, at, attributes, shown } if at == Path::new(WORKSPACE) => {
                Some(Step::Bind { source, at: place.clone(), attributes, shown })
            }
            Step::Proc { at } => Some(Step::Proc { at }), // of the new PID namespace
            _ => None,
        };
        container.file_system = FileSystem {
            root: Root::Host,
            attributes: container.file_system.attributes,
            scratch: container.file_system.scratch,
            steps: container.file_system.steps.into_iter().filter_map(own).collect(),
            masked: Vec::new(),
            read_only: Vec::new(),
        };
        let command = &mut container.command;
        command.uid = rustix::process::geteuid().as_raw();
        command.gid = rustix::process::getegid().as_raw();
        command.groups = Vec::new();
        command.directory = place;
        let given = |name: &OsStr| options.environment.iter().any(|(other, _)| other == name);
        for name in CALLERS.map(OsStr::new).into_iter().filter(|name| !given(name)) {
            command.environment.retain(|(other, _)| other != name);
            command.environment.extend(std::env::var_os(name).map(|value| (name.to_owned(), value)));
        }
        command.environment.retain(|(name, _)| name != "GIT_CONFIG_SYSTEM" || given(name));
        container.network = Network::Host;
        container.confinement = Confinement::Nothing;
        Ok(container)
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let all = |text: &str| text.to_owned();
        vec![
            ("root", all("the host's own")),
            ("network", all("the host's own")),
            ("user", all("the caller")),
            ("namespaces", all("mount, pid: so that all of it ends with the task")),
            ("seccomp", all("none")),
            ("landlock", all("none")),
            ("masked", all("nothing")),
            ("read-only", all("nothing")),
        ]
    }
}

/// Refuses options that need a root or a network of the sandbox.
fn refuse(options: &Options) -> Result<()> {
    let wrong = |what: &str, hint: &str| {
        Err(Error::new(Kind::Backend, format!("the backend `local` has no {what}")).hint(hint.to_owned()))
    };
    if options.image.is_some() || options.rootfs.is_some() {
        return wrong("root but the host's own", "leave --image and --rootfs out, or use another backend");
    }
    if !matches!(options.network.mode, NetworkMode::None | NetworkMode::Host) || options.broker.is_some() {
        return wrong(
            "gateway and no separate network, so no egress rules and no secrets of the broker",
            "use the backend native or oci:PATH",
        );
    }
    if !options.secrets.is_empty() {
        return wrong("place for secrets as files", "give them as variables: -e NAME");
    }
    if options.at != Path::new(WORKSPACE) || options.directory.is_some() {
        return wrong(
            "place inside for a workspace or a start folder",
            "leave --at and --workdir out, or use the backend native",
        );
    }
    if !options.hidden.is_empty() {
        return wrong("way to hide files", "leave --hide out, or use the backend native");
    }
    if !options.shown.is_empty() || !options.lent.is_empty() || !options.mounts.is_empty() {
        return wrong("place for the host's folders", "use the backend native");
    }
    if !options.volumes.is_empty() || options.home.is_some() {
        return wrong("place for volumes", "use the backend native");
    }
    Ok(())
}
