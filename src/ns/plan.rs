//! The namespaces of a container's first process: new ones at the clone, or existing ones joined before.

use crate::error::{Context, Kind, Result};
use crate::spec::config::linux::NamespaceKind;
use crate::sys::weaken;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The namespaces of a container, without the user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// New ones, as clone3(2) flags.
    pub made: u64,
    /// Whether a cgroup namespace is made. It is unshared when the process is in its cgroup: earlier, its root would
    /// be the caller's.
    pub cgroup: bool,
    /// Existing ones to join.
    pub joined: Vec<(NamespaceKind, PathBuf)>,
    /// Lines for /proc/PID/timens_offsets, which must be written before a process enters the new time namespace.
    pub time_offsets: String,
    /// Whether the new process makes the time namespace instead of its parent.
    pub shifts_time_inside: bool,
}

impl Namespaces {
    /// The namespaces of every sandbox. The network namespace may exist already.
    pub(crate) fn sandbox(has_network: bool) -> Namespaces {
        let mut all = Namespaces { made: super::sandbox(), cgroup: true, ..Namespaces::default() };
        if has_network {
            all.leave_out(NamespaceKind::Network);
        }
        all
    }

    /// Mount and PID namespaces only: for a command that otherwise runs on the host.
    pub(crate) fn host() -> Namespaces {
        Namespaces { made: (libc::CLONE_NEWNS | libc::CLONE_NEWPID) as u64, ..Namespaces::default() }
    }

    /// Excludes a kind that exists already.
    pub(crate) fn leave_out(&mut self, kind: NamespaceKind) {
        self.made &= !flag(kind);
    }

    /// Whether the first process joins an existing PID namespace. Processes there can inspect it, so it is born there
    /// last. The weakened build, like other runtimes, does it first.
    pub(crate) fn joins_processes(&self) -> bool {
        !weaken::is_off("joined-first") && self.joined.iter().any(|(kind, _)| *kind == NamespaceKind::Pid)
    }

    /// Opens the PID namespace to join, if any, and removes it from those that [`visit`] joins.
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

/// The clone(2) flag of a kind.
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

/// Former namespaces of this process, which left them so that a child is born in others. Without a call of `back` it
/// stays there.
#[must_use]
#[derive(Debug)]
pub(crate) struct Left {
    own: Vec<(NamespaceKind, OwnedFd)>,
    /// Root and working directory, which joining a mount namespace changes.
    places: Option<(OwnedFd, OwnedFd)>,
}

/// Joins the namespaces for a child with the current privileges: the child, in a new user namespace, would have none
/// over them. PID and time namespaces apply only to children (setns(2)).
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

/// Whether this process can return from [`visit`]. In a user namespace, such as rootless Podman's, its own namespaces
/// may belong to an outer one. Then setns(2) lets it leave them but not return.
pub(crate) fn can_return(plan: &Namespaces) -> bool {
    let joined = plan.joined.iter().map(|(kind, _)| *kind).filter(|kind| *kind != NamespaceKind::User);
    let shifted = (!plan.time_offsets.is_empty() && !plan.shifts_time_inside).then_some(NamespaceKind::Time);
    joined.chain(shifted).all(|kind| {
        let own = open(&PathBuf::from(format!("/proc/self/ns/{}", kind.file())));
        own.is_ok_and(|own| crate::sys::ioctl::owning_user_namespace(own.as_fd()).is_ok())
    })
}

/// Makes and enters the time namespace with offsets inside a new user namespace, for an ordinary user, whose parent
/// may not make one.
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

/// Enters a new mount namespace whose changes do not reach the former one. The caller has one thread.
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
    /// Returns to the former namespaces.
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
