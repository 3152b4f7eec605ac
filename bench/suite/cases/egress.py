"""egress: what the gateway costs: start, throughput of one connection, latency of a request; beside a veth pair, pasta and slirp4netns."""
import os
import shutil
import time

from lab import Failed
from measure import Table, attempt

OUTSIDE, INSIDE, PORT = "10.231.77.1", "10.231.77.2", 18480
DNS = "127.0.0.1:15354"
LATENCY = """
import http.client, sys, time
c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    began = time.perf_counter(); c.request("GET", "/small"); c.getresponse().read(); print((time.perf_counter() - began) * 1e6)
"""

# A client that only takes the bytes. curl needs 0.3 s of a processor for a gigabyte, and hides what is faster than that.
READ = """
import socket, sys, time
buffer = bytearray(1 << 20)
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as s:
    began, total = time.perf_counter(), 0
    s.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
    while count := s.recv_into(buffer):
        total += count
    print(total / (time.perf_counter() - began))
"""


class Servers:
    """nginx and a resolver of ours on the loopback, and a network namespace behind a veth pair."""

    def __init__(self, lab):
        self.lab, self.namespace, self.rules = lab, lab.tag, ["--allow", f"bench.test:{PORT}", "--allow", f"127.0.0.1:{PORT}", "--resolver", DNS]
        lab.folder("show"), lab.folder("www")
        for name, text in ("latency.py", LATENCY), ("read.py", READ):
            with open(lab.path("show", name), "w") as out:
                out.write(text)
        with open(lab.path("www", "small"), "w") as out:
            out.write("x" * 100)
        with open(lab.path("www", "big"), "wb") as out:
            out.truncate((256 << 20) if lab.quick else (1 << 30))
        with open(lab.path("nginx.conf"), "w") as out:
            out.write(f"daemon off; user root; worker_processes 1; pid {lab.path('nginx.pid')}; error_log stderr; events {{}}\n"
                      f"http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; server {{ listen {PORT}; root {lab.path('www')}; }} }}\n")
        lab.begin("nginx", "-c", lab.path("nginx.conf"), "-p", lab.work)
        lab.begin("dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--pid-file=", "--bind-interfaces",
                  "--port=15354", "--listen-address=127.0.0.1", "--address=/bench.test/127.0.0.1")
        lab.run("ip", "netns", "add", self.namespace)
        lab.undo.append(lambda: lab.run("ip", "netns", "del", self.namespace, check=False))
        end = f"bv{os.getpid() % 100000}"
        lab.run("ip", "link", "add", end, "type", "veth", "peer", "name", "inside", "netns", self.namespace)
        lab.run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", end)
        lab.run("ip", "link", "set", end, "up")
        lab.run("ip", "-n", self.namespace, "addr", "add", f"{INSIDE}/24", "dev", "inside")
        lab.run("ip", "-n", self.namespace, "link", "set", "inside", "up")
        time.sleep(1)

    # Each runs a line of shell in which HOST is the server and SHOW the folder of the client.

    def shell(self, *around):
        return lambda line, host: self.lab.run(*around, "sh", "-c", line.replace("HOST", host).replace("SHOW", self.lab.path("show")), timeout=60)

    def brig(self, line):
        words = [self.lab.brig, "task", "run", "--no-tty", "--dir", self.lab.path("show"), *self.rules, "--", "sh", "-c"]
        return self.lab.run(*words, line.replace("HOST", "bench.test").replace("SHOW", "/workspace"), timeout=60)

    def slirp(self, line):
        holder = self.lab.begin("unshare", "-n", "sleep", "600")
        time.sleep(0.2)
        slirp = self.lab.begin("slirp4netns", "--configure", "--mtu=65520", str(holder.pid), "tap0")
        time.sleep(0.7)
        try:
            return self.shell("nsenter", "-t", str(holder.pid), "-n")(line, "10.0.2.2")
        finally:
            self.lab.end(slirp), self.lab.end(holder)

    def pasta(self, line):
        gateway = self.lab.run("sh", "-c", "ip -4 route show default | awk '{print $3; exit}'").strip()
        if not gateway:
            raise Failed("the host has no default route, which pasta needs")
        return self.shell("pasta", "--runas", "0", "--config-net", "--")(line, gateway)

    def ways(self):
        return {
            "floor: the host, no sandbox": lambda line: self.shell()(line, "127.0.0.1"),
            "veth pair": lambda line: self.shell("ip", "netns", "exec", self.namespace)(line, OUTSIDE),
            "brig --allow": self.brig,
            **({"pasta": self.pasta} if self.lab.has("pasta") else {}),
            **({"slirp4netns": self.slirp} if self.lab.has("slirp4netns") else {}),
        }


def run(lab):
    """The tables of this case."""
    starts = Table("Start, run and teardown of `true`, by network", base="network none", floor="")
    options = dict(base="brig --allow", floor="floor: the host, no sandbox")
    speed = Table("One connection: bytes", "One file of nginx on the host, over HTTP, by a client that only reads. More is better.", "MB/s", **options)
    curl = Table("One connection: bytes, by curl", "The same file by curl, which takes much of a processor itself. More is better.", "MB/s", **options)
    latency = Table("One connection: requests", "100 bytes, one after the other on a connection that is kept.", "us", **options)
    if not lab.has("nginx") or not shutil.which("dnsmasq"):
        raise Failed("needs nginx and dnsmasq: apt-get install nginx-light dnsmasq-base")
    servers, requests = Servers(lab), 300 if lab.quick else 1000
    modes = {"network none": ["--network", "none"], "network egress, one name allowed": servers.rules}
    times = {mode: [] for mode in modes}
    for _ in range(lab.scaled(30, 6)):
        for mode, words in modes.items():
            times[mode].append(lab.time(lab.brig, "task", "run", "--empty", *words, "--", "true"))
    for mode, values in times.items():
        starts.add(mode, values)
    speeds, curls, latencies = {}, {}, {}
    for _ in range(lab.scaled(5, 1)):
        for name, way in servers.ways().items():
            if any(line.startswith(f"{name}:") for line in speed.left_out):
                continue

            def both():
                speeds.setdefault(name, []).append(float(way(f"/usr/bin/python3 SHOW/read.py HOST {PORT}")) / 1e6)
                curls.setdefault(name, []).append(float(way(f"curl -sS -o /dev/null -w '%{{speed_download}}' http://HOST:{PORT}/big")) / 1e6)
                latencies.setdefault(name, []).extend(map(float, way(f"/usr/bin/python3 SHOW/latency.py HOST {PORT} {requests}").split()))

            attempt(lab, speed, name, both)
    for table, values in ((speed, speeds), (curl, curls), (latency, latencies)):
        for name, samples in values.items():
            table.add(name, samples)
    return [starts, speed, curl, latency]
