"""Makes a release's bill of materials (CycloneDX, JSON) of those of its programs, with the C library's and the Python package's parts added.

    sbom.py --program dist/replicad-linux-amd64=bin/amd64.cdx.json... --pins python/requirements-torch.txt... --out dist/replicad.cdx.json

It fails where the bill lacks a module that ``go version -m`` finds in a program: the bill is then of something else. It is the same, byte for byte, for
the same inputs: no serial number, no time but SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

Component = dict[str, Any]

#: Compiled into libreplicad.
XXHASH = re.compile(r"#define XXH_VERSION_(MAJOR|MINOR|RELEASE) +(\d+)")


def modules(listing: str) -> set[str]:
    """Modules in the output of ``go version -m``, as path@version. One that is replaced counts as what replaces it."""
    found: list[str] = []
    for kind, path, version in re.findall(r"^\t(dep|=>)\t(\S+)\t(\S+)", listing, re.M):
        if kind == "=>":
            found.pop()
        found.append(f"{path}@{version}")
    return set(found)


def named(bill: dict[str, Any]) -> set[str]:
    """Go modules that a bill lists, as path@version."""
    return {f"{c['name']}@{c['version']}" for c in bill["components"] if c.get("purl", "").startswith("pkg:golang/")}


def check(program: str, listing: str, bill: dict[str, Any]) -> None:
    """The bill has each module of the program."""
    there = modules(listing)
    if not there:
        raise SystemExit(f"sbom: go version -m finds no modules in {program}: is it a program of this release?")
    if missing := there - named(bill):
        raise SystemExit(f"sbom: {program} contains {', '.join(sorted(missing))}, which the bill of materials lacks: make it of this very program")


def pins(text: str) -> list[Component]:
    """Packages of a list with hashes. The wheel needs none of them: they are what it is built and tested with."""
    out = []
    for name, version, rest in re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)(.*(?:\n .*)*)", text, re.M):
        purl = f"pkg:pypi/{name}@{version}"
        hashes = [{"alg": "SHA-256", "content": h} for h in re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)]
        out.append(
            {
                "bom-ref": purl,
                "type": "library",
                "name": name,
                "version": version,
                "purl": purl,
                "scope": "excluded",
                "properties": [{"name": "replicad:sha256 of its files", "value": " ".join(h["content"] for h in hashes)}],
            }
        )
    return out


def xxhash(header: str) -> Component:
    """The hash library that the C library has in it."""
    numbers = dict(XXHASH.findall(header))
    version = f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['RELEASE']}"
    purl = f"pkg:github/Cyan4973/xxHash@v{version}"
    return {"bom-ref": purl, "type": "library", "name": "xxHash", "version": version, "purl": purl, "licenses": [{"license": {"id": "BSD-2-Clause"}}]}


def merged(bills: list[dict[str, Any]], more: list[Component]) -> dict[str, Any]:
    """One bill: each component once, by its reference, in order."""
    out: dict[str, Any] = json.loads(json.dumps(bills[0]))
    components = {c["bom-ref"]: c for b in bills for c in b["components"]} | {c["bom-ref"]: c for c in more}
    out["components"] = [components[ref] for ref in sorted(components)]
    depends: dict[str, set[str]] = {}
    main = out["metadata"]["component"]["bom-ref"]
    for b in bills:
        own = b["metadata"]["component"]["bom-ref"]
        for d in b.get("dependencies", []):
            depends.setdefault(main if d["ref"] == own else d["ref"], set()).update(d.get("dependsOn", []))
    depends.setdefault(main, set()).update(c["bom-ref"] for c in more if c.get("scope") != "excluded")
    out["dependencies"] = [{"ref": ref, "dependsOn": sorted(depends[ref])} for ref in sorted(depends)]
    out.pop("serialNumber", None)
    out.pop("compositions", None)  # which say that the list is whole, of one program
    at = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    out["metadata"]["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return out


def main() -> None:
    """The command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", action="append", required=True, metavar="PROGRAM=BILL", help="a program, and what cyclonedx-gomod says of it")
    p.add_argument("--pins", action="append", default=[], type=Path, help="list of Python packages with hashes")
    p.add_argument("--xxhash", required=True, type=Path, help="xxhash.h")
    p.add_argument("--out", required=True, type=Path)
    a = p.parse_args()
    bills = []
    for pair in a.program:
        program, _, bill = pair.partition("=")
        bills.append(json.loads(Path(bill).read_text()))
    more = {c["bom-ref"]: c for path in a.pins for c in pins(path.read_text())}
    out = merged(bills, [xxhash(a.xxhash.read_text()), *more.values()])
    for pair in a.program:
        program = pair.partition("=")[0]
        check(program, subprocess.run(["go", "version", "-m", program], check=True, capture_output=True, text=True).stdout, out)
    a.out.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{a.out}: {len(out['components'])} components")


if __name__ == "__main__":
    main()
