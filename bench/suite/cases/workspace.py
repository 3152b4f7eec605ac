"""workspace: a folder of 1 GB in 50,000 files: ready to use, sixteen forks, checkpoints, what changed, giving it up."""
import json
import os
import signal
import subprocess
import time

from lab import Failed
from measure import Table, attempt

FORKS, CHANGED, PATIENCE_S = 16, 100, 240


def make_folder(lab, files, size):
    """A git repository of `files` files of `size` bytes that do not compress; also its only commit is in a pack that is not compressed."""
    folder, block = lab.folder("large"), os.urandom(size - 12)
    lab.run("git", "init", "--quiet", "--initial-branch=main", f"--separate-git-dir={folder}.git", folder)  # a copy is of the files alone
    for key, value in (("user.name", "bench"), ("user.email", "bench@example.org"), ("core.compression", "0"), ("gc.auto", "0")):
        lab.run("git", "-C", folder, "config", key, value)
    names = [f"{number // 100:03}/{number % 100:02}.txt" for number in range(files)]
    stream = subprocess.Popen(["git", "-C", folder, "fast-import", "--quiet"], stdin=subprocess.PIPE)
    lab.children.append(stream)
    with stream.stdin as to:
        for number, name in enumerate(names, 1):
            content = b"%011d\n" % number + block
            to.write(b"blob\nmark :%d\ndata %d\n" % (number, len(content)) + content + b"\n")
            os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
            with open(f"{folder}/{name}", "wb") as out:
                out.write(content)
        to.write(b"commit refs/heads/main\ncommitter b <b@example.org> 0 +0000\ndata 1\nx\n")
        to.writelines(b"M 100644 :%d %s\n" % (number, name.encode()) for number, name in enumerate(names, 1))
    if stream.wait() != 0:
        raise Failed("git fast-import did not take the folder")
    lab.done(stream)
    lab.run("git", "-C", folder, "reset", "--quiet")  # the index as after a commit
    return folder, names


def ready(lab, folder, table):
    """How long until `true` can run in a copy, for each way; what the copies of the last round are."""
    over, copies, samples = lab.folder("over"), {}, {}
    for part in ("upper", "work", "merged"):
        os.makedirs(f"{over}/{part}")
    mount = f"mount -t overlay overlay -o lowerdir={folder},upperdir={over}/upper,workdir={over}/work {over}/merged && cd {over}/merged && true"
    base, often = lab.folder("copies"), lab.scaled(15, 5)  # a copy is made once: writing a gigabyte takes as long as the disk likes
    ways = {
        "floor: an overlay mount": (["unshare", "--mount", "--propagation", "private", "sh", "-c", mount], often),
        "brig task run --dir": ([lab.brig, "task", "run", "--dir", folder, "--", "true"], often),
        "brig task run --repo": ([lab.brig, "task", "run", "--repo", f"{folder}.git", "--", "true"], 1),
        "cp -a": (["cp", "-a", folder, f"{base}/cp"], 1),
        "cp -a --reflink=auto": (["cp", "-a", "--reflink=auto", folder, f"{base}/reflink"], 1),
        "git worktree add": (["git", "-C", folder, "worktree", "add", "--quiet", "--detach", f"{base}/worktree"], 1),
        "git clone --no-local": (["git", "clone", "--quiet", "--no-local", folder, f"{base}/checked"], 1),
        "git clone --shared": (["git", "clone", "--quiet", "--shared", folder, f"{base}/clone"], 1),
    }
    began = time.monotonic()
    for name, (words, times) in ways.items():
        if name.startswith("git") and not lab.has("git"):
            continue
        if time.monotonic() - began > PATIENCE_S:
            table.left_out.append(f"{name}: this disk is too slow: {PATIENCE_S} s are over")
            continue
        samples[name] = attempt(lab, table, name, lambda: [lab.time(*words) for _ in range(times)]) or []
        copies[name] = words[-1] if words[-1].startswith(base) and samples[name] else None
    for name, values in samples.items():
        if values:
            table.add(name, values)
    return copies


def keep(lab, folder, *command):
    """A kept task on the folder: its id."""
    return json.loads(lab.run(lab.brig, "task", "run", "--keep", "--json", "--dir", folder, "--", *command, stderr=subprocess.DEVNULL))["id"]


def checkpoints(lab, folder, change, ready_table):
    """A running task with changed files: its files copied, forked and returned to, beside copies of the whole folder."""
    table = Table("Checkpoints", f"Of a running task with {CHANGED} changed files. A fork and a rollback until `true` has ended in the new sandbox; "
                  "a rollback also ends the task. The others copy the whole folder, as above.", base="brig task checkpoint", floor="")
    task = lab.run(lab.brig, "task", "run", "-d", "--keep", "--dir", folder, "--", "sh", "-c", change + "echo ready; sleep 3600").strip()
    while "ready" not in lab.run(lab.brig, "task", "logs", task):
        time.sleep(0.01)
    table.add("brig task checkpoint", [lab.time(lab.brig, "task", "checkpoint", task) for _ in range(10)])

    def until_ended(verb, *words):
        lab.run(lab.brig, "task", "wait", lab.run(lab.brig, "task", verb, task, *words, "--", "true").strip())

    table.add("brig task fork --from", [timed(lambda: until_ended("fork", "--from", "1")) for _ in range(lab.scaled(5, 3))])
    table.add("brig task rollback", [timed(lambda: until_ended("rollback", "1"))])
    criu(lab, table)
    rows = {row["name"]: row for row in ready_table.rows}
    table.rows += [{key: rows[name][key] for key in ("name", "least", "median", "p99")}
                   for name in ("cp -a", "cp -a --reflink=auto", "git worktree add") if name in rows]
    size = max(each["bytes"] for each in json.loads(lab.run(lab.brig, "task", "checkpoints", "--json", task)))
    table.text += f" A checkpoint took {size / 1e6:.1f} MB of the host's disk."
    return table


def criu(lab, table):
    """A dump and a restore of one sleeping process by CRIU: of processes, where brig's checkpoint is of files."""
    name, images = "criu dump, one process without files", lab.folder("criu")
    found = subprocess.run(["tests/criu"], capture_output=True, text=True)  # one that works on this kernel
    if found.returncode != 0:
        table.left_out.append("criu: " + (found.stderr.strip().splitlines() or ["no reason"])[-1].removeprefix("tests/criu: "))
        return
    program = found.stdout.strip() + "/criu"

    def both():
        process = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        lab.children.append(process)
        dump = lab.time(program, "dump", "--images-dir", images, "--tree", str(process.pid))
        process.wait()  # its id must be free
        lab.done(process)
        restore = lab.time(program, "restore", "--images-dir", images, "--restore-detached")
        os.kill(process.pid, signal.SIGKILL)
        return dump, restore

    pairs = attempt(lab, table, name, lambda: [both() for _ in range(lab.scaled(5, 3))])
    for row, values in zip((name, "criu restore"), zip(*(pairs or []))):
        table.add(row, list(values))


def run(lab):
    """The tables of this case."""
    files, size = (2_500, 20_000) if lab.quick else (50_000, 20_000)
    folder, names = make_folder(lab, files, size)
    what = f"A folder of {files * size / 1e6:,.0f} MB in {files:,} files."
    lab.run(lab.brig, "task", "run", "--dir", folder, "--", "true")
    tables = [Table("Ready to use", f"{what} Until a command has run in a copy; with brig also until the sandbox is gone.", base="brig task run --dir",
                    floor="floor: an overlay mount")]
    copies = ready(lab, folder, tables[0])

    changed = names[:: max(1, len(names) // CHANGED)][:CHANGED]
    script = lab.path("change")
    change = "".join(f"echo changed >>{name}\n" for name in changed)
    with open(script, "w") as out:
        out.write(change)

    forks = Table(f"{FORKS} forks", f"`brig task fork -n {FORKS}` of a workspace with {len(changed)} changed files, until `true` has ended in all. The others: "
                  f"{FORKS} times what one copy took above, computed.", base="brig task fork", floor="")
    diff = Table("What changed", f"{len(changed)} changed files, as a patch.", base="brig task diff", floor="")
    gone = Table("Giving it up", "", base="brig task discard", floor="")
    kept = keep(lab, folder, "sh", "-c", change)
    took, differences, discards = [], [], []
    for _ in range(lab.scaled(3, 1)):
        def fork():
            made = lab.run(lab.brig, "task", "fork", "-n", str(FORKS), kept, "--", "true").split()
            for task in made:
                lab.run(lab.brig, "task", "wait", task)

        took.append(timed(fork))
        differences += [lab.time(lab.brig, "task", "diff", kept) for _ in range(3)]
    forks.add("brig task fork", took)
    forks.rows += [{"name": row["name"], **{key: row[key] * FORKS for key in ("least", "median", "p99")}}
                   for row in tables[0].rows if copies.get(row["name"])]
    diff.add("brig task diff", differences)
    if copies.get("git worktree add"):
        lab.run("sh", "-c", f"cd {copies['git worktree add']} && sh {script}")
        diff.add("git diff", [lab.time("git", "-C", copies["git worktree add"], "diff") for _ in range(3)])
    if copies.get("cp -a"):
        lab.run("sh", "-c", f"cd {copies['cp -a']} && sh {script}")
        compare = ["diff", "-ru", "--exclude=.git", folder, copies["cp -a"]]
        diff.add("diff -ru of two folders", [lab.time(*compare, check=False) for _ in range(1 if lab.quick else 2)])
    checkpoint = checkpoints(lab, folder, change, tables[0])
    for task in [kept] + [keep(lab, folder, "sh", "-c", change) for _ in range(2)]:
        discards.append(lab.time(lab.brig, "task", "discard", task))
    gone.add("brig task discard", discards)
    if copies.get("cp -a"):
        gone.add("rm -rf of a copy", [lab.time("rm", "-rf", copies["cp -a"])])
    if copies.get("git worktree add"):
        gone.add("git worktree remove", [lab.time("git", "-C", folder, "worktree", "remove", "--force", copies["git worktree add"])])
    return [*tables, forks, checkpoint, diff, gone]


def timed(action):
    """Milliseconds of a function."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3
