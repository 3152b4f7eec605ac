"""inspect_ai: its own `self_check` on sandboxes of brig, and an evaluation that uses one."""

import os
import re

import pytest

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai.util._sandbox.self_check import *  # noqa: E402, F403

from brig_sandbox.adapters.inspect_ai import BrigConfig, BrigSandboxEnvironment  # noqa: E402

# inspect_ai's own runner expects the same of a container of Docker whose user is root.
FILES_OF_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}


@pytest.fixture(params=["host", "root-inside"])
async def sandbox_env(request, store):
    """A sandbox on the host's own programs, and one with root inside."""
    check = request.node.originalname
    config = None
    if request.param == "root-inside":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        if check in FILES_OF_ROOT:
            pytest.xfail("root reads and writes every file")
        config = BrigConfig(rootfs=str(request.getfixturevalue("busybox_root")))
    elif check == "test_exec_as_user":
        pytest.xfail("there is no root inside without an image")
    environments = await BrigSandboxEnvironment.sample_init("self-check", config, {})
    yield environments["default"]
    await BrigSandboxEnvironment.sample_cleanup("self-check", config, environments, False)


def test_evaluation_runs_in_a_sandbox(store, tmp_path):
    """By its name, which the entry point or the import registers; with files and a scorer that looks inside."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, accuracy, scorer
    from inspect_ai.solver import solver
    from inspect_ai.util import sandbox

    @solver
    def agent():
        async def solve(state, generate):
            done = await sandbox().exec(["sh", "-c", "tr a-z A-Z < given.txt > out.txt; id -u; ls /root 2>&1"])
            state.metadata["uid"] = done.stdout.split()[0]
            return state

        return solve

    @scorer(metrics=[accuracy()])
    def written():
        async def score(state, target):
            return Score(value=await sandbox().read_file("out.txt") == target.text)

        return score

    sample = Sample(input="", target="WORDS", files={"given.txt": "words"})
    task = Task(dataset=[sample], solver=agent(), scorer=written(), sandbox="brig")
    (log,) = eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert log.samples[0].metadata["uid"] != "0"


async def test_connection_is_a_command_line(store):
    environments = await BrigSandboxEnvironment.sample_init("connection", None, {})
    try:
        connection = await environments["default"].connection()
        assert re.search(r"brig\S* task exec .*-it \w+ sh$", connection.command)
    finally:
        await BrigSandboxEnvironment.sample_cleanup("connection", None, environments, True)
