"""The step behind tests/harnesses/run: each program on each engine, with runc alone and with brig and its protections."""
import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import images
from programs import PROGRAMS, install

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINES = ["docker", "docker-remapped", "docker-newer", "podman", "podman-rootless"]
ATTACKS = ["host", "neighbour", "disk"]


def compose(jobs):
    """The program of Compose that a chosen program has in its environment, or ""."""
    found = [path for _, words in jobs if os.path.exists(path := os.path.join(words[2], "bin", "docker-compose"))]
    return found[0] if found else ""


def podman_groups():
    """The groups of Podman's containers, and their parents."""
    return glob.glob("/sys/fs/cgroup/*/libpod_parent/*") + glob.glob("/sys/fs/cgroup/*/libpod_parent")


def case(scratch, engine, runtime, jobs, brig, image, engine_files):
    """Runs the jobs on one engine with one runtime, in namespaces of their own: the results by job."""
    work = os.path.join(scratch, engine)
    os.makedirs(work, exist_ok=True)
    group = f"harnesses-of-brig-{os.getpid()}"
    description = os.path.join(work, f"{runtime}.json")
    with open(description, "w") as out:
        json.dump({"work": work, "engine": engine, "runtime": runtime, "brig": brig, "image": image, "engine_files": engine_files, "group": group,
                   "compose": compose(jobs),
                   "jobs": [{"name": program.name, "words": words, "variables": program.variables} for program, words in jobs]}, out)
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine.py")
    results = os.path.join(work, "results.json")
    if os.path.exists(results):
        os.unlink(results)
    before = podman_groups()
    # SIGKILL of the first process ends all others: engine, monitors, containers.
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                           sys.executable, "-B", inside, description], check=False)
    # Podman's parent of groups is one for the machine, and its monitors leave theirs.
    made = [top for top in podman_groups() if top not in before]
    for top in [*glob.glob(f"/sys/fs/cgroup/**/{group}", recursive=True), *made]:
        subprocess.run(["find", top, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"], capture_output=True, check=False)
    logs = os.path.join(REPOSITORY, "target", "harnesses", "logs", f"{engine}-{runtime}")
    os.makedirs(logs, exist_ok=True)
    for path in glob.glob(os.path.join(work, "*.log")):
        shutil.move(path, os.path.join(logs, os.path.basename(path)))
    if done.returncode != 0:
        return None
    shutil.copy(results, logs)
    with open(results) as file:
        return json.load(file)


def judge(program, engine, plain, guarded):
    """The faults of one program on one engine."""
    faults = []
    differs = [name for name, where in program.differs.items() if engine in (where or ENGINES)]
    for name, result in ("runc", plain), ("brig", guarded):
        if result["status"] != 0:
            faults.append(f"the job ended with {result['status']} on {name}: {result['log']}")
    if not plain["work"]:
        faults.append("the job has no result on runc")
    ours, theirs = (result["work"] for result in (guarded, plain))
    different = {line.split(" ")[0] for line in set(ours) ^ set(theirs)}
    faults += [f"`{name}` is as with runc: docs/howto/engines.md says otherwise" for name in differs if name not in different]
    ours, theirs = ([line for line in each if line.split(" ")[0] not in differs] for each in (ours, theirs))
    faults += [f"only on brig: {line}" for line in ours if line not in theirs]
    faults += [f"only on runc: {line}" for line in theirs if line not in ours]
    if plain["left"] != guarded["left"]:
        faults.append(f"containers left: {plain['left']} on runc, {guarded['left']} on brig")
    for attack in ATTACKS:
        if f"{attack} done" not in plain["attack"]:
            faults.append(f"the control: the attack `{attack}` has no effect on runc")
        if f"{attack} refused" not in guarded["attack"] or f"{attack} done" in guarded["attack"]:
            faults.append(f"the attack `{attack}` is not refused by brig")
    return faults


def main():
    parser = argparse.ArgumentParser(prog="tests/harnesses/run", description="Runs harnesses on engines with brig, beside the same engines with runc.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="some of: " + ", ".join(program.name for program in PROGRAMS))
    parser.add_argument("--engine", choices=ENGINES, help="one engine alone")
    options = parser.parse_args()
    names = [program.name for program in PROGRAMS]
    if unknown := [name for name in options.programs if name not in names]:
        parser.error(f"no program `{unknown[0]}`: there are {', '.join(names)}")
    os.chdir(REPOSITORY)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = os.path.join(REPOSITORY, "target", "harnesses")
    os.makedirs(cache, exist_ok=True)
    chosen = []
    for program in PROGRAMS:
        if options.programs and program.name not in options.programs:
            continue
        words, missing = (None, program.missing) if program.missing else install(program, cache)
        if missing:
            print(f"SKIP {program.name}: {missing}", flush=True)
        else:
            chosen.append((program, words))
    brig = os.path.abspath(os.environ["BRIG_BIN"])
    image = images.archive(cache)
    scratch = tempfile.mkdtemp(prefix="brig-harnesses-", dir="/var/tmp")
    os.chmod(scratch, 0o711)  # remapped users enter it
    passed = failed = 0
    try:
        for engine in [options.engine] if options.engine else ENGINES:
            jobs = [(program, words) for program, words in chosen if engine in program.engines]
            if not jobs:
                continue
            files = {"docker-newer": images.newer_engine, "podman-rootless": images.netavark}.get(engine, lambda _: "")(cache)
            plain, guarded = (case(scratch, engine, runtime, jobs, brig, image, files) for runtime in ("runc", "brig"))
            if plain is None or guarded is None:
                print(f"test {engine} ... FAILED\n    the engine did not start: target/harnesses/logs", flush=True)
                failed += 1
                continue
            for program, _ in jobs:
                faults = judge(program, engine, plain[program.name], guarded[program.name])
                print(f"test {engine}::{program.name} ... {'FAILED' if faults else 'ok'}", *(f"    {fault}" for fault in faults), sep="\n", flush=True)
                passed, failed = passed + (not faults), failed + bool(faults)
            print(f"{engine}: {guarded['receipts']} receipts")
            failed += guarded["receipts"] == 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
