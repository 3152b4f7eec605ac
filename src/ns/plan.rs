//! Which namespaces a container's first process gets: made at the clone, or joined before it.

use crate::error::{Context, Kind, Result};
use crate::spec::config::linux::NamespaceKind;
use crate::sys::weaken;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The namespaces of one container, but for the user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// Those that are made, as clone3(2) takes them.
    pub made: u64,
    /// Whether a cgroup namespace is made. It is unshared when the process is in its cgroup, or its root would be the caller's cgroup.
    pub cgroup: bool,
    /// Those that exist and are joined.
    pub joined: Vec<(NamespaceKind, PathBuf)>,
    /// Lines for /proc/PID/timens_offsets, which must be written before anybody is in the new time namespace.
    pub time_offsets: String,
    /// Whether the new process makes that namespace, and not its parent.
    pub shifts_time_inside: bool,
}

impl Namespaces {
    /// What every sandbox has; the network namespace may be there already.
    pub(crate) fn sandbox(has_network: bool) -> Namespaces {
        let mut all = Namespaces { made: super::sandbox(), cgroup: true, ..Namespaces::default() };
        if has_network {
            all.leave_out(NamespaceKind::Network);
        }
        all
    }

    /// Mounts and processes alone: what ends with a command that is otherwise on the host.
    pub(crate) fn host() -> Namespaces {
        Namespaces { made: (libc::CLONE_NEWNS | libc::CLONE_NEWPID) as u64, ..Namespaces::default() }
    }

    /// One of this kind is there already, and not to be made.
    pub(crate) fn leave_out(&mut self, kind: NamespaceKind) {
        self.made &= !flag(kind);
    }

    /// Whether the container's first process is to be in a PID namespace that exists. Other processes can look into it there, so it is born there
    /// last of all. The weakened build does as runtimes do: it is born there first.
    pub(crate) fn joins_processes(&self) -> bool {
        !weaken::is_off("joined-first") && self.joined.iter().any(|(kind, _)| *kind == NamespaceKind::Pid)
    }

    /// Opens the PID namespace that is joined, if one is, and takes it out of those that [`visit`] joins.
    pub(crate) fn take_processes(&mut self) -> Result<Option<OwnedFd>> {
        if !self.joins_processes() {
            return Ok(None);
        }
        let opened = self.joined.iter().find(|(kind, _)| *kind == NamespaceKind::Pid).map(|(_, path)| open(path));
        self.joined.retain(|(kind, _)| *kind != NamespaceKind::Pid);
        opened.transpose()
    }

    /// Whether a namespace of this kind is made.
    pub(crate) fn makes(&self, kind: NamespaceKind) -> bool {
        match kind {
            NamespaceKind::Cgroup => self.cgroup,
            other => self.made & flag(other) != 0,
        }
    }
}

/// The flag of clone(2) for a kind.
pub(crate) const fn flag(kind: NamespaceKind) -> u64 {
    (match kind {
        NamespaceKind::Pid => libc::CLONE_NEWPID,
        NamespaceKind::Network => libc::CLONE_NEWNET,
        NamespaceKind::Mount => libc::CLONE_NEWNS,
        NamespaceKind::Ipc => libc::CLONE_NEWIPC,
        NamespaceKind::Uts => libc::CLONE_NEWUTS,
        NamespaceKind::User => libc::CLONE_NEWUSER,
        NamespaceKind::Cgroup => libc::CLONE_NEWCGROUP,
        NamespaceKind::Time => libc::CLONE_NEWTIME,
    }) as u64
}

/// Namespaces of this process that it left for those that a child is to be born in. Dropping it without [`Left::back`] leaves it there.
#[must_use]
#[derive(Debug)]
pub(crate) struct Left {
    own: Vec<(NamespaceKind, OwnedFd)>,
    /// Root and working directory, which joining a mount namespace changes.
    places: Option<(OwnedFd, OwnedFd)>,
}

/// Joins what a child of ours is to be born in, with the privileges that we have now: the child, in a user namespace of its own, would have none
/// over them. PID and time namespaces are for children only anyway (setns(2)).
pub(crate) fn visit(plan: &Namespaces) -> Result<Left> {
    let mut left = Left { own: Vec::new(), places: None };
    let targets = plan
        .joined
        .iter()
        .filter(|(kind, _)| *kind != NamespaceKind::User)
        .map(|(kind, path)| Ok((*kind, open(path)?, path)))
        .collect::<Result<Vec<_>>>()?;
    // The mount namespace last: in it the other paths may name something else.
    let (mounts, others): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|(kind, _, _)| *kind == NamespaceKind::Mount);
    for (kind, target, path) in others.into_iter().chain(mounts) {
        let own = open(&PathBuf::from(format!("/proc/self/ns/{}", kind.file())))?;
        if kind == NamespaceKind::Mount {
            let place = |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            let failed = || "remember our own root";
            left.places =
                Some((place("/").failing(Kind::Namespace, failed)?, place(".").failing(Kind::Namespace, failed)?));
        }
        enter(&target, kind)
            .failing(Kind::Namespace, || format!("join the {} namespace `{}`", kind.word(), path.display()))?;
        left.own.push((kind, own));
    }
    if !plan.time_offsets.is_empty() && !plan.shifts_time_inside {
        let own = open(&PathBuf::from("/proc/self/ns/time"))?;
        nix::sched::unshare(nix::sched::CloneFlags::from_bits_retain(libc::CLONE_NEWTIME))
            .failing(Kind::Namespace, || "make a time namespace")?;
        std::fs::write("/proc/self/timens_offsets", &plan.time_offsets)
            .failing(Kind::Namespace, || "set the offsets of the time namespace")?;
        left.own.push((NamespaceKind::Time, own));
    }
    Ok(left)
}

/// Whether this process can come back from [`visit`]. In a user namespace, such as that of an ordinary user's Podman, its own namespaces may belong to
/// the user namespace around it, and then setns(2) lets it leave them and not return.
pub(crate) fn can_return(plan: &Namespaces) -> bool {
    let joined = plan.joined.iter().map(|(kind, _)| *kind).filter(|kind| *kind != NamespaceKind::User);
    let shifted = (!plan.time_offsets.is_empty() && !plan.shifts_time_inside).then_some(NamespaceKind::Time);
    joined.chain(shifted).all(|kind| {
        let own = open(&PathBuf::from(format!("/proc/self/ns/{}", kind.file())));
        own.is_ok_and(|own| crate::sys::ioctl::owning_user_namespace(own.as_fd()).is_ok())
    })
}

/// Makes and enters the time namespace with offsets from inside a new user namespace, for an ordinary user, whose parent may make none.
pub(crate) fn shift_time(plan: &Namespaces) -> Result<()> {
    if plan.time_offsets.is_empty() || !plan.shifts_time_inside {
        return Ok(());
    }
    nix::sched::unshare(nix::sched::CloneFlags::from_bits_retain(libc::CLONE_NEWTIME))
        .failing(Kind::Namespace, || "make a time namespace")?;
    std::fs::write("/proc/self/timens_offsets", &plan.time_offsets)
        .failing(Kind::Namespace, || "set the offsets of the time namespace")?;
    let made = open(std::path::Path::new("/proc/self/ns/time_for_children"))?;
    enter(&made, NamespaceKind::Time).failing(Kind::Namespace, || "enter the time namespace")
}

/// Enters a new mount namespace from which nothing reaches the one that this process leaves. The caller has one thread.
pub(crate) fn unshare_mounts() -> Result<Left> {
    let step = || "make a mount namespace";
    let own = open(std::path::Path::new("/proc/self/ns/mnt"))?;
    let place = |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let places = Some((place("/").failing(Kind::Namespace, step)?, place(".").failing(Kind::Namespace, step)?));
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).failing(Kind::Namespace, step)?;
    let left = Left { own: vec![(NamespaceKind::Mount, own)], places };
    // Slaves, not private: CRIU makes a container's root a slave of what its own root is one of.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    match rustix::mount::mount_change("/", flags) {
        Ok(()) => Ok(left),
        Err(errno) => {
            left.back()?;
            Err(errno).failing(Kind::Mount, || "keep mounts from the host")
        }
    }
}

impl Left {
    /// Goes back to where this process was.
    pub(crate) fn back(self) -> Result<()> {
        for (kind, own) in self.own.iter().rev() {
            enter(own, *kind).failing(Kind::Namespace, || format!("return to our own {} namespace", kind.word()))?;
        }
        if let Some((root, place)) = &self.places {
            let step = || "return to our own root";
            rustix::process::fchdir(root).failing(Kind::Namespace, step)?;
            rustix::process::chroot(".").failing(Kind::Namespace, step)?;
            rustix::process::fchdir(place).failing(Kind::Namespace, step)?;
        }
        Ok(())
    }
}

fn open(path: &std::path::Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .failing(Kind::Namespace, || format!("open the namespace `{}`", path.display()))
}

fn enter(target: &OwnedFd, kind: NamespaceKind) -> rustix::io::Result<()> {
    let kind = match kind {
        NamespaceKind::Pid => LinkNameSpaceType::ProcessID,
        NamespaceKind::Network => LinkNameSpaceType::Network,
        NamespaceKind::Mount => LinkNameSpaceType::Mount,
        NamespaceKind::Ipc => LinkNameSpaceType::InterProcessCommunication,
        NamespaceKind::Uts => LinkNameSpaceType::HostNameAndNISDomainName,
        NamespaceKind::User => LinkNameSpaceType::User,
        NamespaceKind::Cgroup => LinkNameSpaceType::ControlGroup,
        NamespaceKind::Time => LinkNameSpaceType::Time,
    };
    move_into_link_name_space(target.as_fd(), Some(kind))
}
