"""layers: what many layers cost the start, and whether layers kept as EROFS images would be better than a folder for each."""
import os
import subprocess
import tarfile
import time

from cases import unpack
from lab import Failed, say
from measure import Subject, Table, interleave

MANY = 40
PACKERS = {"EROFS": [], "EROFS, lz4hc": ["-zlz4hc"]}


def bottom(lab):
    """A layer with something to run that needs no other file."""
    path = lab.path("bottom.tar")
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("bin", "tmp", "etc"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        info = tarfile.TarInfo("bin/true")
        info.size, info.mode = os.path.getsize("/bin/busybox"), 0o755
        with open("/bin/busybox", "rb") as content:
            archive.addfile(info, content)
    return path


def starts(lab):
    """The start of a task, by layers; the last row is what the others cost."""
    task = [lab.brig, "task", "run", "--pull", "never", "--image"]
    subjects = [Subject(name, [*task, f"{name}:1", "--", "/bin/true"]) for name in ("one", "many")]
    table = interleave(lab, Table("A task in an image, by layers", base="one", floor=""), lab.scaled(60, 5), 0, subjects)
    found = {row["name"]: row for row in table.rows}
    if len(found) == len(subjects):
        less = {key: found["many"][key] - found["one"][key] for key in ("least", "median", "p99")}
        table.rows.append({"name": f"{MANY} layers less 1", **less})
        say(f"  {table.title}: {MANY} layers less 1: {less['median']:.2f} ms")
    table.text = f"`brig task run --image` of `true`: `one` has one layer, `many` that one and {MANY - 1} more with files of /usr."
    return table


def rounds(lab, kind, layers):
    """Samples of mounting, of the first look at the root's names and of the end, in ms."""
    out = lab.run(lab.program("layers"), kind, str(lab.scaled(60, 5)), lab.folder("mounted"), *layers)
    return zip(*([int(word) / 1e3 for word in line.split()] for line in out.splitlines()))


def reading(lab, kind, layers):
    """Seconds of reading every file of the mounted root."""
    began = time.perf_counter()
    lab.run("unshare", "--mount", "--propagation", "private", lab.program("layers"), kind, "0", lab.folder("mounted"), *layers)
    return time.perf_counter() - began


def size(paths):
    """MB on the disk."""
    out = subprocess.run(["du", "-sck", *paths], capture_output=True, text=True, check=True).stdout
    return int(out.splitlines()[-1].split()[0]) / 1e3


def compare(lab, folders, load):
    """Folders as they are beside EROFS images of the same."""
    mounts = Table("The root alone, by how layers are kept", base=f"folders, {MANY} layers", floor="", more=[["walk", "first look ms", 2], ["end", "end ms", 2]])
    mounts.text = ("bench/layers.c: an overlay of the layers with an upper one on a tmpfs in a mount namespace. EROFS images are mounted from their files, without "
                   "a loop device; only root may. The end is that of the namespace.")
    files = Table("The files, by how layers are kept", unit="s", base="folders", floor="", more=[["size", "MB on disk", 1], ["read", "read all s", 2]])
    files.text = (f"`brig image load` of {MANY} layers makes the folders, and all of it is the time. mkfs.erofs makes EROFS images of those "
                  "folders, which takes its time on top. Reading is of every file through the mounted root, in the page cache where possible.")
    kept = {"folders": ("dirs", folders)}
    files.add("folders", [load], size=size(folders), read=0)
    for name, options in PACKERS.items() if lab.has("mkfs.erofs") else []:
        images, began = [], time.perf_counter()
        for number, folder in enumerate(folders):
            images.append(lab.path(f"{'-'.join(['erofs', *options])}-{number}"))
            lab.run("mkfs.erofs", *options, images[-1], folder, stdout=subprocess.DEVNULL)
        files.add(f"{name}, on top", [time.perf_counter() - began], size=size(images), read=0)
        kept[name] = ("erofs", images)
    for row, (name, (kind, layers)) in zip(files.rows, kept.items()):
        try:
            reading(lab, kind, layers)
            row["read"] = reading(lab, kind, layers)
            for count in (1, MANY):
                took, walk, end = rounds(lab, kind, layers[-count:])
                median = lambda samples: sorted(samples)[len(samples) // 2]
                mounts.add(f"{name}, {count} layers", took, walk=median(walk), end=median(end))
        except Failed as error:
            mounts.left_out.append(f"{name}: {str(error).replace(lab.work, '…')[-200:]}")
    if not lab.has("mkfs.erofs"):
        mounts.left_out.append("EROFS: mkfs.erofs is missing: apt-get install erofs-utils")
    return [mounts, files]


def run(lab):
    """The tables of this case."""
    tars = [bottom(lab), *unpack.make_tars(lab, (8 if lab.quick else 60) * 1_000_000, MANY - 1)]
    packed = [unpack.pack(path) for path in tars]
    layouts, took = {"one": 1, "many": MANY}, 0
    for name, count in layouts.items():
        unpack.make_layout(lab.path(f"layout-{name}"), tars[:count], packed[:count])
        took = lab.time(lab.brig, "image", "--quiet", "load", lab.path(f"layout-{name}"), "--name", f"{name}:1") / 1e3
    [image] = unpack.json.loads(lab.run(lab.brig, "image", "inspect", "many:1"))
    return [starts(lab), *compare(lab, image["layers"], took)]
