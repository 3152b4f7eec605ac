#!/usr/bin/env python3
"""Prints the bill of materials of a program as SPDX 2.3: the crates that cargo builds into it, with their licenses and checksums.

usage: bill.py FILE TARGET      TARGET: such as x86_64-unknown-linux-musl

The time is SOURCE_DATE_EPOCH.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    file, target = Path(sys.argv[1]), sys.argv[2]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target))
    crates = {crate["id"]: crate for crate in metadata["packages"]}
    edges = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in locked}
    root = metadata["resolve"]["root"]
    reached, relations = {root}, []
    waiting = [root]
    while waiting:
        crate = waiting.pop()
        for edge in edges[crate]:
            kinds = {kind["kind"] for kind in edge["dep_kinds"]}
            # Dependencies of tests are not in the program; those of build scripts are beside it.
            if kinds == {"dev"}:
                continue
            if None in kinds:
                relations.append((name_of(crates[crate]), "DEPENDS_ON", name_of(crates[edge["pkg"]])))
            else:
                relations.append((name_of(crates[edge["pkg"]]), "BUILD_DEPENDENCY_OF", name_of(crates[crate])))
            if edge["pkg"] not in reached:
                reached.add(edge["pkg"])
                waiting.append(edge["pkg"])
    packages = sorted((package(crates[crate], checksums, digest if crate == root else None) for crate in reached), key=lambda each: each["SPDXID"])
    compiler = output("rustc", "--version").split()[1]
    packages.append(base("SPDXRef-rust", "rust", compiler) | {"licenseDeclared": "MIT OR Apache-2.0", "comment": "The standard library, with musl for *-musl targets."})
    top = name_of(crates[root])
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", top), (top, "DEPENDS_ON", "SPDXRef-rust"), *sorted(set(relations))]
    print(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": file.name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{file.name}-{digest[:16]}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))), "creators": ["Tool: brig-rootfs-bill"]},
        "packages": packages,
        "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other} for one, kind, other in relations],
    }, indent=1))


def output(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def name_of(crate: dict) -> str:
    """An identifier of SPDX has letters, digits, dots and dashes."""
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{crate['name']}-{crate['version']}")


def base(identifier: str, name: str, version: str) -> dict:
    return {"SPDXID": identifier, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False}


def package(crate: dict, checksums: dict, digest: str | None) -> dict:
    name, version = crate["name"], crate["version"]
    found = base(name_of(crate), name, version)
    # `MIT/Apache-2.0` is the old way of cargo to write OR.
    found["licenseDeclared"] = (crate["license"] or "NOASSERTION").replace("/", " OR ")
    checksum = digest or checksums[name, version]
    if checksum:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    if digest is None:
        found["downloadLocation"] = f"https://crates.io/api/v1/crates/{name}/{version}/download"
        found["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:cargo/{name}@{version}"}]
    return found


if __name__ == "__main__":
    main()
