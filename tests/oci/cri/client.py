"""Drives the Kubernetes runtime interface (CRI, runtime.v1) of a containerd over its socket, as kubelet does.

    client.py SOCKET HANDLER IMAGE DIRECTORY GROUP PODS [users]

With `users` also pods with user namespaces, whose network is that of the CNI. Prints a line for each fact; what differs from run to run is left out. The messages below are the part of the protocol that is used here:
field names, numbers and kinds.
"""

import concurrent.futures
import os
import re
import sys
import time

import grpc

# Kinds: int, str, bytes, map (of strings), another message; a list of one of them may be repeated.
MESSAGES = {
    "Id": {"id": (1, "str")},
    "Empty": {},
    "Metadata": {"name": (1, "str"), "uid": (2, "str"), "namespace": (3, "str")},
    "ContainerName": {"name": (1, "str")},
    "Image": {"image": (1, "str")},
    "Value": {"value": (1, "int")},
    "Namespaces": {"network": (1, "int"), "pid": (2, "int"), "ipc": (3, "int"), "target": (4, "str"), "users": (5, "Users")},
    "Users": {"mode": (1, "int"), "uids": (2, ["Range"]), "gids": (3, ["Range"])},
    "Range": {"host": (1, "int"), "container": (2, "int"), "length": (3, "int")},
    "Profile": {"kind": (1, "int")},
    "PodSecurity": {"namespaces": (1, "Namespaces"), "privileged": (6, "int")},
    "PodLinux": {"parent": (1, "str"), "security": (2, "PodSecurity"), "sysctls": (3, "map")},
    "PodConfig": {"metadata": (1, "Metadata"), "hostname": (2, "str"), "logs": (3, "str"), "annotations": (7, "map"), "linux": (8, "PodLinux")},
    "RunPod": {"config": (1, "PodConfig"), "handler": (2, "str")},
    "KeyValue": {"key": (1, "str"), "value": (2, "str")},
    "Mount": {"inside": (1, "str"), "outside": (2, "str"), "readonly": (3, "int"), "propagation": (5, "int")},
    "Device": {"inside": (1, "str"), "outside": (2, "str"), "permissions": (3, "str")},
    "Resources": {"period": (1, "int"), "quota": (2, "int"), "shares": (3, "int"), "memory": (4, "int"), "oom_score": (5, "int"), "cpus": (6, "str")},
    "Capabilities": {"add": (1, ["str"]), "drop": (2, ["str"])},
    "Security": {
        "capabilities": (1, "Capabilities"), "privileged": (2, "int"), "namespaces": (3, "Namespaces"), "user": (5, "Value"), "readonly": (7, "int"),
        "groups": (8, ["int"]), "no_new_privileges": (11, "int"), "group": (12, "Value"),
        "masked": (13, ["str"]), "read_only": (14, ["str"]), "seccomp": (15, "Profile"),
    },
    "Linux": {"resources": (1, "Resources"), "security": (2, "Security")},
    "Config": {
        "metadata": (1, "ContainerName"), "image": (2, "Image"), "command": (3, ["str"]), "args": (4, ["str"]),
        "directory": (5, "str"), "variables": (6, ["KeyValue"]),
        "mounts": (7, ["Mount"]), "devices": (8, ["Device"]), "log": (11, "str"), "linux": (15, "Linux"),
    },
    "Create": {"pod": (1, "str"), "config": (2, "Config"), "pod_config": (3, "PodConfig")},
    "Stop": {"id": (1, "str"), "timeout": (2, "int")},
    "StatusAnswer": {"status": (1, "Status")},
    "Status": {"state": (3, "int"), "exit_code": (7, "int"), "reason": (10, "str"), "message": (11, "str")},
    "Exec": {"id": (1, "str"), "command": (2, ["str"]), "timeout": (3, "int")},
    "ExecAnswer": {"out": (1, "bytes"), "err": (2, "bytes"), "exit_code": (3, "int")},
    "Update": {"id": (1, "str"), "linux": (2, "Resources")},
    "Items": {"items": (1, ["Id"])},
    "StatsAnswer": {"stats": (1, "Stats")},
    "Stats": {"cpu": (2, "Usage"), "memory": (3, "Usage")},
    "Usage": {"used": (2, "Value")},
}

METHODS = {
    "RunPodSandbox": ("RunPod", "Id"), "StopPodSandbox": ("Id", "Empty"), "RemovePodSandbox": ("Id", "Empty"), "ListPodSandbox": ("Empty", "Items"),
    "PodSandboxStatus": ("Id", "StatusAnswer"), "CreateContainer": ("Create", "Id"), "StartContainer": ("Id", "Empty"), "StopContainer": ("Stop", "Empty"),
    "RemoveContainer": ("Id", "Empty"), "ListContainers": ("Empty", "Items"), "ContainerStatus": ("Id", "StatusAnswer"), "ExecSync": ("Exec", "ExecAnswer"),
    "UpdateContainerResources": ("Update", "Empty"), "ContainerStats": ("Id", "StatsAnswer"),
}

NODE, POD, CONTAINER, TARGET = 2, 0, 1, 3
EXITED = 2


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while True:
        low, number = number & 127, number >> 7
        out.append(low | (128 if number else 0))
        if not number:
            return bytes(out)


def with_length(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode(name, values):
    out = b""
    for field, value in values.items():
        number, kind = MESSAGES[name][field]
        repeated = isinstance(kind, list)
        kind = kind[0] if repeated else kind
        for each in value if repeated else [value]:
            if kind == "int":
                out += varint(number << 3) + varint(int(each))
            elif kind == "str":
                out += with_length(number, each.encode())
            elif kind == "map":
                for pair in each.items():
                    out += with_length(number, encode("KeyValue", {"key": pair[0], "value": pair[1]}))
            else:
                out += with_length(number, encode(kind, each))
    return out


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
        if byte < 128:
            return number, at


def decode(name, data):
    known = {number: (field, kind) for field, (number, kind) in MESSAGES[name].items()}
    out = {field: [] if isinstance(kind, list) else {"int": 0, "str": "", "bytes": b""}.get(kind, {}) for field, kind in known.values()}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = read_varint(data, at)
        else:
            length, at = read_varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at : at + length], at + length
        field, kind = known.get(tag >> 3, (None, None))
        if field is None:
            continue
        single = kind[0] if isinstance(kind, list) else kind
        if single == "str":
            value = value.decode()
        elif single not in ("int", "bytes"):
            value = decode(single, value)
        if isinstance(kind, list):
            out[field].append(value)
        else:
            out[field] = value
    return out


socket, handler, image, directory, group, pods, *more = sys.argv[1:]
channel = grpc.insecure_channel("unix://" + socket)


def call(method, **values):
    sent, received = METHODS[method]
    function = channel.unary_unary(
        "/runtime.v1.RuntimeService/" + method,
        request_serializer=lambda values: encode(sent, values),
        response_deserializer=lambda data: decode(received, data),
    )
    return function(values, timeout=120)


def error(function, *arguments, **values):
    """The error of a call, without what the runtimes call themselves and the identifiers."""
    try:
        function(*arguments, **values)
    except grpc.RpcError as failed:
        return re.sub("[0-9a-f]{64}", "ID", f"{failed.code().name} {failed.details()}".replace(handler, "RT"))
    return "no error"


def run_pod(name, namespaces=None, **linux):
    security = {"namespaces": {"network": NODE, "pid": CONTAINER, **(namespaces or {})}, "privileged": linux.pop("privileged", 0)}
    metadata = {"name": name, "uid": f"{name}-{handler}", "namespace": "default"}
    config = {"metadata": metadata, "logs": directory, "linux": {"parent": group, "security": security, **linux}}
    return call("RunPodSandbox", config=config, handler=handler)["id"], config


def create(pod, name, line, resources=None, namespaces=None, **config):
    security = {"namespaces": {"network": NODE, "pid": CONTAINER, **(namespaces or {})}, **config.pop("security", {})}
    linux = {"resources": resources or {}, "security": security}
    command = config.pop("command", ["sh", "-c", line])
    config = {"metadata": {"name": name}, "image": {"image": image}, "command": command, "log": f"{name}-{handler}.log", "linux": linux, **config}
    return call("CreateContainer", pod=pod[0], config=config, pod_config=pod[1])["id"]


def start(pod, name, line, **config):
    container = create(pod, name, line, **config)
    call("StartContainer", id=container)
    return container


def execute(container, line, timeout=60):
    answer = call("ExecSync", id=container, command=["sh", "-c", line], timeout=timeout)
    return f"{answer['exit_code']} {answer['out'].decode()!r} {answer['err'].decode()!r}"


def end_of(container):
    for _ in range(600):
        status = call("ContainerStatus", id=container)["status"]
        if status["state"] == EXITED:
            return f"{status['exit_code']} {status['reason']} {status['message']}"
        time.sleep(0.1)
    return "it did not end"


def lines_of(name):
    """The lines of a log without their times."""
    with open(f"{directory}/{name}-{handler}.log") as log:
        return [line.split(" ", 1)[1].rstrip("\n") for line in log]


def logged(name, words):
    for _ in range(600):
        if os.path.exists(f"{directory}/{name}-{handler}.log") and any(line.endswith(" " + words) for line in lines_of(name)):
            return True
        time.sleep(0.1)
    return False


def remove(pod):
    call("StopPodSandbox", id=pod[0])
    call("RemovePodSandbox", id=pod[0])


def in_parallel(function, values):
    """The results of a function, four at a time."""
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        return list(executor.map(function, values))


def fact(name, value):
    print(f"{name}: {value}", flush=True)


def life():
    pod = run_pod("life")
    line = "trap 'exit 7' TERM; id; echo $A; pwd; touch /x; cat /v/note; echo complaint >&2; echo up; while :; do sleep 0.1; done"
    security = {
        "user": {"value": 1000}, "group": {"value": 55}, "groups": [7], "readonly": 1, "no_new_privileges": 1, "seccomp": {"kind": 0},
        "capabilities": {"drop": ["ALL"], "add": ["KILL"]}, "masked": ["/proc/keys", "/etc"], "read_only": ["/proc/sys"],
    }
    mounts = [{"inside": "/v", "outside": directory + "/volume", "readonly": 1}]
    devices = [{"inside": "/dev/other", "outside": "/dev/zero", "permissions": "r"}]
    resources = {"memory": 64 << 20, "period": 100000, "quota": 50000, "shares": 512, "cpus": "0", "oom_score": 500}
    variables = [{"key": "A", "value": "b"}]
    given = {"resources": resources, "security": security, "mounts": mounts, "devices": devices, "variables": variables, "directory": "/tmp"}
    container = start(pod, "life", line, **given)
    fact("up", logged("life", "up"))
    fact("status", call("ContainerStatus", id=container)["status"]["state"])
    fact("log", sorted(lines_of("life")))
    fact("exec", execute(container, "id -u; pwd; echo $A; echo bad >&2; exit 5"))
    fact("confined", execute(container, "grep -E 'Cap|NoNew|Seccomp:' /proc/self/status; ls /etc; cat /proc/self/oom_score_adj; head -c 1 /dev/other | wc -c"))
    files = "memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.shares cpuset/cpuset.cpus"
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        files = "memory.max cpu.max cpu.weight cpuset.cpus"
    files = "cd /sys/fs/cgroup; cat " + files
    fact("limits", execute(container, files))
    call("UpdateContainerResources", id=container, linux={"memory": 80 << 20, "period": 100000, "quota": 20000, "shares": 100})
    fact("updated", execute(container, files))
    fact("update of nonsense", "out of range" in error(call, "UpdateContainerResources", id=container, linux={"cpus": "900"}))
    fact("exec of nothing", error(call, "ExecSync", id=container, command=["/nope"], timeout=60))
    fact("probe that takes too long", error(call, "ExecSync", id=container, command=["sleep", "777"], timeout=1).split(" ")[0])
    fact("it is gone", execute(container, "for i in $(seq 300); do ps | grep -q '[s]leep 777' || break; sleep 0.1; done; ps | grep -c '[s]leep 777'"))
    fact("probes at once", sorted(in_parallel(lambda number: execute(container, f"exit {number % 3}"), range(9))))
    stats = call("ContainerStats", id=container)["stats"]
    fact("stats", (stats["cpu"]["used"]["value"] > 0, stats["memory"]["used"]["value"] > 0))
    call("StopContainer", id=container, timeout=60)
    fact("end", end_of(container))
    fact("exec afterwards", error(call, "ExecSync", id=container, command=["true"], timeout=60).split(" ")[0])
    call("RemoveContainer", id=container)
    remove(pod)


def ends():
    pod = run_pod("ends")
    fact("success", end_of(start(pod, "success", "true")))
    fact("failure", end_of(start(pod, "failure", "exit 3")))
    fact("out of memory", end_of(start(pod, "memory", "", command=["tail", "/dev/zero"], resources={"memory": 20 << 20})))
    fact("a process of it is out of memory", end_of(start(pod, "process", "tail /dev/zero; sleep 1; exit 4", resources={"memory": 20 << 20})).split(" ")[0])
    for name, command in (("absent", ["/nope"]), ("no program", ["/etc/passwd"]), ("not in the path", ["nope"])):
        container = create(pod, name.replace(" ", "-"), "", command=command)
        fact(name, error(call, "StartContainer", id=container))
        fact(name + " ended", end_of(container).split(" ")[0])
    stubborn = start(pod, "stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    logged("stubborn", "up")
    call("StopContainer", id=stubborn, timeout=1)
    fact("killed", end_of(stubborn))
    fact("mount of nothing", error(start, pod, "mount", "true", mounts=[{"inside": "/v", "outside": "/proc/nope"}]).split(" ")[0])
    # A pod that is removed with a container that runs.
    start(pod, "left", "sleep 1000")
    remove(pod)


def namespaces():
    shared = {"pid": POD}
    pod = run_pod("shared", shared)
    first = start(pod, "first", "echo up; exec sleep 1000", namespaces=shared)
    second = start(pod, "second", "exec sleep 1000", namespaces=shared)
    logged("first", "up")
    fact("all see each other", execute(second, "grep -c pause /proc/1/cmdline; ps | grep -c '[s]leep 1000'"))
    fact("memory is shared", execute(first, "echo x > /dev/shm/x") + execute(second, "cat /dev/shm/x"))
    own = start(pod, "own", "exec sleep 1000")
    fact("one of its own", execute(own, "cat /proc/1/cmdline | tr '\\0' ' '"))
    target = {"pid": TARGET, "target": own}
    fact("target", execute(start(pod, "debugger", "exec sleep 500", namespaces=target), "ps | grep -c '[s]leep [15]00'; cat /proc/1/cmdline | tr '\\0' ' '"))
    remove(pod)
    node = {"pid": NODE, "ipc": NODE}
    pod = run_pod("node", node, privileged=1)
    line = "[ $(readlink /proc/self/ns/ipc) = \"$IPC\" ] && echo ipc; [ $(readlink /proc/self/ns/pid) = \"$PID\" ] && echo pid"
    variables = [{"key": name, "value": os.readlink(f"/proc/self/ns/{name.lower()}")} for name in ("IPC", "PID")]
    container = start(pod, "node", "exec sleep 1000", namespaces=node, variables=variables)
    fact("of the node", execute(container, line))
    security = {"capabilities": {"add": ["SYS_ADMIN"]}}
    mounts = [{"inside": "/v", "outside": directory + "/volume", "propagation": 0}]
    container = start(pod, "mounts", "exec sleep 1000", security=security, mounts=mounts)
    fact("mounts", execute(container, "mount -t tmpfs x /tmp && echo mounted"))
    remove(pod)


def users():
    ids = [{"host": 700000, "container": 0, "length": 65536}]
    own = {"network": POD, "users": {"mode": POD, "uids": ids, "gids": ids}}
    pod = run_pod("users", own)
    line = "tr -s ' ' < /proc/self/uid_map; cat /proc/self/setgroups; id -u; touch /made && stat -c %u /made; cat /v/note; hostname > /dev/null && echo name"
    mounts = [{"inside": "/v", "outside": directory + "/volume", "readonly": 1}]
    container = start(pod, "users", "exec sleep 1000", namespaces=own, mounts=mounts, resources={"memory": 64 << 20})
    fact("users", execute(container, line))
    fact("no power outside", execute(container, "echo x > /proc/sys/kernel/core_pattern; mknod /dev/new b 8 0; ls /sys/class/net"))
    fact("second user", execute(start(pod, "second-user", "exec sleep 1000", namespaces=own, security={"user": {"value": 1000}}), "id -u; cat /proc/self/uid_map | wc -l"))
    remove(pod)


def churn(number):
    pod = run_pod(f"churn-{number}")
    container = start(pod, f"churn-{number}", "trap 'exit 0' TERM; while :; do sleep 0.1; done", resources={"memory": 64 << 20})
    inside = execute(container, "echo in")
    if number % 2:
        call("StopContainer", id=container, timeout=60)
        call("RemoveContainer", id=container)
    remove(pod)
    return inside


life()
ends()
namespaces()
if "users" in more:
    users()
begin = time.monotonic()
fact("churned", set(in_parallel(churn, range(int(pods)))))
print(f"{handler}: {pods} pods in {time.monotonic() - begin:.0f} s", file=sys.stderr)
fact("left", (call("ListPodSandbox")["items"], call("ListContainers")["items"]))
