"""One command in a new sandbox, to its end."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from . import program as programs
from .errors import from_program
from .protocol import Connection, SandboxEnded, duration
from .receipt import Receipt
from .requests import Path
from .state import begin, connect_first, fetch_receipt

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
        words = [self._program, *self._words("events", "--follow")]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as follower:
            try:
                assert follower.stdout is not None
                for line in follower.stdout:
                    yield json.loads(line)
                _, errors = follower.communicate()
                if follower.returncode != 0:
                    raise from_program(follower.returncode, b"", errors)
            finally:
                follower.kill()

    def output(self) -> bytes:
        """What it has written so far, with secrets hidden."""
        return programs.call(self._program, self._words("logs"))

    def patch(self) -> bytes:
        """What it changed in its workspace, as a patch."""
        return programs.call(self._program, self._words("diff"))

    def stop(self, *, grace: Optional[float] = None) -> Receipt:
        """Ends it and returns its receipt. It may take `grace` seconds to end by itself (default: 10)."""
        self._ask_to_stop(grace)
        return self.wait()

    def _ask_to_stop(self, grace: Optional[float]) -> None:
        folder = self._store / "tasks" / self.id
        with contextlib.suppress(SandboxEnded):
            connection = connect_first(lambda: Connection(folder), folder)
            connection.send({"stop": {"grace": duration(grace), "drain": None}})
            connection.close()

    def _words(self, *verb: str) -> list[str]:
        return ["task", *verb, f"--store={self._store}", self.id]
