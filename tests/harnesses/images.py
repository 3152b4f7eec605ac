"""The image of the jobs: a Debian root with Python, git and the servers that harnesses start in a container. And a root with a newer engine."""
import glob
import hashlib
import os
import shutil
import subprocess

# `python3` is the release that the packages below are installed for: Debian 12's.
SUITE = "bookworm"
PACKAGES = "python3,python-is-python3,busybox-static,procps,git,tmux,asciinema,curl"
# SWE-ReX runs its server in the container, smolagents a Jupyter kernel gateway, AutoGen nothing.
SERVERS = ["swe-rex==1.4.0", "jupyter_kernel_gateway==3.0.1", "ipykernel==6.29.5"]
# Docker 26 of Debian 13, for programs that refuse Docker 20.10.
NEWER_SUITE = "trixie"
NEWER_PACKAGES = "docker.io,docker-cli,containerd,runc,iptables,iproute2,ca-certificates,procps,e2fsprogs"
SCRIPTS = {
    "swerex-remote": "import swerex.server, sys\nsys.exit(swerex.server.main())\n",
    "jupyter": "import jupyter_core.command, sys\nsys.exit(jupyter_core.command.main())\n",
    "jupyter-kernelgateway": "import kernel_gateway, sys\nsys.exit(kernel_gateway.launch_instance())\n",
}


def archive(cache):
    """The tar archive of the image, made once."""
    version = hashlib.sha256(f"{SUITE} {PACKAGES} {SERVERS} {SCRIPTS}".encode()).hexdigest()[:12]
    made = os.path.join(cache, f"image-{version}.tar")
    if os.path.exists(made):
        return made
    root = os.path.join(cache, "image-root")
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, root], check=True)
    packages = os.path.join(root, "usr/local/lib/python3.11/dist-packages")
    python = os.path.join(cache, "image-python")
    subprocess.run(["/usr/bin/python3", "-m", "venv", python], check=True)
    subprocess.run([f"{python}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--target", packages, *SERVERS], check=True)
    for name, text in SCRIPTS.items():
        path = os.path.join(root, "usr/local/bin", name)
        with open(path, "w") as out:
            out.write(f"#!/usr/bin/python3\n{text}")
        os.chmod(path, 0o755)
    for each in ["var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"]:
        shutil.rmtree(os.path.join(root, each), ignore_errors=True)
    subprocess.run(["tar", "--numeric-owner", "-C", root, "-cf", made + ".part", "."], check=True)
    os.rename(made + ".part", made)
    shutil.rmtree(root)
    return made


def newer_engine(cache):
    """The root file system with a newer Docker, made once."""
    made = os.path.join(cache, f"engine-{NEWER_SUITE}")
    if not os.path.exists(made):
        shutil.rmtree(made + ".part", ignore_errors=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={NEWER_PACKAGES}", NEWER_SUITE, made + ".part"], check=True)
        os.rename(made + ".part", made)
    return made


def netavark(cache):
    """The folder of Podman's network programs, unpacked once: once installed, every Podman of the machine would use them."""
    made = os.path.join(cache, "netavark")
    if not os.path.exists(made):
        part = made + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "netavark", "aardvark-dns"], cwd=part, check=True)
        for each in glob.glob(f"{part}/*.deb"):
            subprocess.run(["dpkg-deb", "-x", each, part], check=True)
        os.rename(part, made)
    return os.path.join(made, "usr/lib/podman")
