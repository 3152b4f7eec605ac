"""harbor: a task of a prebuilt image with its oracle agent and a verifier, by its Docker environment and the compose plug-in."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package
from job import IMAGE, WORK, attack, attack_line, work

FILES = {
    "task.toml": f'schema_version = "1.4"\n[metadata]\n[environment]\ndocker_image = "{IMAGE}"\nworkdir = "/root"\n'
                 "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n",
    "instruction.md": "Write words to /root/out.\n",
    "environment/docker-compose.yaml":
        "services:\n  main: {}\n  neighbour:\n    image: " + IMAGE + "\n    command: sh -c \"mkdir /www; echo secret > /www/secret; "
        "exec busybox httpd -f -p 80 -h /www\"\n    networks: {default: {ipv4_address: 172.31.8.10}}\n"
        "networks: {default: {ipam: {config: [{subnet: 172.31.8.0/24}]}}}\n",
    "solution/solve.sh": f"#!/bin/bash\necho WORDS > /root/out\n({WORK}) > /logs/agent/work.txt 2>&1\necho $? >> /logs/agent/work.txt\n"
                         f"({attack_line('172.31.8.10')}) > /logs/agent/attack.txt\n",
    "tests/test.sh": "#!/bin/sh\n[ \"$(cat /root/out)\" = WORDS ] && echo 1 > /logs/verifier/reward.txt\n",
}
for name, text in FILES.items():
    path = pathlib.Path("task", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
words = [os.path.join(sys.argv[1], "bin", "harbor"), "run", "--path", "task", "--agent", "oracle", "--env", "docker", "--jobs-dir", "jobs", "--quiet", "--yes"]
done = subprocess.run(words, capture_output=True, text=True, check=False)
print(done.stdout, done.stderr, file=sys.stderr)
(result,) = pathlib.Path("jobs").glob("*/*/result.json")
read = json.loads(result.read_text())
print(json.dumps(read, indent=1), file=sys.stderr)
work("harbor", done.returncode, read["verifier_result"] and read["verifier_result"]["rewards"], bool(read.get("exception_info")))
for each in pathlib.Path("jobs").glob("*/*/agent/*.txt"):
    if each.name == "work.txt":
        work("work", each.read_text())
    if each.name == "attack.txt":
        attack(each.read_text())
