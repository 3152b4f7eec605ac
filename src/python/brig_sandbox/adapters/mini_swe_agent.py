"""mini-swe-agent: `environment_class: brig_sandbox.adapters.mini_swe_agent.BrigEnvironment`.

The configuration has the keys of mini-swe-agent's own Docker environment, and `options` with those of `Sandbox.start`.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Optional

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from ..errors import BrigError, ExecTimeout
from ..sandbox import Sandbox

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class BrigEnvironmentConfig(BaseModel):
    """The configuration."""

    image: str = ""
    """Its root; without one the host's own programs."""
    cwd: str = ""
    """Where commands run; default: the workspace."""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: int = 30
    """Seconds for a command."""
    container_timeout: str = "2h"
    interpreter: list[str] = ["bash", "-c"]
    max_output: int = 10 << 20
    """Bytes of a command's output that are kept."""
    options: dict[str, Any] = {}
    """Others of `Sandbox.start`: `dir`, `allow`, `memory`, `root_inside`."""


class BrigEnvironment:
    """Runs the agent's commands in a sandbox of brig."""

    def __init__(self, *, config_class: type = BrigEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        options = {"wall": self.config.container_timeout, **self.config.options}
        if self.config.image:
            options = {"image": self.config.image, "root_inside": True, **options}
        self.sandbox: Optional[Sandbox] = Sandbox.start(**options)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: Optional[int] = None) -> dict[str, Any]:
        """Runs a command; standard error is among its output."""
        assert self.sandbox is not None, "the sandbox has ended"
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        try:
            done = self.sandbox.exec(
                # One stream for both, in the order in which they are written.
                ["sh", "-c", 'exec "$@" 2>&1', "sh", *self.config.interpreter, action.get("command", "")],
                cwd=cwd or self.config.cwd or None,
                env={**forwarded, **self.config.env},
                timeout=timeout or self.config.timeout,
                max_output=self.config.max_output,
                background=True,
            )
            output = {"output": done.text, "returncode": done.status, "exception_info": ""}
        except BrigError as error:
            shown = error.stdout if isinstance(error, ExecTimeout) else b""
            output = {
                "output": shown.decode(errors="replace"),
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {error}",
                "extra": {"exception_type": type(error).__name__, "exception": str(error)},
            }
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        """Raises `Submitted` if the agent has finished."""
        lines = output["output"].lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == FINISHED and output["returncode"] == 0:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What templates of prompts may name."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """The environment as trajectories have it."""
        name = f"{self.__class__.__module__}.{self.__class__.__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": name}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Ends the sandbox."""
        sandbox, self.sandbox = getattr(self, "sandbox", None), None
        if sandbox is not None:
            sandbox.stop()

    def __del__(self) -> None:
        self.cleanup()
