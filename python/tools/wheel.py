"""Makes the wheel: the pure one that setuptools builds, with the C library and the program put in, tagged for what they need.

    wheel.py --library libreplicad.so --program replicad --license LICENSE... --most 2.36 --out dist

The result is the same, byte for byte, for the same inputs: files in order, no times but SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

Version = tuple[int, int]

#: What every Linux of glibc has; a wheel must need nothing else.
SYSTEM_LIBRARIES = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "ld-linux-x86-64.so.2"}


def readelf(path: Path, *flags: str) -> str:
    """Output of readelf."""
    return subprocess.run(["readelf", "--wide", *flags, str(path)], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def glibc_of(versions: str) -> Version:
    """The newest glibc whose symbols readelf -V names."""
    return max((int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", versions))


def check_library(path: Path, most: Version) -> Version:
    """The glibc that the library needs; an error where that is newer than ``most``, or it needs another library."""
    if "X86-64" not in readelf(path, "--file-header"):
        raise SystemExit(f"wheel: {path} is not for x86-64")
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "--dynamic")))
    if foreign := needed - SYSTEM_LIBRARIES:
        raise SystemExit(f"wheel: {path} needs {', '.join(sorted(foreign))}, which not every Linux has")
    need = max(glibc_of(readelf(path, "--version-info")), (2, 17))
    if need > most:
        raise SystemExit(f"wheel: {path} needs glibc {need[0]}.{need[1]}, wanted is {most[0]}.{most[1]} at most: build on an older Linux, or see `objdump -T` for the symbols")
    return need


def check_program(path: Path) -> None:
    """The program must be static: it runs on whatever Linux."""
    if "INTERP" in readelf(path, "--program-headers"):
        raise SystemExit(f"wheel: {path} is linked dynamically: build it with CGO_ENABLED=0")


def pure(project: Path, scratch: Path) -> tuple[str, dict[str, bytes]]:
    """Name and version, and files of the wheel that setuptools makes."""
    source = scratch / "source"  # so that nothing is left in the checkout
    shutil.copytree(project / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so*"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(project / name, source)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(scratch), str(source)], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as z:
        return wheel.name.removesuffix("-py3-none-any.whl"), {n: z.read(n) for n in z.namelist()}


def record(files: dict[str, bytes], path: str) -> bytes:
    """The wheel's list of its files with their digests."""
    lines = [f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).decode().rstrip('=')},{len(b)}" for n, b in sorted(files.items())]
    return "\n".join([*lines, f"{path},,", ""]).encode()


def write(out: Path, files: dict[str, bytes], programs: set[str]) -> None:
    """A zip file without anything of this machine in it."""
    at = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]  # zip knows nothing before 1980
    with zipfile.ZipFile(out, "w") as z:
        for n in sorted(files, key=lambda n: (".dist-info/" in n, n)):  # the metadata last, as wheels have it
            info = zipfile.ZipInfo(n, at)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if n in programs else 0o100644) << 16
            z.writestr(info, files[n])


def main() -> None:
    """The command."""
    p = argparse.ArgumentParser()
    p.add_argument("--library", type=Path, required=True)
    p.add_argument("--program", type=Path, required=True)
    p.add_argument("--license", type=Path, action="append", default=[])
    p.add_argument("--most", default="2.36", help="the newest glibc that the wheel may need")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    major, minor = a.most.split(".")
    need = check_library(a.library, (int(major), int(minor)))
    check_program(a.program)
    with tempfile.TemporaryDirectory() as tmp:
        scratch = Path(tmp)
        stem, files = pure(Path(__file__).resolve().parents[1], scratch)
        stripped = scratch / "libreplicad.so.1"  # debug information names the folder that it was built in
        subprocess.run(["strip", "--strip-debug", "-o", str(stripped), str(a.library)], check=True)
        files["replicad/lib/libreplicad.so.1"] = stripped.read_bytes()
    said = subprocess.run([str(a.program), "version"], check=True, capture_output=True, text=True).stdout
    if said.split()[1] != (version := stem.split("-")[1]):
        raise SystemExit(f"wheel: the package is {version}, the program says {said!r}: set release in cmd/replicad/version.go and __version__ in the package to one number")
    tag = f"py3-none-manylinux_{need[0]}_{need[1]}_x86_64"
    program, info = f"{stem}.data/scripts/replicad", f"{stem}.dist-info"
    files[program] = a.program.read_bytes()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: replicad\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    licenses = {"LICENSE" if i == 0 else f"LICENSE.{path.parent.name}": path for i, path in enumerate(a.license)}
    for name, path in licenses.items():
        files[f"{info}/licenses/{name}"] = path.read_bytes()
    head, blank, rest = files[f"{info}/METADATA"].partition(b"\n\n")
    files[f"{info}/METADATA"] = head.rstrip(b"\n") + "".join(f"\nLicense-File: {name}" for name in licenses).encode() + (blank + rest if blank else b"\n")
    del files[f"{info}/RECORD"]
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD")
    a.out.mkdir(parents=True, exist_ok=True)
    for old in a.out.glob("replicad-*.whl"):
        old.unlink()
    out = a.out / f"{stem}-{tag}.whl"
    write(out, files, {program})
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
