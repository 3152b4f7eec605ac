"""Searches a sandbox for the key of its agent: files, variables, and the memory of all other processes.

An agent runs this program as a command. The program contains the key in parts, so that a record of the command does not
contain the key.
"""

import os, re
half, end = b"s3cret-of" + b"-the-caller", b"-the-caller" + b"-012345" + b"6789"
files = variables = memory = searched = 0
for top in "/home", "/run", "/etc", "/workspace", "/dev/shm":
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            try:
                files += os.path.isfile(path) and half in open(path, "rb").read()
            except OSError:
                pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        variables += half in open(f"/proc/{pid}/environ", "rb").read()
        maps, content, pages = (open(f"/proc/{pid}/{name}", "rb", 0) for name in ("maps", "mem", "pagemap"))
        lines = maps.readall().decode().splitlines()
    except OSError:
        continue
    searched += 1
    for place, rights in (line.split()[:2] for line in lines):
        at, after = (int(each, 16) // 4096 for each in place.split("-"))
        if "r" not in rights or place.startswith("ffffffff"):
            continue
        pages.seek(at * 8)
        # The highest bits of an entry: the page is in memory or in swap. An agent may reserve terabytes.
        for run in re.finditer(rb"[\x40-\xff]+", pages.read((after - at) * 8)[7::8]):
            try:
                content.seek((at + run.start()) * 4096)
                memory += end in content.read(len(run[0]) * 4096)
            except (OSError, OverflowError):
                pass
print("files:", files, "variables:", variables, "memory:", memory, "in any of", searched, "processes")
