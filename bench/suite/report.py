"""Records as Markdown, and docs/benchmarks.md with its pictures from docs/benchmarks/."""
import json
import os
import platform
import textwrap

import plot
from lab import REPOSITORY

FOLDER = os.path.join(REPOSITORY, "docs", "benchmarks")
PAGE = os.path.join(REPOSITORY, "docs", "benchmarks.md")
HEAD = """# Benchmarks

This page lets you compare brig with its peers. `bench/run --write` makes it: one command on a Debian machine, as root, that installs the peers, runs
them in turn and leaves nothing. `bench/run --quick` takes minutes. `bench/run NAME…` runs some cases: start, agent, scale, unpack, pull, layers, workspace,
inside, egress, redact, docker, doors.

Each case is one run with all programs in turn, so that a disturbance of the machine affects all alike. Trust ratios more than milliseconds. On a busy
machine, trust the least more than the median.

**floor** is the cost of the kernel alone. It is a C program (`bench/floor.c`, or as each table states) that makes the same system calls only, one after the other.
"x brig" and "x floor" are ratios of medians. [benchmarks/](benchmarks/) has the numbers as JSON.

`bench/budget` counts system calls and instructions of a start, which do not depend on the machine's load. It fails on a rise; `tests/run` runs it.
"""


def machine():
    """What the numbers depend on."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    system = next((line.split("=")[1].strip().strip('"') for line in open("/etc/os-release") if line.startswith("PRETTY_NAME")), "Linux")
    kinds = [line.partition(" - ")[2].split()[0] for line in open("/proc/self/mountinfo")]
    layout = {(True, True): "v1 and v2", (True, False): "v1", (False, True): "v2"}.get(("cgroup" in kinds, "cgroup2" in kinds), "none")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return {"processors": os.cpu_count(), "model": model, "memory_gib": round(memory / (1 << 20)), "system": system,
            "kernel": platform.release().split("-")[0], "cgroups": layout, "load": round(os.getloadavg()[0], 1)}


def machine_line(record):
    it = record["machine"]
    quick = ", a quick run" if record["quick"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (f"{record['date']}{quick}. {it['processors']} processors ({it['model']}), {it['memory_gib']} GiB. {it['system']}, kernel {it['kernel']}, "
            f"cgroups {it['cgroups']}. Load {it['load']} before and {record['load_after']} after, {record['seconds']} s. {versions}.")


def markdown(table):
    """A table's lines."""
    out = [f"### {table['title']}", ""]
    if table["text"]:
        out += [table["text"], ""]
    rows = table["rows"]
    if rows:
        highest = "most" if table["unit"] == "MB/s" else "p99"  # of a speed the 99th percentile is the best, and no news
        columns = [(key, f"{label} {table['unit']}", 2) for key, label in (("least", "least"), ("median", "median"), ("p99", highest))]
        columns += [(key, f"x {table[name]}", 2) for key, name in (("to_base", "base"), ("to_floor", "floor")) if any(key in row for row in rows)]
        columns += [tuple(column) for column in table["more"]]
        out += ["| | " + " | ".join(label for _, label, _ in columns) + " |", "| --- |" + " ---: |" * len(columns)]
        for row in rows:
            cells = [f"{row[key]:,.{digits}f}" if isinstance(row.get(key), (int, float)) else str(row.get(key, "")) for key, _, digits in columns]
            out.append(f"| {row['name']} | " + " | ".join(cells) + " |")
        out.append("")
    if table["left_out"]:
        out += ["Left out: " + "; ".join(table["left_out"]) + ".", ""]
    return out


def wrapped(text):
    """The lines of a page, at most 120 columns wide. Rows of tables and pictures stay whole."""
    out = []
    for block in text.split("\n\n"):
        whole = block.startswith(("|", "#", "!"))
        out += (block.split("\n") if whole else textwrap.wrap(block, 120, break_long_words=False, break_on_hyphens=False)) + [""]
    return out


def case(record, pictures=None):
    """A case's lines."""
    out = [f"## {record['case']}: {record['about']}", "", machine_line(record), ""]
    if record["missing"]:
        out += [f"Missing here: {', '.join(record['missing'])}.", ""]
    if pictures:
        out += [f"![medians of {record['case']}]({pictures}/{record['case']}.svg)", ""]
    for table in record["tables"]:
        out += [] if table["only_plot"] else markdown(table)
    left = record["left_over"][:5]
    out += ["Left over afterwards: " + ("; ".join(left) if left else "nothing (cgroups, mounts, loop devices, processes)") + ".", ""]
    return out


def write(records, order):
    """Keeps the records, and writes the page of all cases that are kept."""
    os.makedirs(FOLDER, exist_ok=True)
    for record in records:
        with open(os.path.join(FOLDER, f"{record['case']}.json"), "w") as out:
            json.dump(record, out, indent=1)
            out.write("\n")
        if picture := plot.svg(record["tables"]):
            with open(os.path.join(FOLDER, f"{record['case']}.svg"), "w") as out:
                out.write(picture)
    lines = [HEAD]
    for name in order:
        try:
            lines += case(json.load(open(os.path.join(FOLDER, f"{name}.json"))), "benchmarks")
        except FileNotFoundError:
            lines += [f"## {name}", "", f"Not measured yet: `bench/run {name} --write`.", ""]
    with open(PAGE, "w") as out:
        out.write("\n".join(wrapped("\n".join(lines))).rstrip() + "\n")
