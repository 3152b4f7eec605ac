"""The asyncio classes."""

import asyncio
import functools
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brig_sandbox import AsyncSandbox, AsyncTask, BrigError, ExecTimeout, Task, find_program


def run(test):
    @functools.wraps(test)
    def wrapper(store):
        asyncio.run(asyncio.wait_for(test(store), 60))

    return wrapper


async def wait_until(holds, seconds=10):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        await asyncio.sleep(0.02)


def runs_nothing():
    words = [find_program(), "task", "ls", "--json", "--filter", "status=running"]
    return subprocess.run(words, capture_output=True, check=True).stdout.strip() == b"[]"


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            pass


@run
async def test_async_processes_run_at_once(store):
    async with AsyncSandbox.start() as box:
        done = await asyncio.gather(*(box.exec(f"sleep 0.2; cat; exit {n % 3}", input=str(n)) for n in range(60)))
        assert [(each.status, each.stdout) for each in done] == [(n % 3, str(n).encode()) for n in range(60)]
    assert box.receipt is not None and box.receipt.left_behind == []


@run
async def test_async_files_and_errors(store):
    box = await AsyncSandbox.start()
    try:
        await box.write_file("file", "x")
        assert await box.read_file("file") == b"x"
        assert [entry.name for entry in await box.list_files()] == ["file"]
        assert (await box.stat("file")).size == 1
        with pytest.raises(ExecTimeout):
            await box.exec(["sleep", "60"], timeout=0.2)
        with pytest.raises(BrigError) as error:
            await box.exec(["no-such-program"])
        assert error.value.code == "E-COMMAND-NOT-FOUND"
        assert (await box.stats())["pids"] >= 1
    finally:
        receipt = await box.stop()
    assert receipt.outcome in ("stopped", "cancelled")


@run
async def test_cancelled_call_kills_its_process(store):
    async with AsyncSandbox.start() as box:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(box.exec("while :; do date +%s%N > alive; sleep 0.05; done"), 0.5)
        await asyncio.sleep(0.2)
        last = await box.read_file("alive")
        await asyncio.sleep(0.3)
        assert await box.read_file("alive") == last


@run
async def test_cancelled_start_leaves_nothing(store):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(AsyncSandbox.start(), 0.001)
    await asyncio.sleep(1)


@run
async def test_cancelled_tasks_end_whatever_the_threads_of_the_loop(store):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    tasks = asyncio.gather(*(AsyncTask.run(["sleep", "60"]) for _ in range(4)))
    await asyncio.sleep(1)
    began = time.monotonic()
    tasks.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks
    await wait_until(runs_nothing)
    assert time.monotonic() - began < 10


@run
async def test_starts_that_wait_for_their_turn_do_not_hold_back_the_others(store):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))

    async def use():
        async with AsyncSandbox.start(max_parallel=2) as box:
            return (await box.exec(["true"])).status

    assert await asyncio.gather(*(use() for _ in range(6))) == [0] * 6


@run
async def test_cancelled_task_start_leaves_nothing(store):
    for seconds in (0.001, 0.01, 0.02, 0.04):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(AsyncTask.run(["sleep", "60"]), seconds)
    await asyncio.sleep(1)
    await wait_until(runs_nothing)


def test_loop_that_ends_during_a_wait_ends_at_once(store):
    """At any step of the wait. asyncio's own processes wait forever if the loop ends between their fork and their pipes
    (Python 3.11)."""
    task = Task.start(["sleep", "60"])

    async def leave_waiting(steps):
        waiting = asyncio.ensure_future(AsyncTask(task).wait())
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not waiting.done()

    for steps in range(12):
        loop = threading.Thread(target=lambda: asyncio.run(leave_waiting(steps)), daemon=True)
        loop.start()
        loop.join(5)
        assert not loop.is_alive(), f"after {steps} steps"
    assert not [words for words in command_lines() if b"wait" in words and task.id.encode() in words]
    assert task.stop().outcome == "cancelled"


@run
async def test_cancelled_events_leave_no_process(store):
    task = await AsyncTask.start(["sleep", "60"])

    async def follow():
        async for event in task.events():
            seen.append(event["event"])

    seen = []
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(follow(), 0.5)
    assert "state" in seen
    assert not [words for words in command_lines() if b"events" in words and task.id.encode() in words]
    assert (await task.stop()).outcome == "cancelled"
    with pytest.raises(BrigError) as error:
        async for _ in AsyncTask(Task(find_program(), store, "nonsense")).events():
            pass
    assert error.value.code == "E-NOT-FOUND"


@run
async def test_async_read_ends_at_its_bound(store):
    async with AsyncSandbox.start() as box:
        (await box.exec(["truncate", "-s", "1T", "sparse"])).check()
        with pytest.raises(BrigError) as error:
            await asyncio.wait_for(box.read_file("sparse", max_bytes=1000), 10)
        assert error.value.code == "E-USAGE"
        with pytest.raises(BrigError) as error:
            await box.read_file("missing", max_bytes=1)
        assert error.value.code == "E-NOT-FOUND"


@run
async def test_async_processes_without_a_block_free_their_places(store):
    async with AsyncSandbox.start() as box:
        ended = []
        for _ in range(60):
            ended.append(await box.exec_stream("true"))
            assert await ended[-1].wait() == 0
        for _ in range(60):
            await box.exec_stream(["sleep", "60"])
        assert (await box.exec(["true"])).status == 0


@run
async def test_async_stream(store):
    async with AsyncSandbox.start() as box:
        async with await box.exec_stream("echo one; read line; echo $line") as process:
            pieces = process.__aiter__()
            assert (await pieces.__anext__()).data == b"one\n"
            process.write(b"two\n")
            assert [piece.data async for piece in pieces] == [b"two\n"]
            assert await process.wait() == 0


@run
async def test_async_task(store):
    receipt = await AsyncTask.run("exit 5")
    assert (receipt.outcome, receipt.exit_code) == ("failed", 5)
    task = await AsyncTask.start("echo hi")
    assert "ended" in [event["event"] async for event in task.events()]
    assert await task.output() == b"hi\n"
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(AsyncTask.run(["sleep", "60"]), 0.5)
