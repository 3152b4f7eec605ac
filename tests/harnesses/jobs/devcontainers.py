"""devcontainers CLI: `up` with an image and lifecycle commands, `exec` in the container by its folder."""
import json
import os
import pathlib
import subprocess
import sys

from job import IMAGE, WORK, attack, attack_line, work

CLI = os.path.join(sys.argv[1], "node_modules", ".bin", "devcontainer")
CONFIGURATION = {
    "image": IMAGE, "updateRemoteUserUID": False, "remoteEnv": {"A": "b"}, "containerEnv": {"C": "d"},
    "onCreateCommand": "echo created > /srv/created", "postStartCommand": ["sh", "-c", "echo started > /srv/started"],
}


def cli(*words):
    """The result of a command: its words on the standard output, and its status."""
    done = subprocess.run([CLI, *words, "--workspace-folder", "project"] if words[0] == "up" else
                          [CLI, words[0], "--workspace-folder", "project", *words[1:]], capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    return done.stdout, done.returncode


pathlib.Path("project/.devcontainer").mkdir(parents=True, exist_ok=True)
pathlib.Path("project/.devcontainer/devcontainer.json").write_text(json.dumps(CONFIGURATION))
pathlib.Path("project/main.py").write_text("print(6 * 7)\n")
out, status = cli("up")
up = json.loads(out.strip().splitlines()[-1])
work("up", status, up["outcome"], up.get("remoteUser"), up.get("remoteWorkspaceFolder"))
try:
    work("hooks", *cli("exec", "cat", "/srv/created", "/srv/started"))
    work("project", *cli("exec", "sh", "-c", "python3 main.py; echo $A $C; echo made > made.txt"))
    work("bound", pathlib.Path("project/made.txt").read_text())
    work("work", *cli("exec", "sh", "-c", WORK))
    attack(cli("exec", "sh", "-c", attack_line())[0])
    out, status = cli("up")
    work("again", status, json.loads(out.strip().splitlines()[-1])["containerId"] == up["containerId"])
finally:
    subprocess.run(["docker", "rm", "-f", up["containerId"]], capture_output=True, check=False)
