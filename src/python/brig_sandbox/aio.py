"""The same for asyncio. Processes, files and the waits for tasks need no thread; each other call that blocks runs in a
thread of its own. In a shared pool, calls that wait would keep out the calls that end their wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from . import requests
from .errors import BrigError, ExecTimeout, from_program
from .protocol import LARGEST_DOCUMENT
from .receipt import Receipt
from .requests import MAX_FILE, MAX_OUTPUT, Checkpoint, Command, FileEntry, Path, User
from .sandbox import Sandbox
from .session import CHUNK, Chunk, Collector, ProcessHandle, Result, Session, releasing
from .state import read_receipt
from .task import Task

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


def _submit(call: Callable[..., T], *words: Any, **options: Any) -> Future[T]:
    """Runs a call in a new daemon thread, which does not delay the end of this program."""
    done: Future[T] = Future()
    # A cancelled coroutine must not cancel this: `_start` needs the result.
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call(*words, **options))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


async def _in_thread(call: Callable[..., T], *words: Any, **options: Any) -> T:
    """Waits for a call in a new thread. The thread goes on if this coroutine is cancelled."""
    return await asyncio.wrap_future(_submit(call, *words, **options))


async def _start(start: Callable[..., T], *words: Any, **options: Any) -> T:
    """Starts a sandbox or task in a new thread. If this coroutine is cancelled, the sandbox or task ends after its
    start."""
    starting = _submit(start, *words, **options)
    try:
        return await asyncio.wrap_future(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_stop_unwanted)
        raise


def _stop_unwanted(starting: Future[Any]) -> None:
    if starting.exception() is None:
        _submit(starting.result().stop, grace=0)


async def _wait_for_any(readers: Sequence[int], writer: Optional[int]) -> set[int]:
    """Waits until one of the descriptors is ready; returns the ready ones."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    ready: set[int] = set()

    def wake(descriptor: int) -> None:
        ready.add(descriptor)
        if not woken.done():
            woken.set_result(None)

    for descriptor in readers:
        loop.add_reader(descriptor, wake, descriptor)
    if writer is not None:
        loop.add_writer(writer, wake, writer)
    try:
        await woken
    finally:
        for descriptor in readers:
            loop.remove_reader(descriptor)
        if writer is not None:
            loop.remove_writer(writer)
    return ready


class AsyncProcess(ProcessHandle):
    """A running process in a sandbox: `async for chunk in process`. Its end is that of the `async with`."""

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The pieces of its output until it has ended."""
        session = self._session
        while not session.has_ended:
            outputs = dict(session.outputs())
            client, to_write = session.connection.fileno(), session.input()
            ready = await _wait_for_any([*outputs, client], to_write)
            if to_write in ready:
                session.write()
            # Output first: the message of the end comes after it.
            for descriptor in outputs:
                if descriptor in ready:
                    data = session.read(descriptor)
                    if data is not None:
                        yield Chunk(outputs[descriptor], data)
            while client in ready and not session.has_ended and session.receive():
                pass
        for name, data in session.drain():
            yield Chunk(name, data)
        if self._releases:
            with releasing():
                session.connection.send("release")
                while session.connection.receive() is None:
                    await _wait_for_any([session.connection.fileno()], None)
        self.close()

    async def wait(self) -> int:
        """Reads the rest of its output, and returns its exit status. Raises `ExecTimeout` at its time limit."""
        async for _ in self:
            pass
        return self._exit_status()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Starting:
    """A start on its way: `await` it, or enter it with `async with`."""

    def __init__(self, start: Awaitable[AsyncSandbox]) -> None:
        self._start = start
        self._sandbox: Optional[AsyncSandbox] = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self._start.__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._start
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.stop()


class AsyncSandbox:
    """A sandbox without a command: `async with AsyncSandbox.start() as box`. It ends with this program at the latest.
    The methods are those of `Sandbox`; cancelling a call kills its process."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Use `AsyncSandbox.start` or `AsyncSandbox.attach`."""
        self._sandbox = sandbox
        self._slots = asyncio.Semaphore(requests.MAX_PROCESSES)

    @classmethod
    def start(cls, **options: Any) -> _Starting:
        """Starts a sandbox, with the options of `Sandbox.start`."""

        async def begin() -> AsyncSandbox:
            return cls(await _start(Sandbox.start, **options))

        return _Starting(begin())

    @classmethod
    async def attach(cls, id: str, **options: Any) -> AsyncSandbox:
        """A running task of any origin, by its id."""
        return cls(await _in_thread(Sandbox.attach, id, **options))

    @property
    def id(self) -> str:
        """Its id, for `brig task`."""
        return self._sandbox.id

    @property
    def receipt(self) -> Optional[Receipt]:
        """Its receipt, after `stop`."""
        return self._sandbox.receipt

    async def exec(
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
        """Runs a process to its end, as `Sandbox.exec`."""
        output = Collector(max_output)
        process = await self._begin(command, env, cwd, user, timeout, None, background)
        try:
            process.write(input.encode() if isinstance(input, str) else input)
            process.close_input()
            async for chunk in process:
                output.add(chunk.stream, chunk.data)
            session = process._session
            result = output.result(session.status or 0)
            if session.timed_out:
                raise ExecTimeout(timeout or 0, result.stdout, result.stderr)
            return result
        finally:
            process.close()

    async def exec_stream(
        self,
        command: Command,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[Path] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        terminal: Optional[tuple[int, int]] = None,
        background: bool = False,
    ) -> AsyncProcess:
        """Starts a process whose output is read as it comes: `async with await box.exec_stream("make") as process`."""
        return await self._begin(command, env, cwd, user, timeout, terminal, background)

    async def _begin(
        self,
        command: Command,
        env: Optional[Mapping[str, str]],
        cwd: Optional[Path],
        user: Optional[str],
        timeout: Optional[float],
        terminal: Optional[tuple[int, int]],
        background: bool,
    ) -> AsyncProcess:
        account = await self._find_user(user) if user else None
        request = requests.exec_request(
            command, env=env, cwd=cwd, user=account, timeout=timeout, terminal=terminal
        )
        return await self._start_session(request, timeout, background)

    async def _start_session(
        self, request: dict[str, Any], timeout: Optional[float] = None, background: bool = False
    ) -> AsyncProcess:
        await self._slots.acquire()
        session = None
        try:
            session = Session(self._sandbox._state.connect(), request)
            while not session.has_started:
                if not session.receive():
                    await _wait_for_any([session.connection.fileno()], None)
        except BaseException:
            if session is not None:
                session.close()
            self._slots.release()
            raise
        release = partial(_release, asyncio.get_running_loop(), self._slots)
        return AsyncProcess(session, timeout, release, background)

    async def _find_user(self, text: str) -> User:
        if not requests.needs_accounts(text):
            return requests.find_user(text, b"", b"")

        async def read(path: str) -> bytes:
            try:
                return await self.read_file(path, max_bytes=requests.MAX_ACCOUNTS)
            except BrigError as error:
                if error.code == "E-NOT-FOUND":
                    return b""
                raise

        return requests.find_user(text, await read("/etc/passwd"), await read("/etc/group"))

    async def _file(self, request: Any, data: bytes = b"", most: int = MAX_OUTPUT) -> bytes:
        output = Collector(most, requests.MAX_ERROR)
        async with await self._start_session(requests.file_request()) as process:
            process.write(requests.file_line(request) + data)
            process.close_input()
            async for chunk in process:
                output.add(chunk.stream, chunk.data)
                if output.truncated:  # the rest may be endless
                    raise requests.too_much(chunk.stream, most)
            result = output.result(await process.wait())
        return requests.check_file_result(result)

    async def read_file(self, path: Path, *, max_bytes: int = MAX_FILE) -> bytes:
        """The bytes of a file."""
        return await self._file({"read": requests.inside(path)}, most=max_bytes)

    async def write_file(self, path: Path, data: Union[bytes, str], *, mode: int = 0o644) -> None:
        """Writes a file as the sandbox's user."""
        content = data.encode() if isinstance(data, str) else data
        await self._file({"write": {"path": requests.inside(path), "mode": mode}}, content)

    async def list_files(self, path: Path = ".") -> list[FileEntry]:
        """The entries of a folder, by name."""
        return requests.entries(await self._file({"list": requests.inside(path)}))

    async def stat(self, path: Path) -> FileEntry:
        """A file or folder; a link leads to its target."""
        return requests.entries(b"[" + await self._file({"look": requests.inside(path)}) + b"]")[0]

    async def upload(self, source: Path, target: Path, *, exclude: Sequence[str] = ()) -> None:
        """Copies a file or folder of the host into the sandbox, as `target`."""
        await _in_thread(self._sandbox.upload, source, target, exclude=exclude)

    async def download(self, source: Path, target: Path, *, exclude: Sequence[str] = ()) -> None:
        """Copies a file or folder of the sandbox to `target` of the host."""
        await _in_thread(self._sandbox.download, source, target, exclude=exclude)

    async def stats(self) -> dict[str, Any]:
        """What it uses now."""
        return await _in_thread(self._sandbox.stats)

    async def pause(self) -> None:
        """Freezes its processes."""
        await _in_thread(self._sandbox.pause)

    async def unpause(self) -> None:
        """Lets its processes go on."""
        await _in_thread(self._sandbox.unpause)

    async def allow(self, rule: str) -> None:
        """Allows what an egress rule covers from now on."""
        await _in_thread(self._sandbox.allow, rule)

    async def deny(self, rule: str) -> None:
        """Refuses what an egress rule covers from now on."""
        await _in_thread(self._sandbox.deny, rule)

    async def checkpoint(self, name: Optional[str] = None) -> Checkpoint:
        """Copies its files as they are now."""
        return await _in_thread(self._sandbox.checkpoint, name)

    async def fork(
        self, checkpoint: Union[Checkpoint, str, None] = None, *, number: int = 1, **options: Any
    ) -> list[AsyncSandbox]:
        """Begins sandboxes with the files of a checkpoint."""
        forks = await _in_thread(self._sandbox.fork, checkpoint, number=number, **options)
        return [type(self)(each) for each in forks]

    async def rollback(self, checkpoint: Union[Checkpoint, str], **options: Any) -> None:
        """Ends its processes and goes on with the files of a checkpoint, under a new id."""
        await _in_thread(self._sandbox.rollback, checkpoint, **options)

    async def stop(self, *, grace: Optional[float] = None) -> Receipt:
        """Ends it and returns its receipt."""
        return await _in_thread(self._sandbox.stop, grace=grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _release(loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore) -> None:
    # The garbage collector may run in any thread, and after the loop was closed.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(slots.release)


@contextlib.asynccontextmanager
async def _follow(task: Task, *verb: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """Runs a command of `brig task` and gives the lines of its standard output. Raises the command's error after its
    end. Kills the command if the block ends first."""
    # Not by asyncio: Python 3.11 waits forever if the loop ends between its fork and its pipes.
    words = [task._program, *task._words(*verb)]
    with Popen(words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, bufsize=0) as process:
        errors = bytearray()
        lines = _lines(process, errors)
        try:
            yield lines
            async for _ in lines:
                pass
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise from_program(process.returncode, b"", bytes(errors))


async def _lines(process: Popen[bytes], errors: bytearray) -> AsyncIterator[bytes]:
    """The lines of standard output until both streams have ended. `errors` gets standard error."""
    assert process.stdout is not None and process.stderr is not None
    output = process.stdout.fileno()
    streams = {output, process.stderr.fileno()}
    rest = b""
    while streams:
        for descriptor in await _wait_for_any([*streams], None):
            data = os.read(descriptor, CHUNK)
            if not data:
                streams.remove(descriptor)
            elif descriptor != output:
                errors += data[: LARGEST_DOCUMENT - len(errors)]
            else:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > LARGEST_DOCUMENT:
                    raise ValueError("a line of the program is too long")
    if rest:
        yield rest


class AsyncTask:
    """A command in a new sandbox, to its end."""

    def __init__(self, task: Task) -> None:
        """Use `AsyncTask.start` or `AsyncTask.run`."""
        self._task = task
        self.id = task.id

    @classmethod
    async def start(cls, command: Union[str, Sequence[Union[str, bytes]]], **options: Any) -> AsyncTask:
        """Starts a command, with the options of `Task.start`."""
        return cls(await _start(Task.start, command, **options))

    @classmethod
    async def run(cls, command: Union[str, Sequence[Union[str, bytes]]], **options: Any) -> Receipt:
        """Starts a command and waits for its end. A cancelled call ends the task."""
        task = await cls.start(command, **options)
        try:
            return await task.wait()
        except asyncio.CancelledError:
            await asyncio.shield(task.stop())
            raise

    async def wait(self) -> Receipt:
        """Waits for its end."""
        task = self._task
        with contextlib.suppress(BrigError):  # it exits as the task did
            async with _follow(task, "wait"):
                pass
        return await _in_thread(read_receipt, task._program, task._store, task.id)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Its events from the first one on, until it has ended."""
        async with _follow(self._task, "events", "--follow") as lines:
            async for line in lines:
                yield json.loads(line)

    async def output(self) -> bytes:
        """What it has written so far, with secrets hidden."""
        return await _in_thread(self._task.output)

    async def patch(self) -> bytes:
        """What it changed in its workspace, as a patch."""
        return await _in_thread(self._task.patch)

    async def stop(self, *, grace: Optional[float] = None) -> Receipt:
        """Ends it and returns its receipt."""
        await _in_thread(self._task._ask_to_stop, grace)
        return await self.wait()
