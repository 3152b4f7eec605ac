"""docker: `docker run --rm` with brig, crun and runc as its runtime, by a daemon of our own."""
import glob
import os
import shutil
import subprocess
import time

import bundles
from lab import Failed, say
from measure import Subject, Table, interleave


def start(lab, driver="vfs", before=()):
    """dockerd on a private socket and folder, without a bridge or rules; the words of its client. `before` stands before its own words."""
    runtimes = {"brig": lab.brig, "crun": shutil.which("crun")}
    if lab.has("crun") and lab.crun_mounts():
        runtimes["crun"] = lab.path("crun")
        with open(runtimes["crun"], "w") as out:
            out.write(f'#!/bin/sh\nexec nsenter --mount={lab.crun_mounts()} {shutil.which("crun")} "$@"\n')
        os.chmod(runtimes["crun"], 0o755)
    with open(lab.path("daemon.json"), "w") as out:
        out.write("{}")
    more = [word for name, path in runtimes.items() if path for word in ("--add-runtime", f"{name}={path}")]
    with open(lab.path("dockerd.log"), "w") as log:
        daemon = lab.begin(*before, "dockerd", "--config-file", lab.path("daemon.json"), "-H", f"unix://{lab.path('sock')}", "--data-root", lab.path("data"),
                           "--exec-root", lab.path("exec"), "--pidfile", lab.path("dockerd.pid"), "--bridge=none", "--iptables=false", "--ip6tables=false",
                           f"--storage-driver={driver}", *more, stderr=log)
    lab.undo.append(lambda: remove(lab))
    lab.undo.append(lambda: lab.end(daemon, 30))
    client = ["docker", "-H", f"unix://{lab.path('sock')}"]
    for _ in range(300):
        if subprocess.run([*client, "version"], capture_output=True, timeout=30, check=False).returncode == 0:
            return client, [name for name in ("brig", "crun", "runc") if name == "runc" or runtimes.get(name)]
        if daemon.poll() is not None:
            break
        time.sleep(0.1)
    raise Failed(f"dockerd does not answer: {open(lab.path('dockerd.log')).read()[-400:]}")


def remove(lab):
    """What the daemon leaves: mounts below its folder (network namespaces of `--network none`) and the cgroup that its containers were below."""
    for top in glob.glob(f"/sys/fs/cgroup/**/{lab.tag}", recursive=True):
        try:
            os.rmdir(top)
        except OSError as error:
            say(f"{top}: {error.strerror}")
    places = [line.split()[4] for line in open("/proc/self/mountinfo") if lab.work in line.split()[4]]
    for place in reversed(places):
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)


def memory(lab):
    """KiB (PSS) of all processes of the runtime's side: containerd's shims."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline").read()
            if "containerd-shim" in line and lab.work in line:
                total += next(int(row.split()[1]) for row in open(f"/proc/{pid}/smaps_rollup") if row.startswith("Pss:"))
        except (OSError, StopIteration):
            pass
    return total


def run(lab):
    """The tables of this case."""
    if not lab.has("docker") or not shutil.which("docker"):
        raise Failed("needs dockerd and docker: apt-get install docker.io")
    client, names = start(lab)
    root = f"{bundles.make(lab, 'docker')}/rootfs"
    lab.run("sh", "-c", f"tar -C {root} -c . | {' '.join(client)} import - bench")
    options = ["--network", "none", "--cgroup-parent", f"/{lab.tag}"]
    subjects = [Subject(name, [*client, "run", "--rm", "--runtime", name, *options, "bench", "/bin/true"]) for name in names]
    table = interleave(lab, Table("docker run --rm of `true`", "`--network none`, Docker's default filter and capabilities, the vfs storage driver. Most of it is "
                                  "docker, containerd and the shim; `docker version` is the client and one request alone.", floor="docker version"),
                       lab.scaled(15, 3), 0, [Subject("docker version", [*client, "version"]), *subjects])
    idle = Table("Memory beside an idle container", "PSS of containerd's shims, for each of several containers.", "KiB", floor="")
    for name in names:
        made = [lab.run(*client, "run", "-d", "--runtime", name, *options, "bench", "/bin/sleep", "600").strip() for _ in range(3)]
        time.sleep(1)
        idle.add(name, [memory(lab) / len(made)])
        lab.run(*client, "rm", "-f", *made)
    return [table, idle]
