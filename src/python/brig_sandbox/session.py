"""A process in a sandbox: its connection, its pipes, and its result. No function of this module blocks."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from .errors import BrigError, ExecFailed, ExecTimeout
from .protocol import Connection, SandboxEnded, other_version

STDIN, STDOUT, STDERR, TERMINAL = 0, 1, 2, None
# Bytes of one read.
CHUNK = 64 << 10
# How often output is reported, so that the task is not idle.
REPORT = 1.0
# How long output is read after the end of a process.
DRAIN = 2.0


@contextlib.contextmanager
def releasing() -> Iterator[None]:
    """A sandbox bounds what goes on in the background. If it has too much, the rest of this process ends: its result
    stays."""
    try:
        yield
    except SandboxEnded:
        raise
    except BrigError as error:
        if error.code != "E-STATE":
            raise


@dataclass(frozen=True)
class Result:
    """The end of a process."""

    status: int
    """Its exit status; 128 plus the signal's number for a killed process."""
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """Whether output beyond `max_output` was left out."""

    @property
    def text(self) -> str:
        """Standard output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode(errors="replace")

    def check(self) -> Result:
        """Returns the result of a success; raises `ExecFailed` for another exit status than 0."""
        if self.status != 0:
            raise ExecFailed(self.status, self.stdout, self.stderr)
        return self


@dataclass(frozen=True)
class Chunk:
    """A piece of output."""

    stream: str
    """`stdout` or `stderr`; a terminal has `stdout` alone."""
    data: bytes


class Session:
    """The state of one process."""

    def __init__(self, connection: Connection, exec_request: dict[str, Any]) -> None:
        self.connection = connection
        self.pipes: dict[Optional[int], int] = {}
        self.has_started = False
        self.status: Optional[int] = None
        self.timed_out = False
        self.pending = bytearray()
        self.input_ends = False
        self._reported = 0.0
        connection.send({"exec": exec_request})

    def receive(self) -> bool:
        """Takes one message; `False` if none has come."""
        received = self.connection.receive()
        if received is None:
            return False
        reply, descriptor = received
        if isinstance(reply, dict) and "stream" in reply and descriptor is not None:
            os.set_blocking(descriptor, False)
            self.pipes[reply["stream"]] = descriptor
        elif reply == "started":
            self.has_started = True
        elif isinstance(reply, dict) and "exited" in reply:
            self.status = reply["exited"]
        elif reply == "timed_out":
            self.status, self.timed_out = 124, True
        elif reply != "done":
            raise other_version(f"brig answers with {reply!r}")
        if self.status is not None:
            self.close_pipe(STDIN)
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended. Output may still be in its pipes."""
        return self.status is not None

    def outputs(self) -> list[tuple[int, str]]:
        """The descriptors to read, each with the name of its stream."""
        found = []
        for number, name in ((STDOUT, "stdout"), (TERMINAL, "stdout"), (STDERR, "stderr")):
            if number in self.pipes:
                found.append((self.pipes[number], name))
        return found

    def read(self, descriptor: int) -> Optional[bytes]:
        """Reads output; `None` if there is none now, and closes the pipe at its end."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            data = b""  # a terminal whose last process has ended
        if not data:
            for number, pipe in list(self.pipes.items()):
                if pipe == descriptor:
                    self.close_pipe(number)
            return None
        self.report()
        return data

    def report(self) -> None:
        """Reports activity, as the task's idle time counts."""
        now = time.monotonic()
        if now - self._reported >= REPORT and not self.has_ended:
            self._reported = now
            with contextlib.suppress(BrigError):
                self.connection.send("active")

    def drain(self) -> Iterator[tuple[str, bytes]]:
        """Reads what is in the pipes now. Processes in the background may go on writing: it ends after `DRAIN`."""
        end = time.monotonic() + DRAIN
        for descriptor, name in self.outputs():
            while time.monotonic() < end:
                data = self.read(descriptor)
                if data is None:
                    break
                yield name, data

    def input(self) -> Optional[int]:
        """The descriptor to write, while input waits for room."""
        return self.pipes.get(STDIN, self.pipes.get(TERMINAL)) if self.pending else None

    def feed(self, data: bytes) -> None:
        """Adds input."""
        if STDIN in self.pipes or TERMINAL in self.pipes or not self.has_started:
            self.pending += data

    def end_input(self) -> None:
        """Closes the input after what waits is written."""
        self.input_ends = True
        if self.has_started and not self.pending:
            self.close_pipe(STDIN)

    def write(self) -> None:
        """Writes input that waits, as much as fits."""
        descriptor = self.input()
        if descriptor is not None:
            try:
                with memoryview(self.pending) as view:
                    count = os.write(descriptor, view[:CHUNK])
                del self.pending[:count]
            except BlockingIOError:
                return
            except OSError:  # the process has closed its input
                self.pending.clear()
                self.close_pipe(STDIN)
        if not self.pending and self.input_ends:
            self.close_pipe(STDIN)

    def signal(self, number: int) -> None:
        """Sends the process a signal."""
        if not self.has_ended:
            self.connection.send({"kill": {"signal": number}})

    def close_pipe(self, number: Optional[int]) -> None:
        """Closes one of its pipes."""
        descriptor = self.pipes.pop(number, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def close_pipes(self) -> None:
        """Closes all of its pipes."""
        for number in list(self.pipes):
            self.close_pipe(number)

    def close(self) -> None:
        """Ends the process and all that it has started, if anything still runs."""
        self.close_pipes()
        self.connection.close()


class ProcessHandle:
    """The methods of a running process that never block. `Process` and `AsyncProcess` add those that wait."""

    def __init__(
        self, session: Session, timeout: Optional[float], release: Callable[[], None], background: bool
    ) -> None:
        """`release` frees its place among the processes of the sandbox object. Any thread may call it."""
        self._session = session
        self._timeout = timeout
        self._background = background
        # A process without a `with` frees its place when it is collected.
        self._finalizer = weakref.finalize(self, _end, session, release)

    def write(self, data: bytes) -> None:
        """Adds input. It is written while the output is read."""
        self._session.feed(data)
        self._session.write()

    def close_input(self) -> None:
        """Ends the input."""
        self._session.end_input()

    def send_signal(self, number: int) -> None:
        """Sends a signal to its process group."""
        self._session.signal(number)

    def close(self) -> None:
        """Kills it, with all that it has started."""
        self._finalizer()

    @property
    def _releases(self) -> bool:
        """Whether the processes that it leaves in the background must be released before it is closed."""
        return self._background and not self._session.timed_out and self._finalizer.alive

    def _exit_status(self) -> int:
        """The exit status of a process whose output is read. Raises `ExecTimeout` after its time limit."""
        if self._session.timed_out:
            raise ExecTimeout(self._timeout or 0)
        return self._session.status if self._session.status is not None else 255


def _end(session: Session, release: Callable[[], None]) -> None:
    try:
        session.close()
    finally:
        release()


class Collector:
    """The output of a process, up to a bound for each stream."""

    def __init__(self, most: int, most_errors: Optional[int] = None) -> None:
        self._most = {"stdout": most, "stderr": most if most_errors is None else most_errors}
        # Not a list: its small pieces would need many times the memory of their bytes.
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self.truncated = False

    def add(self, name: str, data: bytes) -> None:
        """Adds output."""
        kept = self._kept[name]
        room = max(self._most[name] - len(kept), 0)
        if len(data) > room:
            self.truncated = True
        kept += data[:room]

    def get(self, name: str) -> bytes:
        """The output of one stream."""
        return bytes(self._kept[name])

    def result(self, status: int) -> Result:
        """The result of a process with this exit status."""
        return Result(status, self.get("stdout"), self.get("stderr"), self.truncated)
