"""unpack: how fast an image becomes files, beside the floors of decoding, hashing and writing."""
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor

from cases import docker
from lab import Failed
from measure import Table, attempt

LAYERS = 4
BUSYBOX = "/usr/bin/busybox"


def files_of_usr():
    """Regular files and links that fit into plain headers, in an order that mixes sizes; first a program that needs no other file."""
    yield BUSYBOX
    for top, folders, names in os.walk("/usr"):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(top, name)
            if path != BUSYBOX and len(path) < 100 and path.isascii() and (os.path.islink(path) or os.path.isfile(path)):
                yield path


def make_tars(lab, wanted, layers=LAYERS):
    """So many uncompressed tars that pack to `wanted` bytes together."""
    tars, sources = [], files_of_usr()
    for number in range(layers):
        path, size, seen = lab.path(f"layer-{number}.tar"), 0, set()
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for source in sources:
                folders = source.lstrip("/").split("/")[:-1]
                for depth in range(1, len(folders) + 1):
                    if (folder := "/".join(folders[:depth])) not in seen:
                        seen.add(folder)
                        info = tarfile.TarInfo(folder)
                        info.type, info.mode = tarfile.DIRTYPE, 0o755
                        archive.addfile(info)
                try:
                    info = archive.gettarinfo(source)
                except ValueError:
                    continue
                if info is None or len(info.linkname) >= 100 or not (info.isreg() or info.issym()):
                    continue
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                if info.isreg():
                    with open(source, "rb") as content:
                        archive.addfile(info, content)
                else:
                    archive.addfile(info)
                size += info.size
                if size >= wanted * 2.6 / layers:  # what /usr compresses to
                    break
        tars.append(path)
    return tars


def pack(path):
    with open(path, "rb") as source, open(f"{path}.gz", "wb") as target:
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6, mtime=0) as stream:
            shutil.copyfileobj(source, stream, 1 << 20)
    return f"{path}.gz"


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_layout(layout, tars, packed):
    """An OCI layout with one image, `t`."""
    os.makedirs(f"{layout}/blobs/sha256")

    def blob(data):
        name = hashlib.sha256(data).hexdigest()
        with open(f"{layout}/blobs/sha256/{name}", "wb") as file:
            file.write(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    layers = []
    for path in packed:
        name = digest(path)
        os.link(path, f"{layout}/blobs/sha256/{name}")
        layers.append({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": f"sha256:{name}", "size": os.path.getsize(path)})
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = blob(json.dumps({"architecture": architecture, "os": "linux", "config": {"Cmd": ["/bin/sh"]}, "rootfs": {
        "type": "layers", "diff_ids": [f"sha256:{digest(path)}" for path in tars]}}).encode())
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config}, "layers": layers}
    top = {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode()), "annotations": {"org.opencontainers.image.ref.name": "t"}}
    with open(f"{layout}/index.json", "w") as file:
        json.dump({"schemaVersion": 2, "manifests": [top]}, file)
    with open(f"{layout}/oci-layout", "w") as file:
        file.write('{"imageLayoutVersion":"1.0.0"}')


def measure(lab, command):
    """Seconds and peak memory in MiB of one program and all that it starts."""
    if not lab.quick:
        os.sync()  # the disk has written what the program before left
    # By a small C program: a fork of this process would begin with the memory of Python.
    words = lab.path("words")
    with open(words, "w") as out:
        seconds, failed, peak = lab.run(lab.program("crowd"), "1", "300", "-", *command, stderr=out).splitlines()[0].split()
    if failed != "0":
        raise Failed(open(words).read().strip()[-300:] or "it failed")
    return float(seconds), int(peak) / 1024


def commands(lab, base, layout, tars, packed):
    """Each peer's command, with what it writes below `base`."""
    os.makedirs(f"{base}/floor")
    decoder = shutil.which("igzip") or shutil.which("gzip")
    many = f"xargs -P {os.cpu_count()} -I@"
    found = {
        f"floor: decode ({os.path.basename(decoder)}, all processors)": ["sh", "-c", f"printf '%s\\n' {' '.join(packed)} | {many} {decoder} -dc @ >/dev/null"],
        "floor: sha256 of packed and unpacked": ["sh", "-c", f"printf '%s\\n' {' '.join(packed + tars)} | {many} openssl dgst -sha256 @ >/dev/null"],
        "floor: write the same files": [lab.program("write"), f"{base}/floor", *tars],
        "brig image unpack": [lab.brig, "image", "--quiet", "--store", f"{base}/none", "unpack", f"oci:{layout}", f"{base}/brig"],
        "brig image load": [lab.brig, "image", "--quiet", "--store", f"{base}/store", "load", layout, "--name", "bench:1"],
    }
    if lab.has("umoci"):
        found["umoci unpack"] = ["umoci", "unpack", "--image", f"{layout}:t", f"{base}/umoci"]
    if lab.has("skopeo"):
        graph = f"containers-storage:[overlay@{base}/graph+{base}/run]bench:1"
        skopeo = ["skopeo", "copy", "--insecure-policy", f"oci:{layout}:t", graph]
        found["skopeo copy to containers-storage"] = ["unshare", "--mount", "--propagation", "private", *skopeo]
    return found


def docker_archive(lab, layout, packed):
    """The same image as `docker save` writes it, its layers packed as they are in the layout: older daemons load nothing else."""
    index = json.load(open(f"{layout}/index.json"))
    blob = lambda descriptor: f"{layout}/blobs/sha256/{descriptor['digest'][7:]}"
    config = json.load(open(blob(index["manifests"][0])))["config"]
    path, layers = lab.path("archive.tar"), [f"{number}/layer.tar" for number in range(len(packed))]
    with open(lab.path("manifest.json"), "w") as out:
        json.dump([{"Config": "config.json", "RepoTags": ["bench:1"], "Layers": layers}], out)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, source in [("manifest.json", lab.path("manifest.json")), ("config.json", blob(config)), *zip(layers, packed)]:
            archive.add(source, name)
    return path


def start_docker(lab, table, layout, packed):
    """`docker load` of the image and what makes room for the next, by a daemon of our own in a mount namespace of its own."""
    if not lab.has("docker") or not shutil.which("docker"):
        table.left_out.append("docker load: dockerd is missing: apt-get install docker.io")
        return None
    own = ("unshare", "--mount", "--propagation", "private")
    client = attempt(lab, table, "docker load", lambda: docker.start(lab, "overlay2", own)[0])
    return client and ([*client, "load", "-q", "-i", docker_archive(lab, layout, packed)], [*client, "rmi", "-f", "bench:1"])


def run(lab):
    """The tables of this case."""
    tars = make_tars(lab, (8 if lab.quick else 120) * 1_000_000)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = list(pool.map(pack, tars))
    layout = lab.path("layout")
    make_layout(layout, tars, packed)
    for path in tars + packed:
        lab.run("cat", path, stdout=subprocess.DEVNULL)  # what is measured is not the disk's reading
    table = Table("An image becomes files", unit="s", base="brig image unpack", more=[["memory", "peak MiB", 0]])
    samples, peaks = {}, {}
    loaded = start_docker(lab, table, layout, packed)
    for number in range(lab.scaled(3, 1)):
        subjects = commands(lab, lab.path(f"round-{number}"), layout, tars, packed)
        if loaded:
            subjects["docker load"] = loaded[0]
        for name, command in subjects.items():
            if name in table.left_out:
                continue
            try:
                seconds, peak = measure(lab, command)
            except Failed as error:
                table.left_out.append(f"{name}: {str(error).replace(lab.work, '…')}")
                continue
            samples.setdefault(name, []).append(seconds)
            # The daemon's is not in what its client took.
            peaks[name] = "" if name == "docker load" else max(peaks.get(name, 0), peak)
            if name == "docker load":
                lab.run(*loaded[1], check=False)
    for name, all_of_it in samples.items():
        table.add(name, all_of_it, memory=peaks[name])
    floors = sum(row["median"] for row in table.rows if row["name"].startswith("floor"))
    table.floor = max((row for row in table.rows if row["name"].startswith("floor")), key=lambda row: row["median"])["name"]
    raw, small = (sum(map(os.path.getsize, each)) / 1e6 for each in (tars, packed))
    table.text = (f"{small:.0f} MB compressed, {raw:.0f} MB of tars, {LAYERS} layers of files of /usr. `brig image load` keeps the layers as brig runs from them, "
                  "`unpack` makes one folder. `docker load` (overlay2) gets the same layers in its own archive; its memory is the daemon's. All check every digest but the floors, of which the slowest is the one that ratios refer to. "
                  f"Unpacking must do all three, and each has all processors: together they take {floors:.2f} s.")
    return [table]
