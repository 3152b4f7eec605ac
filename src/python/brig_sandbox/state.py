"""What the plain and the asyncio sandbox have in common: how one is started, and what is known of it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from . import program as programs
from .errors import BrigError, TaskFailed, from_program
from .protocol import Connection, SandboxEnded, check_version
from .receipt import Receipt

# How long the socket of a new task may take to appear.
A_MOMENT = 1.0


class SandboxState:
    """A sandbox: its id, its folder, its options."""

    def __init__(self, program: str, store: Path, id: str, options: Mapping[str, Any], owned: bool) -> None:
        self.program = program
        self.store = store
        self.id = id
        self.options = dict(options)
        self.brig_version = ""
        self.receipt: Optional[Receipt] = None
        self._owned = owned
        self._lock = threading.Lock()
        self._attach()

    def _attach(self) -> None:
        """Opens its folder, and ends it when this object is collected."""
        path = self.store / "tasks" / self.id
        try:
            self._folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise BrigError("E-NOT-FOUND", f"there is no task `{self.id}` in `{self.store}`") from cause
        self._finalizer = weakref.finalize(self, _abandon, self._folder, os.getpid() if self._owned else None)
        # At the end of this process the supervisor ends it (--end-with).
        self._finalizer.atexit = False

    def connect(self) -> Connection:
        """A new connection."""
        # The number of a closed descriptor may belong to another sandbox's folder.
        with self._lock:
            if self._folder < 0:
                raise SandboxEnded()
            return Connection(self._folder)

    def connect_first(self) -> Connection:
        """The first connection."""
        return connect_first(self.connect, self.store / "tasks" / self.id)

    def accept_version(self, reply: Any) -> None:
        """Notes brig's version, or refuses to go on."""
        self.brig_version = check_version(reply)

    def abandon(self) -> None:
        """Ends it, if this object started it, without waiting."""
        self._finalizer()
        self._folder = -1

    def forget(self) -> None:
        """Closes everything after the end."""
        with self._lock:
            if self._finalizer.detach():
                os.close(self._folder)
            self._folder = -1

    # The calls of the program below are also those of the asyncio class, in a thread.

    def fetch_receipt(self) -> Receipt:
        """Waits for the end of the task and returns its receipt."""
        return fetch_receipt(self.program, self.store, self.id)

    def start_error(self) -> BrigError:
        """Why a sandbox that began has ended."""
        try:
            return TaskFailed(self.fetch_receipt())
        except BrigError as error:
            return error

    def derive(self, verb: str, words: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """Begins tasks from this one's files, and returns their ids."""
        again: dict[str, Any] = {name: self.options[name] for name in ("env", "secret") if name in self.options}
        again.update(options)
        flags = programs.flags(again)
        done = programs.run(
            self.program,
            ["task", verb, f"--store={self.store}", *end_with(self._owned), *flags, self.id, *words],
        )
        ids = done.stdout.decode().split()
        if done.returncode != 0:
            self.kill(ids)
            raise from_program(done.returncode, b"", done.stderr)
        return ids

    def kill(self, ids: Sequence[str]) -> None:
        """Ends tasks of its store without waiting, if they still run."""
        for id in ids:
            with contextlib.suppress(BrigError):
                programs.call(self.program, ["task", "kill", f"--store={self.store}", id])


def connect_first(connect: Callable[[], Connection], folder: Path) -> Connection:
    """The first connection to the task whose record is in `folder`. A task is known a moment before its socket exists.
    Raises the error of `connect` after one second."""
    end = time.monotonic() + A_MOMENT
    while True:
        try:
            return connect()
        except BrigError:
            # A start that failed has a receipt already.
            if time.monotonic() >= end or (folder / "receipt.json").exists():
                raise
            time.sleep(0.002)


def _abandon(folder: int, owner: Optional[int]) -> None:
    """Ends a sandbox that nothing refers to any more. A forked copy of the owner ends nothing."""
    try:
        if owner == os.getpid():
            connection = Connection(folder)
            connection.send({"kill": {"signal": 9}})
            connection.close()
    except BrigError:
        pass  # it has ended
    finally:
        os.close(folder)


def end_with(owned: bool) -> list[str]:
    """The flag that ends a task with this process."""
    return [f"--end-with={os.getpid()}"] if owned else []


def begin(
    program: Optional[str],
    store: Optional[Union[str, "os.PathLike[str]"]],
    options: Mapping[str, Any],
    command: Optional[Sequence[Union[str, bytes]]],
    owned: bool,
) -> tuple[str, Path, str]:
    """Starts a task in the background; without a command a sandbox to work in."""
    program = program or programs.find_program()
    words: list[Union[str, bytes]] = ["task", "run", "--detach", "--json", *end_with(owned)]
    if store is not None:
        words.append(f"--store={programs.find_store(store)}")
    if command is None and os.geteuid() == 0:
        words.append("--hold")
    elif command is None:
        # An ordinary user enters by way of the command, which must be a program.
        command = ["sleep", "infinity"]
        options = {"idle": options.get("wall", "2h"), **options}
    words += programs.flags(options)
    if command is not None:
        words += ["--", *command]
    task = programs.call_json(program, words)
    return program, Path(task["store"]), task["id"]


def fetch_receipt(program: str, store: Path, id: str) -> Receipt:
    """Waits for the end of a task and returns its receipt."""
    with contextlib.suppress(BrigError):  # it exits as the task did
        programs.call(program, ["task", "wait", f"--store={store}", id])
    return read_receipt(program, store, id)


def read_receipt(program: str, store: Path, id: str) -> Receipt:
    """The receipt of a task that has ended."""
    return Receipt.parse(programs.call_json(program, ["task", "show", "--json", f"--store={store}", id]))
