"""Fixtures of the tests, and what `tests/run` reads of their result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brig_sandbox import Sandbox, find_program  # noqa: E402


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A store for all tests. An ordinary user's sandbox must be able to reach it."""
    base = os.environ.get("BRIG_STORE")
    path = Path(base) / "python" if base else tmp_path_factory.mktemp("store")
    path.mkdir(parents=True, exist_ok=True)
    old = os.environ.get("BRIG_STORE")
    os.environ["BRIG_STORE"] = str(path)
    yield path
    left = subprocess.run([find_program(), "task", "ls", "--json", "--filter", "status=running"], capture_output=True)
    if old is None:
        del os.environ["BRIG_STORE"]
    else:
        os.environ["BRIG_STORE"] = old
    shutil.rmtree(path, ignore_errors=True)
    assert left.stdout.strip() == b"[]", f"tests left tasks: {left.stdout.decode()}"


@pytest.fixture
def box(store):
    """A sandbox with an empty workspace."""
    with Sandbox.start() as made:
        yield made
    assert made.receipt is not None
    assert made.receipt.left_behind == []


@pytest.fixture
def root():
    """Skips for an ordinary user."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the host with a few files."""
    for name, text in {"a.txt": "one\n", "sub/b.txt": "two\n", "sub/c.log": "three\n"}.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "folder/link").symlink_to("a.txt")
    return tmp_path / "folder"


def pytest_terminal_summary(terminalreporter):
    """The result in the form of cargo's, and a line for each skipped test."""
    stats = terminalreporter.stats
    for report in stats.get("skipped", []):
        name = report.nodeid.rsplit("/", 1)[-1].replace(".py::", "::")
        reason = report.longrepr[2].removeprefix("Skipped: ")
        terminalreporter.write_line(f"SKIP {name}: {reason}")
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    passed = len(stats.get("passed", [])) + len(stats.get("xfailed", []))
    word = "FAILED" if failed else "ok"
    terminalreporter.write_line(f"test result: {word}. {passed} passed; {failed} failed")
