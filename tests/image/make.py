#!/usr/bin/env python3
"""Makes OCI layouts for the image tests: ordinary, hostile and random ones.

usage: make.py CASE DIRECTORY [ARGUMENT]

Written with Python's own tarfile, so that what brig reads is not what brig has written.
"""
import base64
import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile


def entry(name, kind="file", data=b"", mode=0o644, link="", uid=0, gid=0, mtime=1_600_000_000, pax=None, device=(0, 0)):
    kinds = {
        "file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE,
        "fifo": tarfile.FIFOTYPE, "char": tarfile.CHRTYPE, "block": tarfile.BLKTYPE,
    }
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.uid, info.gid, info.mtime = kinds[kind], mode, link, uid, gid, mtime
    info.size = len(data) if kind == "file" else 0
    info.devmajor, info.devminor = device
    info.pax_headers = dict(pax or {})
    return info, data


def tar(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def d(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    def __init__(self, path):
        self.path = path
        os.makedirs(f"{path}/blobs/sha256")
        with open(f"{path}/oci-layout", "w") as file:
            file.write('{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data):
        with open(f"{self.path}/blobs/sha256/{d(data)[7:]}", "wb") as file:
            file.write(data)
        return {"digest": d(data), "size": len(data)}

    def json(self, value):
        return self.blob(json.dumps(value).encode())

    def image(self, layers, config=None, pack=gzip.compress, tag="t", media="application/vnd.oci.image.layer.v1.tar+gzip",
              change=lambda manifest: manifest):
        """`layers` are tars, bottom first."""
        blobs = []
        for layer in layers:
            packed = pack(layer)
            blobs.append({"mediaType": media, **self.blob(packed)})
        run = {"Cmd": ["/bin/sh"], **(config or {})}
        document = {"architecture": "amd64", "os": "linux", "config": run,
                    "rootfs": {"type": "layers", "diff_ids": [d(layer) for layer in layers]}}
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **self.json(document)},
                    "layers": blobs}
        reference = self.json(change(manifest))
        self.index([{"mediaType": manifest["mediaType"], **reference,
                     "annotations": {"org.opencontainers.image.ref.name": tag}}])

    def index(self, manifests):
        with open(f"{self.path}/index.json", "w") as file:
            json.dump({"schemaVersion": 2, "manifests": manifests}, file)


def zstd(data):
    return subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout


def raw(name, type_byte, size_field, body=b"", mode=b"0000644\0", prefix_fields=None):
    """A header by hand, for what tarfile would not write."""
    block = bytearray(512)
    block[0:len(name)] = name
    block[100:108] = mode
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = size_field
    block[136:148] = b"00000000000\0"
    block[156:157] = type_byte
    block[257:265] = b"ustar\x0000"
    for at, value in (prefix_fields or {}).items():
        block[at:at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + body + b"\0" * (-len(body) % 512)


END = b"\0" * 1024
BASE = [entry("./", "dir", mode=0o755), entry("etc/", "dir", mode=0o755), entry("bin/", "dir", mode=0o755),
        entry("etc/passwd", data=b"root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n"),
        entry("etc/group", data=b"root:x:0:\nme:x:1000:\nextra:x:27:me\n"), entry("bin/sh", data=b"#!\n", mode=0o755)]


def plain(layout, _):
    layout.image([tar(BASE + [
        entry("usr/lib/", "dir", mode=0o755), entry("lib", "symlink", link="usr/lib"), entry("lib/a.so", data=b"a" * 3000),
        entry("bin/su", data=b"su", mode=0o4755), entry("bin/su2", "hardlink", link="bin/su"),
        entry("tmp/", "dir", mode=0o1777), entry("srv/", "dir", mode=0o2775, uid=5, gid=50),
        entry("bin/ping", data=b"ping", mode=0o755, uid=7, gid=8, pax={
            "SCHILY.xattr.security.capability": CAPABILITY,
            "SCHILY.xattr.user.note": "one\ntwo"}),
        entry("pipe", "fifo", mode=0o600), entry("null", "char", device=(1, 3), mode=0o666),
        entry("old", data=b"x", mtime=-86400.5), entry("far", data=b"x", mtime=2 ** 40), entry("n" * 200, data=b"long"),
        entry("ro/", "dir", mode=0o555), entry("ro/x", data=b"x", mode=0o444), entry("secret/", "dir", mode=0o000),
    ])], config={"User": "me", "Env": ["A=b"], "WorkingDir": "/srv", "StopSignal": "SIGINT", "ExposedPorts": {"80/tcp": {}},
                 "Volumes": {"/data": {}}, "Healthcheck": {"Test": ["CMD", "true"]}})


def layered(layout, pack):
    """Whiteouts, opaque directories, changes of type, implied parents, links across layers, a symlink on the way."""
    one = tar(BASE + [
        entry("usr/lib/", "dir", mode=0o751, uid=3, gid=4), entry("lib", "symlink", link="usr/lib"),
        entry("tmp/", "dir", mode=0o1777), entry("d/", "dir", mode=0o700), entry("d/gone", data=b"1"), entry("d/stays", data=b"2"),
        entry("o/", "dir", mode=0o711, uid=9), entry("o/hidden", data=b"3"), entry("o/sub/", "dir"), entry("o/sub/h", data=b"4"),
        entry("becomes-file/", "dir"), entry("becomes-file/x", data=b"5"), entry("becomes-dir", data=b"6"),
        entry("replaced/", "dir"), entry("replaced/old", data=b"7"), entry("linked", data=b"8", uid=11, mode=0o640),
        entry("gone-dir/", "dir"), entry("gone-dir/y", data=b"9")])
    two = tar([
        entry("tmp/new", data=b"a"), entry("lib/b.so", data=b"b"), entry("d/.wh.gone"), entry("o/.wh..wh..opq"),
        entry("o/new", data=b"c"), entry("becomes-file", data=b"d"), entry("becomes-dir/", "dir", mode=0o750),
        entry("becomes-dir/z", data=b"e"), entry(".wh.replaced"), entry("replaced/", "dir", mode=0o705), entry("replaced/new", data=b"f"),
        entry("linked-too", "hardlink", link="linked"), entry(".wh.gone-dir"), entry("d/.wh.never-there")])
    three = tar([entry("o/.wh.new"), entry("o/newer", data=b"g"), entry("gone-dir/", "dir"), entry("gone-dir/back", data=b"h"),
                 entry("d/stays", data=b"changed")])
    packers = {"gzip": (gzip.compress, "tar+gzip"), "zstd": (zstd, "tar+zstd"), "none": (lambda data: data, "tar"),
               "mislabelled": (zstd, "tar+gzip"),
               "members": (lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]), "tar+gzip")}
    pack, media = packers.get(pack, packers["gzip"])
    layout.image([one, two, three], pack=pack, media=f"application/vnd.oci.image.layer.v1.{media}")


def rows(layout, text):
    """Layers as text, separated by `|`: KIND:NAME[:MODE[:UID:GID]][=DATA|>TARGET], where KIND is d, f, s or h."""
    def one(word):
        word, _, data = word.partition("=")
        word, _, link = word.partition(">")
        kind, name, mode, uid, gid = (word.split(":") + [""] * 3)[:5]
        kind = {"d": "dir", "f": "file", "s": "symlink", "h": "hardlink"}[kind]
        return entry(name, kind, data=data.encode(), link=link, mode=int(mode or "755", 8), uid=int(uid or 0), gid=int(gid or 0))
    layout.image([tar(map(one, layer.split())) for layer in text.split("|")])


def random_image(layout, seed):
    """Several layers of random entries over a few names, so that they meet: what an image may say, in any order."""
    rng = random.Random(int(seed))
    names = ["a", "b", "c"]
    layers, seen = [tar(BASE)], {"etc": "dir", "bin": "dir"}

    def path():
        return "/".join(rng.choice(names) for _ in range(rng.randint(1, 3)))

    def parents_are_directories(name):
        parts = name.split("/")
        return all(seen.get("/".join(parts[:n])) in ("dir", None) for n in range(1, len(parts)))

    for _ in range(rng.randint(1, 4)):
        entries, here = [], set()
        for _ in range(rng.randint(1, 12)):
            name, kind = path(), rng.choice(["dir", "file", "file", "symlink", "hardlink", "whiteout", "opaque"])
            # The specification allows each name once a layer, and a parent must be able to be one.
            if not parents_are_directories(name) or any(name == o or o.startswith(name + "/") or name.startswith(o + "/") and
                                                        seen.get(o) != "dir" for o in here):
                continue
            parent = name.rpartition("/")[0]
            if kind == "whiteout":
                if name not in seen or name in here:
                    continue
                entries.append(entry(f"{parent + '/' if parent else ''}.wh.{name.rpartition('/')[2]}"))
                for gone in [o for o in seen if o == name or o.startswith(name + "/")]:
                    del seen[gone]
                here.add(name)
                continue
            if kind == "opaque":
                if seen.get(name) != "dir" or name in here:
                    continue
                entries.append(entry(f"{name}/.wh..wh..opq"))
                for gone in [o for o in seen if o.startswith(name + "/")]:
                    del seen[gone]
                here.add(name)
                continue
            attributes = dict(mode=rng.choice([0o644, 0o600, 0o755, 0o4711, 0o777]), uid=rng.randint(0, 3), gid=rng.randint(0, 3),
                              mtime=rng.randint(1, 2_000_000_000))
            link = ""
            if kind == "hardlink":
                files = [o for o, what in seen.items() if what == "file" and o != name and not name.startswith(o + "/")]
                if not files:
                    continue
                link = rng.choice(sorted(files))
            if kind == "symlink":
                link = rng.choice(["/nowhere", "../b", "x"])
            if kind != "dir":
                for gone in [o for o in seen if o.startswith(name + "/")]:
                    del seen[gone]
            elif seen.get(name) not in (None, "dir"):
                pass
            for n in range(1, name.count("/") + 1):
                seen.setdefault("/".join(name.split("/")[:n]), "dir")
            entries.append(entry(name, kind, data=rng.randbytes(rng.randint(0, 40)) if kind == "file" else b"", link=link, **attributes))
            seen[name] = "file" if kind == "hardlink" else kind
            here.add(name)
        layers.append(tar(entries))
    layout.image(layers)


def random_large(layout, seed):
    """Layers that do not compress, so that they take a while on a slow line."""
    rng = random.Random(int(seed))
    layout.image([tar(BASE + [entry(f"file-{n}", data=rng.randbytes(40_000))]) for n in range(3)])


def large(layout, _):
    """More than the memory that unpacking may take, in each layer and in all."""
    rng = random.Random(1)
    layout.image([tar(BASE + [entry(f"file-{n}", data=rng.randbytes(1 << 20) * 70)]) for n in range(2)], pack=lambda layer: gzip.compress(layer, 0))


def shared(layout, name):
    """A layer that all images of this case have, and one that no other has."""
    layout.image([tar(BASE + [entry("shared", data=random.Random(1).randbytes(40_000))]), tar([entry("own", data=name.encode())])],
                 pack=lambda layer: gzip.compress(layer, mtime=0))


def borrowed(layout, pair):
    """`A,B`: the DiffID of layer A and the blob of layer B. `A,A` is an ordinary image."""
    layers = [tar([entry("who", data=who.encode())]) for who in pair.split(",")]
    pack = lambda layer: gzip.compress(layer, mtime=0)
    blob = layout.blob(pack(layers[1]))
    layout.image(layers[:1], pack=pack, change=lambda manifest: {**manifest, "layers": [{**manifest["layers"][0], **blob}]})


def bottom_first(layout, seed):
    """A small layer below one that takes a while on a slow line."""
    dice = random.Random(seed)
    layout.image([tar([entry("small", "dir", mode=0o755), entry("small/file", data=b"small")]), tar([entry("large", data=dice.randbytes(900_000))])])


def runnable(layout, _):
    """Something to run: busybox by itself."""
    program = next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))
    layer = tar([entry(name, "dir", mode=0o755) for name in ("bin", "etc", "tmp")] + [entry("bin/busybox", data=open(program, "rb").read(), mode=0o755)])
    layout.image([layer], config={"Entrypoint": ["/bin/busybox"], "Cmd": ["echo", "hello"]})


def versions(layout, version):
    """One layer of 40 MB that does not compress, in large and small files. A version changes one file and the next's time."""
    rng, program = random.Random(1), next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))
    entries = [entry(name, "dir", mode=0o755) for name in ("bin", "etc", "tmp", "small")]
    entries.append(entry("bin/busybox", data=open(program, "rb").read(), mode=0o755))
    entries += [entry(f"large-{n:02}", data=rng.randbytes(1 << 20)) for n in range(12)]
    entries += [entry(f"small/{n:04}", data=rng.randbytes(rng.randrange(200, 6000))) for n in range(400)]
    entries.insert(20, entry("changed", data=random.Random(f"version {version}").randbytes(2000)))
    entries.insert(21, entry("touched", data=b"the same", mtime=1_700_000_000 + int(version)))
    # Two blocks at the end: skopeo 1.9 leaves out what follows, and so makes a layer that is not the config's.
    layer = tar(entries).rstrip(b"\0")
    layer += bytes(-len(layer) % 512 + 1024)
    layout.image([layer], config={"Entrypoint": ["/bin/busybox"], "Cmd": ["sha256sum", "/changed"]})


def stacked(layout, _):
    """Something to run in two layers, the upper of which removes: names, hard links, a file and a folder that their owner may not open."""
    program = next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))
    folders = [entry(name, "dir", mode=0o755) for name in ("bin", "etc", "tmp", "data", "old")]
    lower = tar(folders + [entry("bin/busybox", data=open(program, "rb").read(), mode=0o755), entry("bin/sh", "symlink", link="busybox"),
                           entry("data/one", data=b"one\n", mode=0o640), entry("data/two", "hardlink", link="data/one"), entry("data/gone", data=b"x"),
                           entry("old/a", data=b"x"), entry("shut", "dir", mode=0), entry("shut/in", data=b"x", mode=0)])
    upper = tar([entry("data/.wh.gone"), entry("old", "dir", mode=0o750), entry("old/.wh..wh..opq"), entry("old/b", data=b"b\n")])
    layout.image([lower, upper], config={"Entrypoint": ["/bin/sh", "-c"]})


CAPABILITY = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0".decode("latin1")  # cap_net_raw=ep, revision 2
# What a Dockerfile may do to files: made, linked, given away, taken away, replaced by another kind, holes, times.
DOCKERFILE = """FROM scratch
ADD root.tar /
RUN set -e; bb=/bin/busybox; \\
    $bb mkdir -p /made/deep; $bb dd if=/dev/urandom of=/made/sparse bs=1 count=5 seek=8M 2> /dev/null; \\
    $bb echo x > /made/a; $bb ln /made/a /made/b; $bb ln -s ../etc/passwd /made/s; $bb mkfifo /made/p; $bb mknod /made/null c 1 3; \\
    $bb touch -d '2001-02-03 04:05:06' /made/a; $bb chmod 4711 /made/b; $bb chown 77:88 /made/deep; $bb chmod 2750 /made/deep
RUN set -e; bb=/bin/busybox; \\
    $bb rm /gone; $bb rm -r /o; $bb mkdir /o; $bb echo n > /o/new; $bb rm /made/p; $bb mkdir /made/p; $bb echo x > /lib/b; \\
    $bb ln /linked /made/linked; $bb echo more >> /etc/passwd
COPY --chown=5:6 Dockerfile /copied/here
RUN set -e; /bin/busybox rm -r /home; /bin/busybox echo file > /home; /bin/busybox chmod 0700 /srv
USER 77
WORKDIR /made/work
CMD ["/bin/busybox", "true"]
"""


def context(layout, _):
    """What `docker build` and `buildah bud` make an image of."""
    program = next(path for path in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(path))
    rows = [entry(name, "dir", mode=0o755) for name in ("bin", "etc", "usr", "usr/lib", "home", "o", "o/sub", "dev", "proc", "sys", "run")] + [
        entry("bin/busybox", data=open(program, "rb").read(), mode=0o755), entry("bin/sh", "symlink", link="busybox"),
        entry("lib", "symlink", link="usr/lib"), entry("tmp", "dir", mode=0o1777), entry("srv", "dir", mode=0o2775, uid=5, gid=50),
        entry("bin/ping", data=b"ping", mode=0o755, uid=7, gid=8, pax={
            "SCHILY.xattr.security.capability": CAPABILITY, "SCHILY.xattr.user.note": "one\ntwo"}),
        entry("bin/su", data=b"su", mode=0o4755), entry("bin/su2", "hardlink", link="bin/su", mode=0o4755), entry("pipe", "fifo", mode=0o600),
        entry("old", data=b"x", mtime=1), entry("o/hidden", data=b"3"), entry("o/sub/h", data=b"4"), entry("gone", data=b"1"),
        entry("etc/passwd", data=b"root:x:0:0::/:/bin/sh\n"), entry("linked", data=b"8", uid=11, mode=0o640), entry("usr/lib/a", data=b"a")]
    for name, content in (("root.tar", tar(rows)), ("Dockerfile", DOCKERFILE.encode())):
        with open(f"{layout.path}/{name}", "wb") as file:
            file.write(content)


def attack(*entries, config=None, lower=()):
    def make(layout, canary):
        fill = lambda rows: [(fix(info, canary), data) for info, data in rows]
        layers = [tar(BASE)] + ([tar(fill(lower))] if lower else []) + [tar(fill(entries))]
        layout.image(layers, config=config)
    return make


def fix(info, canary):
    info.name = info.name.replace("CANARY", canary or "")
    info.linkname = info.linkname.replace("CANARY", canary or "")
    return info


def hand(*blocks):
    return lambda layout, _: layout.image([tar(BASE), b"".join(blocks) + END])


def two_formats(kind):
    """A tar whose first name is the head of a skippable frame of zstd (RFC 8878, 3.1.2), so that its data is a frame with another tar."""
    def skippable(length):
        return b"\x50\x2a\x4d\x18" + length.to_bytes(4, "little")

    def make(layout, _):
        inner = raw(b"other", b"0", b"00000000000\0") + END
        data = zstd(inner)
        data += skippable(-(len(data) + 8) % 512 + len(END))
        blob = raw(skippable(512 - 8), b"0", b"%011o\0" % len(data), data) + END
        plain = (lambda layer: layer) if kind == "tar" else zstd
        layout.image([tar(BASE), inner], pack=lambda layer: blob if layer == inner else plain(layer),
                     media=f"application/vnd.oci.image.layer.v1.{kind}")
    return make


def record(text):
    body = f" {text}\n".encode("latin1")
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body


def pax(*records):
    body = b"".join(records)
    return raw(b"pax", b"x", b"%011o\0" % len(body), body)


def huge(name):
    def make(layout, _):
        plain(layout, None)
        os.truncate(f"{layout.path}/{name}", 2 << 30)
    return make


def changed(change):
    return lambda layout, _: layout.image([tar(BASE)], change=change)


def traversal(layout, _):
    layout.image([tar(BASE)])
    layout.index([{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:../../x", "size": 2}])


def traversal_read(layout, _):
    """A digest that is the path of a file beside the layout."""
    layout.image([tar(BASE)])
    layout.index([{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:../../../canary/file", "size": 8}])


def noise(seed):
    """A tar of a hundred thousand random bytes."""
    return tar(BASE + [entry("data", data=random.Random(seed).randbytes(100_000))])


def corrupt(layout, _, layers=1):
    layout.image([noise(seed) for seed in range(1, layers + 1)])
    blob = max((f"{layout.path}/blobs/sha256/{name}" for name in os.listdir(f"{layout.path}/blobs/sha256")), key=os.path.getsize)
    with open(blob, "r+b") as file:
        file.seek(50_000)
        file.write(b"\xff\0\xff\0")


def wrong_diff(layout, _, layers=1):
    layout.image([noise(seed) for seed in range(1, layers + 1)])
    packed = gzip.compress(noise(0))
    manifest_path = next(path for path in map(lambda n: f"{layout.path}/blobs/sha256/{n}", os.listdir(f"{layout.path}/blobs/sha256"))
                         if b'"layers": [' in open(path, "rb").read() and b"manifest" in open(path, "rb").read())
    manifest = json.load(open(manifest_path))
    manifest["layers"][0].update(layout.blob(packed))
    layout.index([{"mediaType": manifest["mediaType"], **layout.json(manifest)}])


def linked_blob(layout, canary):
    """A layout whose blob is a symlink to a file of the host."""
    layout.image([tar(BASE)])
    for name in os.listdir(f"{layout.path}/blobs/sha256"):
        path = f"{layout.path}/blobs/sha256/{name}"
        os.rename(path, f"{canary}/{name}")
        os.symlink(f"{canary}/{name}", path)


def many_opaque(layout, _):
    files = [entry(f"d/{n}") for n in range(2000)]
    layout.image([tar([entry("d/", "dir")]), tar(files + [entry("d/.wh..wh..opq")] * 100_000)])


def race(layout, _):
    """Files in turn into more folders than anybody keeps open: each is looked up again and again."""
    folders = [entry(f"d{n}", "dir", mode=0o755) for n in range(100)]
    layout.image([tar(folders + [entry(f"d{n}/f{turn}", data=b"pwned") for turn in range(60) for n in range(100)])])


def multi(layout, _):
    """An index with an attestation, an unknown type and two platforms; one nested."""
    entries = []
    for architecture in ("arm64", "amd64"):
        layer = tar(BASE + [entry("platform", data=architecture.encode())])
        blob = layout.blob(gzip.compress(layer))
        config = layout.json({"architecture": architecture, "os": "linux", "config": {"Cmd": ["/bin/sh"]},
                              "rootfs": {"type": "layers", "diff_ids": [d(layer)]}})
        manifest = layout.json({"schemaVersion": 2, "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **config},
                                "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **blob}]})
        entries.append({"mediaType": "application/vnd.oci.image.manifest.v1+json", **manifest,
                        "platform": {"os": "linux", "architecture": architecture}})
    unknown = {"mediaType": "application/vnd.example+json", **layout.blob(b"{}")}
    attestation = {**entries[0], "platform": {"os": "unknown", "architecture": "unknown"},
                   "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    index = {"schemaVersion": 2, "manifests": [unknown, attestation] + entries}
    layout.index([{"mediaType": "application/vnd.oci.image.index.v1+json", **layout.json(index),
                   "annotations": {"org.opencontainers.image.ref.name": "multi"}}])


CASES = {
    "plain": plain, "layered": layered, "rows": rows, "random": random_image, "random-large": random_large, "large": large, "shared": shared, "borrowed": borrowed, "bottom-first": bottom_first, "runnable": runnable, "versions": versions, "stacked": stacked, "multi": multi, "context": context,
    # T-50: out of the root, by all known ways.
    "symlink-parent": attack(entry("evil", "symlink", link="CANARY"), entry("evil/pwned", data=b"pwned")),
    "relative-symlink-parent": attack(entry("evil", "symlink", link="../../../../../../../../../../CANARY"), entry("evil/pwned", data=b"x")),
    "symlink-below": attack(entry("evil/pwned", data=b"pwned"), lower=[entry("evil", "symlink", link="CANARY")]),
    "whiteout-through-symlink": attack(entry("evil/.wh.file"), lower=[entry("evil", "symlink", link="CANARY")]),
    "whiteout-through-own-symlink": attack(entry("evil", "symlink", link="CANARY"), entry("evil/.wh.file")),
    "opaque-through-symlink": attack(entry("evil/.wh..wh..opq"), lower=[entry("evil", "symlink", link="CANARY")]),
    "dotdot": attack(entry("../../../../../../pwned", data=b"x")),
    "dotdot-inside": attack(entry("a/../../pwned", data=b"x")),
    "absolute": attack(entry("/absolute", data=b"x")),
    "hardlink-outside": attack(entry("h", "hardlink", link="../../../../../../etc/hostname")),
    "hardlink-absolute": attack(entry("h", "hardlink", link="CANARY/file")),
    "hardlink-through-symlink": attack(entry("evil", "symlink", link="CANARY"), entry("h", "hardlink", link="evil/file")),
    "hardlink-overwrite": attack(entry("s", "symlink", link="CANARY/file"), entry("h", "hardlink", link="s"), entry("h", data=b"overwritten")),
    "hardlink-directory": attack(entry("h", "hardlink", link="etc")),
    "hardlink-whiteout": attack(entry(".wh.etc"), entry("h", "hardlink", link="etc/passwd")),
    "whiteout-of-dotdot": attack(entry("etc/.wh...")),
    "whiteout-of-dot": attack(entry("etc/.wh..")),
    "whiteout-of-nothing": attack(entry("etc/.wh.")),
    "loop": attack(entry("a", "symlink", link="b"), entry("b", "symlink", link="a"), entry("a/x", data=b"x")),
    "file-parent": attack(entry("f", data=b"x"), entry("f/x", data=b"x")),
    # T-51
    "root-symlink": hand(raw(b"./", b"2", b"00000000000\0", prefix_fields={157: b"/tmp"})),
    "root-symlink-filled": attack(entry(".", "symlink", link="CANARY"), entry("pwned", data=b"pwned")),
    "root-file": hand(raw(b".", b"0", b"00000000001\0", b"x")),
    # T-52
    "chmod-through-symlink": attack(entry("s", "symlink", link="CANARY/file", mode=0o777), entry("h", "hardlink", link="s", mode=0o777),
                                    entry("d", "symlink", link="CANARY"), entry("d/", "dir", mode=0o777)),
    # T-36 to T-39
    "volume": attack(config={"Volumes": {"/../../../etc": {}}}),
    **{f"user{text}": attack(config={"User": text}) for text in ("2147483648", "4294967295", "4294967296", "-1")},
    "labels": attack(config={"Labels": {"org.systemd.property.ExecStopPost": "['/bin/sh']", "org.criu.config": "/x", "run.oci.hooks.stdout": "/x",
                                        "bundle": "/x", "maintainer": "me"}}),
    "user-by-name": attack(entry("etc/passwd", data=b"evil:x:4294967295:4294967295::/:/bin/sh\n"), config={"User": "evil"}),
    "user-crafted": attack(entry("etc/passwd", data=b"4294967296:x:0:0::/:/bin/sh\n"), config={"User": "4294967296"}),
    "passwd-fifo": attack(entry("etc/passwd", "fifo"), config={"User": "me"}),
    "passwd-zero": attack(entry("zero", "char", device=(1, 5)), entry("etc/passwd", "symlink", link="/zero"), config={"User": "me"}),
    "passwd-host": attack(entry("etc/passwd", "symlink", link="CANARY/passwd"), config={"User": "canary"}),
    "passwd-sparse": hand(pax(record("GNU.sparse.major=0"), record("GNU.sparse.minor=1"), record("GNU.sparse.realsize=1073741824"),
                              record("GNU.sparse.map=0,1,1073741824,0")), raw(b"etc/passwd", b"0", b"00000000001\0", b"x")),
    # T-41
    "many-opaque": many_opaque,
    # T-56
    "race": race,
    # T-54 to T-57
    "ambiguous": changed(lambda manifest: {**manifest, "manifests": []}),
    "lies-about-itself": changed(lambda manifest: {**manifest, "mediaType": "application/vnd.oci.image.index.v1+json"}),
    "schema1": changed(lambda manifest: {"schemaVersion": 1, "name": "x", "fsLayers": []}),
    "artifact": changed(lambda manifest: {**manifest, "config": {**manifest["config"], "mediaType": "application/vnd.oci.empty.v1+json"}}),
    "missing-layer": changed(lambda manifest: {**manifest, "layers": []}),
    "wrong-size": changed(lambda manifest: {**manifest, "layers": [{**manifest["layers"][0], "size": 5}]}),
    "huge-index": huge("index.json"), "huge-layout": huge("oci-layout"),
    "traversal": traversal, "traversal-read": traversal_read, "corrupt": corrupt, "wrong-diff": wrong_diff,
    # So many layers of one size are hashed together.
    "corrupt-of-four": lambda layout, _: corrupt(layout, _, 4), "wrong-diff-of-four": lambda layout, _: wrong_diff(layout, _, 4),
    "linked-blob": linked_blob,
    # T-58, T-59, T-61, T-62
    "pax-size": hand(pax(record("size=1536")), raw(b"outer", b"0", b"00000000000\0", raw(b"smuggled", b"0", b"00000000000\0") + END),
                     raw(b"last", b"0", b"00000000000\0")),
    "pax-malformed": hand(raw(b"pax", b"x", b"00000000012\0", b"99 path=x\n"), raw(b"f", b"0", b"00000000000\0")),
    "pax-twice": hand(pax(record("path=x")), pax(record("size=0")), raw(b"f", b"0", b"00000000000\0")),
    "pax-and-long-name": hand(pax(record("path=x")), raw(b"././@LongLink", b"L", b"00000000002\0", b"y\0"), raw(b"f", b"0", b"00000000000\0")),
    "pax-and-long-link": hand(pax(record("linkpath=x")), raw(b"././@LongLink", b"K", b"00000000002\0", b"y\0"), raw(b"f", b"2", b"00000000000\0")),
    "pax-taken-back": hand(pax(record("path=a"), record("path=")), raw(b"f", b"0", b"00000000000\0")),
    "pax-sparse-name": hand(pax(record("GNU.sparse.name=a")), raw(b"f", b"0", b"00000000000\0")),
    "size-with-nul": hand(raw(b"outer", b"0", b"\x0000000001000", b""), raw(b"smuggled", b"0", b"00000000000\0")),
    "gnu-prefix": hand(raw(b"f", b"0", b"00000000000\0", prefix_fields={257: b"ustar  \0", 345: b"etc"})),
    "tar-and-zstd": two_formats("tar+zstd"),
    "plain-and-zstd": two_formats("tar"),
    "plain-and-gzip": lambda layout, _: layout.image([tar(BASE)], media="application/vnd.oci.image.layer.v1.tar"),
    "pax-huge": hand(raw(b"pax", b"x", b"77777777777\0"), raw(b"f", b"0", b"00000000000\0")),
    "xattr-long": hand(pax(record("SCHILY.xattr.user.x=" + "v" * 70_000)), raw(b"f", b"0", b"00000000000\0")),
    "xattr-name": hand(pax(record("SCHILY.xattr.user." + "n" * 300 + "=v")), raw(b"f", b"0", b"00000000000\0")),
    "device-number": hand(raw(b"dev", b"3", b"00000000000\0", prefix_fields={329: b"\x80\0\0\x01\0\0\0\x01"})),
    "directory-with-data": hand(raw(b"d", b"5", b"00000001000\0", raw(b"smuggled", b"0", b"00000000000\0"))),
    "unknown-type": hand(raw(b"d", b"Z", b"00000000000\0")),
    "overlay-attributes": attack(entry("r/", "dir", pax={"SCHILY.xattr.trusted.overlay.redirect": "/etc",
                                                          "SCHILY.xattr.user.overlay.redirect": "/etc",
                                                          "SCHILY.xattr.security.selinux": "x:y:z"})),
    # Bombs
    "bomb-entries": attack(*[entry(f"e{n}") for n in range(200)]),
    "bomb-depth": attack(entry("/".join(["d"] * 400), "dir")),
    "bomb-depth-by-symlink": attack(entry("/".join(["d"] * 200) + "/", "dir"), entry("s", "symlink", link="/".join(["d"] * 200)),
                                    entry("s/" + "/".join(["e"] * 100), "dir")),
    "bomb-ratio": lambda layout, _: layout.image([tar(BASE), tar([entry("zeros", data=bytes(1_200_000_000))])], pack=lambda data: gzip.compress(data, 1)),
    "bomb-name": attack(entry("n" * 5000)),
}

if __name__ == "__main__":
    case, directory = sys.argv[1:3]
    CASES[case](Layout(directory), sys.argv[3] if len(sys.argv) > 3 else None)
