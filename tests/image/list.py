#!/usr/bin/env python3
"""Lists a tree with everything that an image says about it, one line a file, for comparison.

usage: list.py DIRECTORY [nodirtimes] [noowners]
"""
import hashlib
import os
import stat
import sys

root, options = sys.argv[1], set(sys.argv[2:])
seen = {}
for folder, folders, files in os.walk(root):
    for name in files:
        status = os.lstat(os.path.join(folder, name))
        # Other names may be hidden by layers above: only what is there counts.
        seen.setdefault((status.st_dev, status.st_ino), []).append(os.path.relpath(os.path.join(folder, name), root))
for folder, folders, files in os.walk(root):
    folders.sort()
    names = sorted(folders + files)
    for path in ([root] if folder == root else []) + [os.path.join(folder, name) for name in names]:
        status = os.lstat(path)
        name = os.path.relpath(path, root)
        kind, content, hole = stat.S_IFMT(status.st_mode), "", ""
        if stat.S_ISREG(kind):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            hole = "holes" if status.st_size > 1 << 20 and status.st_blocks * 512 < status.st_size // 2 else ""
        elif stat.S_ISLNK(kind):
            content = os.readlink(path)
        elif stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            content = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        attributes = {key: os.getxattr(path, key, follow_symlinks=False).hex()
                      for key in sorted(os.listxattr(path, follow_symlinks=False)) if ".overlay." not in key}
        names_of_it = sorted(seen.get((status.st_dev, status.st_ino), []))
        link = names_of_it[0] if len(names_of_it) > 1 else ""
        owner = "" if "noowners" in options else f"{status.st_uid}:{status.st_gid}"
        time = "" if stat.S_ISDIR(kind) and "nodirtimes" in options else status.st_mtime_ns
        size = "" if stat.S_ISDIR(kind) else status.st_size
        print(repr(name), oct(status.st_mode), owner, size, time, content, attributes, link, hole)
