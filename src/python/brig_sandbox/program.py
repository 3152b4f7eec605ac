"""The `brig` program: where it is, its options as keyword arguments, and one call of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from .errors import BrigError, from_program

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    Word = Union[str, bytes, "os.PathLike[str]"]
    Size = Union[int, str]
    Time = Union[float, str]
    Words = Union[Word, Sequence[Word]]
    Table = Union[Mapping[str, str], Sequence[str]]

    class Options(TypedDict, total=False):
        """The flags of `brig task run`: `root_inside=True` is `--root-inside`. docs/cli.md describes each."""

        # Workspace
        dir: Word
        at: Word
        repo: Word
        ref: str
        depth: int
        filter: str
        submodules: bool
        lfs: bool
        git_from: Words
        git_credential: str
        git_ssh_key: str
        git_known_hosts: Word
        git_ca: Word
        git_address: Words
        push_branch: str
        push_default_branch: bool
        empty: bool
        hide: Words
        # Root and files
        mount: Words
        ro: Words
        volume: Words
        cache: Words
        home: str
        rootfs: Word
        image: str
        pull: str
        entrypoint: str
        user: str
        root_inside: bool
        workdir: Word
        stop_signal: str
        # Network
        network: str
        allow: Words
        deny: Words
        resolver: str
        learn: bool
        ech: str
        publish: Words
        network_rate: Size
        network_bytes: Size
        # Limits
        cpus: float
        cpu_time: Time
        memory: Size
        swap: Size
        pids: int
        disk: Size
        inodes: int
        open_files: int
        wall: Time
        idle: Time
        output_bytes: Size
        io_bps: Size
        io_iops: int
        # Results
        artifact: Words
        artifacts_dir: Word
        artifact_bytes: Size
        result: Word
        result_schema: Word
        no_changes: bool
        ignored: bool
        canary: bool
        keep: bool
        keep_on_failure: bool
        events: Words
        stream_json: bool
        # Others
        profile: Word
        name: str
        replace: bool
        label: Table
        env: Table
        secret: Table
        backend: str
        grace: Time
        allow_degraded: Words
        max_parallel: int
        queue_wait: Time
        health: str
        health_interval: Time
        health_timeout: Time
        health_start: Time


# Numbers of these are seconds.
_TIMES = frozenset(
    {"cpu_time", "wall", "idle", "grace", "queue_wait", "health_interval", "health_timeout", "health_start"}
)
# The package decides about these.
_OWN = frozenset({"detach", "interactive", "tty", "no_tty", "hold", "json", "explain", "store", "end_with"})


def find_program() -> str:
    """The path of `brig`: `BRIG_BIN`, else the one that was installed with this package, else the one in `PATH`."""
    named = os.environ.get("BRIG_BIN")
    if named:
        return named
    for scripts in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")):
        program = Path(scripts) / "brig"
        if program.is_file():
            return str(program)
    found = shutil.which("brig")
    if found:
        return found
    raise BrigError("E-NOT-FOUND", "the program `brig` is not installed", "install it, or name it in BRIG_BIN")


def find_store(store: Optional[Union[str, "os.PathLike[str]"]] = None) -> Path:
    """The folder of records and sandboxes: the given one, else the one that `brig` uses."""
    if store is not None:
        return Path(store).absolute()
    named = os.environ.get("BRIG_STORE")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/brig")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    return Path(data) / "brig"


def format_time(value: Any) -> str:
    """Seconds as brig reads them. A text stays."""
    if isinstance(value, str):
        return value
    return f"{max(round(float(value) * 1000), 0)}ms"


def flags(options: Mapping[str, Any]) -> list[bytes]:
    """The flags of `brig task run` for keyword arguments."""
    words: list[bytes] = []
    for name, value in options.items():
        if name in _OWN:
            raise BrigError("E-USAGE", f"`{name}` is not an option of a sandbox or task in Python", "leave it out")
        flag = b"--" + name.replace("_", "-").encode()
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
            continue
        if isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        elif name in _TIMES:
            value = [format_time(value)]
        elif isinstance(value, (str, bytes, os.PathLike)) or not isinstance(value, (Sequence, set, frozenset)):
            value = [value]
        for each in value:
            text = os.fsencode(each) if isinstance(each, (str, bytes, os.PathLike)) else str(each).encode()
            words.append(flag + b"=" + text)
    return words


def run(program: str, words: Sequence[Union[str, bytes]]) -> subprocess.CompletedProcess[bytes]:
    """Runs `brig` to its end, with any exit status."""
    try:
        return subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as cause:
        raise BrigError("E-NOT-FOUND", f"start `{program}`: {cause.strerror}", "name brig in BRIG_BIN") from cause


def call(program: str, words: Sequence[Union[str, bytes]]) -> bytes:
    """Runs `brig` to its end and returns its standard output. Raises its error."""
    done = run(program, words)
    if done.returncode != 0:
        raise from_program(done.returncode, done.stdout, done.stderr)
    return done.stdout


def call_json(program: str, words: Sequence[Union[str, bytes]]) -> Any:
    """Runs `brig` and returns the JSON document on its standard output."""
    said = call(program, words)
    try:
        return json.loads(said)
    except ValueError as cause:
        raise BrigError("E-LOST", f"brig printed no JSON: {cause}") from cause
