#!/usr/bin/env python3
"""Checks what is shipped.

usage: audit.py ROOT.tar        a root file system for agents: no keys, tokens, passwords, set-id bits, files that all users may write
       audit.py --binary FILE   the program: static, position independent, full RELRO, no writable code, no executable stack, stack protection in
                                the C parts
       audit.py --unseen FILE   the checks of --binary themselves: each finds its fault in a copy of FILE that has it

Prints a line for each fault. Exits with 1 if there is one.
"""
import re
import struct
import sys
import tarfile

# World-writable directories with the sticky bit, as usual.
OPEN = {"tmp", "var/tmp", "run/lock", "dev/shm"}
KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s:,-]{100}")
# The keys in the manuals of AWS end with EXAMPLE.
TOKEN = re.compile(rb"\b(ghp_[A-Za-z0-9]{36}|github_pat_\w{60}|AKIA[0-9A-Z]{9}(?!EXAMPLE)[0-9A-Z]{7}|sk-[A-Za-z0-9]{40}|xox[bp]-[0-9A-Za-z-]{20,}|npm_[A-Za-z0-9]{36})\b")
PASSWORD = re.compile(rb"^[^:]+:\$", re.M)
LARGEST = 32 << 20
# The library contains the published keys of its self-tests.
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


# elf(5): the type of a position-independent program, its machine, program headers, their rights, and tags of the dynamic section.
DYNAMIC_TYPE, X86_64 = 3, 62
LOAD, DYNAMIC, INTERPRETER, STACK, RELRO = 1, 2, 3, 0x6474E551, 0x6474E552
EXECUTABLE, WRITABLE = 1, 2
TEXT_RELOCATIONS, FLAGS, FLAGS_1 = 22, 30, 0x6FFFFFFB
# In FLAGS and FLAGS_1: the loader resolves everything at the start, so that RELRO covers the whole table.
BIND_NOW, NOW = 8, 1
# `mov %fs:0x28, %REGISTER`: a function reads the value that guards its return address.
GUARD = re.compile(rb"\x64[\x48\x4c]\x8b[\x04-\x3c]\x25\x28\x00\x00\x00", re.S)
LEAST_GUARDS = 20

TYPE_AT, MACHINE_AT, HEADERS_AT, HEADER_SIZE_AT = 16, 18, 32, 54


class Program:
    """The parts of a 64-bit ELF program that the checks read."""

    def __init__(self, data):
        self.data = data
        self.type, self.machine = struct.unpack_from("<HH", data, TYPE_AT)
        offset, = struct.unpack_from("<Q", data, HEADERS_AT)
        size, count = struct.unpack_from("<HH", data, HEADER_SIZE_AT)
        self.header_at = [offset + size * index for index in range(count)]
        self.headers = [struct.unpack_from("<IIQQQQQQ", data, at) for at in self.header_at]
        self.tag_at = {}
        for kind, _, start, _, _, length, *_ in self.headers:
            if kind == DYNAMIC:
                for at in range(start, start + length, 16):
                    self.tag_at.setdefault(struct.unpack_from("<q", data, at)[0], at)

    def kinds(self):
        return {header[0] for header in self.headers}

    def tag(self, number):
        return struct.unpack_from("<Q", self.data, self.tag_at[number] + 8)[0] if number in self.tag_at else 0

    def binds_now(self):
        return self.tag(FLAGS) & BIND_NOW or self.tag(FLAGS_1) & NOW

    def has_rights(self, kind, rights):
        return any(header[0] == kind and header[1] & rights == rights for header in self.headers)


# A fault, and whether a program has it.
CHECKS = [
    ("not position independent", lambda program: program.type != DYNAMIC_TYPE),
    ("not static: it names a loader", lambda program: INTERPRETER in program.kinds()),
    ("relocated data stays writable (no RELRO)", lambda program: RELRO not in program.kinds()),
    ("not all of the relocated data is read-only (no BIND_NOW)", lambda program: not program.binds_now()),
    ("code is relocated at the start (TEXTREL)", lambda program: TEXT_RELOCATIONS in program.tag_at),
    ("a segment is writable and executable", lambda program: program.has_rights(LOAD, EXECUTABLE | WRITABLE)),
    ("the stack is executable", lambda program: STACK not in program.kinds() or program.has_rights(STACK, EXECUTABLE)),
    ("no stack protection in the C parts: build with rootfs/binary",
     lambda program: program.machine == X86_64 and len(GUARD.findall(program.data)) < LEAST_GUARDS),
]


def faults_of_binary(path):
    """The same for a 64-bit ELF program."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:5] != b"\x7fELF\x02":
        return ["not a 64-bit ELF program"]
    program = Program(data)
    return [fault for fault, has in CHECKS if has(program)]


def unseen(path):
    """The checks that do not see their fault in a copy of a good program with that fault, and no other."""
    with open(path, "rb") as file:
        good = file.read()
    program = Program(good)

    def header(which, **changes):
        """A copy in which the first header of this kind has another kind or other rights."""
        at = program.header_at[[each[0] for each in program.headers].index(which)]
        data = bytearray(good)
        for place, value in changes.items():
            struct.pack_into("<I", data, at + {"kind": 0, "rights": 4}[place], value)
        return data

    def tags(changes):
        """A copy in which tags of the dynamic section have other values, or (None) are text relocations."""
        data = bytearray(good)
        for number, value in changes.items():
            at = program.tag_at.get(number)
            if at is not None:
                struct.pack_into("<q" if value is None else "<Q", data, at if value is None else at + 8, TEXT_RELOCATIONS if value is None else value)
        return data

    fixed = bytearray(good)
    struct.pack_into("<H", fixed, TYPE_AT, 2)
    spare = next(number for number in program.tag_at if number not in (FLAGS, FLAGS_1, 0))
    copies = [fixed, header(STACK, kind=INTERPRETER), header(RELRO, kind=0), tags({FLAGS: 0, FLAGS_1: 0}), tags({spare: None}),
              header(LOAD, rights=7), header(STACK, rights=7), GUARD.sub(lambda found: b"\x90" * len(found[0]), good)]
    return [f"the audit does not see: {fault}" for (fault, has), copy in zip(CHECKS, copies, strict=True) if not has(Program(bytes(copy)))]


if __name__ == "__main__":
    check = {"--binary": faults_of_binary, "--unseen": unseen}.get(sys.argv[1])
    problems = check(sys.argv[2]) if check else faults(sys.argv[1])
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
