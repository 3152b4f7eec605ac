"""Where a run takes place: its folder, its programs, its peers, and the proof that nothing is left of it."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONGEST = 600  # seconds that any single command may take
MOUNTED = "brig-mounted"  # brig on a read-only mount

# What is measured beside brig: the program, and how it tells its version.
PEERS = {
    "runc": ["runc", "--version"],
    "crun": ["crun", "--version"],
    "youki": ["youki", "--version"],
    "runsc": ["runsc", "--version"],
    "bwrap": ["bwrap", "--version"],
    "docker": ["dockerd", "--version"],
    "podman": ["podman", "--version"],
    "umoci": ["umoci", "--version"],
    "skopeo": ["skopeo", "--version"],
    "mkfs.erofs": ["dpkg-query", "-W", "-f", "${Version}", "erofs-utils"],  # it tells none without making one
    "pasta": ["pasta", "--version"],
    "slirp4netns": ["slirp4netns", "--version"],
    "nginx": ["nginx", "-v"],
    "git": ["git", "--version"],
    "npm": ["npm", "--version"],
    "cargo": ["cargo", "--version"],
}


class Failed(Exception):
    """A command that did not do what it was asked for."""


def say(text):
    print(f"bench/run: {text}", file=sys.stderr, flush=True)


def version(name):
    """The version of a peer as it tells it, or None where it is missing."""
    program, *arguments = PEERS[name]
    if not (path := shutil.which(program)):
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return next((word.strip(",") for word in re.split(r"[\s/]", lines[0]) if word[:1].isdigit()), lines[0]) if lines else "?"


class Lab:
    """A scratch folder that everybody may enter, in which brig keeps its store; `tag` is in the name of everything that a case makes."""

    def __init__(self, brig, quick, rounds, youki):
        self.quick, self.rounds = quick, rounds
        self.tag = f"brigbench{os.getpid()}"
        self.work = tempfile.mkdtemp(prefix=f"{self.tag}-", dir="/var/tmp")
        # Where a host has /run, and a runtime its records: in memory.
        self.state = tempfile.mkdtemp(prefix=f"{self.tag}-", dir="/dev/shm")
        for folder in self.work, self.state:
            os.chmod(folder, 0o755)
        # As an installation writes it. The page cache keeps the file of the linker in smaller pieces, so it starts 0.2 ms later.
        self.brig = shutil.copy(brig, self.path("brig"))
        self.children, self.undo = [], []
        self.versions = {name: found for name in PEERS if (found := version(name)) and (name != "youki" or youki)}
        os.environ["BRIG_STORE"] = self.store = self.path("store")
        self._crun, self._tasks, self._is_mounted = None, [], False

    def path(self, *names):
        return os.path.join(self.work, *names)

    def folder(self, *names):
        os.makedirs(self.path(*names), exist_ok=True)
        return self.path(*names)

    def has(self, name):
        return name in self.versions

    def scaled(self, full, quick):
        """How often: the number for a whole or a quick run, or what --rounds says."""
        return self.rounds or (quick if self.quick else full)

    def program(self, name):
        """One of our C programs, compiled; static, since what it measures includes its own start."""
        made = self.path(f"tool-{name}")
        if not os.path.exists(made):
            source = os.path.join(REPOSITORY, "bench", f"{name}.c")
            self.run("cc", "-O2", "-w", "-pthread", "-static", "-o", made, source)
        return made

    # Commands

    def call(self, *words, timeout=LONGEST, **options):
        """Runs a command to its end: what it wrote on both streams, and its status; Failed when it takes too long."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        child = subprocess.Popen(words, text=True, **options)
        self.children.append(child)
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            child.kill()
            child.communicate()
            raise Failed(f"`{os.path.basename(words[0])}` took longer than {timeout} s") from error
        finally:
            self.done(child)
        return out, err, child.returncode

    def run(self, *words, check=True, **options):
        """Runs a command to its end; its output, or Failed with its last words."""
        out, err, status = self.call(*words, **options)
        if check and status != 0:
            raise Failed(f"`{' '.join(words)[:200]}` ended with {status}: {(err or '').strip()[-400:]}")
        return out

    def done(self, child):
        """Forgets a child that has ended; one that an interrupt has left behind is ended with the case."""
        if child.poll() is not None and child in self.children:
            self.children.remove(child)

    def begin(self, *words, **options):
        """Starts a command that goes on; it is ended with the case."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        child = subprocess.Popen(words, **options)
        self.children.append(child)
        return child

    def end(self, child, seconds=10):
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child in self.children:
            self.children.remove(child)

    def time(self, *words, **options):
        """Milliseconds of one command."""
        began = time.perf_counter()
        self.run(*words, **options)
        return (time.perf_counter() - began) * 1e3

    def journaled(self):
        """A file system of its own for the store until the case ends, where the host's is an ext4 without a journal: there each new file looks at all that
        were removed in the last minute (recently_deleted() in fs/ext4/ialloc.c), and a start takes as long as there were starts before it. Says whether."""
        device = self.run("findmnt", "-no", "SOURCE", "-T", self.work).strip().split("/")[-1]
        kind = self.run("findmnt", "-no", "FSTYPE", "-T", self.work).strip()
        journals = os.listdir("/proc/fs/jbd2") if os.path.isdir("/proc/fs/jbd2") else []
        if kind != "ext4" or os.geteuid() != 0 or any(name.startswith(f"{device}-") for name in journals):
            return False
        image = os.path.join(self.state, "store.img")
        self.run("truncate", "-s", "8G", image)
        self.run("mkfs.ext4", "-q", image)
        self.run("mount", "-o", "loop,nosuid,nodev", image, self.folder("store"))
        self.undo.append(self._unmount)
        return True

    def _unmount(self):
        self._tasks = self.tasks()
        for _ in range(50):  # brig's own helper may still let a disk on it go
            if self.call("umount", self.store)[2] == 0:
                break
            time.sleep(0.1)
        else:
            raise Failed(f"`{self.store}` cannot be unmounted")
        os.unlink(os.path.join(self.state, "store.img"))

    # Peers

    def crun_mounts(self):
        """crun 1.8 starts nothing where v1 and v2 both have controllers. There it gets a mount namespace without the v2 tree: its path, or ''."""
        if self._crun is None:
            self._crun = ""
            try:
                hybrid = open("/sys/fs/cgroup/unified/cgroup.controllers").read().strip()
            except OSError:
                hybrid = ""
            if hybrid:
                holder = self.begin("unshare", "--mount", "--propagation", "private", "sh", "-c", "umount /sys/fs/cgroup/unified && exec sleep 7200")
                time.sleep(0.3)
                self._crun = f"/proc/{holder.pid}/ns/mnt"
        return self._crun

    def mounted(self):
        """brig on a read-only mount, as rootfs/systemd/brig-runtime.service makes it."""
        path = self.path("mounted")
        if not self._is_mounted:
            open(path, "w").close()
            self.run("mount", "--bind", "-o", "ro,nosuid,nodev", self.brig, path)
            self._is_mounted = True
            self.undo.append(self._unmount_brig)
        return path

    def _unmount_brig(self):
        self.run("umount", "--lazy", self.path("mounted"))
        self._is_mounted = False

    def oci(self, name):
        """How an OCI runtime is called: its words, with a state directory of its own."""
        program = self.mounted() if name == MOUNTED else self.brig if name == "brig" else name
        return [program, "--root", os.path.join(self.state, name)]

    def anywhere(self, name, *words):
        """The words of a peer as a command of the host: crun enters its namespace by nsenter."""
        if name == "crun" and self.crun_mounts():
            return ["nsenter", f"--mount={self.crun_mounts()}", *words]
        return list(words)

    # The end

    def leftovers(self):
        """What is still there although nothing should be: groups, mounts, loop devices and processes that bear our name."""
        found = []
        marks = [self.tag, *(f"brig-{task}" for task in self.tasks())]
        for top, folders, _ in os.walk("/sys/fs/cgroup"):
            found += [f"cgroup {os.path.join(top, name)}" for name in folders if any(mark in name for mark in marks)]
        with open("/proc/self/mountinfo") as mounts:
            found += [f"mount {line.split()[4]}" for line in mounts if self.work in line]
        for name in os.listdir("/sys/block"):
            try:
                backing = open(f"/sys/block/{name}/loop/backing_file").read()
            except OSError:
                continue
            if self.work in backing:
                found.append(f"loop device {name}")
        known = {os.getpid(), *(child.pid for child in self.children)}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in known:
                continue
            try:
                line = open(f"/proc/{pid}/cmdline").read().replace("\0", " ")
                groups = open(f"/proc/{pid}/cgroup").read()
            except OSError:
                continue
            if self.work in line or any(mark in groups for mark in marks):
                found.append(f"process {pid} {line[:60]}")
        return found

    def tasks(self):
        try:
            return self._tasks + os.listdir(self.path("store", "tasks"))
        except OSError:
            return self._tasks

    def settle(self):
        """What is left after a case, once what ends in the background had up to 5 s for it."""
        for _ in range(50):
            if not (left := self.leftovers()):
                break
            time.sleep(0.1)
        return left

    def finish(self):
        """Ends what a case has begun, in the opposite order."""
        while self.undo:
            try:
                self.undo.pop()()
            except (Failed, OSError) as error:
                say(str(error))
        for child in reversed(self.children[:]):
            self.end(child)

    def close(self):
        """Ends and removes everything; to be called again does no harm."""
        if not os.path.isdir(self.work):
            return
        self.finish()
        for name in ["brig", "crun", "runc", "youki", "runsc"]:
            if os.path.isdir(os.path.join(self.state, name)):
                for container in os.listdir(os.path.join(self.state, name)):
                    if container.startswith(self.tag):
                        subprocess.run(self.anywhere(name, *self.oci(name), "delete", "-f", container), capture_output=True, timeout=60, check=False)
        self._crun = None
        for left in self.settle():
            kind, _, rest = left.partition(" ")
            say(f"left over, removing: {left}")
            try:
                if kind == "process":
                    os.kill(int(rest.split()[0]), signal.SIGKILL)
                elif kind == "mount":
                    subprocess.run(["umount", "-l", rest], check=False)
            except OSError:
                pass
        for _ in range(20):  # a group goes when its last process has gone
            groups = [left.partition(" ")[2] for left in self.leftovers() if left.startswith("cgroup ")]
            for path in sorted(groups, key=len, reverse=True):
                try:
                    os.rmdir(path)
                except OSError:
                    time.sleep(0.05)
            if not groups:
                break
        # Not by Python: a hundred thousand files take it minutes. Nothing below a mount that refused to go is touched.
        subprocess.run(["rm", "-rf", "--one-file-system", self.work, self.state], check=False)
