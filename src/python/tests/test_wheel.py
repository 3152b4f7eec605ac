"""The wheel: reproducible, and one `pip install` is the whole set-up."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from brig_sandbox import find_program
from brig_sandbox.errors import RETRYABLE

TOP = Path(__file__).resolve().parent.parent.parent.parent
WHEEL = TOP / "rootfs/wheel"
CODE = """
from brig_sandbox import Sandbox, find_program
with Sandbox.start() as box:
    print(find_program(), box.exec(["echo", "hi"]).text)
"""


@pytest.mark.skipif(not WHEEL.exists(), reason="the sources of the wheel are not here")
def test_wheel_is_the_whole_set_up(store, tmp_path):
    program = os.path.realpath(find_program())
    # The symbols of a test build are most of it.
    if shutil.which("strip"):
        subprocess.run(["strip", "-o", tmp_path / "brig", program], check=True)
        program = tmp_path / "brig"
    words = [sys.executable, WHEEL, "--binary", program]
    built = [subprocess.run([*words, tmp_path / each], capture_output=True, text=True) for each in ("one", "two")]
    if "is not static" in built[0].stderr:
        pytest.skip("the program under test is not static")
    one, two = (Path(each.stdout.strip()) for each in built)
    assert one.read_bytes() == two.read_bytes(), "two builds differ"
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
        assert "brig_sandbox/py.typed" in names and "brig_sandbox/adapters/harbor.py" in names
        assert not [name for name in names if "tests" in name or name.endswith(".pyc")]
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", one], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("BRIG_BIN", "PYTHONPATH")}
    environment["PATH"] = f"{venv / 'bin'}:{environment['PATH']}"

    def run(*words):
        done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    assert run("brig", "doctor")
    assert run(python, "-c", CODE) == f"{venv / 'bin/brig'} hi\n\n"
    dependencies = [line for line in run(python, "-m", "pip", "list", "--format", "freeze").splitlines()]
    assert [line for line in dependencies if line.startswith("brig-sandbox==")]


@pytest.mark.skipif(not WHEEL.exists(), reason="the page of errors is not here")
def test_retryable_codes_are_those_of_the_catalogue():
    sections = (TOP / "docs/errors.md").read_text().split("\n## ")[1:]
    retryable = {each.split("\n", 1)[0] for each in sections if ", retryable." in each}
    assert retryable == RETRYABLE
