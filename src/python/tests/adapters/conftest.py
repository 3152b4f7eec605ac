"""A small root file system for the adapters: programs that use images need one, and no registry is at hand."""

import shutil
import subprocess

import pytest

BUSYBOX = shutil.which("busybox")
ADDUSER = """#!/bin/sh
[ "$1" = -D ] || { echo "adduser of BusyBox"; exit 0; }
echo "$2:x:2000:2000::/tmp:/bin/sh" >> /etc/passwd
"""


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory):
    """A root file system with BusyBox alone."""
    if BUSYBOX is None:
        pytest.skip("busybox is missing: install busybox-static")
    root = tmp_path_factory.mktemp("root")
    for name in ("usr/bin", "etc", "tmp", "root", "home", "proc", "dev", "sys", "run", "var/tmp", "workspace"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin"):
        (root / name).symlink_to("usr/bin")
    shutil.copy(BUSYBOX, root / "usr/bin/busybox")
    for name in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if not (root / "usr/bin" / name).exists():
            (root / "usr/bin" / name).symlink_to("busybox")
    # BusyBox of Debian has no adduser.
    (root / "usr/bin/adduser").write_text(ADDUSER)
    (root / "usr/bin/adduser").chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
    return root
