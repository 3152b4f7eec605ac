"""smolagents: its CodeAgent with a scripted model, whose code runs in a sandbox."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("smolagents")

from smolagents import CodeAgent, Model, tool  # noqa: E402
from smolagents.models import ChatMessage, MessageRole  # noqa: E402
from smolagents.monitoring import AgentLogger, LogLevel  # noqa: E402
from smolagents.utils import AgentError  # noqa: E402

from brig_sandbox.adapters.smolagents import BrigExecutor  # noqa: E402

# Of the host, which the sandbox shows. It must be of the version of this environment, whose packages have C code.
PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"


class Scripted(Model):
    """A model with fixed answers."""

    def __init__(self, steps):
        super().__init__()
        self.steps = iter(steps)

    def generate(self, messages, **_):
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go\n<code>\n{next(self.steps)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    return number * 2


@pytest.fixture
def executor(store, folder):
    if not Path(PYTHON).exists():
        pytest.skip(f"{PYTHON} is missing")
    # Packages of this environment: the sandbox has no way to PyPI.
    site = Path(pytest.__file__).resolve().parent.parent
    options = {"mount": [f"{site}:/opt/site:ro"], "env": {"PYTHONPATH": "/opt/site"}, "dir": str(folder)}
    made = BrigExecutor([], AgentLogger(level=LogLevel.OFF), python=PYTHON, **options)
    yield made
    made.cleanup()


def test_code_runs_in_the_sandbox_and_keeps_its_variables(executor, folder):
    done = executor("x = open('a.txt').read()\nprint('read', x)\nx.upper()")
    assert (done.output, done.logs, done.is_final_answer) == ("'ONE\\n'", "read one\n\n", False)
    assert executor("len(x)").output == "4"
    executor("open('a.txt', 'w').write('changed')")
    assert (folder / "a.txt").read_text() == "one\n"
    executor.send_variables({"given": [1, 2]})
    assert executor("given").output == "[1, 2]"
    for code in ("1/0", "def", "import no_such_module"):
        with pytest.raises(AgentError):
            executor(code)
    assert executor("len(x)").output == "4"


def test_code_that_ends_the_process_is_an_error(executor):
    with pytest.raises(AgentError):
        executor("import os\nos._exit(3)")


def test_agent_works_in_the_sandbox(executor, folder):
    steps = ["import os\nanswer = double(21)\nprint(os.getuid())", "final_answer(answer)"]
    agent = CodeAgent(tools=[double], model=Scripted(steps), executor=executor, verbosity_level=0)
    assert agent.run("Double 21.") == 42
