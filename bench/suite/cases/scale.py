"""scale: many at once; memory of idle ones."""
import json
import os
import statistics
import subprocess
import time

import bundles
from cases.start import IN_TURN, READ_ONLY_USR, links, runtimes, task_floor
from lab import Failed
from measure import Subject, Table, attempt, interleave

TOO_LONG = 180  # seconds for all of a crowd
TASK_FLOOR = f"task: {IN_TURN}"


def commands(lab, bundle):
    """Each peer's command; `{}` is the number of the copy."""
    groups = bundles.floor_groups(lab, "-crowd-{}", True)
    found = {"floor": ([lab.program("floor"), "run", *groups, f"{bundle}/rootfs", "/bin/true"], "")}
    for name in runtimes(lab):
        found[name] = ([*lab.oci(name), "run", "--bundle", bundle, f"{lab.tag}-{name}-{{}}"], lab.crun_mounts() if name == "crun" else "")
    found["brig task run"] = ([lab.brig, "task", "run", "--empty", "--", "true"], "")
    if lab.has("bwrap"):
        found["bwrap"] = (["bwrap", "--unshare-all", *READ_ONLY_USR, *links(), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"], "")
    return found


def crowd(lab, table, name, words, mounts, copies, there):
    """One peer's row: small crowds several times. `there` is what the lab itself has made."""
    samples, rates, busy, failures, left = [], [], [], 0, 0
    for _ in range(1 if lab.quick else max(1, 32 // copies)):
        out = lab.run(lab.program("crowd"), str(copies), str(TOO_LONG), mounts or "-", *words, timeout=TOO_LONG + 60, stderr=subprocess.DEVNULL).splitlines()
        seconds, failed, _, processor = out[0].split()
        for _ in range(20):  # what ends in the background has up to 2 s
            if not (still := len(set(lab.leftovers()) - there)):
                break
            time.sleep(0.1)
        samples += [int(each) / 1e3 for each in out[1:]]
        rates.append((copies - int(failed)) / float(seconds))
        busy.append(float(processor) / copies)
        failures, left = failures + int(failed), max(left, still)
    if samples:
        table.add(name, samples, rate=statistics.median(rates), busy=statistics.median(busy), failed=failures, left=left)
    else:
        table.left_out.append(f"{name}: all {copies} failed")


def tree(pid):
    """A process and all below it."""
    found = [pid]
    for each in found:
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                found += map(int, open(f"/proc/{each}/task/{thread}/children").read().split())
        except OSError:
            pass
    return found


def memory(pid):
    """KiB (PSS) of all processes of a sandbox, without the command's own."""
    total = 0
    for each in tree(pid):
        try:
            if open(f"/proc/{each}/comm").read().strip() in ("sleep", "busybox"):
                continue
            total += next(int(line.split()[1]) for line in open(f"/proc/{each}/smaps_rollup") if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass
    return total


def idle(lab):
    """Memory of the runtime's processes beside each idle command."""
    table = Table("Memory of an idle sandbox", unit="KiB", text="PSS of the runtime's own processes that stay beside a command in the foreground, for each of "
                  "several sandboxes; the command itself is not counted. `crun run -d`, `runc run -d` and `brig run -d` leave none. The kernel's own memory is "
                  "not in it.", base="brig task run", floor="")
    bundle = bundles.make(lab, "idle", words=["/bin/sleep", "600"], limits=True)
    for name, (words, _) in commands(lab, bundle).items():
        if name == "floor":
            continue
        words = [*words[:-1], "sleep", "600"] if words[-1] == "true" else words
        children = []

        def measured():
            for number in range(lab.scaled(8, 4)):
                children.append(lab.begin(*lab.anywhere(name, *[word.replace("{}", f"idle-{number}") for word in words])))
            time.sleep(1 if lab.quick else 3)
            if any(child.poll() is not None for child in children):
                raise ValueError("an idle one ended")
            table.add(name, [memory(child.pid) for child in children], processes=len(tree(children[0].pid)) - 1)

        attempt(lab, table, name, measured)
        if name in runtimes(lab):
            for number in range(len(children)):
                lab.run(*lab.anywhere(name, *lab.oci(name), "delete", "-f", f"{lab.tag}-{name}-idle-{number}"), check=False)
        for child in children:
            lab.end(child)
    table.more = [["processes", "its processes", 0]]
    return table


def beside(lab):
    """A start while many idle sandboxes are there, and bwrap in its turn with both."""
    count = 40 if lab.quick else 400
    table = Table(f"A start beside {count} idle sandboxes", "A task of `true` with everything on, alone and while the idle tasks run. bwrap in its turn shows what "
                  "the machine makes of so many processes. Runs beside 400 differ: others had 1.28 and 1.41 for brig, 1.65 and 1.74 for bwrap.",
                  base="brig alone", floor="")
    task = [lab.brig, "task", "run", "--empty", "--"]
    bwrap = ["bwrap", "--unshare-all", *READ_ONLY_USR, *links(), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"]

    def measure(when):
        subjects = [Subject(f"brig {when}", [*task, "true"])] + ([Subject(f"bwrap {when}", bwrap)] if lab.has("bwrap") else [])
        interleave(lab, table, lab.scaled(200, 10), 0, subjects)

    measure("alone")
    idle = [lab.begin(*task, "sleep", "600") for _ in range(count)]
    for _ in range(600):  # until all of them run
        if len(json.loads(lab.run(lab.brig, "task", "ls", "--filter", "status=running", "--json"))) >= count:
            break
        time.sleep(0.1)
    else:
        raise Failed(f"fewer than {count} idle tasks run")
    measure("beside them")
    for child in idle:
        child.terminate()
    for child in idle:
        lab.end(child)
    return table


def run(lab):
    """The tables of this case."""
    lab.journaled()
    bundle, tables = bundles.make(lab, "crowd", limits=True), []
    rates = Table("Sandboxes a second, by how many are begun at once", unit="a second", plot="lines", only_plot=True)
    lab.run(lab.brig, "task", "run", "--empty", "--", "true")
    peers = commands(lab, bundle)  # it mounts the program read-only for one of them
    if floor := attempt(lab, rates, TASK_FLOOR, lambda: task_floor(lab, "-crowd-{}")):
        peers[TASK_FLOOR] = (floor, "")
    there = set(lab.leftovers())
    for copies in [1, 8] if lab.quick else [1, 8, 32, 128, 500]:
        table = Table(f"{copies} at once", "With limits, without a filter; `bwrap` without limits, `brig task run` with everything on. The processor time is of "
                      f"all processes of a sandbox. `{TASK_FLOOR}` is a C program without log and record: what the kernel alone takes for a task.",
                      more=[["rate", "a second", 0], ["busy", "processor ms each", 2], ["failed", "failed", 0], ["left", "left over", 0]], plot="")
        for name, (words, mounts) in peers.items():
            attempt(lab, table, name, lambda: crowd(lab, table, name, words, mounts, copies, there))
        rates.rows += [{"name": row["name"], "line": row["name"], "at": copies, "median": row["rate"]} for row in table.rows]
        tables.append(table)
    return [rates, *tables, beside(lab), idle(lab)]
