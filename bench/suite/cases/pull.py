"""pull: from a registry behind a slow link to the end of the first command."""
import json
import os
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from cases import docker, doors, unpack
from lab import REPOSITORY, Failed
from measure import Table, attempt

RATE, DELAY = 25_000_000, 0.02  # 200 Mbit/s, and 40 ms there and back
TRUE = [unpack.BUSYBOX, "true"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def wait_for(port):
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
    raise Failed(f"nothing listens at port {port}")


def serve(lab, layout):
    """A registry with the image, and the link before it: the name of the image, and the URLs of its layers."""
    behind, port = free_port(), free_port()
    with open(lab.path("registry.yml"), "w") as out:
        out.write(f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {lab.path('registry')}}}}}\nhttp: {{addr: '127.0.0.1:{behind}'}}\n")
    lab.begin("docker-registry", "serve", lab.path("registry.yml"))
    wait_for(behind)
    lab.run("skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false", f"oci:{layout}:t", f"docker://127.0.0.1:{behind}/bench:1")
    lab.begin(sys.executable, os.path.join(REPOSITORY, "bench", "suite", "link.py"), str(port), str(behind), str(RATE), str(DELAY))
    wait_for(port)
    index = json.load(open(f"{layout}/index.json"))
    manifest = json.load(open(f"{layout}/blobs/sha256/{index['manifests'][0]['digest'][7:]}"))
    return f"127.0.0.1:{port}/bench:1", [f"http://127.0.0.1:{port}/v2/bench/blobs/{layer['digest']}" for layer in manifest["layers"]]


def containerd(lab):
    """The words of a client of a containerd of our own."""
    with open(lab.path("containerd.toml"), "w") as out:
        out.write(f"version = 2\nroot = '{lab.path('ctr-data')}'\nstate = '{lab.path('ctr-state')}'\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"
                  f"[grpc]\naddress = '{lab.path('ctr.sock')}'\n[ttrpc]\naddress = '{lab.path('ctr.sock')}.ttrpc'\n")
    daemon = lab.begin("unshare", "--mount", "--propagation", "private", "containerd", "--config", lab.path("containerd.toml"))
    lab.undo.append(lambda: docker.remove(lab))
    lab.undo.append(lambda: lab.end(daemon, 30))
    client = ["ctr", "--address", lab.path("ctr.sock")]
    for _ in range(200):
        if lab.call(*client, "version")[2] == 0:
            return client
        time.sleep(0.05)
    raise Failed("containerd does not answer")


def commands(lab, image, table):
    """Each peer: what runs the image's first command, and what forgets the image."""
    own = ["unshare", "--mount", "--propagation", "private"]
    # One shell for both of brig's commands.
    brig = f"{lab.brig} image pull -q --plain-http {image} && exec {lab.brig} task run --image {image} --empty -- {' '.join(TRUE)}"
    found = {"brig": (["sh", "-c", brig], ["rm", "-rf", lab.store])}
    if lab.has("podman"):
        podman = [*own, "podman", "--root", lab.path("podman"), "--runroot", lab.path("podman-run"), "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs",
                  "--events-backend", "none", "--runtime", "runc"]
        # Podman's own limits are higher than some machines allow.
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        found["podman run"] = ([*podman, "run", "--rm", "--network", "none", "--cgroup-parent", f"/{lab.tag}", *limits, "--tls-verify=false", image, *TRUE],
                               ["rm", "-rf", lab.path("podman"), lab.path("podman-run")])
    if lab.has("docker") and shutil.which("docker"):
        if client := attempt(lab, table, "docker run", lambda: docker.start(lab, "overlay2", tuple(own))[0]):
            found["docker run"] = ([*client, "run", "--rm", "--network", "none", "--cgroup-parent", f"/{lab.tag}", image, *TRUE], [*client, "rmi", "-f", image])
    if shutil.which("containerd") and shutil.which("ctr"):
        if client := attempt(lab, table, "containerd", lambda: containerd(lab)):
            ctr = " ".join(client)
            found["containerd: ctr pull, run"] = (
                ["sh", "-c", f"{ctr} image pull --plain-http {image} && exec {ctr} run --rm --cgroup {lab.tag}/ctr {image} one {' '.join(TRUE)}"],
                [*client, "image", "rm", "--sync", image])
    return found


def run(lab):
    """The tables of this case."""
    if not shutil.which("docker-registry") or not lab.has("skopeo"):
        raise Failed("needs a registry and skopeo: apt-get install docker-registry skopeo")
    tars = unpack.make_tars(lab, (8 if lab.quick else 400) * 1_000_000)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = list(pool.map(unpack.pack, tars))
    unpack.make_layout(lab.path("layout"), tars, packed)
    image, urls = serve(lab, lab.path("layout"))
    lab.undo.append(lambda: doors.remove_groups(lab))
    floor = "floor: curl of all layers"
    table = Table("From a registry to the end of the first command", unit="s", floor=floor)
    subjects = {floor: (["curl", "-sfZ", *[word for url in urls for word in ("-o", "/dev/null", url)]], ["true"]), **commands(lab, image, table)}
    samples = {}
    for _ in range(lab.scaled(3, 1)):
        for name, (command, forget) in subjects.items():
            if (took := attempt(lab, table, name, lambda command=command: lab.time(*command))) is not None:
                samples.setdefault(name, []).append(took / 1e3)
            lab.run(*forget, check=False)
    for name, all_of_it in samples.items():
        table.add(name, all_of_it)
    raw, small = (sum(map(os.path.getsize, each)) / 1e6 for each in (tars, packed))
    table.text = (f"{small:.0f} MB compressed, {raw:.0f} MB of tars, {unpack.LAYERS} layers of files of /usr, from a registry on loopback. A program between passes "
                  f"{RATE // 1_000_000} MB a second and delays each byte by {DELAY * 1e3:.0f} ms in each direction. The store is empty before each run; the command is `true`.")
    return [table]
