#!/usr/bin/env python3
"""Checks what is shipped.

usage: audit.py ROOT.tar        a root file system for agents: no keys, tokens, passwords, set-id bits, files that all users may write
       audit.py --binary FILE   the program: static, no writable code, relocations read-only, stack protection in the C parts

Prints a line for each fault. Exits with 1 if there is one.
"""
import re
import struct
import sys
import tarfile

# Directories that everybody may write, with the sticky bit, as everywhere.
OPEN = {"tmp", "var/tmp", "run/lock", "dev/shm"}
KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s:,-]{100}")
TOKEN = re.compile(rb"\b(ghp_[A-Za-z0-9]{36}|github_pat_\w{60}|AKIA[0-9A-Z]{16}|sk-[A-Za-z0-9]{40}|xox[bp]-[0-9A-Za-z-]{20,}|npm_[A-Za-z0-9]{36})\b")
PASSWORD = re.compile(rb"^[^:]+:\$", re.M)
LARGEST = 32 << 20
# The library carries the published keys of its own self-tests.
SELF_TESTS = re.compile(r"usr/lib/[^/]+/libgnutls\.so\.[0-9.]+")


def faults(path):
    """All of them, in words."""
    found = []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.removeprefix("./").strip("/") or "."
            if member.mode & 0o6000 and not member.isdir():
                found.append(f"{name}: a set-id bit")
            if member.mode & 0o002 and not member.issym() and not (member.isdir() and member.mode & 0o1000 and name in OPEN) \
                    and not member.ischr():
                found.append(f"{name}: everybody may write it")
            if any(key.endswith("security.capability") for key in member.pax_headers):
                found.append(f"{name}: file capabilities")
            if not member.isreg() or member.size > LARGEST:
                continue
            data = archive.extractfile(member).read()
            if KEY.search(data) and not SELF_TESTS.fullmatch(name):
                found.append(f"{name}: a private key")
            if TOKEN.search(data):
                found.append(f"{name}: a token")
            if name == "etc/shadow" and PASSWORD.search(data):
                found.append(f"{name}: a password")
            if name.startswith("home/agent/") or name.startswith("root/"):
                found.append(f"{name}: a home that is not empty")
    return found


# Program headers (elf(5)).
LOAD, INTERPRETER, STACK, RELRO = 1, 3, 0x6474E551, 0x6474E552
EXECUTABLE, WRITABLE = 1, 2
X86_64 = 62
# `mov %fs:0x28, %REGISTER`: a function reads the value that guards its return address.
GUARD = re.compile(rb"\x64[\x48\x4c]\x8b[\x04-\x3c]\x25\x28\x00\x00\x00", re.S)


def faults_of_binary(path):
    """The same for a 64-bit ELF program."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:5] != b"\x7fELF\x02":
        return ["not a 64-bit ELF program"]
    machine, = struct.unpack_from("<H", data, 18)
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<II", data, offset + size * index) for index in range(count)]
    kinds = {kind for kind, _ in headers}
    found = []
    if INTERPRETER in kinds:
        found.append("not static: it names a loader")
    if RELRO not in kinds:
        found.append("relocated data stays writable (RELRO)")
    if any(kind == LOAD and flags & EXECUTABLE and flags & WRITABLE for kind, flags in headers):
        found.append("a segment is writable and executable")
    if not any(kind == STACK and not flags & EXECUTABLE for kind, flags in headers):
        found.append("the stack is executable")
    if machine == X86_64 and len(GUARD.findall(data)) < 20:
        found.append("no stack protection in the C parts: build with rootfs/binary")
    return found


if __name__ == "__main__":
    problems = faults_of_binary(sys.argv[2]) if sys.argv[1] == "--binary" else faults(sys.argv[1])
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
