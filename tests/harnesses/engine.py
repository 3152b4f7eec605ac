"""One engine and the jobs on it, in mount, network and PID namespaces of their own: their end removes every process.

    python3 engine.py CASE

CASE is a JSON file: `work` (a folder), `engine` (docker, docker-remapped with `userns-remap`, or podman), `runtime` (runc or brig), `brig`, `image` (a tar
archive) and `jobs` (name, words and variables of each). The results go to `results.json` below `work`.

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


class Engine:
    """The engine of a case."""

    def __init__(self, case):
        self.case, self.work = case, case["work"]
        self.kind = case["engine"].split("-")[0]
        self.children = []
        self.environment = {
            **os.environ, "HOME": self.path("home"), "DOCKER_HOST": f"unix://{self.path('sock')}", "BRIG_STORE": self.path("brig-store"),
            "CONTAINERS_STORAGE_CONF": self.path("storage.conf"), "XDG_CONFIG_HOME": self.path("home/.config"), "TMPDIR": self.path("tmp"),
        }

    def path(self, name):
        return os.path.join(self.work, name)

    def run(self, *words, check=True, **options):
        done = subprocess.run(words, env=self.environment, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False, **options)
        if check and done.returncode != 0:
            sys.exit(f"engine: `{' '.join(words)[:200]}` ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
        return done.stdout.strip()

    def begin(self, name, *words):
        with open(self.path(f"{name}.log"), "a") as log:
            child = subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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
        self.run("mount", "-t", "tmpfs", "layers", self.path("layers"))
        for place in ["/etc", "/var/lib"]:
            upper, lower = self.path(f"layers/up{place}"), self.path(f"layers/work{place}")
            os.makedirs(upper), os.makedirs(lower)
            self.run("mount", "-t", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={lower}", "none", place)
        self.run("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{HOST}/32", "dev", "lo")
        for port, text in (ALLOWED, "allowed"), (CLOSED, "closed"):
            folder = self.path(f"pages/{port}")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "index.html"), "w") as out:
                out.write(f"{text}\n")
            self.begin("pages", "busybox", "httpd", "-f", "-p", f"{HOST}:{port}", "-h", folder)

    def start(self):
        os.makedirs("/etc/docker", exist_ok=True)
        os.makedirs("/etc/containers/containers.conf.d", exist_ok=True)
        with open(self.path("agent.toml"), "w") as out:
            out.write(PROFILE)
        if self.kind == "podman":
            self.write_podman()
        if self.case["runtime"] == "brig":
            self.run(self.case["brig"], "engine", "setup", self.kind, "--default", "--profile", self.path("agent.toml"),
                     "--receipts", self.path("receipts"))
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
            for name, line in ("subuid", "remapped:700000:65536"), ("subgid", "remapped:700000:65536"), \
                    ("passwd", "remapped:x:61238:61238::/:/bin/sh"), ("group", "remapped:x:61238:"):
                with open(f"/etc/{name}", "a") as out:
                    out.write(f"{line}\n")
            remap = ["--userns-remap=remapped"]
        self.begin("docker", "dockerd", "-H", f"unix://{self.path('sock')}", "--data-root", self.path("docker"), "--exec-root", self.path("exec"),
                   "--pidfile", self.path("dockerd.pid"), "--ip6tables=false", "--bip=172.28.0.1/24", f"--cgroup-parent=/{self.case['group']}", *remap)

    def write_podman(self):
        """Storage below the folder; cgroups without systemd; no limit that an ordinary machine refuses."""
        with open(self.path("storage.conf"), "w") as out:
            out.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{self.path("podman")}"\nrunroot = "{self.path("podman-run")}"\n')
        with open("/etc/containers/containers.conf.d/40-test.conf", "w") as out:
            out.write('[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
                      f'tmp_dir = "{self.path("podman-tmp")}"\n[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n')

    def start_podman(self):
        self.begin("podman", "podman", "system", "service", "--time", "0", f"unix://{self.path('sock')}")

    def job(self, job, neighbour):
        """Runs one job, and ends what it left. Its lines `work …` and `attack …` are the result."""
        before = set(self.run("docker", "ps", "-aq").split())
        environment = {**self.environment, **job["variables"], "IMAGE": "bb", "HOST": HOST, "ALLOWED": str(ALLOWED), "CLOSED": str(CLOSED),
                       "NEIGHBOUR": neighbour, "ENGINE": self.kind, "PYTHONDONTWRITEBYTECODE": "1"}
        folder = self.path(f"job-{job['name']}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        log = self.path(f"{job['name']}.log")
        began = time.monotonic()
        with open(log, "w") as err:
            child = subprocess.Popen(job["words"], env=environment, cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
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
