//! Conditions and cases of the table.

use crate::spec::seccomp::{Condition, Operator};

/// If all conditions match, the call is allowed or returns `errno`.
pub(super) struct Case {
    pub errno: Option<u32>,
    pub when: &'static [Condition],
}

pub(super) const fn is(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::Equal }
}

pub(super) const fn at_most(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::LessEqual }
}

pub(super) const fn above(index: u32, value: u64) -> Condition {
    Condition { index, value, value_two: 0, op: Operator::GreaterThan }
}

pub(super) const fn without(index: u32, bits: u64) -> Condition {
    Condition { index, value: bits, value_two: 0, op: Operator::MaskedEqual }
}

pub(super) const fn low_half(index: u32, mask: u32, value: u32) -> Condition {
    Condition { index, value: mask as u64, value_two: value as u64, op: Operator::MaskedEqual }
}

pub(super) const fn low(index: u32, value: u32) -> Condition {
    low_half(index, !0, value)
}

pub(super) const fn allow(when: &'static [Condition]) -> Case {
    Case { errno: None, when }
}

pub(super) const fn refuse(errno: i32, when: &'static [Condition]) -> Case {
    Case { errno: Some(errno as u32), when }
}

// sys/socket.h
pub(super) const AF_UNIX: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const AF_NETLINK: u64 = 16;
/// rtnetlink, for `getifaddrs`.
const NETLINK_ROUTE: u64 = 0;
// netinet/in.h
const IPPROTO_UDP: u64 = 17;
const IPPROTO_ICMPV6: u64 = 58;
/// Stream, datagram and raw sockets, with any flags (linux/net.h).
pub(crate) const COMMON_TYPES: Condition = low_half(1, 0xc, 0);
/// SOCK_SEQPACKET makes a socket of SCTP, SOCK_DCCP one of DCCP.
const TYPES_FROM_FOUR: Condition = low_half(1, 4, 4);
/// For SOCK_PACKET the kernel turns AF_INET into AF_PACKET (`__sock_create`).
const TYPES_FROM_EIGHT: Condition = low_half(1, 0xc, 8);

// asm-generic/socket.h, netinet/tcp.h: the kernel reads 32 bits of a level, an option and flags.
const SOL_SOCKET: u32 = 1;
const SO_ATTACH_FILTER: u32 = 26;
const SO_ATTACH_BPF: u32 = 50;
const SO_ATTACH_REUSEPORT_CBPF: u32 = 51;
const SO_ATTACH_REUSEPORT_EBPF: u32 = 52;
const IPPROTO_TCP: u32 = 6;
const TCP_ULP: u32 = 31;
const MSG_OOB: u32 = 1;

/// socket(2).
pub(super) const FAMILIES: &[Case] = &[
    allow(&[is(0, AF_UNIX)]),
    allow(&[is(0, AF_INET), COMMON_TYPES, at_most(2, IPPROTO_UDP)]),
    refuse(libc::ESOCKTNOSUPPORT, &[is(0, AF_INET), TYPES_FROM_FOUR, at_most(2, IPPROTO_UDP)]),
    refuse(libc::ESOCKTNOSUPPORT, &[is(0, AF_INET), TYPES_FROM_EIGHT, at_most(2, IPPROTO_UDP)]),
    refuse(libc::EPROTONOSUPPORT, &[is(0, AF_INET), above(2, IPPROTO_UDP)]),
    allow(&[is(0, AF_INET6), COMMON_TYPES, at_most(2, IPPROTO_UDP)]),
    allow(&[is(0, AF_INET6), COMMON_TYPES, is(2, IPPROTO_ICMPV6)]),
    refuse(libc::ESOCKTNOSUPPORT, &[is(0, AF_INET6), TYPES_FROM_FOUR, at_most(2, IPPROTO_ICMPV6)]),
    refuse(libc::ESOCKTNOSUPPORT, &[is(0, AF_INET6), TYPES_FROM_EIGHT, at_most(2, IPPROTO_ICMPV6)]),
    refuse(libc::EPROTONOSUPPORT, &[is(0, AF_INET6), above(2, IPPROTO_ICMPV6)]),
    allow(&[is(0, AF_NETLINK), is(2, NETLINK_ROUTE)]),
    refuse(libc::EPROTONOSUPPORT, &[is(0, AF_NETLINK), above(2, NETLINK_ROUTE)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 0)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 3)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 4)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 5)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 6)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 7)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 8)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 9)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 11)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 12)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 13)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 14)]),
    refuse(libc::EAFNOSUPPORT, &[is(0, 15)]),
    refuse(libc::EAFNOSUPPORT, &[above(0, AF_NETLINK)]),
];

/// setsockopt(2).
pub(super) const OPTIONS: &[Case] = &[
    allow(&[low(1, 0)]),
    allow(&[low(1, 17)]),
    allow(&[low(1, 41)]),
    allow(&[low(1, 58)]),
    allow(&[low(1, 255)]),
    allow(&[low(1, 270)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !15, 0)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !7, 16)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !1, 24)]),
    allow(&[low(1, SOL_SOCKET), low(2, 27)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !3, 28)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !15, 32)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !1, 48)]),
    allow(&[low(1, SOL_SOCKET), low(2, 53)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !1, 54)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !7, 56)]),
    allow(&[low(1, SOL_SOCKET), low_half(2, !63, 64)]),
    allow(&[low(1, IPPROTO_TCP), low_half(2, !15, 0)]),
    allow(&[low(1, IPPROTO_TCP), low_half(2, !7, 16)]),
    allow(&[low(1, IPPROTO_TCP), low_half(2, !3, 24)]),
    allow(&[low(1, IPPROTO_TCP), low_half(2, !1, 28)]),
    allow(&[low(1, IPPROTO_TCP), low(2, 30)]),
    allow(&[low(1, IPPROTO_TCP), low_half(2, !31, 32)]),
    refuse(libc::ENOPROTOOPT, &[low(1, SOL_SOCKET), low(2, SO_ATTACH_FILTER)]),
    refuse(libc::ENOPROTOOPT, &[low(1, SOL_SOCKET), low(2, SO_ATTACH_BPF)]),
    refuse(libc::ENOPROTOOPT, &[low(1, SOL_SOCKET), low(2, SO_ATTACH_REUSEPORT_CBPF)]),
    refuse(libc::ENOPROTOOPT, &[low(1, SOL_SOCKET), low(2, SO_ATTACH_REUSEPORT_EBPF)]),
    refuse(libc::ENOPROTOOPT, &[low(1, IPPROTO_TCP), low(2, TCP_ULP)]),
];

/// sendmsg(2).
pub(super) const FLAGS_THIRD: &[Case] =
    &[allow(&[low_half(2, MSG_OOB, 0)]), refuse(libc::EOPNOTSUPP, &[low_half(2, MSG_OOB, MSG_OOB)])];

/// sendto(2) and sendmmsg(2).
pub(super) const FLAGS_FOURTH: &[Case] =
    &[allow(&[low_half(3, MSG_OOB, 0)]), refuse(libc::EOPNOTSUPP, &[low_half(3, MSG_OOB, MSG_OOB)])];
