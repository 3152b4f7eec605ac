"""inspect_ai: the sandbox type `brig`.

    Task(..., sandbox="brig")                                     an empty workspace on the host's own programs
    Task(..., sandbox=("brig", "agent.toml"))                     a profile (docs/profile.md)
    Task(..., sandbox=SandboxEnvironmentSpec("brig", BrigConfig(image="debian:12", allow=["@pypi"])))

The entry point group `inspect_ai` registers it. An image or a root file system has root inside, as with Docker, unless
`root_inside=False`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
from typing import Any, Optional, Union

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from ..aio import AsyncSandbox
from ..errors import BrigError, ExecTimeout
from ..protocol import SandboxEnded

try:
    from inspect_ai.util import SandboxUnavailableError
except ImportError:  # older versions
    SandboxUnavailableError = RuntimeError  # type: ignore[assignment, misc]


class BrigConfig(BaseModel, frozen=True):
    """The options of `Sandbox.start`: image, dir, allow, memory, pids, wall, and the others."""

    model_config = ConfigDict(extra="allow")


@sandboxenv(name="brig")
class BrigSandboxEnvironment(SandboxEnvironment):
    """A sandbox of brig for each sample."""

    def __init__(self, box: AsyncSandbox) -> None:
        super().__init__()
        self.box = box

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return BrigConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Optional[SandboxEnvironmentConfigType], metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        options: dict[str, Any] = {"label": {"inspect_task": task_name[:200]}}
        if isinstance(config, str):
            options["profile"] = config
        elif config is not None:
            options.update(config.model_dump())
        if options.get("image") or options.get("rootfs"):
            options.setdefault("root_inside", True)
        return {"default": cls(await AsyncSandbox.start(**options))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Optional[SandboxEnvironmentConfigType],
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(BrigSandboxEnvironment).box.stop()

    async def exec(
        self,
        cmd: list[str],
        input: Union[str, bytes, None] = None,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[int] = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            done = await self.box.exec(
                cmd,
                input=input or b"",
                cwd=cwd,
                env=env,
                user=user,
                timeout=timeout,
                max_output=most,
                background=True,
            )
        except ExecTimeout as error:
            raise TimeoutError(str(error)) from error
        except SandboxEnded as error:
            raise SandboxUnavailableError(str(error)) from error
        except BrigError as error:
            if error.code == "E-IDENTITY":
                raise SandboxUserUnsupportedError(str(error)) from error
            if error.errno == errno.EACCES:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cmd[0]) from error
            if error.code in ("E-COMMAND-NOT-FOUND", "E-COMMAND-NOT-EXECUTABLE"):
                status = 127 if error.code == "E-COMMAND-NOT-FOUND" else 126
                return ExecResult(False, status, "", error.message + "\n")
            raise
        if done.truncated:
            shown = done.stdout.decode(errors="replace")
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, shown)
        stdout, stderr = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return ExecResult(done.status == 0, done.status, stdout, stderr)

    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        try:
            await self.box.write_file(file, contents)
        except BrigError as error:
            if error.errno != errno.ENOENT:
                raise _os_error(error, file) from error
            # Its folder is missing.
            made = await self.box.exec(["mkdir", "-p", "--", posixpath.dirname(file) or "."])
            if made.status != 0:
                raise PermissionError(errno.EACCES, made.stderr.decode(errors="replace").strip(), file) from error
            await self.box.write_file(file, contents)

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:  # type: ignore[override]
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            content = await self.box.read_file(file, max_bytes=most)
        except BrigError as error:
            if error.code == "E-USAGE":
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            entry = await self._entry(file)
            if entry == "directory":
                raise IsADirectoryError(errno.EISDIR, "Is a directory", file) from error
            raise _os_error(error, file) from error
        return content.decode() if text else content

    async def _entry(self, file: str) -> str:
        try:
            return (await self.box.stat(file)).kind
        except BrigError:
            return ""

    async def connection(self, *, user: Optional[str] = None) -> SandboxConnection:
        state = self.box._sandbox._state
        words = [state.program, "task", "exec", f"--store={state.store}", "-it", self.box.id, "sh"]
        if user is not None:
            words[-2:-2] = ["--user", user]
        return SandboxConnection(type="brig", command=shlex.join(words), container=self.box.id)

    def default_polling_interval(self) -> float:
        return 0.2


def _os_error(error: BrigError, file: str) -> Exception:
    """The error that inspect_ai expects for a file."""
    kinds = {errno.ENOENT: FileNotFoundError, errno.EACCES: PermissionError, errno.EISDIR: IsADirectoryError}
    kinds[errno.EPERM] = PermissionError
    kind = kinds.get(error.errno or 0)
    return kind(error.errno, os.strerror(error.errno or 0), file) if kind else error
