"""The errors of brig: a code of the closed catalogue in docs/errors.md, a message, a hint, and whether to try again."""

from __future__ import annotations

import json
from typing import Any, Optional

# The codes that docs/errors.md marks as retryable.
RETRYABLE = frozenset({"E-REGISTRY", "E-DISK", "E-BUSY", "E-LOST"})


class BrigError(Exception):
    """An error of brig. Branch on `code`, never on the text."""

    def __init__(self, code: str, message: str, hint: Optional[str] = None, errno: Optional[int] = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.errno = errno

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without a change."""
        return self.code in RETRYABLE

    def __str__(self) -> str:
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.message}{hint} [{self.code}]"

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.__dict__.copy()))


class ExecTimeout(BrigError):
    """A process was killed at its time limit, with everything that it had started. `stdout` and `stderr` are what it had
    written."""

    def __init__(self, timeout: float, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__("E-STATE", f"the process ran for {timeout:g} s and was killed with all that it had started")
        self.timeout = timeout
        self.stdout = stdout
        self.stderr = stderr


class ExecFailed(BrigError):
    """A process ended with another exit status than 0; only `Result.check` raises this."""

    def __init__(self, status: int, stdout: bytes, stderr: bytes) -> None:
        tail = stderr[-2000:].decode(errors="replace").strip()
        super().__init__("E-STATE", f"the process ended with exit status {status}" + (f": {tail}" if tail else ""))
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class TaskFailed(BrigError):
    """A task had another outcome than success; only `Receipt.check` raises this. `receipt` is the whole receipt."""

    def __init__(self, receipt: Any) -> None:
        error = receipt.error or {}
        message = error.get("message") or f"the task `{receipt.id}` ended with the outcome `{receipt.outcome}`"
        super().__init__(error.get("code") or "E-STATE", message, error.get("hint"))
        self.receipt = receipt

    @property
    def retryable(self) -> bool:
        """Whether another attempt may end otherwise: the receipt's own answer."""
        return bool(self.receipt.retryable)


def _rebuild(kind: type[BrigError], state: dict[str, Any]) -> BrigError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


def from_wire(value: dict[str, Any]) -> BrigError:
    """The error in a message of the control socket."""
    text = ": ".join([*reversed(value.get("steps", [])), value.get("cause", "")])
    return BrigError(value.get("kind", "E-LOST"), text, value.get("hint"), value.get("errno"))


def from_program(status: int, stdout: bytes, stderr: bytes) -> BrigError:
    """The error of a `brig` command: JSON on standard output, or three lines on standard error."""
    try:
        error = json.loads(stdout)["error"]
        if error["hint"] != "standard error has the reason":
            return BrigError(error["code"], error["message"], error.get("hint"))
    except (ValueError, KeyError, TypeError):
        pass
    lines: dict[str, str] = {}
    text = stderr.decode(errors="replace")
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name in ("error", "hint", "code"):
            lines.setdefault(name, rest.strip())
    if "error" not in lines:
        return BrigError("E-LOST", f"brig ended with exit status {status} without an error: {text.strip()[-500:]}")
    code = lines.get("code", "E-USAGE").split()[0]
    return BrigError(code, lines["error"], lines.get("hint"))
