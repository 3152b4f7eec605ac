//! The controllers that we know, and sets of them.

use serde::{Deserialize, Serialize};

/// A kernel resource controller. Its name differs between the versions only for block devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Controller {
    Cpu,
    /// Processor time on v1; on v2 every group counts it.
    Cpuacct,
    Cpuset,
    Memory,
    Pids,
    /// v1 only: on v2 a BPF program does it.
    Devices,
    /// v1 only: every group of v2 can be frozen.
    Freezer,
    /// `io` on v2, `blkio` on v1.
    Io,
    Hugetlb,
    Rdma,
    /// v1 only.
    #[serde(rename = "net_cls")]
    NetCls,
    /// v1 only.
    #[serde(rename = "net_prio")]
    NetPrio,
    Misc,
}

use Controller::{Cpu, Cpuacct, Cpuset, Devices, Freezer, Hugetlb, Io, Memory, Misc, NetCls, NetPrio, Pids, Rdma};

impl Controller {
    /// All of them, in the order in which groups are made.
    pub(crate) const ALL: [Controller; 13] =
        [Cpu, Cpuacct, Cpuset, Memory, Pids, Devices, Freezer, Io, Hugetlb, Rdma, NetCls, NetPrio, Misc];

    /// The kernel's name for it on v1 (`/proc/self/cgroup`, mount options).
    pub(crate) fn name_v1(self) -> &'static str {
        match self {
            Cpu => "cpu",
            Cpuacct => "cpuacct",
            Cpuset => "cpuset",
            Memory => "memory",
            Pids => "pids",
            Devices => "devices",
            Freezer => "freezer",
            Io => "blkio",
            Hugetlb => "hugetlb",
            Rdma => "rdma",
            NetCls => "net_cls",
            NetPrio => "net_prio",
            Misc => "misc",
        }
    }

    /// The kernel's name for it on v2 (`cgroup.controllers`), where it exists there.
    pub(crate) fn name_v2(self) -> Option<&'static str> {
        match self {
            Io => Some("io"),
            Cpuacct | Devices | Freezer | NetCls | NetPrio => None,
            other => Some(other.name_v1()),
        }
    }

    /// What the kernel calls `name` on v1.
    pub(crate) fn from_v1(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|each| each.name_v1() == name)
    }

    /// What the kernel calls `name` on v2.
    pub(crate) fn from_v2(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|each| each.name_v2() == Some(name))
    }
}

/// A set of controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controllers(u16);

impl Controllers {
    pub(crate) const NONE: Controllers = Controllers(0);

    pub(crate) const fn of(list: &[Controller]) -> Controllers {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= 1 << list[at] as u16;
            at += 1;
        }
        Controllers(bits)
    }

    /// The set that `cgroup.controllers` or `cgroup.subtree_control` lists; unknown names are left out.
    pub(crate) fn parse_v2(text: &str) -> Controllers {
        text.split_whitespace().filter_map(Controller::from_v2).collect()
    }

    pub(crate) fn has(self, one: Controller) -> bool {
        self.0 & (1 << one as u16) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn insert(&mut self, one: Controller) {
        self.0 |= 1 << one as u16;
    }

    pub(crate) fn and(self, other: Controllers) -> Controllers {
        Controllers(self.0 & other.0)
    }

    pub(crate) fn or(self, other: Controllers) -> Controllers {
        Controllers(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Controllers) -> Controllers {
        Controllers(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Controller> {
        Controller::ALL.into_iter().filter(move |each| self.has(*each))
    }
}

impl FromIterator<Controller> for Controllers {
    fn from_iter<I: IntoIterator<Item = Controller>>(list: I) -> Controllers {
        let mut set = Controllers::NONE;
        list.into_iter().for_each(|each| set.insert(each));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_holds_every_controller_once_and_names_lead_back() {
        let all: Controllers = Controller::ALL.into_iter().collect();
        assert_eq!(all.iter().count(), Controller::ALL.len());
        for each in Controller::ALL {
            assert_eq!(Controller::from_v1(each.name_v1()), Some(each));
            assert_eq!(each.name_v2().and_then(Controller::from_v2), each.name_v2().map(|_| each));
        }
        assert_eq!(Controllers::parse_v2("cpu io unheard\n"), Controllers::of(&[Cpu, Io]));
    }
}
