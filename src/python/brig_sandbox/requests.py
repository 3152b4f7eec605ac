"""The requests of sandboxes: processes, files, accounts. Pure functions, for both the plain and the asyncio classes."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

from .errors import BrigError
from .protocol import duration, encode_word
from .session import Result

Command = Union[str, Sequence[Union[str, bytes, "os.PathLike[str]"]]]
Path = Union[str, "os.PathLike[str]"]

WORKSPACE = "/workspace"
# Output of one stream of `exec` that is kept.
MAX_OUTPUT = 256 << 20
# The largest file that `read_file` returns.
MAX_FILE = 1 << 30
# The longest error document of a file process. It contains the path, and a request has at most 64 KiB.
MAX_ERROR = 128 << 10
# The most account data that is read.
MAX_ACCOUNTS = 1 << 20
# Processes at a time in one sandbox by one object. The supervisor has 64 connections.
MAX_PROCESSES = 40


@dataclass(frozen=True)
class FileEntry:
    """An entry of a folder in a sandbox."""

    name: str
    kind: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int
    mode: int
    modified: int


@dataclass(frozen=True)
class Checkpoint:
    """A copy of a sandbox's files at one moment."""

    name: str
    created: str
    bytes: int


@dataclass(frozen=True)
class User:
    """A user of the sandbox in numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Optional[str] = None


def exec_request(
    command: Command,
    *,
    env: Optional[Mapping[str, str]],
    cwd: Optional[Path],
    user: Optional[User],
    timeout: Optional[float],
    terminal: Optional[tuple[int, int]] = None,
) -> dict[str, Any]:
    """The request for a process. A text is a command line for `sh -c`."""
    words = ["sh", "-c", command] if isinstance(command, str) else list(command)
    if not words:
        raise BrigError("E-USAGE", "no command is given", "give a list like ['ls', '-l'], or a text for sh")
    if timeout is not None and timeout <= 0:
        raise BrigError("E-USAGE", "a time-out of 0 ends a process before it begins", "give a time, or leave it out")
    variables = dict(env or {})
    if user is not None and user.home is not None:
        variables.setdefault("HOME", user.home)
    return {
        "command": [encode_word(word) for word in words],
        "environment": [[encode_word(name), encode_word(value)] for name, value in variables.items()],
        "directory": inside(cwd) if cwd is not None else None,
        "terminal": list(terminal) if terminal is not None else None,
        "errand": False,
        "user": [user.uid, user.gid, list(user.groups)] if user is not None else None,
        "timeout": duration(timeout),
        "is_job": False,
    }


def file_request() -> dict[str, Any]:
    """The request for the process that serves one file request."""
    request = exec_request(["files"], env=None, cwd=None, user=None, timeout=None)
    return {**request, "errand": True, "command": []}


def file_line(request: Any) -> bytes:
    """The first line of its input."""
    return json.dumps(request).encode() + b"\n"


def inside(path: Path) -> str:
    """A path of the sandbox: a relative one is meant from the workspace."""
    return posixpath.join(WORKSPACE, os.fspath(path))


def pack_request(path: Path, name: str, exclude: Sequence[str]) -> dict[str, Any]:
    """The request for a tree as a tar stream."""
    source = posixpath.normpath(inside(path))
    # The workspace may be a link, which would be packed as a link.
    return {"pack": [f"{WORKSPACE}/." if source == WORKSPACE else source, name, list(exclude)]}


def too_much(stream: str, most: int) -> BrigError:
    """The error for a stream of a file process that exceeds its bound."""
    if stream == "stderr":
        return BrigError("E-LOST", f"the error of the file process has more than {MAX_ERROR} bytes")
    return BrigError("E-USAGE", f"the file has more than {most} bytes", "use `download`, or a larger `max_bytes`")


def check_file_result(result: Result) -> bytes:
    """The output of a file process; raises its error."""
    if result.status == 0:
        return result.stdout
    try:
        error = json.loads(result.stderr)
        text = ": ".join([*reversed(error["steps"]), error["cause"]])
        kind, hint, number = error["kind"], error.get("hint"), error.get("errno")
        # The sandbox writes this: a field of another type means that brig did not write it.
        if not re.fullmatch("E-[A-Z-]+", kind) or not isinstance(number, (int, type(None))):
            raise ValueError(kind)
    except (ValueError, KeyError, TypeError) as cause:
        raise BrigError("E-LOST", f"the file process ended with status {result.status}") from cause
    raise BrigError(kind, text, None if hint is None else str(hint), number)


def entries(said: bytes) -> list[FileEntry]:
    """The entries of a folder. The sandbox writes them, so a name that could be another path is refused."""
    try:
        found = [FileEntry(*(each[field.name] for field in fields(FileEntry))) for each in json.loads(said)]
        for entry in found:
            if not isinstance(entry.name, str) or "/" in entry.name or "\0" in entry.name or entry.name in (".", ".."):
                raise ValueError(f"`{entry.name!r}` is not a name")
        return found
    except (ValueError, KeyError, TypeError) as cause:
        raise BrigError("E-LOST", f"the sandbox lists files that cannot be: {cause}") from cause


def needs_accounts(text: str) -> bool:
    """Whether the sandbox's account files are needed to know a user."""
    user, _, group = text.partition(":")
    return not (user.isdecimal() and group.isdecimal())


def find_user(text: str, passwd: bytes, group: bytes) -> User:
    """`USER[:GROUP]` by the sandbox's account files or in numbers. The supervisor checks the numbers."""
    user, _, wanted_group = text.partition(":")
    user = user or "0"
    people = [line.split(":") for line in passwd.decode(errors="replace").splitlines()]
    people = [line for line in people if len(line) >= 6 and line[2].isdecimal() and line[3].isdecimal()]
    groups = [line.split(":") for line in group.decode(errors="replace").splitlines()]
    groups = [line for line in groups if len(line) >= 4 and line[2].isdecimal()]
    found = next((line for line in people if user in ((line[2],) if user.isdecimal() else (line[0],))), None)
    if found is None and not user.isdecimal():
        raise _no_account(f"unable to find user {user}: no matching entries in passwd file")
    uid, gid = (int(found[2]), int(found[3])) if found else (int(user), 0)
    home = found[5] if found and found[5].startswith("/") else None
    if wanted_group:
        line = next((line for line in groups if line[0] == wanted_group), None)
        if line is None and not wanted_group.isdecimal():
            raise _no_account(f"unable to find group {wanted_group}: no matching entries in group file")
        gid = int(wanted_group) if wanted_group.isdecimal() or line is None else int(line[2])
        return User(uid, gid, (gid,), home)
    more = [int(line[2]) for line in groups if found and found[0] in line[3].split(",")]
    return User(uid, gid, tuple(dict.fromkeys([gid, *more])), home)


def _no_account(text: str) -> BrigError:
    return BrigError("E-IDENTITY", text, "name a user of the sandbox, or give numbers as UID:GID")
