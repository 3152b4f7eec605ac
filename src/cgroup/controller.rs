//! Controllers, and which of them a purpose needs.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Controller {
    Cpu,
    /// v1 only: every v2 group counts its time.
    Cpuacct,
    Cpuset,
    Memory,
    Pids,
    /// v1 only: v2 has BPF programs instead.
    Devices,
    /// v1 only: every v2 group can be frozen.
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
    /// In the order in which groups are made.
    pub(crate) const ALL: [Controller; 13] =
        [Cpu, Cpuacct, Cpuset, Memory, Pids, Devices, Freezer, Io, Hugetlb, Rdma, NetCls, NetPrio, Misc];

    /// As in `/proc/self/cgroup` and in mount options.
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

    /// As in `cgroup.controllers`; `None` for a v1 controller.
    pub(crate) fn name_v2(self) -> Option<&'static str> {
        match self {
            Io => Some("io"),
            Cpuacct | Devices | Freezer | NetCls | NetPrio => None,
            other => Some(other.name_v1()),
        }
    }

    pub(crate) fn from_v1(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|each| each.name_v1() == name)
    }

    pub(crate) fn from_v2(name: &str) -> Option<Controller> {
        Controller::ALL.into_iter().find(|each| each.name_v2() == Some(name))
    }
}

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

    /// Parses `cgroup.controllers` or `cgroup.subtree_control`; drops unknown names.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Memory, tasks and processor time are measured, with or without a limit.
    Task,
    /// Docker and containerd read statistics of an OCI container, so it has every controller that counts.
    Container,
}

impl Purpose {
    /// Needed even without a limit.
    pub(super) fn required(self) -> Controllers {
        match self {
            Purpose::Task => Controllers::of(&[Controller::Memory, Controller::Pids]),
            Purpose::Container => Controllers::NONE,
        }
    }

    /// A v2 group counts processor time, freezes and kills without a controller.
    pub(super) fn without_v2(self) -> Controllers {
        match self {
            Purpose::Task => Controllers::of(&[Controller::Freezer, Controller::Cpuacct]),
            Purpose::Container => Controllers::of(&[Controller::Freezer]),
        }
    }

    /// Added where the host offers them.
    pub(super) fn optional(self) -> Controllers {
        match self {
            Purpose::Task => Controllers::NONE,
            Purpose::Container => Controllers::of(&[Cpu, Cpuacct, Cpuset, Memory, Pids, Devices, Freezer, Io, Hugetlb]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_is_listed_once_and_its_names_parse_back() {
        let all: Controllers = Controller::ALL.into_iter().collect();
        assert_eq!(all.iter().count(), Controller::ALL.len());
        for each in Controller::ALL {
            assert_eq!(Controller::from_v1(each.name_v1()), Some(each));
            assert_eq!(each.name_v2().and_then(Controller::from_v2), each.name_v2().map(|_| each));
        }
        assert_eq!(Controllers::parse_v2("cpu io unknown\n"), Controllers::of(&[Cpu, Io]));
    }
}
