"""A sandbox to work in. Its end is the end of this program at the latest."""

from __future__ import annotations

import os
import queue
import select
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as HostPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Union

from . import program as programs
from . import requests
from .errors import BrigError, ExecTimeout
from .protocol import Connection, SandboxEnded, duration
from .receipt import Receipt
from .requests import MAX_FILE, MAX_OUTPUT, Checkpoint, Command, FileEntry, Path, User
from .session import STDIN, Chunk, Collector, ProcessHandle, Result, Session, releasing
from .state import SandboxState, begin

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .program import Options


def wait_for(descriptor: Any, events: int = select.POLLIN, timeout: Optional[float] = None) -> bool:
    """Waits for one descriptor; `False` after the time limit."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def ask(connection: Connection, request: Any) -> Any:
    """Sends a request and waits for its reply."""
    connection.send(request)
    while True:
        wait_for(connection)
        received = connection.receive()
        if received is not None:
            return received[0]


class Process(ProcessHandle):
    """A running process in a sandbox, with its output as it comes: iterate over it. Its end is that of the `with`."""

    def __iter__(self) -> Iterator[Chunk]:
        """The pieces of its output until it has ended."""
        session = self._session
        while not session.has_ended:
            poll = select.poll()
            poll.register(session.connection, select.POLLIN)
            outputs = dict(session.outputs())
            for descriptor in outputs:
                poll.register(descriptor, select.POLLIN)
            to_write = session.input()
            if to_write is not None:
                poll.register(to_write, select.POLLOUT | (select.POLLIN if to_write in outputs else 0))
            # Output first: the message of the end comes after it.
            ready = sorted(poll.poll(), key=lambda each: each[0] == session.connection.fileno())
            for descriptor, _ in ready:
                if descriptor == session.connection.fileno():
                    while not session.has_ended and session.receive():
                        pass
                    continue
                if descriptor == to_write:
                    session.write()
                if descriptor in outputs:
                    data = session.read(descriptor)
                    if data is not None:
                        yield Chunk(outputs[descriptor], data)
        for name, data in session.drain():
            yield Chunk(name, data)
        if self._releases:
            with releasing():
                ask(session.connection, "release")
        self.close()

    def wait(self) -> int:
        """Reads the rest of its output, and returns its exit status. Raises `ExecTimeout` at its time limit."""
        for _ in self:
            pass
        return self._exit_status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """A sandbox without a command. Use it in a `with`; it ends with that, and with this program in any case."""

    def __init__(self, state: SandboxState) -> None:
        """Use `Sandbox.start` or `Sandbox.attach`."""
        self._state = state
        # Not a semaphore: the garbage collector may free a place at any moment, and only `put` of a queue is reentrant.
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(requests.MAX_PROCESSES):
            self._slots.put(None)
        self._lock = threading.Lock()
        try:
            self._control = state.connect_first()
            self._check_version()
        except SandboxEnded as cause:
            state.abandon()
            raise state.start_error() from cause
        except BaseException:
            state.abandon()
            raise

    def _check_version(self) -> None:
        while True:
            try:
                self._state.accept_version(ask(self._control, "version"))
                return
            except SandboxEnded:
                raise
            except BrigError as error:
                # It waits for its turn (max_parallel).
                if error.code != "E-STATE" or "max_parallel" not in self._state.options or self._state.brig_version:
                    raise
                time.sleep(0.05)

    @classmethod
    def start(
        cls,
        *,
        program: Optional[str] = None,
        store: Optional[Path] = None,
        command: Optional[Sequence[Union[str, bytes]]] = None,
        outlives_caller: bool = False,
        **options: Unpack[Options],
    ) -> Self:
        """Starts a sandbox with the flags of `brig task run` as keyword arguments: `image="debian:12"`, `memory="2G"`,
        `allow=["@pypi"]`, `env={"NAME": "value"}`. Returns when it is built.

        `program` and `store` are the path of `brig` and of its store. With `command` the sandbox ends with that.
        """
        found, folder, id = begin(program, store, options, command, not outlives_caller)
        return cls(SandboxState(found, folder, id, options, not outlives_caller))

    @classmethod
    def attach(cls, id: str, *, program: Optional[str] = None, store: Optional[Path] = None) -> Self:
        """A running task of any origin, by its id. It goes on when this program ends."""
        return cls(SandboxState(program or programs.find_program(), programs.find_store(store), id, {}, False))

    @property
    def id(self) -> str:
        """Its id, for `brig task`."""
        return self._state.id

    @property
    def receipt(self) -> Optional[Receipt]:
        """Its receipt, after `stop`."""
        return self._state.receipt

    def exec(
        self,
        command: Command,
        *,
        input: Union[bytes, str] = b"",
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        max_output: int = MAX_OUTPUT,
        background: bool = False,
    ) -> Result:
        """Runs a process to its end. A list is a program with its arguments; a text is a command line for `sh`.

        At `timeout` seconds it is killed with all that it has started, and `ExecTimeout` is raised. What it has started
        in the background ends with it; with `background=True` that goes on. Of each stream `max_output` bytes are
        kept.
        """
        output = Collector(max_output)
        process = self._begin(command, env, cwd, user, timeout, None, background)
        try:
            process.write(input.encode() if isinstance(input, str) else input)
            process.close_input()
            for chunk in process:
                output.add(chunk.stream, chunk.data)
            session = process._session
            result = output.result(session.status or 0)
            if session.timed_out:
                raise ExecTimeout(timeout or 0, result.stdout, result.stderr)
            return result
        finally:
            process.close()

    def exec_stream(
        self,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        terminal: Optional[tuple[int, int]] = None,
        background: bool = False,
    ) -> Process:
        """Starts a process whose output is read as it comes: `with box.exec_stream("make") as process: for chunk in
        process: …`. `terminal` is the rows and columns of a terminal. With `background=True`, what it has started goes
        on after its end."""
        return self._begin(command, env, cwd, user, timeout, terminal, background)

    def _begin(
        self,
        command: Command,
        env: Optional[Mapping[str, str]],
        cwd: Optional[Path],
        user: Optional[str],
        timeout: Optional[float],
        terminal: Optional[tuple[int, int]],
        background: bool,
    ) -> Process:
        account = self._find_user(user) if user else None
        request = requests.exec_request(
            command, env=env, cwd=cwd, user=account, timeout=timeout, terminal=terminal
        )
        return self._start_session(request, timeout, background)

    def _start_session(
        self, request: dict[str, Any], timeout: Optional[float] = None, background: bool = False
    ) -> Process:
        self._slots.get()
        session = None
        try:
            session = Session(self._state.connect(), request)
            while not session.has_started:
                if not session.receive():
                    wait_for(session.connection)
        except BaseException:
            if session is not None:
                session.close()
            self._slots.put(None)
            raise
        return Process(session, timeout, partial(self._slots.put, None), background)

    def _find_user(self, text: str) -> User:
        if not requests.needs_accounts(text):
            return requests.find_user(text, b"", b"")

        def read(path: str) -> bytes:
            try:
                return self.read_file(path, max_bytes=requests.MAX_ACCOUNTS)
            except BrigError as error:
                if error.code == "E-NOT-FOUND":
                    return b""
                raise

        return requests.find_user(text, read("/etc/passwd"), read("/etc/group"))

    def _file(self, request: Any, data: bytes = b"", most: int = MAX_OUTPUT) -> bytes:
        """Serves a file request to its end."""
        output = Collector(most, requests.MAX_ERROR)
        with self._start_session(requests.file_request()) as process:
            process.write(requests.file_line(request) + data)
            process.close_input()
            for chunk in process:
                output.add(chunk.stream, chunk.data)
                if output.truncated:  # the rest may be endless
                    raise requests.too_much(chunk.stream, most)
            result = output.result(process.wait())
        return requests.check_file_result(result)

    def read_file(self, path: Path, *, max_bytes: int = MAX_FILE) -> bytes:
        """The bytes of a file. A relative path is meant from the workspace, and links lead to files of the sandbox."""
        return self._file({"read": requests.inside(path)}, most=max_bytes)

    def write_file(self, path: Path, data: Union[bytes, str], *, mode: int = 0o644) -> None:
        """Writes a file as the sandbox's user. `mode` is that of a new file."""
        content = data.encode() if isinstance(data, str) else data
        self._file({"write": {"path": requests.inside(path), "mode": mode}}, content)

    def list_files(self, path: Path = ".") -> list[FileEntry]:
        """The entries of a folder, by name."""
        return requests.entries(self._file({"list": requests.inside(path)}))

    def stat(self, path: Path) -> FileEntry:
        """A file or folder; a link leads to its target. Its `name` is empty."""
        return requests.entries(b"[" + self._file({"look": requests.inside(path)}) + b"]")[0]

    def upload(self, source: Path, target: Path, *, exclude: Sequence[str] = ()) -> None:
        """Copies a file or folder of the host into the sandbox, as `target`. `exclude` has patterns of file names."""
        target = HostPath(requests.inside(target))
        with self._start_session(requests.file_request()) as process:
            session = process._session
            pipe = session.pipes.pop(STDIN)
            os.set_blocking(pipe, True)
            failed: Optional[BaseException] = None
            with open(pipe, "wb") as to_it:
                to_it.write(requests.file_line({"unpack": [str(target.parent), target.name]}))
                try:
                    pack(HostPath(source), target.name, exclude, to_it)
                    to_it.flush()
                except BrokenPipeError as cause:  # the other side's error is the cause
                    failed = cause
            output = Collector(requests.MAX_ACCOUNTS)
            for chunk in process:
                output.add(chunk.stream, chunk.data)
            requests.check_file_result(Result(process.wait(), b"", output.get("stderr")))
            if failed is not None:
                raise BrigError("E-LOST", "the sandbox did not take the files") from failed

    def download(self, source: Path, target: Path, *, exclude: Sequence[str] = ()) -> None:
        """Copies a file or folder of the sandbox to `target` of the host: into it under its own name if that is a
        folder. `brig task cp` does it: no link leads out of the target, and the bytes are at most the disk limit."""
        words: list[Union[str, bytes]] = ["task", "cp", f"--store={self._state.store}"]
        words += [f"--exclude={pattern}" for pattern in exclude]
        words += [f"{self.id}:{requests.inside(source)}", os.path.abspath(target)]
        programs.call(self._state.program, words)

    def _ask(self, request: Any) -> Any:
        with self._lock:
            return ask(self._control, request)

    def stats(self) -> dict[str, Any]:
        """What it uses now: bytes, processes, seconds."""
        return dict(self._ask("stats")["stats"])

    def pause(self) -> None:
        """Freezes its processes."""
        self._ask("pause")

    def unpause(self) -> None:
        """Lets its processes go on."""
        self._ask("unpause")

    def allow(self, rule: str) -> None:
        """Allows what an egress rule covers from now on."""
        programs.call(self._state.program, ["task", "allow", f"--store={self._state.store}", self.id, rule])

    def deny(self, rule: str) -> None:
        """Refuses what an egress rule covers from now on, and cuts what is open."""
        programs.call(self._state.program, ["task", "deny", f"--store={self._state.store}", self.id, rule])

    def checkpoint(self, name: Optional[str] = None) -> Checkpoint:
        """Copies its files as they are now. It must have been started as root with `keep=True`."""
        made = self._ask({"checkpoint": {"name": name}})["checkpoint"]
        return Checkpoint(made["name"], made["created"], made["bytes"])

    def fork(
        self, checkpoint: Union[Checkpoint, str, None] = None, *, number: int = 1, **options: Any
    ) -> list[Sandbox]:
        """Begins sandboxes with the files of a checkpoint (default: a new one). `options` are limits, `env`, `secret`.
        If one fails, all of them end."""
        name = _name(checkpoint) if checkpoint is not None else self.checkpoint().name
        return self._derive("fork", [], {**options, "from": name, "number": number})

    def rollback(self, checkpoint: Union[Checkpoint, str], **options: Any) -> None:
        """Ends its processes and goes on with the files of a checkpoint, under a new id. After an error the object
        keeps the sandbox from before, which may have ended."""
        # If this fails, `stop` needs the state before.
        (again,) = self._derive("rollback", [_name(checkpoint)], options)
        with self._lock:
            self._close()
            self._state, self._control = again._state, again._control

    def _derive(self, verb: str, words: Sequence[str], options: Mapping[str, Any]) -> list[Sandbox]:
        state = self._state
        ids = state.derive(verb, words, options)
        merged = {**state.options, **options}
        try:
            return [type(self)(SandboxState(state.program, state.store, id, merged, state._owned)) for id in ids]
        except BaseException:
            state.kill(ids)
            raise

    def _close(self) -> None:
        self._control.close()
        self._state.forget()

    def stop(self, *, grace: Optional[float] = None) -> Receipt:
        """Ends it and returns its receipt. With `grace` its processes may end within that many seconds first."""
        if self._state.receipt is not None:
            return self._state.receipt
        try:
            with self._lock:
                ask(self._control, {"stop": {"grace": duration(grace or 0), "drain": None}})
        except SandboxEnded:
            pass
        self._state.receipt = self._state.fetch_receipt()
        self._close()
        return self._state.receipt

    def discard(self) -> None:
        """Ends it, and removes its record and its checkpoints."""
        self.stop()
        programs.call(self._state.program, ["task", "rm", f"--store={self._state.store}", self.id])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{'' if self.receipt is None else ' ' + self.receipt.outcome}>"


def _name(checkpoint: Union[Checkpoint, str]) -> str:
    return checkpoint.name if isinstance(checkpoint, Checkpoint) else checkpoint


def pack(source: HostPath, name: str, exclude: Sequence[str], sink: Any) -> None:
    """Writes a file or folder as a tar stream under `name`. Links stay links; sockets and devices are left out."""
    import fnmatch

    def keep(entry: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        base = entry.name.rsplit("/", 1)[-1]
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            return None
        if entry.name != name and any(fnmatch.fnmatch(base, pattern) for pattern in exclude):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    if not source.exists():
        raise BrigError("E-NOT-FOUND", f"there is no `{source}`")
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, arcname=name, filter=keep)
