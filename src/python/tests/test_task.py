"""Tasks: one command to its end."""

import os
import re
import subprocess

import pytest

from brig_sandbox import BrigError, Task, TaskFailed, find_program


def test_receipt_is_typed(store):
    receipt = Task.run("echo hi; exit 3")
    assert (receipt.outcome, receipt.exit_code, receipt.exit_status, receipt.retryable) == ("failed", 3, 3, False)
    assert not receipt.succeeded and receipt.left_behind == []
    with pytest.raises(TaskFailed) as error:
        receipt.check()
    assert error.value.receipt is receipt and not error.value.retryable
    assert Task.run(["true"]).check().succeeded


def test_limit_is_the_outcome(store):
    receipt = Task.run(["sleep", "60"], wall=0.3)
    assert (receipt.outcome, receipt.limits_hit[0]["limit"]) == ("timeout", "wall")
    receipt = Task.run(["sleep", "60"], idle="300ms")
    assert (receipt.outcome, receipt.retryable) == ("idle_timeout", True)


def test_command_that_cannot_start_is_an_outcome(store):
    receipt = Task.run(["no-such-program"])
    assert receipt.outcome == "start_failed"
    with pytest.raises(TaskFailed) as error:
        receipt.check()
    assert error.value.code == "E-COMMAND-NOT-FOUND"


def test_output_comes_as_events_and_as_a_whole(store):
    task = Task.start("echo one; echo two >&2")
    events = list(task.events())
    text = {event["stream"]: event["text"] for event in events if event["event"] == "output"}
    assert text == {"stdout": "one\n", "stderr": "two\n"}
    assert events[-1]["event"] == "ended" and events[-1]["outcome"] == "succeeded"
    assert sorted(task.output().split()) == [b"one", b"two"]
    assert task.wait().succeeded


def test_events_of_an_unknown_task_are_an_error(store):
    with pytest.raises(BrigError) as error:
        list(Task(find_program(), store, "nonsense").events())
    assert error.value.code == "E-NOT-FOUND"


def test_changes_are_a_patch(store, folder):
    task = Task.start("echo changed > a.txt", dir=folder)
    assert task.wait().succeeded
    assert b"-one\n+changed\n" in task.patch()
    assert (folder / "a.txt").read_text() == "one\n"


def test_task_is_stopped(store):
    task = Task.start(["sleep", "60"])
    assert task.stop(grace=1).outcome == "cancelled"
    assert task.stop().outcome == "cancelled"


def test_wrong_option_starts_nothing(store):
    with pytest.raises(BrigError) as error:
        Task.run(["true"], pids="many")
    assert error.value.code == "E-USAGE" and not error.value.retryable


def test_program_chooses_the_store(tmp_path):
    """In hosted mode brig refuses `--store` with another folder than that of the rules."""
    program = tmp_path / "brig"
    program.write_text(f"""#!/bin/sh\necho "$@" > {tmp_path}/words\necho '{{"id": "t1", "store": "/srv/brig"}}'\n""")
    program.chmod(0o755)
    task = Task.start(["true"], program=str(program))
    assert task._words("wait") == ["task", "wait", "--store=/srv/brig", "t1"]
    assert "--store" not in (tmp_path / "words").read_text()
    Task.start(["true"], program=str(program), store=tmp_path)
    assert f"--store={tmp_path}" in (tmp_path / "words").read_text()


def test_options_are_the_flags_of_the_command_line():
    """Each flag of `brig task run` is an option, but for those that the package sets."""
    said = subprocess.run([find_program(), "task", "run", "--help"], capture_output=True, text=True, check=True)
    flags = {flag[2:].replace("-", "_") for flag in re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", said.stdout, re.MULTILINE)}
    source = os.path.join(os.path.dirname(__file__), "../brig_sandbox/program.py")
    with open(source) as text:
        block = text.read().split("class Options", 1)[1].split("\n\n\n", 1)[0]
    options = {line.split(":")[0].strip() for line in block.splitlines() if line.startswith("        ") and ": " in line}
    own = {"detach", "interactive", "tty", "no_tty", "hold", "json", "explain", "store", "end_with", "help"}
    assert flags - own == options - {'"""The flags of `brig task run`'}
