"""testcontainers: a container with a port and a strategy that waits for it, files in both directions, a network with an alias."""
import pathlib
import sys
import urllib.request

sys.path.append(sys.path.pop(0))  # this file has the name of the package
from job import IMAGE, WORK, attack, attack_line, work
from testcontainers.core.container import DockerContainer, ExecConfig
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HttpWaitStrategy, LogMessageWaitStrategy

serve = ["sh", "-c", "mkdir /www; echo page > /www/index.html; echo is up; exec busybox httpd -f -p 8000 -h /www"]
with DockerContainer(IMAGE, command=serve, ports=[8000]).waiting_for(HttpWaitStrategy(8000)) as container:
    at = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8000)}/"
    work("page", urllib.request.urlopen(at, timeout=5).read())
    work("exec", *container.exec(["sh", "-c", WORK]))
    work("user", *container.exec(ExecConfig(["sh", "-c", "id -u; pwd; echo $A"], user="33", environment={"A": "b"}, workdir="/var")))
    work("logs", *container.get_logs())
    container.copy_into_container(b"hello", "/etc/up.txt")
    work("copy-in", *container.exec("cat /etc/up.txt"))
    container.exec(["sh", "-c", "echo made inside > /etc/down.txt"])
    try:
        container.copy_from_container("/etc/down.txt", pathlib.Path("down.txt"))
        work("copy-out", pathlib.Path("down.txt").read_text())
    except Exception as error:
        work("copy-out", type(error).__name__)
    attack(container.exec(["sh", "-c", attack_line()])[1])
with Network() as network:
    log = LogMessageWaitStrategy("is up")
    with DockerContainer(IMAGE, command=serve, network=network, network_aliases=["server"]).waiting_for(log) as server:
        with DockerContainer(IMAGE, command="sleep 100", network=network) as other:
            work("network", other.exec("ls /sys/class/net")[1])
            work("peer", *other.exec("curl -sf -m 5 http://server:8000/"))
