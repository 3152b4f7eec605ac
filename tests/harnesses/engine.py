"""One engine and the jobs on it, in mount, network and PID namespaces of their own: their end removes every process.

    python3 engine.py CASE

CASE is a JSON file: `work` (a folder), `engine`, `runtime` (runc or brig), `brig`, `image` (a tar archive), `engine_files` (a folder of the engine, or "") and
`jobs` (name, words and variables of each). The results go to `results.json` below `work`. The engines:

docker, podman       of the machine
docker-remapped      with `userns-remap`
docker-newer         dockerd and its command in the root file system `engine_files`
podman-rootless      the socket, the commands and the jobs of an ordinary user

The engine's configuration, /var/lib and /run are copies that belong to the run. The machine's have no change.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

# An address of the machine that containers of every network reach, as documentation has it (RFC 5737).
HOST = "198.51.100.1"
ALLOWED, CLOSED = 7001, 7002
# The disk is smaller than what the attack writes (job.py), and larger than what any job needs.
PROFILE = f'[network]\nallow = ["{HOST}:{ALLOWED}"]\n[limits]\ndisk = "128M"\n'
JOB_SECONDS = 150
# The accounts of the run, in its own /etc: of `userns-remap`, and of podman-rootless. Each has the ids from 700000.
REMAPPED, USER = 61238, 61239


class Engine:
    """The engine of a case."""

    def __init__(self, case):
        self.case, self.work = case, case["work"]
        self.kind = case["engine"].split("-")[0]
        self.children = []
        self.user = USER if case["engine"] == "podman-rootless" else 0
        # What runs as the engine's user.
        self.as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--"] if self.user else []
        # Whether a container may have a limit of memory and of processes.
        self.limits = "yes"
        self.top = self.work + "-root" if case["engine"] == "docker-newer" else ""
        # What runs in the engine's root file system. chroot(2) is not enough: setns(2) leaves it. Then `exec` runs on the machine's files, with each runtime.
        self.in_root = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", 'cd "$0"; pivot_root . mnt; umount -l /mnt; exec "$@"',
                        self.top] if self.top else []
        self.environment = {
            **os.environ, "HOME": self.path("home"), "DOCKER_HOST": f"unix://{self.path('sock')}", "BRIG_STORE": self.path("brig-store"),
            "CONTAINERS_STORAGE_CONF": self.path("storage.conf"), "XDG_CONFIG_HOME": self.path("home/.config"), "TMPDIR": self.path("tmp"),
            **({"XDG_RUNTIME_DIR": f"/run/user/{USER}"} if self.user else {}),
        }

    def path(self, name):
        return os.path.join(self.work, name)

    def run(self, *words, **options):
        return self.root(*self.as_user, *words, **options)

    def root(self, *words, check=True, **options):
        done = subprocess.run(words, env=self.environment, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False, **options)
        if check and done.returncode != 0:
            sys.exit(f"engine: `{' '.join(words)[:200]}` ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
        return done.stdout.strip()

    def begin(self, name, *words):
        with open(self.path(f"{name}.log"), "a") as log:
            child = subprocess.Popen([*self.as_user, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append(child)
        return child

    def enter(self):
        """Covers what an engine reads and writes outside of its own folders, and makes the network."""
        for name in ["home", "tmp", "receipts", "pages"]:
            os.makedirs(self.path(name), exist_ok=True)
        # `docker compose` is a plug-in of the docker command.
        if self.case["compose"]:
            os.makedirs(self.path("home/.docker/cli-plugins"), exist_ok=True)
            shutil.copy(self.case["compose"], self.path("home/.docker/cli-plugins/docker-compose"))
        # The layers are in memory: an overlay's upper layer must not be on another overlay.
        os.makedirs(self.path("layers"), exist_ok=True)
        self.root("mount", "-t", "tmpfs", "layers", self.path("layers"))
        # /root may have the Python of a job, and the repository.
        for place in ["/etc", "/var/lib", *(["/root"] if self.user else [])]:
            self.cover(place, place)
        self.root("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")
        self.root("ip", "link", "set", "lo", "up")
        self.root("ip", "address", "add", f"{HOST}/32", "dev", "lo")
        if self.user:
            self.make_user()
        if self.top:
            self.make_root()
        for port, text in (ALLOWED, "allowed"), (CLOSED, "closed"):
            folder = self.path(f"pages/{port}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "index.html"), "w") as out:
                out.write(f"{text}\n")
            self.begin("pages", "busybox", "httpd", "-f", "-p", f"{HOST}:{port}", "-h", folder)

    def account(self, name, number):
        """Adds an account with 65536 further ids."""
        for file, line in ("subuid", f"{name}:700000:65536"), ("subgid", f"{name}:700000:65536"), \
                ("passwd", f"{name}:x:{number}:{number}::/:/bin/sh"), ("group", f"{name}:x:{number}:"):
            with open(f"/etc/{file}", "a") as out:
                out.write(f"{line}\n")

    def cover(self, place, over):
        """Mounts a copy-on-write view of one folder over another."""
        upper, lower = self.path(f"layers/up{over}"), self.path(f"layers/work{over}")
        os.makedirs(upper), os.makedirs(lower)
        self.root("mount", "-t", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={lower}", "none", over)

    def make_root(self):
        """The root file system of a newer engine, with this run's folder and brig at their paths, and its command `docker`."""
        os.makedirs(self.top, exist_ok=True)
        self.cover(self.case["engine_files"], self.top)
        for place in ["/proc", "/sys", "/dev", "/run", self.work, os.path.dirname(self.case["brig"])]:
            os.makedirs(self.top + place, exist_ok=True)
            self.root("mount", "--rbind", place, self.top + place)
        os.makedirs(self.path("bin"), exist_ok=True)
        with open(self.path("bin/docker"), "w") as out:
            out.write(f'#!/bin/sh\nexec chroot {self.top} env -C "$PWD" /usr/bin/docker "$@"\n')
        os.chmod(self.path("bin/docker"), 0o755)
        self.environment["PATH"] = f"{self.path('bin')}:{self.environment['PATH']}"

    def make_user(self):
        """What a login gives an ordinary user: an account with a range of ids, a folder in /run and a delegated group. And slirp4netns its device."""
        self.account("ordinary", USER)
        os.chmod("/root", 0o711)
        os.makedirs(f"/run/user/{USER}")
        self.root("mknod", "-m", "666", self.path("layers/tun"), "c", "10", "200")
        self.root("mount", "--bind", self.path("layers/tun"), "/dev/net/tun")
        # Podman uses groups of a user in cgroup v2 alone.
        if not os.path.exists("/sys/fs/cgroup/cgroup.procs"):
            self.root("umount", "-R", "/sys/fs/cgroup")
            self.root("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
        group = f"/sys/fs/cgroup/{self.case['group']}"
        os.makedirs(f"{group}/service")
        for at in ["/sys/fs/cgroup", group]:
            for controller in open(f"{at}/cgroup.controllers").read().split():
                self.root("sh", "-c", f"echo +{controller} > {at}/cgroup.subtree_control", check=False)
        for at in [group, f"{group}/service"]:
            for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"]:
                os.chown(os.path.join(at, name), USER, USER)
        with open(f"{group}/service/cgroup.procs", "w") as out:
            out.write(str(os.getpid()))
        # A controller that the machine has in v1 is not in v2.
        self.limits = "yes" if {"memory", "pids"} <= set(open(f"{group}/cgroup.controllers").read().split()) else ""
        for name in [*(self.path(each) for each in ["", "home", "tmp", "receipts"]), f"/run/user/{USER}"]:
            os.chown(name, USER, USER)

    def start(self):
        os.makedirs("/etc/docker", exist_ok=True)
        os.makedirs("/etc/containers/containers.conf.d", exist_ok=True)
        with open(self.path("agent.toml"), "w") as out:
            out.write(PROFILE)
        if self.kind == "podman":
            self.write_podman()
        if self.case["runtime"] == "brig":
            self.run(*self.in_root, self.case["brig"], "engine", "setup", self.kind, "--default", "--profile", self.path("agent.toml"),
                     "--receipts", self.path("receipts"), *(["--user"] if self.user else []))
        getattr(self, f"start_{self.kind}")()
        for _ in range(300):
            if subprocess.run(["docker", "version"], env=self.environment, capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        else:
            sys.exit(f"engine: it does not answer: {open(self.path(self.kind + '.log')).read()[-1500:]}")
        if "bb" not in self.run("docker", "images", "--format", "{{.Repository}}"):
            self.run("sh", "-c", f"docker import --change 'CMD [\"sleep\", \"600\"]' - bb < {self.case['image']}")
        serve = "mkdir /www; echo of-the-neighbour > /www/secret; exec busybox httpd -f -p 80 -h /www"
        self.run("docker", "run", "-d", "--name", "neighbour", "bb", "sh", "-c", serve)
        return self.run("docker", "inspect", "-f", "{{.NetworkSettings.IPAddress}}", "neighbour")

    def start_docker(self):
        remap = []
        if self.case["engine"] == "docker-remapped":
            self.account("remapped", REMAPPED)
            remap = ["--userns-remap=remapped"]
        self.begin("docker", *self.in_root, "dockerd", "-H", f"unix://{self.path('sock')}", "--data-root", self.path("docker"), "--exec-root", self.path("exec"),
                   "--pidfile", self.path("dockerd.pid"), "--ip6tables=false", "--bip=172.28.0.1/24", f"--cgroup-parent=/{self.case['group']}", *remap)

    def write_podman(self):
        """Storage below the folder; cgroups without systemd; no limit that an ordinary machine refuses."""
        with open(self.path("storage.conf"), "w") as out:
            out.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{self.path("podman")}"\nrunroot = "{self.path("podman-run")}"\n')
        with open("/etc/containers/containers.conf.d/40-test.conf", "w") as out:
            if self.user:
                # The network programs that Debian's Podman recommends. Those of CNI keep an ordinary user's bridges.
                out.write(f'[network]\nnetwork_backend = "netavark"\n[engine]\nhelper_binaries_dir = ["{self.case["engine_files"]}", "/usr/lib/podman"]\n')
            else:
                out.write('[engine]\n')
            out.write('cgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
                      f'tmp_dir = "{self.path("podman-tmp")}"\n[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n')

    def start_podman(self):
        self.begin("podman", "podman", "system", "service", "--time", "0", f"unix://{self.path('sock')}")

    def job(self, job, neighbour):
        """Runs one job, and ends what it left. Its lines `work …` and `attack …` are the result."""
        before = set(self.run("docker", "ps", "-aq").split())
        environment = {**self.environment, **job["variables"], "IMAGE": "bb", "HOST": HOST, "ALLOWED": str(ALLOWED), "CLOSED": str(CLOSED),
                       "NEIGHBOUR": neighbour, "ENGINE": self.kind, "LIMITS": self.limits, "PYTHONDONTWRITEBYTECODE": "1"}
        folder = self.path(f"job-{job['name']}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.chown(folder, self.user, self.user)
        log = self.path(f"{job['name']}.log")
        began = time.monotonic()
        with open(log, "w") as err:
            child = subprocess.Popen([*self.as_user, *job["words"]], env=environment, cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=err, start_new_session=True)
            try:
                out, _ = child.communicate(timeout=JOB_SECONDS)
                status = child.returncode
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                out, status = child.communicate()[0], "time-out"
        left = sorted(set(self.run("docker", "ps", "-aq").split()) - before)
        if left:
            self.run("docker", "rm", "-f", *left, check=False)
        result = {"status": status, "left": len(left), "seconds": round(time.monotonic() - began, 1), "work": [], "attack": [], "log": log}
        for line in out.splitlines():
            kind, _, text = line.partition(" ")
            if kind in ("work", "attack"):
                result[kind].append(text)
        return result

    def end(self):
        self.run("docker", "rm", "-f", "neighbour", check=False)
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def main():
    with open(sys.argv[1]) as file:
        engine = Engine(json.load(file))
    results = {}
    engine.enter()
    try:
        neighbour = engine.start()
        for job in engine.case["jobs"]:
            results[job["name"]] = engine.job(job, neighbour)
            print(f"{engine.case['engine']} {engine.case['runtime']} {job['name']}: {results[job['name']]['seconds']} s", file=sys.stderr, flush=True)
    finally:
        engine.end()
    results["receipts"] = len(os.listdir(engine.path("receipts")))
    with open(engine.path("results.json"), "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
