"""The plain sandbox: processes, files, ends, errors."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brig_sandbox import (
    BrigError,
    ExecFailed,
    ExecTimeout,
    Receipt,
    Result,
    Sandbox,
    SandboxEnded,
    TaskFailed,
    find_program,
)
from brig_sandbox.requests import check_file_result, entries, exec_request
from brig_sandbox.session import Collector

PACKAGE = Path(__file__).resolve().parent.parent


def is_running(id):
    said = subprocess.run([find_program(), "task", "ls", "--json", "--filter", "status=running"], capture_output=True)
    return f'"{id}"'.encode() in said.stdout


def wait_until(holds, seconds=10):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.02)


def test_exec_returns_status_and_both_streams(box):
    done = box.exec("cat; echo no >&2; exit 3", input="from outside")
    assert (done.status, done.stdout, done.stderr) == (3, b"from outside", b"no\n")
    with pytest.raises(ExecFailed) as error:
        done.check()
    assert error.value.status == 3 and not error.value.retryable
    assert box.exec(["sh", "-c", "kill -TERM $$"]).status == 128 + signal.SIGTERM


def test_exec_has_environment_and_folder(box):
    box.exec(["mkdir", "sub"]).check()
    assert box.exec(["pwd"], cwd="sub").check().text.endswith("/sub\n")
    assert box.exec("echo $NAME", env={"NAME": "a b"}).text == "a b\n"
    raw = box.exec(["printf", "%s", b"\xff\xfe"]).stdout
    assert raw == b"\xff\xfe"


def test_exec_takes_a_command_line_as_long_as_the_kernel_does(box):
    words = ["x" * (64 << 10)] * 16
    assert box.exec(["printf", "%s", *words]).stdout == "".join(words).encode()
    with pytest.raises(BrigError) as error:
        box.exec(["true", "x" * (5 << 20)])
    assert error.value.code == "E-USAGE"


def test_exec_passes_large_input_and_output(box):
    data = os.urandom(3 << 20)
    assert box.exec(["cat"], input=data).stdout == data
    cut = box.exec(["head", "-c", "1000000", "/dev/zero"], max_output=1000)
    assert cut.truncated and len(cut.stdout) == 1000 and cut.status == 0


def test_small_pieces_of_output_need_no_more_memory_than_their_bytes():
    output = Collector(1 << 20)
    tracemalloc.start()
    for number in range(400_000):
        output.add("stdout", b"%03d" % (number % 1000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(output.get("stdout")) == 1 << 20 and size < 2 << 20


def test_read_ends_at_its_bound(box):
    box.exec(["truncate", "-s", "1T", "sparse"]).check()
    began = time.monotonic()
    for path in ("sparse", "/dev/zero"):
        with pytest.raises(BrigError) as error:
            box.read_file(path, max_bytes=1000)
        assert error.value.code == "E-USAGE" and "1000 bytes" in str(error.value)
    assert time.monotonic() - began < 10
    with pytest.raises(BrigError) as error:
        box.read_file("missing", max_bytes=1)
    assert error.value.code == "E-NOT-FOUND"


def test_exec_errors_have_codes(box):
    for command, code in ((["no-such-program"], "E-COMMAND-NOT-FOUND"), (["/etc/passwd"], "E-COMMAND-NOT-EXECUTABLE")):
        with pytest.raises(BrigError) as error:
            box.exec(command)
        assert (error.value.code, error.value.retryable) == (code, False)
        assert error.value.hint
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.code, again.message, str(again)) == (error.value.code, error.value.message, str(error.value))
    for wrong in ([], ["true"]):
        with pytest.raises(BrigError) as error:
            box.exec(wrong, timeout=0 if wrong else None)
        assert error.value.code == "E-USAGE"
    assert box.exec(["true"]).status == 0


def test_timeout_kills_the_whole_tree(box):
    with pytest.raises(ExecTimeout) as error:
        box.exec("echo begun; (while :; do date +%s%N > alive; sleep 0.05; done) & sleep 60", timeout=0.5)
    assert error.value.stdout == b"begun\n"
    time.sleep(0.2)
    last = box.read_file("alive")
    time.sleep(0.3)
    assert box.read_file("alive") == last


@pytest.mark.parametrize("background", [False, True])
def test_background_processes_end_with_their_call_unless_kept(box, background):
    box.exec("(while :; do date +%s%N > alive; sleep 0.05; done) > /dev/null 2>&1 &", background=background)
    wait_until(lambda: box.exec(["test", "-s", "alive"]).status == 0 or not background)
    time.sleep(0.2)
    last = box.exec("cat alive").text
    time.sleep(0.3)
    assert (box.exec("cat alive").text != last) == background


def test_background_processes_beyond_their_bound_end_and_no_result_is_lost(box, root):
    for number in range(70):
        line = f"flock lock-{number} sleep 100 > /dev/null 2>&1 & echo {number}"
        assert box.exec(line, background=True).text == f"{number}\n"
    count = "for n in $(seq 0 69); do flock -n lock-$n true || echo $n; done | wc -l"
    wait_until(lambda: box.exec(count, background=True).text.strip() == "64")


def test_background_processes_of_a_stream_go_on(box):
    with box.exec_stream("flock lock sleep 100 > /dev/null 2>&1 & echo begun", background=True) as process:
        assert process.wait() == 0
    time.sleep(0.2)
    assert box.exec("flock -n lock true").status == 1


def test_output_comes_while_the_process_runs(box):
    with box.exec_stream("echo one; read line; echo $line >&2; exit 4") as process:
        pieces = iter(process)
        first = next(pieces)
        assert (first.stream, first.data) == ("stdout", b"one\n")
        process.write(b"two\n")
        assert [(piece.stream, piece.data) for piece in pieces] == [("stderr", b"two\n")]
        assert process.wait() == 4


def test_processes_without_a_block_free_their_places(box):
    """A sandbox object has `MAX_PROCESSES` places."""
    ended = [box.exec_stream("true") for _ in range(30)]
    assert [process.wait() for process in ended] == [0] * 30
    ended += [box.exec_stream("true") for _ in range(30)]
    assert [process.wait() for process in ended] == [0] * 60
    for _ in range(60):
        box.exec_stream(["sleep", "60"])
    assert box.exec(["true"]).status == 0


def test_process_ends_with_its_block_and_takes_signals(box):
    with box.exec_stream("(while :; do date +%s%N > alive; sleep 0.05; done)") as process:
        wait_until(lambda: box.exec(["test", "-s", "alive"]).status == 0)
    time.sleep(0.2)
    last = box.read_file("alive")
    time.sleep(0.2)
    assert box.read_file("alive") == last
    with box.exec_stream(["sleep", "60"]) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT


def test_process_may_have_a_terminal(box):
    with box.exec_stream("stty size; tty -s && echo yes", terminal=(30, 90)) as process:
        text = b"".join(piece.data for piece in process)
    assert b"30 90" in text and b"yes" in text


def test_calls_of_many_threads_run_at_once(box):
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        said = list(pool.map(lambda number: box.exec(f"sleep 0.5; echo {number}").text, range(20)))
    assert said == [f"{number}\n" for number in range(20)]
    assert time.monotonic() - began < 8


def test_files_are_written_read_and_listed(box):
    data = os.urandom(300_000)
    box.write_file("bytes.bin", data)
    assert box.read_file("bytes.bin") == data
    # Without a newline at the end, which a buffer could keep.
    box.write_file("/tmp/short", "x", mode=0o600)
    assert box.read_file("/tmp/short") == b"x"
    box.write_file("empty", b"")
    assert box.read_file("empty") == b""
    (entry,) = [each for each in box.list_files() if each.name == "bytes.bin"]
    assert (entry.kind, entry.size) == ("file", len(data))
    assert box.stat("/tmp/short").mode == 0o600
    with pytest.raises(BrigError) as error:
        box.read_file("none")
    assert error.value.code == "E-NOT-FOUND"
    with pytest.raises(BrigError) as error:
        box.read_file("bytes.bin", max_bytes=1000)
    assert error.value.code == "E-USAGE"


def test_links_lead_to_files_of_the_sandbox(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    box.exec(["ln", "-s", str(secret), "link"]).check()
    with pytest.raises(BrigError):
        box.read_file("link")


def test_listing_that_names_another_path_is_refused():
    """A process of the sandbox writes the list: a name that leads elsewhere would be a path of the host."""
    entry = {"name": "a", "kind": "file", "size": 1, "mode": 420, "modified": 0}
    assert entries(json.dumps([entry]).encode())[0].name == "a"
    for name in ("../x", "/etc/passwd", "..", ".", "a\0b", 7):
        with pytest.raises(BrigError) as error:
            entries(json.dumps([{**entry, "name": name}]).encode())
        assert error.value.code == "E-LOST"
    for said in (b"", b"[1]", b"[{}]"):
        with pytest.raises(BrigError):
            entries(said)
    for said in (b"", b"[]", b"{}", b'{"kind":"nonsense","steps":[],"cause":""}', b'{"kind":3,"steps":3}'):
        with pytest.raises(BrigError) as error:
            check_file_result(Result(1, b"", said))
        assert error.value.code == "E-LOST"


def test_folders_are_copied_in_and_out(box, folder, tmp_path):
    box.upload(folder, "copy", exclude=["*.log"])
    assert box.exec("cat copy/sub/b.txt; readlink copy/link; ls copy/sub").text == "two\na.txt\nb.txt\n"
    box.exec("echo new > copy/sub/b.txt").check()
    box.download("copy", tmp_path / "back")
    assert (tmp_path / "back/sub/b.txt").read_text() == "new\n"
    assert os.readlink(tmp_path / "back/link") == "a.txt"
    box.upload(folder / "a.txt", "/tmp/one")
    assert box.read_file("/tmp/one") == b"one\n"
    with pytest.raises(BrigError) as error:
        box.upload(tmp_path / "none", "x")
    assert error.value.code == "E-NOT-FOUND"


def test_folder_is_the_workspace_and_is_not_written(store, folder):
    with Sandbox.start(dir=folder, env={"NAME": "value"}, memory="256M") as box:
        assert box.exec("cat a.txt; echo $NAME; echo changed > a.txt").text == "one\nvalue\n"
        assert box.read_file("a.txt") == b"changed\n"
        assert box.stats()["memory_limit"] == 256 << 20
    assert (folder / "a.txt").read_text() == "one\n"


def test_stop_returns_the_receipt(store):
    box = Sandbox.start(label={"team": "search"})
    receipt = box.stop()
    assert isinstance(receipt, Receipt) and box.stop() is receipt
    assert receipt.outcome == ("stopped" if os.geteuid() == 0 else "cancelled")
    assert receipt.raw["labels"] == {"team": "search"} and not receipt.retryable
    # Another sandbox takes the number of the descriptor of this one.
    with Sandbox.start():
        for call in (lambda: box.exec(["true"]), lambda: box.read_file("x")):
            with pytest.raises(SandboxEnded):
                call()


def test_wrong_options_are_typed_errors_and_start_nothing(store):
    before = sorted(path.name for path in (store / "tasks").iterdir()) if (store / "tasks").exists() else []
    cases = [
        ({"memory": "zonk"}, "E-USAGE"),
        ({"no_such_option": True}, "E-USAGE"),
        ({"detach": True}, "E-USAGE"),
        ({"dir": "/no/such/folder"}, "E-WORKSPACE"),
        ({"network": "egress", "allow": ["not a rule"]}, "E-USAGE"),
        ({"secret": {"TOKEN": "env:NO_SUCH_VARIABLE"}}, "E-SECRET"),
        ({"profile": "/no/such/profile.toml"}, "E-PROFILE"),
    ]
    found = []
    for options, _ in cases:
        with pytest.raises(BrigError) as error:
            Sandbox.start(**options)
        found.append(error.value.code)
    assert found == [code for _, code in cases]
    after = sorted(path.name for path in (store / "tasks").iterdir()) if (store / "tasks").exists() else []
    assert before == after


def test_missing_program_is_named(store):
    with pytest.raises(BrigError) as error:
        Sandbox.start(program="/no/such/brig")
    assert error.value.code == "E-NOT-FOUND" and "/no/such/brig" in str(error.value)


def test_other_version_of_the_messages_is_refused(store, monkeypatch):
    monkeypatch.setattr("brig_sandbox.protocol.VERSION", 7)
    with pytest.raises(BrigError) as error:
        Sandbox.start()
    assert error.value.code == "E-STATE" and "version 1" in str(error.value) and "version 7" in str(error.value)


def test_sandbox_that_ended_is_an_error(store):
    box = Sandbox.start()
    subprocess.run([find_program(), "task", "kill", box.id], check=True)
    with pytest.raises(BrigError) as error:
        wait_until(lambda: box.exec(["true"]).status != 0)
    assert error.value.code == "E-STATE"
    wait_until(lambda: not is_running(box.id))
    with pytest.raises(SandboxEnded):
        box.exec(["true"])
    assert box.stop().outcome == "cancelled"


def test_collected_sandbox_ends(store):
    id = Sandbox.start().id
    gc.collect()
    wait_until(lambda: not is_running(id))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_caller_leaves_nothing(store, how):
    code = """
        import sys, time
        sys.path.insert(0, sys.argv[1])
        from brig_sandbox import Sandbox, Task
        box, task = Sandbox.start(), Task.start(["sleep", "600"], max_parallel=1)
        waiting, other = Task.start(["true"], max_parallel=1), Task.start(["sleep", "600"], outlives_caller=True)
        print(box.id, task.id, waiting.id, other.id, flush=True)
        with box.exec_stream(["sleep", "600"]) as process:
            process.wait()
    """
    words = [sys.executable, "-c", textwrap.dedent(code), str(PACKAGE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as caller:
        ids = caller.stdout.readline().split()
        assert len(ids) == 4 and all(map(is_running, ids))
        caller.send_signal(how)
    wait_until(lambda: not any(map(is_running, ids[:3])))
    # The test can fail: without --end-with a task goes on.
    assert is_running(ids[3])
    subprocess.run([find_program(), "task", "kill", ids[3]], check=True)
    wait_until(lambda: not is_running(ids[3]))


def test_caller_killed_at_its_start_leaves_nothing(store):
    """At any moment of a start: the supervisor watches the caller from its first step on."""
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from brig_sandbox import Sandbox
        print(flush=True)
        Sandbox.start().exec(["sleep", "600"])
    """
    for delay in (0.0, 0.01, 0.02, 0.04, 0.08):
        words = [sys.executable, "-c", textwrap.dedent(code), str(PACKAGE)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as caller:
            caller.stdout.readline()
            time.sleep(delay)
            caller.kill()
    listed = [find_program(), "task", "ls", "--json", "--filter", "status=running"]
    wait_until(lambda: subprocess.run(listed, capture_output=True).stdout.strip() == b"[]")


def test_client_that_vanishes_at_a_start_leaves_no_process(store):
    """Between its request and the reply. A process that the supervisor forgets keeps the sandbox from its end."""
    with Sandbox.start() as box:
        for _ in range(10):
            connection = box._state.connect()
            connection.send({"exec": exec_request(["sleep", "600"], env=None, cwd=None, user=None, timeout=None)})
            connection.close()
        assert box.exec(["true"]).status == 0
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert box.receipt is not None and box.receipt.left_behind == []


def test_forked_child_does_not_end_the_sandbox(box):
    child = os.fork()
    if child == 0:
        try:
            box._state._finalizer()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert box.exec(["true"]).status == 0


def test_user_is_found_in_the_account_files(box, root):
    assert box.exec(["id", "-un"], user="nobody").text == "nobody\n"
    assert box.exec(["id", "-u"], user="1234:1235").text == "1234\n"
    with pytest.raises(BrigError) as error:
        box.exec(["id"], user="no-such-user")
    assert error.value.code == "E-IDENTITY"


def test_checkpoints_are_forked_and_returned_to(store, root):
    with Sandbox.start(keep=True, env={"NAME": "value"}) as box:
        box.write_file("state", "one")
        made = box.checkpoint("first")
        assert (made.name, made.bytes > 0) == ("first", True)
        box.write_file("state", "two")
        first, second = box.fork(made, number=2)
        with first, second:
            assert first.read_file("state") == second.read_file("state") == b"one"
            assert first.exec("echo $NAME").text == "value\n"
            first.write_file("state", "three")
        old = box.id
        box.rollback(made)
        assert box.id != old and box.read_file("state") == b"one"
    with pytest.raises(BrigError) as error, Sandbox.start() as box:
        box.checkpoint()
    assert error.value.code == "E-STATE"


def test_failed_rollback_keeps_its_reason_and_the_receipt(store, root):
    with pytest.raises(TaskFailed) as error, Sandbox.start(keep=True, disk="64M") as box:
        box.exec("head -c 20000000 /dev/urandom > data").check()
        made, id = box.checkpoint(), box.id
        box.rollback(made, disk="4M")
    assert error.value.receipt.outcome == "start_failed"
    assert box.id == id and box.receipt is not None and box.receipt.outcome == "stopped"
    with pytest.raises(SandboxEnded):
        box.stats()


@pytest.mark.parametrize("at", ["program", "start"])
def test_failed_fork_leaves_none(store, root, tmp_path, at):
    """The program fails after it has printed ids, or a fork ends before Python connects to it."""
    wrapper, ids = tmp_path / "brig", tmp_path / "ids"
    end = f'{find_program()} task kill "$3"; {find_program()} task wait "$3"; exit 0'
    then = "echo 'error: full' >&2; exit 125" if at == "program" else end
    wrapper.write_text(f"""#!/bin/sh
        [ "$2" = fork ] || exec {find_program()} "$@"
        {find_program()} "$@" > {ids}
        cat {ids}
        set -- $(cat {ids})
        {then}
    """)
    wrapper.chmod(0o755)
    with Sandbox.start(keep=True, program=str(wrapper)) as box:
        with pytest.raises(BrigError) as error:
            box.fork(number=4)
        made = ids.read_text().split()
        assert len(made) == 4
        wait_until(lambda: not any(map(is_running, made)))
        assert box.exec(["true"]).status == 0
    assert error.value.message == "full" if at == "program" else error.value.receipt.id == made[2]


def test_attached_sandbox_goes_on(store):
    with Sandbox.start() as box:
        with pytest.raises(BrigError) as error:
            Sandbox.attach("nonsense")
        assert error.value.code == "E-NOT-FOUND"
        other = Sandbox.attach(box.id)
        assert other.exec(["true"]).status == 0
        del other
        gc.collect()
        assert box.exec(["true"]).status == 0


def test_pause_and_unpause(box):
    box.pause()
    with pytest.raises(BrigError) as error:
        box.exec(["true"])
    assert error.value.code == "E-STATE"
    box.unpause()
    assert box.exec(["true"]).status == 0
