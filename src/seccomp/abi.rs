//! System-call ABIs, and those that each kernel offers.

use super::table::Column;
use crate::spec::seccomp::Arch;

#[derive(Clone, Copy, Debug)]
pub(super) struct Abi {
    /// `AUDIT_ARCH_*` of linux/audit.h.
    pub audit: u32,
    pub column: Column,
    /// Added to each number.
    pub base: u32,
    /// Whether arguments are compared in 64 bits, not 32.
    pub wide: bool,
    /// The high half of an argument comes first.
    pub big_endian: bool,
    /// `socketcall` and `ipc` are the only or a second entry to some calls.
    pub multiplexed: bool,
}

// linux/audit.h: the ELF machine number with these.
const BITS_64: u32 = 0x8000_0000;
const LITTLE_ENDIAN: u32 = 0x4000_0000;
const CONVENTION_N32: u32 = 0x2000_0000;

/// All x86-64 numbers are below (`__X32_SYSCALL_BIT` of asm/unistd.h).
const X32_BIT: u32 = 0x4000_0000;

/// `None` without numbers for it.
pub(super) fn abi(arch: Arch) -> Option<Abi> {
    let little = |machine, column| Abi {
        audit: machine | LITTLE_ENDIAN | BITS_64,
        column,
        base: 0,
        wide: true,
        big_endian: false,
        multiplexed: false,
    };
    let big = |machine, column| Abi { audit: machine | BITS_64, big_endian: true, ..little(machine, column) };
    let narrow = |abi: Abi| Abi { audit: abi.audit & !BITS_64, wide: false, ..abi };
    let multiplexed = |abi: Abi| Abi { multiplexed: true, ..abi };
    let based = |base, abi: Abi| Abi { base, ..abi };
    let n32 = |abi: Abi| Abi { audit: abi.audit | CONVENTION_N32, wide: false, ..based(6000, abi) };
    Some(match arch {
        Arch::X86_64 => little(62, Column::X86_64),
        Arch::X86 => multiplexed(narrow(little(3, Column::X86))),
        Arch::X32 => Abi { wide: false, ..based(X32_BIT, little(62, Column::X32)) },
        Arch::Aarch64 => little(183, Column::Aarch64),
        Arch::Arm => narrow(little(40, Column::Arm)),
        Arch::Riscv64 => little(243, Column::Riscv64),
        Arch::Loongarch64 => little(258, Column::Loongarch64),
        Arch::S390x => multiplexed(big(22, Column::S390x)),
        Arch::S390 => multiplexed(narrow(big(22, Column::S390))),
        Arch::Ppc64le => multiplexed(little(21, Column::Ppc64)),
        Arch::Ppc64 => multiplexed(big(21, Column::Ppc64)),
        Arch::Ppc => multiplexed(narrow(big(20, Column::Ppc))),
        Arch::Mips => multiplexed(narrow(based(4000, big(8, Column::Mips)))),
        Arch::Mipsel => multiplexed(narrow(based(4000, little(8, Column::Mips)))),
        Arch::Mips64 => based(5000, big(8, Column::Mips64)),
        Arch::Mipsel64 => based(5000, little(8, Column::Mips64)),
        Arch::Mips64N32 => n32(big(8, Column::Mips64N32)),
        Arch::Mipsel64N32 => n32(little(8, Column::Mips64N32)),
        Arch::Parisc | Arch::Parisc64 | Arch::M68k | Arch::Sh | Arch::Sheb => return None,
    })
}

/// `native` is first. A filter never sees another ABI.
pub(super) fn offered(native: Arch) -> &'static [Arch] {
    match native {
        Arch::X86_64 => &[Arch::X86_64, Arch::X86, Arch::X32],
        Arch::Aarch64 => &[Arch::Aarch64, Arch::Arm],
        Arch::S390x => &[Arch::S390x, Arch::S390],
        Arch::Ppc64 => &[Arch::Ppc64, Arch::Ppc],
        Arch::Mips64 => &[Arch::Mips64, Arch::Mips, Arch::Mips64N32],
        Arch::Mipsel64 => &[Arch::Mipsel64, Arch::Mipsel, Arch::Mipsel64N32],
        Arch::Riscv64 => &[Arch::Riscv64],
        Arch::Loongarch64 => &[Arch::Loongarch64],
        Arch::Ppc64le => &[Arch::Ppc64le],
        Arch::X86 => &[Arch::X86],
        Arch::Arm => &[Arch::Arm],
        _ => &[],
    }
}

/// `None` where filters are not supported.
pub(crate) const NATIVE: Option<Arch> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(Arch::X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(Arch::Aarch64)
} else if cfg!(target_arch = "riscv64") {
    Some(Arch::Riscv64)
} else if cfg!(target_arch = "loongarch64") {
    Some(Arch::Loongarch64)
} else if cfg!(target_arch = "s390x") {
    Some(Arch::S390x)
} else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
    Some(Arch::Ppc64le)
} else if cfg!(target_arch = "x86") {
    Some(Arch::X86)
} else if cfg!(target_arch = "arm") {
    Some(Arch::Arm)
} else {
    None
};
