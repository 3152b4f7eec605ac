"""The control socket of a running sandbox: docs/control.md. One connection carries one request, or one process.

The socket is non-blocking: `Connection.receive` returns `None` until a message has arrived. The callers wait with
poll(2) or with asyncio.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

from .errors import BrigError, from_wire

# The version of the messages that this package speaks.
VERSION = 1
# The longest message. A longer document is in a file in memory.
LARGEST = 128 << 10
# The longest document.
LARGEST_DOCUMENT = 4 << 20
# A socket buffer that holds the longest message.
_RECEIVED = LARGEST + 64
# The errors of a socket that one of its sides has closed.
_CLOSED = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF})

_TOO_LONG = "the command line and its variables have more than 4 MiB"
_MFD_NOEXEC_SEAL = 8
_F_ADD_SEALS, _SEAL_SHRINK, _SEAL_GROW = 1033, 2, 4


def encode_word(word: Union[str, bytes, "os.PathLike[str]"]) -> Union[str, list[int]]:
    """A word of a command line: text, or a list of bytes for what is not UTF-8."""
    raw = os.fsencode(word)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def duration(seconds: Optional[float]) -> Optional[dict[str, int]]:
    """A time in messages."""
    if seconds is None:
        return None
    whole = int(seconds)
    return {"secs": whole, "nanos": int((seconds - whole) * 1_000_000_000)}


class SandboxEnded(BrigError):
    """The sandbox has ended, or ended during the call."""

    def __init__(self, message: str = "the sandbox has ended") -> None:
        super().__init__("E-STATE", message, "see `brig task show ID`")


class Connection:
    """One connection to the supervisor. It never blocks after `connect`."""

    def __init__(self, directory: Union[int, Path]) -> None:
        """Connects to the sandbox whose record is in `directory`: a path, or a descriptor of the folder."""
        opened = directory if isinstance(directory, int) else _open(directory)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # By the folder's descriptor: the address of a socket has at most 107 bytes.
            self.socket.connect(f"/proc/self/fd/{opened}/control.sock")
            self.socket.setblocking(False)
        except OSError as cause:
            self.socket.close()
            if isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
                raise SandboxEnded() from cause
            raise BrigError("E-STORE", f"connect to the sandbox: {cause.strerror}", errno=cause.errno) from cause
        finally:
            if opened is not directory:
                os.close(opened)

    def fileno(self) -> int:
        """The descriptor, for poll(2)."""
        return self.socket.fileno()

    def send(self, request: Any) -> None:
        """Sends a request."""
        document = json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()
        if len(document) > LARGEST_DOCUMENT:
            raise BrigError("E-USAGE", _TOO_LONG, "write a file in the sandbox and run that")
        try:
            if len(document) < LARGEST:
                self.socket.send(b"J" + document)
            else:
                self._send_memory(document)
        except BlockingIOError as cause:
            raise BrigError("E-LOST", "the supervisor does not read its requests") from cause
        except OSError as cause:
            if cause.errno not in _CLOSED:
                raise
            raise SandboxEnded() from cause

    def _send_memory(self, document: bytes) -> None:
        memory = _new_memory()
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(document)
            fcntl.fcntl(memory, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))
            self.socket.sendmsg([b"M"], [rights])
        finally:
            os.close(memory)

    def receive(self) -> Optional[tuple[Any, Optional[int]]]:
        """The next reply and its descriptor; `None` if none has come yet. Raises the error of a reply that is one."""
        try:
            message, ancillary, flags, _ = self.socket.recvmsg(
                _RECEIVED, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as cause:
            if cause.errno not in _CLOSED:
                raise
            raise SandboxEnded("the sandbox ended meanwhile") from cause
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        descriptor = descriptors[0] if descriptors else None
        if not message:
            raise SandboxEnded("the sandbox ended meanwhile")
        try:
            if message[:1] == b"M" and descriptor is not None:
                message = b"J" + os.pread(descriptor, LARGEST_DOCUMENT, 0)
                _close(descriptors)
                descriptor = None
            if message[:1] != b"J" or flags & socket.MSG_TRUNC:
                raise ValueError("not a JSON document")
            reply = json.loads(message[1:])
        except ValueError as cause:
            _close(descriptors)
            raise other_version(f"a reply that is not understood: {cause}") from cause
        if isinstance(reply, dict) and "failed" in reply:
            _close(descriptors)
            raise from_wire(reply["failed"])
        return reply, descriptor

    def close(self) -> None:
        """Ends the connection, and what was started on it."""
        self.socket.close()


def _open(directory: Path) -> int:
    try:
        return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as cause:
        raise BrigError("E-NOT-FOUND", f"reach the sandbox of `{directory}`: {cause.strerror}") from cause


def _new_memory() -> int:
    try:
        return os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _MFD_NOEXEC_SEAL)
    except OSError:  # kernels before 6.3 do not know the last flag
        return os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def other_version(what: str) -> BrigError:
    """The error of a supervisor and a package that do not understand each other."""
    return BrigError("E-STATE", what, "use the `brig` that this package's wheel installs, or a package of that version")


def check_version(reply: Any) -> str:
    """Returns brig's version; refuses a supervisor with other messages."""
    version = reply.get("version") if isinstance(reply, dict) else None
    if not version:
        raise other_version(f"brig answers the request `version` with {reply!r}")
    if version["messages"] != VERSION:
        found = f"version {version['messages']} of brig {version['brig']}"
        raise other_version(f"the control socket speaks {found}, and this package version {VERSION}")
    return str(version["brig"])
