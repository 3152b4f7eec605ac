"""inside: what a sandbox costs the work in it."""
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile

import bundles
from cases.start import BWRAP_ROOT, READ_ONLY_USR, links
from measure import Table, attempt

CRATE = {"Cargo.toml": '[package]\nname = "bench"\nversion = "0.1.0"\nedition = "2021"\n'}
PACKAGES = 10

# In a folder with `inside`, `repo`, `crate`, `app` and `toolchain`. Each line that it prints is a workload and a time in microseconds. It writes
# only below the folder.
SCRIPT = """set -u
export HOME=$PWD/home PATH=$PWD/toolchain/bin:/usr/local/bin:/usr/bin:/bin GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export CARGO_HOME=$PWD/home/cargo npm_config_cache=$PWD/home/npm npm_config_update_notifier=false
say() { name=$1; shift; "$@" >out 2>err && sed "s/^/$name /" out || echo "$name failed: $(tail -c 200 err | tr '\\n' ' ')"; }
for round in 1 2 3; do
    say getpid ./inside getpid CALLS
    say open ./inside open OPENS repo/000/00.txt
done
say python ./inside time 5 /usr/bin/python3 -c 'import json, argparse, subprocess'
say git ./inside time 5 git -C repo status --short
[ ! -d crate ] || say cargo ./inside time 1 cargo build --quiet --offline --manifest-path crate/Cargo.toml
[ ! -d app ] || say npm ./inside time 1 npm --prefix app install --offline --no-audit --no-fund --ignore-scripts
"""
WORKLOADS = {
    "getpid": ("A system call that does nothing", "us", "A loop of getpid(2) without libc."),
    "open": ("open and close of a file", "us", "A loop on one file of the workspace."),
    "python": ("Start of Python", "ms", "With three modules of its library."),
    "git": ("git status", "ms", "Of {files:,} files."),
    "cargo": ("cargo build", "ms", "Of a small crate without dependencies, in {modules} modules, offline."),
    "npm": ("npm install", "ms", "Of {packages} packages of 100 files each from tarballs in a local folder, offline."),
}


def make_work(lab, files, modules):
    """The folder that the script works in."""
    work = lab.folder("work")
    os.chmod(work, 0o777)
    lab.folder("work", "home")
    shutil.copy(lab.program("inside"), f"{work}/inside")
    for number in range(files):
        folder = f"{work}/repo/{number // 100:03}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/{number % 100:02}.txt", "w") as out:
            out.write(f"{number}\n" * 20)
    lab.run("git", "init", "--quiet", f"{work}/repo")
    lab.run("git", "-C", f"{work}/repo", "add", ".")
    lab.run("git", "-C", f"{work}/repo", "-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "--quiet", "-m", "x")
    left_out = []
    if shutil.which("cargo") and shutil.which("rustc"):
        sysroot = lab.run("rustc", "--print", "sysroot").strip()
        host = next(line.split()[1] for line in lab.run("rustc", "-vV").splitlines() if line.startswith("host:"))
        os.makedirs(f"{work}/toolchain/lib/rustlib")
        for part in ("bin", *(f"lib/{name}" for name in os.listdir(f"{sysroot}/lib") if ".so" in name), f"lib/rustlib/{host}"):
            copied = ["cp", "-al", f"{sysroot}/{part}", f"{work}/toolchain/{part}"]
            if subprocess.run(copied, capture_output=True, check=False).returncode != 0:
                lab.run("cp", "-a", *copied[2:])
        os.makedirs(f"{work}/crate/src")
        for name, text in CRATE.items():
            with open(f"{work}/crate/{name}", "w") as out:
                out.write(text)
        for number in range(modules):
            with open(f"{work}/crate/src/m{number}.rs", "w") as out:
                out.write("".join(f"#[derive(Debug, Clone, PartialEq)] pub struct S{each} {{ pub a: u64, pub b: String, pub c: Vec<u8> }}\n" for each in range(8)))
        with open(f"{work}/crate/src/main.rs", "w") as out:
            out.write("".join(f"mod m{number};\n" for number in range(modules)) + "fn main() {}\n")
    else:
        left_out.append("cargo build: no cargo here")
    if lab.quick:
        left_out += ["npm install: not in a quick run", "runsc: not in a quick run"]
    elif shutil.which("npm"):
        os.makedirs(f"{work}/app/packages")
        for number in range(PACKAGES):
            with tarfile.open(f"{work}/app/packages/p{number}.tgz", "w:gz") as archive:
                contents = {f"lib/{each // 10}/{each}.js": f"module.exports = {each}\n" * 30 for each in range(100)}
                contents["package.json"] = json.dumps({"name": f"p{number}", "version": "1.0.0"})
                for name, text in contents.items():
                    info = tarfile.TarInfo(f"package/{name}")
                    info.size, info.mode = len(text), 0o644
                    archive.addfile(info, io.BytesIO(text.encode()))
        with open(f"{work}/app/package.json", "w") as out:
            json.dump({"name": "app", "version": "1.0.0", "dependencies": {f"p{each}": f"file:packages/p{each}.tgz" for each in range(PACKAGES)}}, out)
    else:
        left_out.append("npm install: no npm here")
    # With some peers another user works in it. The toolchain is linked to its origin and stays as it is.
    lab.run("chmod", "-R", "a+rwX", *(f"{work}/{name}" for name in ("repo", "home", "crate", "app") if os.path.isdir(f"{work}/{name}")))
    with open(f"{work}/script", "w") as out:
        calls, opens = (20_000, 2_000) if lab.quick else (50_000, 5_000)
        out.write(SCRIPT.replace("CALLS", str(calls)).replace("OPENS", str(opens)))
    return work, left_out


def fresh(lab, work):
    """A copy of the folder, cheap: what is never written is linked."""
    copy = lab.path("copy")
    shutil.rmtree(copy, ignore_errors=True)
    os.mkdir(copy)
    os.chmod(copy, 0o777)
    for name in os.listdir(work):
        lab.run("cp", "-al" if name == "toolchain" else "-a", f"{work}/{name}", f"{copy}/{name}")
    return copy


def ways(lab, work):
    """How the script is run by each peer, in a folder of its own; the current folder is the work."""
    shown = ["/usr", *(f"/etc/{name}" for name in ("alternatives", "ssl", "ld.so.cache") if os.path.exists(f"/etc/{name}"))]
    folder = [{"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", "nosuid", "nodev"]} for path in shown]
    script = ["/bin/sh", "script"]
    found = {"outside": lambda copy: lab.run(*script, cwd=copy)}
    overlay = 'mount -t overlay -o "lowerdir=$PWD,upperdir=$1,workdir=$2" overlay "$PWD" && cd "$PWD" && exec /bin/sh script'
    # An upper directory is of one overlay.
    upper = lambda: [tempfile.mkdtemp(dir=lab.work) for _ in range(2)]
    found["outside, overlay"] = lambda copy: lab.run("unshare", "--mount", "/bin/sh", "-c", overlay, "sh", *upper(), cwd=copy)
    found["brig"] = lambda copy: lab.run(lab.brig, "task", "run", "--no-tty", "--dir", copy, "--", *script, stderr=subprocess.DEVNULL)

    def by_bundle(name):
        def run(copy):
            mounts = [*folder, {"destination": "/work", "type": "bind", "source": copy, "options": ["rbind", "rw"]}]
            bundle = bundles.make(lab, f"inside-{name}", words=script, seccomp=os.path.exists(bundles.PROFILE), mounts=mounts, root=host_root(lab))
            more = ["--network=none", "--ignore-cgroups"] if name == "runsc" else []
            words = lab.oci(name)
            return lab.run(*lab.anywhere(name, words[0], *more, *words[1:], "run", "--bundle", bundle, f"{lab.tag}-inside-{name}"))
        return run

    for name in ("runc", "crun", "runsc"):
        if lab.has(name) and not (name == "runsc" and lab.quick):
            found[name] = by_bundle(name)
    if lab.has("bwrap"):
        etc = [word for name in ("alternatives", "ssl", "ld.so.cache") for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")]
        found["bwrap"] = lambda copy: lab.run("bwrap", "--unshare-all", *READ_ONLY_USR, *links(), *etc, *BWRAP_ROOT,
                                              "--bind", copy, "/work", "--chdir", "/work", *script)
    return found


def host_root(lab):
    """A root that is empty but for the links to the host's /usr."""
    root = lab.folder("host-root")
    for name in ("proc", "dev", "sys", "tmp", "etc/ssl", "etc/alternatives", "usr", "work"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    open(f"{root}/etc/ld.so.cache", "a").close()
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}") and not os.path.lexists(f"{root}/{name}"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
    return root


def run(lab):
    """The tables of this case."""
    files, modules = (500, 8) if lab.quick else (5_000, 40)
    work, left_out = make_work(lab, files, modules)
    first = Table("")
    samples = {}
    for _ in range(lab.scaled(2, 1)):
        for name, way in ways(lab, work).items():
            out = attempt(lab, first, name, lambda: way(fresh(lab, work)))
            for line in (out or "").splitlines():
                workload, _, value = line.partition(" ")
                try:
                    samples.setdefault(workload, {}).setdefault(name, []).append(float(value))
                except ValueError:
                    first.left_out.append(f"{name}: {line}")
    tables = []
    for key, (title, unit, text) in WORKLOADS.items():
        table = Table(title, text.format(files=files, modules=modules, packages=PACKAGES), unit, floor="outside")
        for name, values in samples.get(key, {}).items():
            table.add(name, [value / (1000 if unit == "ms" else 1) for value in values])
        tables.append(table)
    tables[0].text += (" In every row the time is the work's own, without the start. brig: `task run --dir` with everything on, so a copy-on-write workspace; "
                       "runc, crun, runsc: Docker's filter, the folder bound; bwrap: --unshare-all, no filter, the folder bound. "
                       "outside, overlay: an overlayfs over the folder alone, the kernel's own part of copy-on-write.")
    tables[0].left_out = list(dict.fromkeys(first.left_out + left_out))
    return tables
