//! The namespaces of a container's first process: new at the clone, or joined before.

use crate::error::{Context, Kind, Result};
use crate::spec::config::linux::NamespaceKind;
use crate::sys::weaken;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Without the user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// As clone3(2) flags.
    pub made: u64,
    /// Unshared after the clone: see [`super::sandbox`].
    pub cgroup: bool,
    pub joined: Vec<(NamespaceKind, PathBuf)>,
    /// Lines for /proc/PID/timens_offsets, which must be written before a process enters the new time namespace.
    pub time_offsets: String,
    /// Whether the new process, not its parent, makes the time namespace.
    pub shifts_time_inside: bool,
}

impl Namespaces {
    /// `has_network`: the network namespace exists already.
    pub(crate) fn sandbox(has_network: bool) -> Namespaces {
        let mut all = Namespaces { made: super::sandbox(), cgroup: true, ..Namespaces::default() };
        if has_network {
            all.leave_out(NamespaceKind::Network);
        }
        all
    }

    pub(crate) fn host() -> Namespaces {
        Namespaces { made: (libc::CLONE_NEWNS | libc::CLONE_NEWPID) as u64, ..Namespaces::default() }
    }

    pub(crate) fn leave_out(&mut self, kind: NamespaceKind) {
        self.made &= !flag(kind);
    }

    /// Whether the first process joins a PID namespace. Processes there can inspect it, so it is born there last. The
    /// weakened build, like other runtimes, joins first.
    pub(crate) fn joins_processes(&self) -> bool {
        !weaken::is_off("joined-first") && self.joined.iter().any(|(kind, _)| *kind == NamespaceKind::Pid)
    }

    /// Removes the PID namespace from those that [`visit`] joins.
    pub(crate) fn take_processes(&mut self) -> Result<Option<OwnedFd>> {
        if !self.joins_processes() {
            return Ok(None);
        }
        let opened = self.joined.iter().find(|(kind, _)| *kind == NamespaceKind::Pid).map(|(_, path)| open(path));
        self.joined.retain(|(kind, _)| *kind != NamespaceKind::Pid);
        opened.transpose()
    }

    pub(crate) fn makes(&self, kind: NamespaceKind) -> bool {
        match kind {
            NamespaceKind::Cgroup => self.cgroup,
            other => self.made & flag(other) != 0,
        }
    }
}

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

/// Former namespaces of this process, which left them so that a child is born in others. Without [`Left::back`] it
/// stays there.
#[must_use]
#[derive(Debug)]
pub(crate) struct Left {
    own: Vec<(NamespaceKind, OwnedFd)>,
    /// Joining a mount namespace changes root and working directory.
    places: Option<(OwnedFd, OwnedFd)>,
}

/// Joins with the current privileges: the child, in a new user namespace, would have none over these namespaces. PID
/// and time namespaces apply only to children (setns(2)).
pub(crate) fn visit(plan: &Namespaces) -> Result<Left> {
    let mut left = Left { own: Vec::new(), places: None };
    let targets = plan
        .joined
        .iter()
        .filter(|(kind, _)| *kind != NamespaceKind::User)
        .map(|(kind, path)| Ok((*kind, open(path)?, path)))
        .collect::<Result<Vec<_>>>()?;
    // The mount namespace last: in it the other paths may mean other files.
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

/// In a user namespace, such as rootless Podman's, this process's namespaces may belong to an outer one. Then setns(2)
/// lets it leave but not return.
pub(crate) fn can_return(plan: &Namespaces) -> bool {
    let joined = plan.joined.iter().map(|(kind, _)| *kind).filter(|kind| *kind != NamespaceKind::User);
    let shifted = (!plan.time_offsets.is_empty() && !plan.shifts_time_inside).then_some(NamespaceKind::Time);
    joined.chain(shifted).all(|kind| {
        let own = open(&PathBuf::from(format!("/proc/self/ns/{}", kind.file())));
        own.is_ok_and(|own| crate::sys::ioctl::owning_user_namespace(own.as_fd()).is_ok())
    })
}

/// Makes the time namespace inside a new user namespace, for an ordinary user: the parent may not make one.
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

/// Mount changes in it do not reach the former namespace. The caller has one thread.
pub(crate) fn unshare_mounts() -> Result<Left> {
    let step = || "make a mount namespace";
    let own = open(std::path::Path::new("/proc/self/ns/mnt"))?;
    let place = |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let places = Some((place("/").failing(Kind::Namespace, step)?, place(".").failing(Kind::Namespace, step)?));
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).failing(Kind::Namespace, step)?;
    let left = Left { own: vec![(NamespaceKind::Mount, own)], places };
    // Slaves, not private: CRIU expects a container's root to be a slave of the peer group of its root.
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
