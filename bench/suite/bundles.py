"""Bundles for the OCI runtimes, and what the floor needs to do the same."""
import json
import os
import shutil
import subprocess

from lab import Failed

PROFILE = "/usr/share/containers/seccomp.json"
CAPABILITIES = ["CAP_" + name for name in (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE").split()]
LIMITS = {"memory": {"limit": 512 << 20}, "cpu": {"shares": 512, "quota": 100000, "period": 100000}, "pids": {"limit": 512}}


def docker_filter():
    """Docker's default filter as Docker hands it to a runtime: conditions on capabilities and architectures are decided before."""
    source = json.load(open(PROFILE))
    wanted = set(CAPABILITIES)
    machine, debian = {"x86_64": ("SCMP_ARCH_X86_64", "amd64"), "aarch64": ("SCMP_ARCH_AARCH64", "arm64")}[os.uname().machine]
    arches = [arch for each in source["archMap"] if each["architecture"] == machine for arch in [each["architecture"]] + each["subArchitectures"]]
    calls = []
    for each in source["syscalls"]:
        includes, excludes = each.get("includes") or {}, each.get("excludes") or {}
        if any(cap not in wanted for cap in includes.get("caps") or []) or any(cap in wanted for cap in excludes.get("caps") or []):
            continue
        if includes.get("arches") and debian not in includes["arches"] or debian in (excludes.get("arches") or []):
            continue
        calls.append({key: each[key] for key in ("names", "action", "args", "errnoRet") if each.get(key) is not None})
    return {"defaultAction": source["defaultAction"], "architectures": arches, "syscalls": calls}


def busybox_root(root):
    """The least root there is."""
    for folder in ("bin", "proc", "dev", "sys", "tmp", "etc"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    for program in ("true", "sleep"):
        if not os.path.exists(f"{root}/bin/{program}"):
            shutil.copy("/bin/busybox", f"{root}/bin/{program}")


def make(lab, name, words=("/bin/true",), seccomp=False, limits=False, user=False, mounts=(), root=None):
    """A bundle: what `spec` writes, a root of busybox if no other is given, and what is asked for. Returns its path."""
    bundle = lab.folder("bundles", name)
    if not root:
        busybox_root(lab.folder("bundles", name, "rootfs"))
    subprocess.run([lab.brig, "spec"], cwd=bundle, capture_output=True, check=False)
    spec = json.load(open(f"{bundle}/config.json"))
    spec["ociVersion"] = "1.0.2"  # the oldest of the peers knows no later one
    process = spec["process"]
    process.update(args=list(words), terminal=False, env=["PATH=/usr/bin:/bin"])
    process.pop("rlimits", None)
    linux = spec["linux"]
    if seccomp:
        linux["seccomp"] = docker_filter()
        for each in ("bounding", "effective", "permitted"):
            process["capabilities"][each] = CAPABILITIES
    if limits:
        linux["resources"].update(LIMITS)
    if user:
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    if root:  # not the default root: its programs work in /work and write there
        spec["root"] = {"path": root, "readonly": True}
        process["cwd"] = "/work"
        spec["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]})
    spec["mounts"] += list(mounts)
    with open(f"{bundle}/config.json", "w") as out:
        json.dump(spec, out)
    return bundle


def like_a_task(lab, name):
    """A bundle with the namespaces, root, user and rights of a task; instead of its disk file systems in memory, and nothing else of it."""
    places = ["/tmp", "/workspace", "/home/agent"]
    mounts = [{"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro", "nosuid", "nodev"]}]
    mounts += [{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]} for at in places]
    bundle = make(lab, name, user=True, mounts=mounts)
    root = f"{bundle}/rootfs"
    shutil.rmtree(f"{root}/bin")
    for folder in ("/usr", *places):
        os.makedirs(root + folder, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{link}"):
            os.symlink(f"usr/{link}", f"{root}/{link}")
    spec = json.load(open(f"{bundle}/config.json"))
    spec["root"]["readonly"] = True
    spec["linux"]["namespaces"].append({"type": "cgroup"})
    nothing = {each: [] for each in ("bounding", "effective", "permitted", "inheritable", "ambient")}
    spec["process"].update(user={"uid": 1000, "gid": 1000}, cwd="/workspace", noNewPrivileges=True, capabilities=nothing)
    with open(f"{bundle}/config.json", "w") as out:
        json.dump(spec, out)
    return bundle


def hierarchies():
    """Our own groups: controllers of each hierarchy (v2: []) and the directory."""
    mounts = []
    for line in open("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            mounts.append((kind, left.split()[4], set(options.strip().split(","))))
    found = []
    for line in open("/proc/self/cgroup"):
        _, controllers, path = line.strip().split(":", 2)
        names = [name for name in controllers.split(",") if name]
        for kind, mount, options in mounts:
            if not names and kind == "cgroup2" or names and kind == "cgroup" and names[0] in options:
                found.append((names, os.path.join(mount, path.lstrip("/"))))
                break
    return found


def floor_groups(lab, name, limits=False, only=None):
    """The floor's words for a group in each hierarchy, with the writes that a container's needs; `only` names the controllers wanted."""
    words, v1 = [], False
    for controllers, parent in hierarchies():
        if only and controllers and not set(controllers) & set(only):
            continue
        group = os.path.join(parent, f"{lab.tag}{name}")
        words += ["--group", group]
        v1 = v1 or bool(controllers)
        puts = []
        if "cpuset" in controllers:
            puts += [(each, open(f"{parent}/{each}").read().strip()) for each in ("cpuset.cpus", "cpuset.mems")]
        if "devices" in controllers:
            puts += [("devices.deny", "a *:* rwm")]
            nodes = ("1:3", "1:8", "1:7", "5:0", "1:5", "1:9", "136:*", "5:2")
            puts += [("devices.allow", what) for what in ("c *:* m", "b *:* m", *(f"c {node} rwm" for node in nodes))]
        if limits:
            if "memory" in controllers:
                puts.append(("memory.limit_in_bytes", str(512 << 20)))
            if "cpu" in controllers:
                puts += [("cpu.shares", "512"), ("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "100000")]
            if "pids" in controllers:
                puts.append(("pids.max", "512"))
            if not controllers:
                given = open(f"{parent}/cgroup.subtree_control").read().split()
                unified = {"memory": ("memory.max", str(512 << 20)), "cpu": ("cpu.max", "100000 100000"), "pids": ("pids.max", "512")}
                puts += [put for controller, put in unified.items() if controller in given]
        for file, value in puts:
            words += ["--put", os.path.join(group, file), value]
    return words


def take_filter(lab, pid, name):
    """The seccomp filter that brig gave to a process, as a file for the floor."""
    path = lab.path(f"{name}.bpf")
    with open(path, "wb") as out:
        if subprocess.run([lab.program("floor"), "filter", str(pid)], stdout=out, stderr=subprocess.DEVNULL, timeout=20, check=False).returncode != 0:
            raise Failed("the filter of a process cannot be read (PTRACE_SECCOMP_GET_FILTER)")
    return path
