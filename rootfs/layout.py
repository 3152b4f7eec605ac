#!/usr/bin/env python3
"""Writes root file systems as one OCI layout: an index with an image for each architecture, and a list of the packages of each
as SPDX. Refuses a root that fails the audit (audit.py).

usage: layout.py --variant NAME --suite NAME --epoch SECONDS --programs LINES OUTPUT ARCHITECTURE=ROOT.tar[,LAYER.tar...]...

LINES: a registry (pypi, npm), a package and a version each, for the bill of materials.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
import urllib.parse

import audit

parser = argparse.ArgumentParser()
for name in ("variant", "suite", "epoch", "programs"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("output")
parser.add_argument("roots", nargs="+")
arguments = parser.parse_args()
epoch = int(arguments.epoch)
created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
staged = arguments.output + ".tmp"
shutil.rmtree(staged, ignore_errors=True)
os.makedirs(f"{staged}/blobs/sha256")


def blob(data):
    digest = hashlib.sha256(data).hexdigest()
    with open(f"{staged}/blobs/sha256/{digest}", "wb") as file:
        file.write(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def document(value):
    return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def layer(path):
    """The root as a layer: entries by name, times not after the epoch, no names of users, packed without a time.
    The digest of the plain tar, the blob, and the packages' state."""
    class Tee:
        def __init__(self, sink):
            self.sink, self.hash = sink, hashlib.sha256()

        def write(self, data):
            self.hash.update(data)
            return self.sink.write(data)

    staged_layer, status = f"{staged}/layer", b""
    with open(staged_layer, "wb") as raw:
        packed = Tee(raw)
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as zipped, tarfile.open(path) as source:
            plain = Tee(zipped)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as target:
                members = {}
                for member in source:
                    members[member.name] = member
                # A hard link must come after what it links to, whatever their names: first everything else.
                for member in sorted(members.values(), key=lambda each: (each.islnk(), each.name)):
                    member.mtime = min(int(member.mtime), epoch)
                    member.uname = member.gname = ""
                    member.pax_headers = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
                    if member.ischr() or member.isblk():
                        continue  # The sandbox makes its own /dev.
                    data = source.extractfile(member) if member.isreg() else None
                    if member.name.lstrip("./") == "var/lib/dpkg/status":
                        status = data.read()
                        data = io.BytesIO(status)
                    target.addfile(member, data)
    digest = packed.hash.hexdigest()
    size = os.path.getsize(staged_layer)
    os.rename(staged_layer, f"{staged}/blobs/sha256/{digest}")
    return plain.hash.hexdigest(), {"digest": f"sha256:{digest}", "size": size}, status.decode()


def packages(status):
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        if fields.get("Status", "").endswith(" installed"):
            yield fields


def bill(status, architecture, name):
    """What is in the image, as SPDX 2.3."""
    listed = []

    def add(id, package, version, locator, **more):
        listed.append({
            "SPDXID": f"SPDXRef-Package-{id}", "name": package, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}], **more,
        })

    for registry, package, version in (line.split() for line in arguments.programs.splitlines() if line):
        id = re.sub("[^A-Za-z0-9.]+", "-", f"{registry}-{package}")
        add(id, package, version, f"pkg:{registry}/{urllib.parse.quote(package)}@{version}")
    for fields in sorted(packages(status), key=lambda each: each["Package"]):
        package, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
        add(package, package, version, f"pkg:deb/debian/{package}@{version}?arch={machine}&distro={arguments.suite}",
            supplier="Organization: Debian", sourceInfo=f"built from {fields.get('Source', package)}")
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{architecture}-{hashlib.sha256(status.encode()).hexdigest()[:16]}",
        "creationInfo": {"created": created, "creators": ["Tool: brig-rootfs-build"]}, "packages": listed,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": each["SPDXID"]}
                          for each in listed],
    }


images, others = [], []
for root in arguments.roots:
    architecture, paths = root.split("=", 1)
    layers = []
    for path in paths.split(","):
        faults = audit.faults(path)
        if faults:
            sys.exit(f"layout.py: {os.path.basename(path)} fails the audit:\n" + "\n".join(faults))
        layers.append((os.path.basename(path).removesuffix(".tar"), *layer(path)))
    status = layers[0][3]
    config = {
        "created": created, "architecture": architecture, "os": "linux", **({"variant": "v8"} if architecture == "arm64" else {}),
        "config": {
            "User": "agent", "WorkingDir": "/workspace", "Cmd": ["/bin/bash"],
            "Env": ["PATH=/home/agent/.local/bin:/usr/local/bin:/usr/bin:/bin", "HOME=/home/agent", "LANG=C.UTF-8"],
            "Labels": {"org.opencontainers.image.title": f"brig {arguments.variant}",
                       "org.opencontainers.image.version": arguments.suite},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}" for _, diff_id, _, _ in layers]},
        "history": [{"created": created, "created_by": f"rootfs/build --variant {arguments.variant} ({name})"} for name, *_ in layers],
    }
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **document(config)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **packed} for _, _, packed, _ in layers],
    }
    described = {"mediaType": manifest["mediaType"], **document(manifest)}
    platform = {"os": "linux", "architecture": architecture, **({"variant": "v8"} if architecture == "arm64" else {})}
    images.append({**described, "platform": platform})
    spdx = document(bill(status, architecture, f"brig-{arguments.variant}"))
    empty = {"mediaType": "application/vnd.oci.empty.v1+json", **blob(b"{}")}
    others.append({"mediaType": manifest["mediaType"], "artifactType": "application/spdx+json", **document({
        "schemaVersion": 2, "mediaType": manifest["mediaType"], "artifactType": "application/spdx+json", "config": empty,
        "layers": [{"mediaType": "application/spdx+json", **spdx}], "subject": described,
    })})
    for name, _, packed, _ in layers:
        print(f"{name}: {packed['size'] / 1e6:.1f} MB packed")
    print(f"{architecture}: {len(list(packages(status)))} packages of Debian")

index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": images}
top = {"mediaType": index["mediaType"], **document(index),
       "annotations": {"org.opencontainers.image.ref.name": f"brig-{arguments.variant}:{arguments.suite}"}}
with open(f"{staged}/oci-layout", "w") as file:
    file.write('{"imageLayoutVersion":"1.0.0"}')
# The bills of material hang on their images by `subject`; the top of the layout has the one name.
with open(f"{staged}/index.json", "w") as file:
    json.dump({"schemaVersion": 2, "manifests": [top]}, file, sort_keys=True)
os.makedirs(f"{staged}/sbom")
for image, other in zip(images, others):
    source = json.load(open(f"{staged}/blobs/sha256/{other['digest'][7:]}"))["layers"][0]["digest"][7:]
    shutil.copy(f"{staged}/blobs/sha256/{source}", f"{staged}/sbom/{image['platform']['architecture']}.spdx.json")
os.rename(staged, arguments.output)
print(top["digest"])
