"""docker-compose: a project of two services with a network, a volume and a health check: up, exec, cp, logs, ps, down."""
import json
import os
import pathlib
import subprocess
import sys

from job import IMAGE, WORK, attack, attack_line, work

PROJECT = f"""
services:
  server:
    image: {IMAGE}
    command: sh -c "mkdir /www; echo of-the-server > /www/secret; exec busybox httpd -f -p 80 -h /www"
    ports: ["127.0.0.1:7443:80"]
    healthcheck: {{test: "curl -sf http://127.0.0.1/secret", interval: 1s, retries: 20}}
    networks: {{inner: {{ipv4_address: 172.31.7.10}}}}
  main:
    image: {IMAGE}
    command: sleep infinity
    environment: [A=b]
    working_dir: /tmp
    volumes: ["data:/data", "./in:/in:ro"]
    depends_on: [server]
    networks: [inner]
networks: {{inner: {{ipam: {{config: [{{subnet: 172.31.7.0/24}}]}}}}}}
volumes: {{data: }}
"""
COMPOSE = os.path.join(sys.argv[1], "bin", "docker-compose")


def compose(*words, status=0):
    done = subprocess.run([COMPOSE, "-p", "project", *words], capture_output=True, text=True, check=False)
    if status is not None and done.returncode != status:
        sys.exit(f"{words}: {done.returncode} {done.stdout} {done.stderr}")
    return done


pathlib.Path("docker-compose.yml").write_text(PROJECT)
pathlib.Path("in").mkdir(exist_ok=True)
pathlib.Path("in/x").write_text("bound")
try:
    compose("up", "-d")
    done = compose("exec", "-T", "main", "sh", "-c", WORK, status=3)
    work("exec", done.stdout, done.returncode)
    work("volumes", compose("exec", "-T", "-u", "33", "main", "sh", "-c", "cat /in/x; echo $A; ls -d /data; touch /in/y || id -u").stdout)
    pathlib.Path("up.txt").write_text("hello")
    compose("cp", "up.txt", "main:/tmp/up.txt")
    work("cp-in", compose("exec", "-T", "main", "cat", "/tmp/up.txt").stdout)
    compose("exec", "-T", "main", "sh", "-c", "echo made inside > /tmp/down.txt")
    work("cp-out", compose("cp", "main:/tmp/down.txt", "down.txt", status=None).returncode)
    states = [json.loads(line) for line in compose("ps", "--format", "json").stdout.splitlines()]
    work("ps", sorted((each["Service"], each["State"]) for each in states))
    work("published", subprocess.run(["curl", "-s", "-m", "5", "http://127.0.0.1:7443/secret"], capture_output=True, text=True, check=False).stdout)
    work("peer", compose("exec", "-T", "main", "sh", "-c", "curl -sf -m 4 http://server/secret || echo refused").stdout)
    attack(compose("exec", "-T", "main", "sh", "-c", attack_line("172.31.7.10")).stdout)
finally:
    compose("down", "-v", "-t", "1", status=None)
work("down", compose("ps", "-aq").stdout)
