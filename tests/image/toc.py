#!/usr/bin/env python3
"""Changes the table of contents of the zstd:chunked layer of an OCI layout, for the tests of partial pulls.

usage: toc.py LAYOUT CHANGE [OTHER-LAYOUT]

Changes: lie (the changed file has the digest that it has in the other layout), lies (every file has), overlap, reversed, outside, entries (millions), nested,
bomb (zeros that unpack to gigabytes), checksum, position (behind the end), announced (a huge size), version, broken (no JSON).
Prints the digest and the size of the new layer.
"""
import hashlib
import json
import subprocess
import sys

layout, change = sys.argv[1:3]
PREFIX = "zstd-chunked.manifest-"


def path(digest, layout=layout):
    return f"{layout}/blobs/sha256/{digest.removeprefix('sha256:')}"


def blob(data):
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with open(path(digest), "wb") as file:
        file.write(data)
    return {"digest": digest, "size": len(data)}


def zstd(data, *flags):
    return subprocess.run(["zstd", "-q", "-c", *flags], input=data, stdout=subprocess.PIPE, check=True).stdout


def read(layout):
    index = json.load(open(f"{layout}/index.json"))
    manifest = json.load(open(path(index["manifests"][0]["digest"], layout)))
    layer = manifest["layers"][0]
    names = {name.split(PREFIX)[1]: name for name in layer["annotations"] if PREFIX in name}
    offset, length, _, _ = map(int, layer["annotations"][names["position"]].split(":"))
    data = open(path(layer["digest"], layout), "rb").read()
    return index, manifest, names, offset, data, json.loads(zstd(data[offset:offset + length], "-d"))


index, manifest, names, offset, data, toc = read(layout)
layer, entries = manifest["layers"][0], toc["entries"]
with_data = [entry for entry in entries if entry.get("offset")]
text, unpacked = None, None
if change in ("lie", "lies"):
    other = {entry["name"]: entry for entry in read(sys.argv[3])[-1]["entries"] if entry["type"] == "reg"}
    for entry in entries:
        name = entry["name"]
        if name == "changed" or (change == "lies" and "chunkDigest" not in entry and name in other):
            assert "chunkDigest" not in entry, "choose another seed"
            assert entry["endOffset"] - entry["offset"] == other[name]["endOffset"] - other[name]["offset"]
            entry["digest"] = other[name]["digest"]
elif change == "overlap":
    with_data[5]["offset"] = with_data[4]["offset"]
elif change == "reversed":
    entries.reverse()
elif change == "outside":
    with_data[-1]["endOffset"] = 1 << 62
elif change == "entries":
    text = b'{"version":1,"entries":[' + b"{}," * 15_000_000 + b"{}]}"
elif change == "nested":
    text = b'{"version":1,"entries":[' + b"[" * 10_000_000 + b"]" * 10_000_000 + b"]}"
elif change == "bomb":
    text, unpacked = b"\0" * (1 << 31), 50 << 20
elif change == "version":
    toc["version"] = 7
elif change == "broken":
    text = b"{"
text = text or json.dumps(toc).encode()
packed = zstd(text)
frame = lambda content: b"\x50\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content
data = data[:offset - 8] + frame(packed)
checksum, length = hashlib.sha256(packed).hexdigest(), len(text) if unpacked is None else unpacked
if change == "checksum":
    checksum = "0" * 64
elif change == "position":
    offset = (1 << 64) - 10
elif change == "announced":
    length = 1 << 60
layer["annotations"][names["checksum"]] = "sha256:" + checksum
layer["annotations"][names["position"]] = f"{offset}:{len(packed)}:{length}:1"
layer.update(blob(data))
index["manifests"][0].update(blob(json.dumps(manifest).encode()))
with open(f"{layout}/index.json", "w") as file:
    json.dump(index, file)
print(layer["digest"], layer["size"])
