"""Sandboxes of brig from Python.

    from brig_sandbox import Sandbox

    with Sandbox.start(dir=".", memory="2G") as box:
        print(box.exec(["make", "test"]).check().text)
"""

from .aio import AsyncProcess, AsyncSandbox, AsyncTask
from .errors import BrigError, ExecFailed, ExecTimeout, TaskFailed
from .program import find_program
from .protocol import SandboxEnded
from .receipt import Receipt
from .requests import Checkpoint, FileEntry
from .sandbox import Process, Sandbox
from .session import Chunk, Result
from .task import Task

__version__ = "0.1.0"

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTask",
    "BrigError",
    "Checkpoint",
    "Chunk",
    "ExecFailed",
    "ExecTimeout",
    "FileEntry",
    "Process",
    "Receipt",
    "Result",
    "Sandbox",
    "SandboxEnded",
    "Task",
    "TaskFailed",
    "find_program",
]
