"""One command in a new sandbox, to its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from . import program as programs
from .protocol import Connection, SandboxEnded, duration
from .receipt import Receipt
from .requests import Path
from .state import begin, fetch_receipt

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .program import Options


class Task:
    """A command in a new sandbox. It ends with this program at the latest, unless it `outlives_caller`."""

    def __init__(self, program: str, store: Any, id: str) -> None:
        """Use `Task.start` or `Task.run`."""
        self._program = program
        self._store = store
        self.id = id

    @classmethod
    def start(
        cls,
        command: Union[str, Sequence[Union[str, bytes]]],
        *,
        program: Optional[str] = None,
        store: Optional[Path] = None,
        outlives_caller: bool = False,
        **options: Unpack[Options],
    ) -> Self:
        """Starts a command: a list, or a text for `sh -c`. Options as in `Sandbox.start`."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return cls(*begin(program, store, options, words, not outlives_caller))

    @classmethod
    def run(cls, command: Union[str, Sequence[Union[str, bytes]]], **options: Any) -> Receipt:
        """Starts a command and waits for its end. `receipt.check()` raises an error unless it succeeded."""
        return cls.start(command, **options).wait()

    def wait(self) -> Receipt:
        """Waits for its end."""
        return fetch_receipt(self._program, self._store, self.id)

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events from the first one on, until it has ended: `output` (with `text`), `state`, `limit`, and others."""
        words = [self._program, "task", "events", "--follow", f"--store={self._store}", self.id]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as follower:
            try:
                assert follower.stdout is not None
                for line in follower.stdout:
                    yield json.loads(line)
            finally:
                follower.kill()

    def output(self) -> bytes:
        """What it has written so far, with secrets hidden."""
        return programs.call(self._program, ["task", "logs", f"--store={self._store}", self.id])

    def patch(self) -> bytes:
        """What it changed in its workspace, as a patch."""
        return programs.call(self._program, ["task", "diff", f"--store={self._store}", self.id])

    def stop(self, *, grace: Optional[float] = None) -> Receipt:
        """Ends it and returns its receipt. It may take `grace` seconds to end by itself (default: 10)."""
        try:
            connection = Connection(self._store / "tasks" / self.id)
            connection.send({"stop": {"grace": duration(grace), "drain": None}})
            connection.close()
        except SandboxEnded:
            pass
        return self.wait()
