"""agent: from `brig agent` to the first byte that the agent writes, beside the agent alone."""
import os
import statistics
import subprocess
import time

from lab import Failed
from measure import Table, attempt

PROFILE = """[agent]
program = "bench-agent"

[[agent.keys]]
variable = "BENCH_KEY"
url = "https://api.example.com"
"""
LIMIT_MS = 30  # what a person does not notice


def first_byte(lab, environment, *words):
    """Milliseconds from the start of a command to the first byte of its output."""
    began = time.perf_counter()
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    lab.children.append(child)
    with child.stdout as out:
        first = out.read(1)
        took = time.perf_counter() - began
        out.read()
    status = child.wait()
    lab.done(child)
    if not first or status != 0:
        raise Failed(f"`{' '.join(words)[:200]}` ended with {status}")
    return took * 1000


def run(lab):
    """The tables of this case."""
    folder, project, profile = lab.folder("bin"), lab.folder("project"), lab.path("bench.toml")
    program = os.path.join(folder, "bench-agent")
    with open(program, "w") as out:
        out.write("#!/bin/sh\necho ready\n")
    os.chmod(program, 0o755)
    with open(profile, "w") as out:
        out.write(PROFILE)
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "HOME": lab.work, "XDG_CONFIG_HOME": lab.path("config"), "BENCH_KEY": "s3cret-of-the-benchmark"}
    agent = [lab.brig, "agent", "--profile", profile, "--dir", project]
    ways = {
        "the agent alone": [program],
        "brig task run": [lab.brig, "task", "run", "--no-tty", "--dir", project, "--ro", folder, "--", program],
        "brig agent, key inside": [*agent, "--fresh-home", "-e", "BENCH_KEY", "--", "bench-agent"],
        "brig agent, key at the broker": [*agent, "--fresh-home", "--", "bench-agent"],
        "brig agent": [*agent, "--", "bench-agent"],
    }
    text = (f"A shell script that prints a word, until its first byte arrives. `brig agent` has its key at the broker and its home in a volume; "
            f"the others are parts of that. The goal is {LIMIT_MS} ms over the agent alone.")
    table = Table("Until the agent's first byte", text, base="brig agent", floor="the agent alone", more=[["over", "ms over the agent alone", 2]])
    samples = {}
    for number in range(lab.scaled(40, 10) + 1):
        for name, words in ways.items():
            took = attempt(lab, table, name, lambda words=words: first_byte(lab, environment, *words))
            if took is not None and number > 0:  # the first round makes the home
                samples.setdefault(name, []).append(took)
    alone = statistics.median(samples["the agent alone"])
    for name, values in samples.items():
        table.add(name, values, over=statistics.median(values) - alone)
    return [table]
