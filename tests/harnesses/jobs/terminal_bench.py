"""terminal-bench: one local task of a prebuilt image with the oracle agent in a tmux session, and its tests, by `docker compose` and the API."""
import json
import os
import pathlib
import subprocess
import sys

from job import IMAGE, WORK, attack, attack_line, work

PROJECT = f"""
services:
  client:
    image: {IMAGE}
    container_name: ${{T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${{T_BENCH_TEST_DIR}}"]
    volumes: ["${{T_BENCH_TASK_LOGS_PATH}}:${{T_BENCH_CONTAINER_LOGS_PATH}}", "${{T_BENCH_TASK_AGENT_LOGS_PATH}}:${{T_BENCH_CONTAINER_AGENT_LOGS_PATH}}"]
    networks: [inner]
  neighbour:
    image: {IMAGE}
    command: sh -c "mkdir /www; echo secret > /www/secret; exec busybox httpd -f -p 80 -h /www"
    networks: {{inner: {{ipv4_address: 172.31.6.10}}}}
networks: {{inner: {{ipam: {{config: [{{subnet: 172.31.6.0/24}}]}}}}}}
"""
# The folder of the logs exists.
JOB = WORK.replace("mkdir /logs", "ls -d /logs")
FILES = {
    "task.yaml": "instruction: Write words to /srv/out.\ndifficulty: easy\nparser_name: pytest\nmax_agent_timeout_sec: 60\nmax_test_timeout_sec: 30\n",
    "docker-compose.yaml": PROJECT,
    "solution.sh": f"#!/bin/bash\necho WORDS > /srv/out\n({JOB}) > /agent-logs/work.txt 2>&1\necho $? >> /agent-logs/work.txt\n"
                   f"({attack_line('172.31.6.10')}) > /agent-logs/attack.txt\n",
    "run-tests.sh": "#!/bin/bash\npython3 $TEST_DIR/test_outputs.py\n",
    "tests/test_outputs.py": "words = open('/srv/out').read()\nprint('=' * 20, 'short test summary info', '=' * 20)\n"
                             "print('PASSED' if words == 'WORDS\\n' else 'FAILED', 'tests/test_outputs.py::test_words')\n",
}
for name, text in FILES.items():
    path = pathlib.Path("tasks/words", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
words = [os.path.join(sys.argv[1], "bin", "tb"), "run", "--dataset-path", "tasks", "--task-id", "words", "--agent", "oracle", "--output-path", "runs",
         "--run-id", "here", "--no-upload-results", "--no-cleanup", "--no-rebuild", "--n-concurrent", "1"]
done = subprocess.run(words, capture_output=True, text=True, check=False)
print(done.stdout, done.stderr, file=sys.stderr)
for path in sorted(pathlib.Path("runs").rglob("*.log")):
    print(path, path.read_text(), sep="\n", file=sys.stderr)
(result,) = json.loads(pathlib.Path("runs/here/results.json").read_text())["results"]
work("terminal-bench", done.returncode, result["is_resolved"], result["parser_results"], result["failure_mode"])
for path in pathlib.Path("runs").rglob("work.txt"):
    work("work", path.read_text())
for path in pathlib.Path("runs").rglob("attack.txt"):
    attack(path.read_text())
