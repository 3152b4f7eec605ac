"""mini-swe-agent: its own agent with a scripted model, in a sandbox of brig."""

import pytest

pytest.importorskip("minisweagent")

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments import get_environment  # noqa: E402
from minisweagent.exceptions import Submitted  # noqa: E402
from minisweagent.models.test_models import DeterministicModel, make_output  # noqa: E402

CLASS = "brig_sandbox.adapters.mini_swe_agent.BrigEnvironment"


@pytest.fixture
def environment(store, folder):
    made = get_environment({"environment_class": CLASS, "env": {"PAGER": "cat"}, "options": {"dir": str(folder)}})
    yield made
    made.cleanup()


def test_commands_run_in_the_sandbox(environment, folder, monkeypatch):
    done = environment.execute({"command": "cat a.txt; echo $PAGER; echo error >&2; echo changed > a.txt; exit 3"})
    assert (done["output"], done["returncode"], done["exception_info"]) == ("one\ncat\nerror\n", 3, "")
    assert (folder / "a.txt").read_text() == "one\n"
    late = environment.execute({"command": "echo begun; sleep 60"}, timeout=1)
    assert (late["output"], late["returncode"]) == ("begun\n", -1) and "killed" in late["exception_info"]
    assert environment.execute({"command": "pwd"}, cwd="/tmp")["output"] == "/tmp\n"
    with pytest.raises(Submitted):
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo patch"})
    assert environment.serialize()["info"]["config"]["environment_type"] == CLASS
    assert environment.get_template_vars()["timeout"] == 30


def test_server_in_the_background_lives_until_the_next_command(environment):
    environment.execute({"command": "(while :; do date +%s%N > alive; sleep 0.05; done) > /dev/null 2>&1 &"})
    said = environment.execute({"command": "sleep 0.3; cat alive; sleep 0.3; cat alive"})["output"].split()
    assert len(set(said)) == 2


def test_agent_works_in_the_sandbox(environment, folder):
    commands = ["sed -i s/one/two/ a.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat a.txt"]
    outputs = [make_output(f"step {n}", [{"command": command}], cost=0.1) for n, command in enumerate(commands)]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You are an agent.",
        instance_template="{{task}}",
    )
    ended = agent.run("Change one to two.")
    assert (ended["exit_status"], ended["submission"]) == ("Submitted", "two\n")
    assert (folder / "a.txt").read_text() == "one\n"
