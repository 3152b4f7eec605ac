"""The suite behind bench/run: the list of cases, and the run of those that were asked for."""
import argparse
import importlib
import os
import signal
import sys
import time

import report
from lab import Failed, Lab, say

# Each is a module of `cases` with `run(lab)`, which gives tables; and the peers that it is measured beside.
CASES = {
    "start": ("run and teardown of `true`; create, start, exec, delete", ["crun", "runc", "youki", "bwrap"]),
    "agent": ("from `brig agent` to the agent's first byte", []),
    "scale": ("many at once, and the memory of idle ones", ["crun", "runc", "youki", "bwrap"]),
    "unpack": ("an image becomes files", ["umoci", "skopeo", "docker"]),
    "pull": ("from a registry behind a slow link to the end of the first command", ["podman", "docker", "skopeo"]),
    "layers": ("an image of many layers as a root; layers as folders or as EROFS images", ["mkfs.erofs"]),
    "workspace": ("a large folder: ready, forked, compared, given up", ["git"]),
    "inside": ("what a sandbox costs the work in it", ["runc", "crun", "runsc", "bwrap", "git", "cargo", "npm"]),
    "egress": ("what the gateway costs", ["nginx", "pasta", "slirp4netns"]),
    "redact": ("how fast output passes, by the number of secrets", []),
    "docker": ("`docker run --rm`, by runtime", ["docker", "crun", "runc"]),
    "doors": ("start and exec by Podman, Docker, Python and MCP", ["podman", "docker", "crun", "runc"]),
}


def measured(lab, name, about, peers):
    """One case: its record, also where it failed half-way."""
    say(f"{name}: {about}")
    record = {"case": name, "about": about, "date": time.strftime("%Y-%m-%d"), "quick": lab.quick, "machine": report.machine(),
              "versions": {"brig": lab.run(lab.brig, "--version").split()[2], **{peer: lab.versions[peer] for peer in peers if lab.has(peer)}},
              "missing": [peer for peer in peers if not lab.has(peer)]}
    began = time.monotonic()
    try:
        tables = importlib.import_module(f"cases.{name}").run(lab)
        record["tables"] = [table.record() for table in tables]
    finally:
        record["seconds"] = round(time.monotonic() - began)
        lab.finish()
        left = lab.settle()
    record["load_after"] = round(os.getloadavg()[0], 1)
    record["left_over"] = [line.replace(lab.work, "…").replace(lab.tag, "…") for line in left]
    return record


def main():
    parser = argparse.ArgumentParser(prog="bench/run", description="Measures brig beside its peers and prints tables.")
    parser.add_argument("cases", nargs="*", metavar="NAME", help=f"which: {', '.join(CASES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller data: under 3 minutes for all")
    parser.add_argument("--rounds", type=int, help="how often each command is run")
    parser.add_argument("--with-youki", action="store_true", help="youki too, from crates.io")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and docs/benchmarks/")
    options = parser.parse_args()
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no case `{unknown[0]}`: there are {', '.join(CASES)}")
    if os.geteuid() != 0:
        sys.exit("bench/run: needs root: run it with sudo")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    records, failed = [], []
    for name in options.cases or CASES:
        lab = Lab(os.environ["BRIG_BIN"], options.quick, options.rounds, options.with_youki)
        try:
            record = measured(lab, name, *CASES[name])
        except (Failed, OSError) as error:  # a full disk too
            say(f"{name}: {error}")
            failed.append(name)
            continue
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the removal
            lab.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
        records.append(record)
        print("\n".join(report.case(record)), flush=True)
    if options.write:
        report.write(records, CASES)
        say("wrote docs/benchmarks.md")
    if failed or any(record["left_over"] for record in records):
        sys.exit(f"bench/run: failed: {', '.join(failed)}" if failed else "bench/run: something was left over, see above")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
