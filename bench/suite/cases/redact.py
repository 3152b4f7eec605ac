"""redact: how fast a task's output passes, by the number of secrets that are looked for in it."""
import subprocess
import time

from measure import Table, attempt

LINE = "2026-01-01T00:00:00Z INFO worker-17 handled GET /api/v1/items/4711?page=2 in 12.5 ms for user example@example.org (200 OK)\n"


def run(lab):
    """The tables of this case."""
    megabytes = 32 if lab.quick else 128
    lab.folder("show")
    with open(lab.path("show", "big"), "w") as out:
        block = LINE * (1_000_000 // len(LINE))
        for _ in range(megabytes):
            out.write(block)
    text = (f"`cat` of {megabytes} MB of log lines, from start to end, into the task's log and a pipe. The floor is `cat` and `tee` of the same "
            "into a file and a pipe. The matcher alone, on one core: `bench/redact`. More is better.")
    table = Table("Output through a task", text, "MB/s", base="brig, no secret", floor="floor: cat and tee")
    ways = {"floor: cat and tee": f"cat {lab.path('show', 'big')} | tee {lab.path('log')}"}
    for count, name in ((0, "brig, no secret"), (1, "brig, 1 secret"), (10, "brig, 10 secrets"), (100, "brig, 100 secrets")):
        secrets = []
        for number in range(count):
            with open(lab.path(f"secret-{number}"), "w") as out:
                out.write(f"sk-bench-{number:04}-Zx81kQpLm2vR7tYw")
            secrets.append(f"--secret KEY{number}=file:{lab.path(f'secret-{number}')}")
        ways[name] = f"{lab.brig} task run --no-tty --output-bytes 4G --dir {lab.path('show')} {' '.join(secrets)} -- cat big"
    samples = {}
    for _ in range(lab.scaled(3, 1)):
        for name, line in ways.items():
            def measured():
                began = time.perf_counter()
                lab.run("bash", "-c", f"set -o pipefail; {line} | cat >/dev/null", stdout=subprocess.DEVNULL)
                samples.setdefault(name, []).append(megabytes / (time.perf_counter() - began))
            attempt(lab, table, name, measured)
    for name, values in samples.items():
        table.add(name, values)
    return [table]
