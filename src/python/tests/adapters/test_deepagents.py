"""deepagents: its derived file operations, and its agent with a scripted model."""

import pytest

pytest.importorskip("deepagents")

from deepagents import create_deep_agent  # noqa: E402
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel  # noqa: E402
from langchain_core.messages import AIMessage  # noqa: E402

from brig_sandbox.adapters.deepagents import BrigBackend  # noqa: E402


class Scripted(GenericFakeChatModel):
    """A model with fixed answers, which takes tools."""

    def bind_tools(self, tools, **_):
        return self


@pytest.fixture
def backend(store, folder):
    made = BrigBackend.start(dir=str(folder))
    yield made
    made.stop()


def test_backend_runs_commands_and_moves_files(backend, folder):
    done = backend.execute("cat a.txt; echo no >&2; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("one\nno\n", 3, False)
    assert backend.execute("sleep 60", timeout=1).exit_code == 124
    (made,) = backend.upload_files([("/tmp/new/deep.txt", b"text")])
    assert made.error is None
    found, missing, is_folder = backend.download_files(["/tmp/new/deep.txt", "/tmp/none", "/etc"])
    assert (found.content, found.error) == (b"text", None)
    assert (missing.error, is_folder.error) == ("file_not_found", "is_directory")


def test_derived_operations_work(backend, folder):
    assert backend.write("/tmp/notes.txt", "one\ntwo\n").error is None
    assert backend.edit("/tmp/notes.txt", "two", "three").error is None
    assert "three" in str(backend.read("/tmp/notes.txt"))
    assert "/tmp/notes.txt" in str(backend.grep("three", path="/tmp"))
    assert "notes.txt" in str(backend.glob("*.txt", path="/tmp"))
    assert "notes.txt" in str(backend.ls("/tmp"))


def test_agent_works_in_the_sandbox(backend, folder):
    call = {"name": "execute", "args": {"command": "sed -i s/one/two/ a.txt; cat a.txt"}, "id": "1"}
    answers = [AIMessage(content="", tool_calls=[call]), AIMessage(content="done")]
    agent = create_deep_agent(model=Scripted(messages=iter(answers)), backend=backend)
    messages = agent.invoke({"messages": [{"role": "user", "content": "Change one to two."}]})["messages"]
    assert "two" in next(each for each in messages if each.type == "tool").content
    assert (folder / "a.txt").read_text() == "one\n"
