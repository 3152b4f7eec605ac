#!/usr/bin/env python3
"""Looks through a root file system (a tar) for what has no place in an image for agents.

usage: audit.py ROOT.tar
"""
import re
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


if __name__ == "__main__":
    problems = faults(sys.argv[1])
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
