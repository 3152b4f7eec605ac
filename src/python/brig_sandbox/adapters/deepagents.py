"""deepagents: a backend that runs the agent's commands and files in a sandbox.

    create_deep_agent(model=..., backend=BrigBackend.start(dir=".", allow=["@pypi"]))

The derived operations (ls, read, grep, glob, edit) need `python3` in the sandbox.
"""

from __future__ import annotations

import errno
import posixpath
from typing import Any, Optional

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ..errors import BrigError, ExecTimeout
from ..sandbox import Sandbox

# What a model may see of one command.
MAX_OUTPUT = 1 << 20
TIMEOUT = 30 * 60


class BrigBackend(BaseSandbox):
    """A sandbox of brig as the backend of an agent. `stop` ends it; so does the end of the program."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @classmethod
    def start(cls, **options: Any) -> BrigBackend:
        """Starts a sandbox with the options of `Sandbox.start`."""
        if options.get("image") or options.get("rootfs"):
            options.setdefault("root_inside", True)
        return cls(Sandbox.start(**options))

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        try:
            done = self.sandbox.exec(
                # One stream for both, in the order in which they are written.
                ["sh", "-c", 'exec "$@" 2>&1', "sh", "sh", "-c", command],
                timeout=timeout or TIMEOUT,
                max_output=MAX_OUTPUT,
                background=True,
            )
        except ExecTimeout as error:
            return ExecuteResponse(error.stdout.decode(errors="replace") + f"\n{error.message}", 124, False)
        return ExecuteResponse(done.text, done.status, done.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        responses = []
        for path, content in files:
            try:
                self._write(path, content)
                responses.append(FileUploadResponse(path))
            except BrigError as error:
                responses.append(FileUploadResponse(path, self._word(error, path)))
        return responses

    def _write(self, path: str, content: bytes) -> None:
        try:
            self.sandbox.write_file(path, content)
        except BrigError as error:
            if error.errno != errno.ENOENT:
                raise
            # Its folder is missing.
            self.sandbox.exec(["mkdir", "-p", "--", posixpath.dirname(path) or "."])
            self.sandbox.write_file(path, content)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        responses = []
        for path in paths:
            try:
                responses.append(FileDownloadResponse(path, self.sandbox.read_file(path)))
            except BrigError as error:
                responses.append(FileDownloadResponse(path, None, self._word(error, path)))
        return responses

    def _word(self, error: BrigError, path: str) -> Any:
        """The word of deepagents for an error of a file."""
        words = {errno.ENOENT: "file_not_found", errno.EACCES: "permission_denied", errno.EISDIR: "is_directory"}
        word = words.get(error.errno or 0)
        if word is None:
            try:
                word = "is_directory" if self.sandbox.stat(path).kind == "directory" else None
            except BrigError:
                pass
        return word or error.message

    def stop(self) -> None:
        """Ends the sandbox."""
        self.sandbox.stop()
