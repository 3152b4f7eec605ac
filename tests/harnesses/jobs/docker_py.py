"""docker-py: run, create, exec with a stream and a user, archives both ways, logs, stats, kill, ports, a network."""
import io
import tarfile
import urllib.request

import docker
from job import IMAGE, LIMITS, WORK, attack, attack_line, work

client = docker.from_env(timeout=120)
work("run", client.containers.run(IMAGE, ["sh", "-c", "echo out; hostname | wc -c"], remove=True))
container = client.containers.create(IMAGE, ["tail", "-f", "/dev/null"], working_dir="/tmp", environment={"A": "b"}, cap_add=["SYS_PTRACE"],
                                     mem_limit="256m" if LIMITS else None, ports={"8000/tcp": 0})
container.start()
try:
    work("exec", *container.exec_run(["sh", "-c", WORK], user="root"))
    work("environment", *container.exec_run(["sh", "-c", "echo $A; pwd; cat"], environment={"C": "d"}))
    work("user", *container.exec_run("id", user="33:33", workdir="/var"))
    made = client.api.exec_create(container.id, ["sh", "-c", "for i in 1 2 3; do echo $i; done; exit 4"])["Id"]
    work("stream", b"".join(client.api.exec_start(made, stream=True)), client.api.exec_inspect(made)["ExitCode"])
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        entry = tarfile.TarInfo("up.txt")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    work("put", container.put_archive("/etc", data.getvalue()), *container.exec_run("cat /etc/up.txt"))
    container.exec_run(["sh", "-c", "echo made inside > /etc/down.txt"])
    try:
        chunks, _ = container.get_archive("/etc/down.txt")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            work("get", tar.extractfile("down.txt").read())
    except docker.errors.APIError as error:
        work("get", type(error).__name__)
    container.exec_run("busybox httpd -p 8000 -h /etc")
    container.reload()
    port = container.ports["8000/tcp"][0]["HostPort"]
    work("port", len(urllib.request.urlopen(f"http://127.0.0.1:{port}/debian_version", timeout=5).read()) > 1)
    work("stats", container.stats(stream=False)["memory_stats"].get("limit"))
    work("top", len(container.top()["Processes"]) >= 1)
    attack(container.exec_run(["sh", "-c", attack_line()])[1])
    container.pause()
    container.reload()
    work("pause", container.status)
    container.unpause()
    container.kill("KILL")
    work("end", container.wait()["StatusCode"])
finally:
    container.remove(force=True)
network = client.networks.create("of-docker-py")
try:
    work("network", client.containers.run(IMAGE, ["sh", "-c", "ls /sys/class/net"], network="of-docker-py", remove=True))
finally:
    network.remove()
