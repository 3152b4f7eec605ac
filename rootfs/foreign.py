#!/usr/bin/env python3
"""Runs a command where programs of another architecture run too, by qemu, and nothing of this machine is changed for it.

usage: foreign.py ARCHITECTURE COMMAND…

Since Linux 6.7 each user namespace has a binfmt_misc of its own. The command runs as root of a new one, in a mount namespace of its
own, with qemu-user-static's interpreter registered there alone. An ordinary user needs a range in /etc/subuid and /etc/subgid.
"""
import ctypes
import os
import subprocess
import sys

CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 0x4000, 0x40000
# The first bytes of an ELF program of each: 64 bits, little-endian, the machine's number, and which of them count.
MACHINES = {"arm64": ("aarch64", 0xB7), "amd64": ("x86_64", 0x3E), "riscv64": ("riscv64", 0xF3)}
MOUNT = "/proc/sys/fs/binfmt_misc"
libc = ctypes.CDLL(None, use_errno=True)


def call(done, what):
    if done != 0:
        sys.exit(f"foreign.py: {what}: {os.strerror(ctypes.get_errno())}")


def maps(pid):
    """Gives the process ids: root every one below 65536 as it is, anybody else their own as root and the subordinate ones."""
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write("0 0 65536")
        return
    import pwd
    user = pwd.getpwuid(os.getuid()).pw_name
    for program, path, own in (("newuidmap", "/etc/subuid", os.getuid()), ("newgidmap", "/etc/subgid", os.getgid())):
        ranges = [line.split(":")[1:] for line in open(path) if line.split(":")[0] in (user, str(os.getuid()))]
        if not ranges:
            sys.exit(f"foreign.py: give {user} a range in {path}: usermod --add-subuids")
        start, count = ranges[0]
        subprocess.run([program, str(pid), "0", str(own), "1", "1", start, count.strip()], check=True)


def main():
    machine, number = MACHINES[sys.argv[1]]
    interpreter = f"/usr/bin/qemu-{machine}-static"
    if not os.path.exists(interpreter):
        sys.exit(f"foreign.py: {interpreter} is missing: install qemu-user-static")
    asks, tells = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        call(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "make a user namespace")
        os.write(asks[1], b"x")
        os.read(tells[0], 1)
        os.setgid(0)
        os.setuid(0)
        call(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
        if libc.mount(b"binfmt_misc", MOUNT.encode(), b"binfmt_misc", 0, None) != 0:
            sys.exit(f"foreign.py: mount binfmt_misc: {os.strerror(ctypes.get_errno())} (it takes Linux 6.7; before, let the "
                     "machine's root register qemu-user-static)")
        magic = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + bytes([number, 0])
        mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
        escape = lambda data: "".join(f"\\x{byte:02x}" for byte in data)
        # F: opened now, so that it is there inside the new root; O and C: as the program's own file and owner.
        with open(f"{MOUNT}/register", "w") as file:
            file.write(f":qemu-{machine}:M::{escape(magic)}:{escape(mask)}:{interpreter}:OCF")
        os.execvp(sys.argv[2], sys.argv[2:])
    os.read(asks[0], 1)
    maps(child)
    os.write(tells[1], b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


main()
