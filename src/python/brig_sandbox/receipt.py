"""What a task or sandbox came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .errors import TaskFailed

SUCCESS = frozenset({"succeeded", "stopped"})


@dataclass(frozen=True)
class Receipt:
    """The receipt of an ended task. `raw` is the whole document of docs/receipt.md."""

    id: str
    outcome: str
    retryable: bool
    exit_status: int
    exit_code: Optional[int]
    signal: Optional[int]
    error: Optional[dict[str, Any]]
    limits_hit: list[dict[str, Any]]
    left_behind: list[Any]
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Receipt:
        """The receipt in a JSON document of `brig task show --json`."""
        return cls(
            id=raw["id"],
            outcome=raw["outcome"],
            retryable=raw["retryable"],
            exit_status=raw["exit_status"],
            exit_code=raw.get("exit_code"),
            signal=raw.get("signal"),
            error=raw.get("error"),
            limits_hit=raw.get("limits_hit", []),
            left_behind=raw.get("cleanup", {}).get("left", []),
            raw=raw,
        )

    @property
    def succeeded(self) -> bool:
        """Whether it ended well: the outcome `succeeded`, or `stopped` for a sandbox."""
        return self.outcome in SUCCESS

    def check(self) -> Receipt:
        """Returns the receipt of a success; raises `TaskFailed` for any other."""
        if not self.succeeded:
            raise TaskFailed(self)
        return self
