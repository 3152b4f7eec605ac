"""Times beside those of the command line, alternating, the fastest of each: load of the machine slows single ones."""

import subprocess
import time

from brig_sandbox import Sandbox, find_program

ROUNDS = 15


def fastest(*calls):
    """Seconds of the fastest of `ROUNDS` calls, for each of them."""
    best = [float("inf")] * len(calls)
    for number in range(ROUNDS):
        order = list(enumerate(calls))
        for index, call in order if number % 2 else reversed(order):
            began = time.perf_counter()
            end = call()
            best[index] = min(best[index], time.perf_counter() - began)
            if end is not None:
                end()
    return best


def show(what, ours, theirs):
    print(f"\n{what}: Python {ours * 1000:.2f} ms, command {theirs * 1000:.2f} ms, ratio {ours / theirs:.2f}")


def test_exec_takes_at_most_a_millisecond_more_than_the_command(box, capsys):
    command = [find_program(), "task", "exec", box.id, "true"]
    ours, theirs = fastest(
        lambda: box.exec(["true"]) and None,
        lambda: subprocess.run(command, stdin=subprocess.DEVNULL, check=True) and None,
    )
    with capsys.disabled():
        show("exec", ours, theirs)
    assert ours < theirs + 0.001


def test_start_takes_at_most_three_milliseconds_more_than_the_command(store, root, capsys):
    def command():
        """Starts one with the command line and waits until a process can enter, as `Sandbox.start` does."""
        words = [find_program(), "task", "run", "--detach", "--hold"]
        id = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout.decode().strip()
        box = Sandbox.attach(id)
        return lambda: box.stop()

    def package():
        box = Sandbox.start()
        return lambda: box.stop()

    ours, theirs = fastest(package, command)
    with capsys.disabled():
        show("start", ours, theirs)
    assert ours < theirs + 0.003
