"""doors: the start of a container or sandbox, and a command in it, by each way that a program may call."""
import glob
import json
import os
import subprocess
import sys
import time

import bundles
from cases import docker
from lab import REPOSITORY, Failed
from measure import Table, attempt


class Engine:
    """One engine with one runtime, by its command line."""

    def __init__(self, lab, words, options):
        self.lab, self.words, self.options = lab, words, options

    def start(self):
        return self.lab.run(*self.words, "run", "-d", *self.options, "bench", "/bin/sleep", "600").strip()

    def execute(self, name):
        self.lab.run(*self.words, "exec", name, "/bin/true")

    def end(self, name):
        self.lab.run(*self.words, "rm", "-f", name)


def podman(lab, runtime, root):
    """Podman on a private store for this runtime. With crun it runs in the mount namespace in which crun works."""
    store = "brig-store" if runtime == lab.brig else f"{runtime}-store"
    words = lab.anywhere(runtime, "podman", "--root", lab.path(store), "--runroot", lab.path(store[:4] + "-run"), "--tmpdir", lab.path(store[:4] + "-tmp"),
                         "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", runtime)
    if not os.path.exists(lab.path(store)):
        lab.run("sh", "-c", f"tar -C {root} -c . | {' '.join(words)} import -q - bench")
        lab.undo.append(lambda: lab.run(*words, "rm", "-f", "-t", "0", "-a", check=False))
        lab.undo.insert(0, lambda: remove_groups(lab))
        lab.undo.insert(0, lambda: lab.call("umount", lab.path(store, "overlay")))
    # Podman's own limits are higher than some machines allow.
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    return Engine(lab, words, ["--network", "none", "--cgroup-parent", f"/{lab.tag}", *limits])


def remove_groups(lab):
    """Podman leaves the groups of its monitors below the parent."""
    for top in glob.glob(f"/sys/fs/cgroup/**/{lab.tag}", recursive=True):
        lab.call("find", top, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")


class Python:
    """The package, in this process: one connection for all commands of a sandbox."""

    def __init__(self, lab, root):
        sys.path.insert(0, os.path.join(REPOSITORY, "src", "python"))
        os.environ["BRIG_BIN"] = lab.brig
        from brig_sandbox import Sandbox
        self.make, self.attach, self.root = Sandbox.start, Sandbox.attach, root

    def start(self):
        return self.make(rootfs=self.root)

    def execute(self, sandbox):
        sandbox.exec(["/bin/true"]).check()

    def end(self, sandbox):
        sandbox.stop()


class Command:
    """`brig task`, a process for each call."""

    def __init__(self, lab, python):
        self.lab, self.python = lab, python

    def start(self):
        id = self.lab.run(self.lab.brig, "task", "run", "--detach", "--hold", "--rootfs", self.python.root).strip()
        return self.python.attach(id)  # waits until a process can enter, as `Sandbox.start` does

    def execute(self, sandbox):
        self.lab.run(self.lab.brig, "task", "exec", sandbox.id, "/bin/true")

    def end(self, sandbox):
        sandbox.stop()


class Mcp:
    """`brig mcp`: one server, whose tools start sandboxes and run commands."""

    def __init__(self, lab):
        if lab.call(lab.brig, "mcp", "--help")[2] != 0:
            raise Failed("this brig has no `mcp`")
        self.child = lab.begin(lab.brig, "mcp", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()

    def ask(self, method, parameters):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": parameters})
        while line := self.child.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == self.number:
                if "error" in answer or answer["result"].get("isError"):
                    raise Failed(f"`brig mcp` refused {method}: {line.decode()[:200]}")
                return answer["result"]
        raise Failed("`brig mcp` ended")

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments}).get("structuredContent") or {}

    def start(self):
        made = self.call("sandbox_start")
        return made.get("sandbox") or made.get("id") or made.get("name")

    def execute(self, sandbox):
        self.call("exec", sandbox=sandbox, command="true")

    def end(self, sandbox):
        self.call("sandbox_stop", sandbox=sandbox)


def run(lab):
    """The tables of this case."""
    root = f"{bundles.make(lab, 'doors')}/rootfs"
    text = "One container or sandbox at a time, in turn, without a network. "
    begin = Table("Start", text + "From the call until the program runs. Engines and `brig task` by their command, Python and MCP by a process that stays.", base="Podman + brig", floor="")
    execute = Table("Exec of `true`", text + "In a container that runs, from the call until the exit status is known.", base="Podman + brig", floor="")
    ways = {}

    def add(name, make):
        if (way := attempt(lab, begin, name, make)) is not None:
            ways[name] = way

    def engines_of_docker():
        client, names = docker.start(lab, driver="overlay2")
        lab.run("sh", "-c", f"tar -C {root} -c . | {' '.join(client)} import - bench")
        for name in [each for each in ("runc", "brig") if each in names]:
            ways[f"dockerd + {name}"] = Engine(lab, client, ["--runtime", name, "--network", "none", "--cgroup-parent", f"/{lab.tag}"])

    if lab.has("podman"):
        add("Podman + brig", lambda: podman(lab, lab.brig, root))
        for runtime in [each for each in ("crun", "runc") if lab.has(each)]:
            add(f"Podman + {runtime}", lambda runtime=runtime: podman(lab, runtime, root))
    if lab.has("docker"):
        attempt(lab, begin, "dockerd", engines_of_docker)
    add("Python", lambda: Python(lab, root))
    add("brig task", lambda: Command(lab, Python(lab, root)))
    add("MCP", lambda: Mcp(lab))
    for name, way in list(ways.items()):  # the first start of each is not timed
        def once(way=way):
            made = way.start()
            way.execute(made)
            way.end(made)
            return True
        if not attempt(lab, begin, name, once):
            del ways[name]
    times = {name: ([], []) for name in ways}
    for _ in range(lab.scaled(20, 3)):
        for name, way in ways.items():
            began = time.perf_counter()
            made = way.start()
            times[name][0].append((time.perf_counter() - began) * 1e3)
            try:
                for _ in range(3):
                    began = time.perf_counter()
                    way.execute(made)
                    times[name][1].append((time.perf_counter() - began) * 1e3)
            finally:
                way.end(made)
    for name, (starts, executions) in times.items():
        begin.add(name, starts)
        execute.add(name, executions)
    return [begin, execute]
