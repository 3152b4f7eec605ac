"""The asyncio classes."""

import asyncio
import functools

import pytest

from brig_sandbox import AsyncSandbox, AsyncTask, BrigError, ExecTimeout


def run(test):
    @functools.wraps(test)
    def wrapper(store):
        asyncio.run(asyncio.wait_for(test(store), 60))

    return wrapper


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
