#!/usr/bin/env python3
"""Writes syscalls.in, the table of system-call numbers, from the kernel's own lists.

    src/seccomp/syscalls.py LINUX_RAW_SYS/src [INCLUDE] > src/seccomp/syscalls.in

LINUX_RAW_SYS is the source of the crate `linux-raw-sys`, whose `<arch>/general.rs` are made from the kernel's exported
headers (`__NR_*`). INCLUDE (by default /usr/include) holds the exported headers of the machine's own kernel
package; its x86 lists are compared, and a contradiction ends the run. The ABIs that the crate has not (s390 of 31 bits, MIPS
n32) come from libseccomp, if it can be loaded, for the numbers below 403; from there on all ABIs share one list.

A call that is newer than the crate goes into NEWER, where all ABIs have one number.
"""
import ctypes, ctypes.util, re, sys, pathlib

# Column order of syscalls.in; `Column` in table.rs repeats it.
COLUMNS = ["x86_64", "x86", "x32", "aarch64", "arm", "riscv64", "loongarch64", "s390x", "s390", "powerpc64", "powerpc",
           "mips", "mips64", "mips64n32"]
# What is added to the numbers of an ABI by its calling convention; the table has them without it.
BASE = {"x32": 0x40000000, "mips": 4000, "mips64": 5000, "mips64n32": 6000}
# include/uapi/asm-generic/unistd.h and scripts/syscall.tbl: since 403 (5.1) every ABI takes the same number for a new call.
FIRST_COMMON = 403
# Linux 6.19: listns. Linux 7.0: rseq_slice_yield.
NEWER = {"listns": 470, "rseq_slice_yield": 471}
# Linux 6.18, arch/x86/entry/syscalls/syscall_64.tbl.
NEWER_X86_64 = {"uprobe": 336}
# Wanted nowhere: the indirect call of MIPS o32 is multiplexed like socketcall but has every number in its first argument.
NOT_CALLS = {"Linux", "SYSCALL_BASE", "OABI_SYSCALL_BASE", "SYSCALL_MASK"}
# ARM's private calls are 0x0f0000 + n; the table marks them with the top bit of its 16.
ARM_PRIVATE, ARM_MARK = 0x0F0000, 0x8000
LIBSECCOMP_ARCH = {"s390": 0x16, "mips64n32": 0xA0000008}


def crate(root, arch):
    found = {}
    for name, number in re.findall(r"pub const __(?:ARM_)?NR_(\w+): u32 = (\d+);",
                                   (root / arch / "general.rs").read_text()):
        number = int(number) - BASE.get(arch, 0)
        if name in NOT_CALLS or name == "BASE":
            continue
        if arch == "arm" and number >= ARM_PRIVATE:
            number = ARM_MARK | (number - ARM_PRIVATE)
        found[name] = number
    return found


def headers(include, file):
    text = pathlib.Path(include, "x86_64-linux-gnu/asm", file).read_text()
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (?:\(__X32_SYSCALL_BIT \+ )?(\d+)", text)}


def libseccomp(token, base, names):
    path = ctypes.util.find_library("seccomp")
    if not path:
        sys.exit("libseccomp is needed for the ABIs that the crate has not")
    library = ctypes.CDLL(path)
    found = {}
    for name in names:
        number = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), name.encode())
        if number >= base and number - base < FIRST_COMMON:
            found[name] = number - base
    return found


def main():
    root = pathlib.Path(sys.argv[1])
    include = sys.argv[2] if len(sys.argv) > 2 else "/usr/include"
    table = {arch: crate(root, arch) for arch in COLUMNS if arch not in LIBSECCOMP_ARCH}
    names = set().union(*table.values())
    for arch, token in LIBSECCOMP_ARCH.items():
        table[arch] = libseccomp(token, BASE.get(arch, 0), sorted(names))
        like = table["s390x"] if arch == "s390" else table["mips64"]
        # The time64 calls exist for 32-bit ABIs alone, so they are taken from one of those.
        if arch == "s390":  # direct socket and ipc calls, 4.3 and 5.1: one list for both (arch/s390/kernel/syscalls)
            table[arch] |= {name: like[name] for name in like if like[name] >= 359 and name not in table[arch]}
        both = {**like, **{name: number for name, number in table["x86"].items() if name.endswith("64")}}
        table[arch] |= {name: number for name, number in both.items() if FIRST_COMMON <= number < ARM_MARK}
    for arch in COLUMNS:
        for name, number in NEWER.items():
            assert table[arch].setdefault(name, number) == number, (arch, name)
    for arch in ["x86_64", "x32"]:
        table[arch] |= NEWER_X86_64
    for arch, file in [("x86_64", "unistd_64.h"), ("x86", "unistd_32.h"), ("x32", "unistd_x32.h")]:
        for name, number in headers(include, file).items():
            assert table[arch].get(name) == number, (arch, name, number, table[arch].get(name))
    names = sorted(set().union(*table.values()))
    print("[")
    for name in names:
        row = [table[arch].get(name) for arch in COLUMNS]
        print(f'    ("{name}", [{", ".join("NO" if n is None else str(n) for n in row)}]),')
    print("]")


main()
