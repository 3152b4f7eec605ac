"""start: run and teardown of `true` with more and more things on; create, start, exec and delete apart."""
import glob
import os
import subprocess
import time

import bundles
from lab import MOUNTED, Failed
from measure import Subject, Table, attempt, interleave, with_idle

IDLE_MS = 40  # a process that then moves into a cgroup waits for the kernel: docs/decisions/0002-cgroup-joining.md
RUNTIMES = ["brig", MOUNTED, "crun", "runc", "youki"]
VARIANTS = [
    ("bare", "All namespaces but a user's, the default mounts and masks, cgroups without limits.", {}),
    ("Docker's default filter", "And its capabilities.", {"seccomp": True}),
    ("limits", "Of memory, processors, processes.", {"limits": True}),
    ("a user namespace", "65536 ids are mapped.", {"user": True}),
    ("everything", "The filter, limits and user namespace together.", {"seccomp": True, "limits": True, "user": True}),
]
READ_ONLY_USR = ["--ro-bind", "/usr", "/usr"]
# brig makes some calls of a task side by side, so this can take longer than brig.
IN_TURN = "the same calls in turn"
BWRAP_ROOT = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


def links():
    """Words for bwrap that make /bin, /lib and the like as they are on this host."""
    return [word for name in ("bin", "sbin", "lib", "lib64") if os.path.islink(f"/{name}") for word in ("--symlink", f"usr/{name}", f"/{name}")]


def runtimes(lab):
    return [name for name in RUNTIMES if name in ("brig", MOUNTED) or lab.has(name)]


def oci(lab, name, verb, *words, label=None):
    """A verb of an OCI runtime as a subject."""
    return Subject(label or name, [*lab.oci(name), verb, *words], lab.crun_mounts() if name == "crun" else "")


def docker_filter(lab):
    """Docker's default filter as brig compiles it."""
    bundle = bundles.make(lab, "filter", words=["/bin/sleep", "60"], seccomp=True)
    container = f"{lab.tag}-filter"
    lab.run(*lab.oci("brig"), "run", "-d", "--bundle", bundle, "--pid-file", lab.path("filter.pid"), container, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return bundles.take_filter(lab, open(lab.path("filter.pid")).read(), "docker")
    finally:
        lab.run(*lab.oci("brig"), "delete", "-f", container, check=False)


def idle_task(lab, *words):
    """A task in the background; its id and the process of its command."""
    task = lab.run(lab.brig, "task", "run", "-d", "--empty", *words, "--", "sleep", "600").strip()
    for _ in range(100):
        for group in glob.glob(f"/sys/fs/cgroup/**/brig-{task}*", recursive=True):
            if len(members := open(f"{group}/cgroup.procs").read().split()) >= 2:
                return task, members[-1]
        time.sleep(0.05)
    raise Failed("a task in the background has no processes")


def both(lab, title, text, subjects, tables, full=(80, 30), quick=(4, 3), floor="floor"):
    """A table of the subjects one after the other, and with idleness before each."""
    hot = interleave(lab, Table(title, text, floor=floor), lab.scaled(full[0], quick[0]), 0, subjects)
    tables.append(with_idle(hot, interleave(lab, Table(title), lab.scaled(full[1], quick[1]), IDLE_MS, subjects)))


def variants(lab, tables):
    program = attempt(lab, tables[0], "the floor with Docker's filter", lambda: docker_filter(lab)) if os.path.exists(bundles.PROFILE) else None
    if not program:
        tables[0].left_out.append("rows with Docker's default filter: golang-github-containers-common or the ptrace of filters is missing")
    for number, (title, text, options) in enumerate(VARIANTS):
        if options.get("seccomp") and not program:
            continue
        bundle = bundles.make(lab, f"start-{number}", **options)
        words = bundles.floor_groups(lab, "-floor", options.get("limits"))
        words += ["--user"] if options.get("user") else []
        words += ["--filter", program] if options.get("seccomp") else []
        subjects = [Subject("floor", [lab.program("floor"), "run", *words, f"{bundle}/rootfs", "/bin/true"])]
        subjects += [oci(lab, name, "run", "--bundle", bundle, f"{lab.tag}-{name}") for name in runtimes(lab)]
        if lab.has("bwrap") and set(options) <= {"user"}:
            unshare = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"] + (["--unshare-user"] if options else [])
            words = ["bwrap", *unshare, "--ro-bind", f"{bundle}/rootfs", "/", *BWRAP_ROOT, "/bin/true"]
            subjects.append(Subject("bwrap (no cgroup)", words))
        both(lab, f"Run and teardown: {title}", text, subjects, tables)
        for name in runtimes(lab):  # what a `run` that failed has left would fail the next one, too
            lab.run(*lab.anywhere(name, *lab.oci(name), "delete", "-f", f"{lab.tag}-{name}"), check=False)


def task_floor(lab, suffix):
    """The command that makes a task's calls in turn. It needs the filter and the empty ext4 image of a task: of one that has run."""
    identity, pid = idle_task(lab)
    try:
        program = bundles.take_filter(lab, pid, "task")
    finally:
        lab.run(lab.brig, "task", "kill", identity, check=False)
        lab.run(lab.brig, "task", "wait", identity, check=False)
    images = lab.folder("store", "floor")
    template = sorted(glob.glob(lab.path("store", "templates", "ext4*.img")))
    if not template:
        raise Failed("brig keeps no template of its disk")
    lab.run("cp", "--sparse=always", template[0], f"{images}/template")
    lab.run("sync", "-f", images)
    groups = bundles.floor_groups(lab, suffix, True, only=["cpu", "memory", "pids"])
    return [lab.program("floor"), "run", *groups, "--filter", program, "--disk", images, lab.folder("empty"), "true"]


def task(lab, tables):
    """The whole sandbox of a task."""
    journaled = lab.journaled()
    lab.run(lab.brig, "task", "run", "--empty", "--", "true")
    floor = attempt(lab, tables[-1], "the floor of a task", lambda: task_floor(lab, "-floor"))
    subjects = [Subject(IN_TURN, floor)] if floor else []
    ours = Subject("brig", [lab.brig, "task", "run", "--empty", "--", "true"])
    subjects.append(ours)
    if lab.has("bwrap"):
        subjects.append(Subject("bwrap", ["bwrap", "--unshare-all", *READ_ONLY_USR, *links(), *BWRAP_ROOT, "true"]))
    subjects.append(Subject("exec of `true` alone", ["true"]))
    text = ("`brig task run --empty -- true` with everything on: user namespace, filter, Landlock, limits, disk cap, log, receipt. "
            "`bwrap --unshare-all` with /usr, /proc, /dev and a tmpfs has no limits, no filter, no disk cap, no record. "
            "The same calls in turn are a C program. It makes namespaces, mounts, filter, Landlock, limits and disk as brig does, "
            "and no log and no record. brig makes some of them side by side.")
    if journaled:
        text += (" Store and disks are on an ext4 with a journal, in memory. The host's ext4 has no journal: there a new file looks at each "
                 "file that was removed in the last minute.")
    # Two that are a few hundredths apart: with fewer rounds the medians of two runs are further apart than they are.
    both(lab, "Run and teardown: the whole sandbox of a task", text, subjects, tables, full=(400, 150), floor=IN_TURN)
    if not lab.has("crun"):
        return
    # Apart from the others: they would take turns with the work that crun leaves to the kernel.
    peers = {"crun": bundles.make(lab, "no-group"), "crun, as a task": bundles.like_a_task(lab, "like-a-task")}
    beside = [subject for subject in subjects if subject.name in (IN_TURN, "brig")]
    for number, (label, bundle) in enumerate(peers.items()):
        words = ["--cgroup-manager=disabled", "run", "--bundle", bundle, f"{lab.tag}-no-group-{number}"]
        beside.append(Subject(label, [*lab.oci("crun"), *words], lab.crun_mounts()))
    text = ("The same, and the same calls in turn, beside containers of crun without a filter, limits and cgroups. "
            "One has the default namespaces and a static `true`, one a task's namespaces, root, user and `true`.")
    both(lab, "Run and teardown: a task beside crun with nothing of it", text, beside, tables, full=(200, 80), floor=IN_TURN)
    for number in range(len(peers)):
        lab.run(*lab.anywhere("crun", *lab.oci("crun"), "delete", "-f", f"{lab.tag}-no-group-{number}"), check=False)


WAIT = """read -r pid <"$1" || true
while read -r line 2>/dev/null <"/proc/$pid/stat"; do case $line in *") Z "* | *") X "*) break ;; esac; done"""


def apart(lab, tables):
    options = {"limits": True, **({"seccomp": True} if os.path.exists(lab.path("docker.bpf")) else {})}
    bundle = bundles.make(lab, "apart", **options)
    groups = bundles.floor_groups(lab, "-apart", True)
    more = ["--filter", lab.path("docker.bpf")] if "seccomp" in options else []
    floor, fifo = lab.program("floor"), lab.path("apart.fifo")
    subjects = [
        Subject("floor create", [floor, "create", fifo, *groups, *more, f"{bundle}/rootfs", "/bin/true"]),
        Subject("floor start", [floor, "start", fifo]),
        Subject("-floor wait", ["sleep", "0.01"]),
        Subject("floor delete", [floor, "delete", *[path for word, path in zip(groups, groups[1:]) if word == "--group"]])]
    for name in runtimes(lab):
        # Callers have it in /run, in memory: on a disk its replacement waits for the file system.
        container, pid = f"{lab.tag}-apart-{name}", os.path.join(lab.state, f"apart-{name}.pid")
        subjects += [
            oci(lab, name, "create", "--bundle", bundle, "--pid-file", pid, container, label=f"{name} create"),
            oci(lab, name, "start", container, label=f"{name} start"),
            Subject(f"-{name} wait", ["sh", "-c", WAIT, "sh", pid]),
            oci(lab, name, "delete", container, label=f"{name} delete")]
    hot = interleave(lab, Table("create, start, delete"), lab.scaled(40, 5), 0, subjects)
    found = with_idle(hot, interleave(lab, Table("create, start, delete"), lab.scaled(15, 3), IDLE_MS, subjects))
    for verb in ("create", "start", "delete"):
        rows = [{**row, "name": row["name"].split()[0]} for row in found.rows if row["name"].endswith(verb)]
        text = "With Docker's default filter and limits; between start and delete the command has ended, which is not timed."
        tables.append(Table(f"{verb} alone", text, rows=rows, more=found.more, left_out=found.left_out if verb == "create" else []))


def execs(lab, tables):
    options = {"limits": True, **({"seccomp": True} if os.path.exists(lab.path("docker.bpf")) else {})}
    bundle = bundles.make(lab, "exec", words=["/bin/sleep", "900"], **options)
    subjects, table = [], Table("")
    for name in runtimes(lab):
        container, pid = f"{lab.tag}-exec-{name}", lab.path(f"exec-{name}.pid")
        words = lab.anywhere(name, *lab.oci(name), "run", "-d", "--bundle", bundle, "--pid-file", pid, container)
        if not attempt(lab, table, name, lambda: lab.run(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) or True):
            continue
        if name == "brig":
            words = [word for _, parent in bundles.hierarchies() for word in ("--group", os.path.join(parent, container))]
            words += ["--filter", lab.path("docker.bpf")] if "seccomp" in options else []
            subjects.append(Subject("floor", [lab.program("floor"), "exec", open(pid).read().strip(), *words, "/bin/true"]))
        subjects.append(oci(lab, name, "exec", container, "/bin/true"))
    both(lab, "exec of `true` in a container", "With Docker's default filter and limits.", subjects, tables, (50, 20), (5, 3))
    tables[-1].left_out += table.left_out
    for name in runtimes(lab):
        lab.run(*lab.anywhere(name, *lab.oci(name), "delete", "-f", f"{lab.tag}-exec-{name}"), check=False)


def program(lab, tables):
    """What the program itself costs before it does anything."""
    subjects = [Subject("brig", [lab.brig, "--version"])] + [Subject(name, [name, "--version"]) for name in (*RUNTIMES, "bwrap") if lab.has(name)]
    table = Table("The program alone: `--version`", f"The static binary of brig that was measured is {os.path.getsize(lab.brig) / (1 << 20):.1f} MiB.", floor="")
    tables.append(interleave(lab, table, lab.scaled(60, 6), 0, subjects))


def run(lab):
    """The tables of this case."""
    tables = [Table("")]
    variants(lab, tables)
    task(lab, tables)
    apart(lab, tables)
    execs(lab, tables)
    program(lab, tables)
    tables[1].left_out = tables[0].left_out + tables[1].left_out
    return tables[1:]
