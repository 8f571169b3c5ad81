"""The wheel, in a fresh environment of every Python here: no compiler, no torch, and a job runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import replicad
from conftest import ROOT, Daemon, environment

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

JOB = """
import ctypes, os, sys
assert not any("PYTHONPATH" in k for k in os.environ)
import replicad
from replicad import Rank, Region
assert "torch" not in sys.modules
assert sys.prefix in replicad.__file__, replicad.__file__
memory = (ctypes.c_uint8 * 4096)()
with Rank.open() as rank:
    rank.register([Region("m", ctypes.addressof(memory), 4096, shape=(4096,))])
    rank.attach()
    while (order := rank.join()).initialise:
        rank.seal_initial()
    rank.load(); rank.ready()
    for step in range(order.step + 1, 11):
        rank.step_enter(step)
        memory[step] = step
        rank.step_exit(step)
    rank.leave()
    print("DONE", sys.version_info[:2], flush=True)
"""


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = list((ROOT / "dist").glob("replicad-*.whl"))
    assert len(found) == 1, f"dist/ has {len(found)} wheels: run `make wheel`"
    return found[0]


def python(version: str) -> str:
    """An interpreter of a version: this one, one on PATH, or one of pyenv's."""
    candidates = [sys.executable] if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
    candidates += filter(None, [shutil.which(f"python{version}")])
    if root := os.environ.get("PYENV_ROOT"):
        candidates += map(str, sorted(Path(root).glob(f"versions/{version}.*/bin/python{version}")))
    for path in candidates:
        if subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return path
    return pytest.skip(f"no Python {version} on PATH or in $PYENV_ROOT/versions")


def clean(*path: Path) -> dict[str, str]:
    """An environment without this checkout, and without a compiler that could be asked for anything."""
    env = environment()
    del env["PYTHONPATH"]
    return env | {"PATH": ":".join(map(str, path)), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.parametrize("version", [version if version == PYTHONS[0] else pytest.param(version, marks=pytest.mark.long) for version in PYTHONS])
def test_install_and_run(wheel: Path, version: str, tmp_path: Path) -> None:
    subprocess.run([python(version), "-m", "venv", str(tmp_path / "venv")], check=True, env=environment())
    bin = tmp_path / "venv" / "bin"
    env = clean(bin)
    subprocess.run([str(bin / "python"), "-m", "pip", "install", "--quiet", "--no-index", str(wheel)], check=True, env=env)

    def said(*command: str) -> str:
        return subprocess.run(command, check=True, env=env, cwd=tmp_path, capture_output=True, text=True).stdout

    assert said(str(bin / "python"), "-c", "import replicad; print(replicad.__version__)").strip() == replicad.__version__
    assert said(str(bin / "replicad"), "version").split()[:2] == ["replicad", replicad.__version__]
    without_torch = "import replicad\ntry:\n    replicad.Session\nexcept ImportError as err:\n    print(err)"
    assert "pip install 'torch>=2.6'" in said(str(bin / "python"), "-c", without_torch)
    daemon = Daemon(bin / "replicad", env)
    try:
        assert f"DONE ({version.replace('.', ', ')})" in daemon.run(JOB, python=str(bin / "python")).done()
    finally:
        daemon.stop()


def test_what_is_in_it(wheel: Path) -> None:
    assert re.fullmatch(rf"replicad-{re.escape(replicad.__version__)}-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        metadata = z.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        points = z.read(next(n for n in names if n.endswith("/entry_points.txt"))).decode()
    assert {"replicad/py.typed", "replicad/lib/libreplicad.so.1", f"replicad-{replicad.__version__}.data/scripts/replicad"} <= set(names)
    assert "[torchrun.handlers]\nreplicad = replicad.adapters.torchrun:handler" in points
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)
    assert all("extra ==" in r for r in required), f"{required}: it needs nothing"
    assert any(r.startswith("torch>=2.6") for r in required)
    assert "Requires-Python: >=3.10" in metadata
    newest = re.search(r"^torch==(\d+\.\d+)", (ROOT / "python" / "requirements-torch.txt").read_text(), re.M)
    assert newest and f"PyTorch 2.6 to {newest[1]}" in metadata


def tool(out: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    given = {"library": "libreplicad/build/libreplicad.so", "program": "bin/wheel/replicad", "most": "2.36"} | inputs
    flags = [f"--{k}={v}" for k, v in given.items()]
    return subprocess.run(
        [sys.executable, "python/tools/wheel.py", *flags, "--license=LICENSE", f"--out={out}"],
        cwd=ROOT,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
    )


def test_the_page_says_where_it_runs(wheel: Path) -> None:
    page = " ".join((ROOT / "docs" / "compatibility.md").read_text().split())
    (glibc,) = re.findall(r"manylinux_(\d+_\d+)_", wheel.name)
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}, " in page
    assert f"glibc {glibc.replace('_', '.')} or newer" in page


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    built = []
    for name in ("a", "b"):
        assert (got := tool(tmp_path / name)).returncode == 0, got.stderr
        built.append(next((tmp_path / name).glob("*.whl")).read_bytes())
    assert built[0] == built[1]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"most": "2.17"}, "needs glibc 2."),
        ({"program": sys.executable}, "is linked dynamically"),
        ({"library": sys.executable}, "wheel: "),
    ],
    ids=["newer glibc", "dynamic program", "foreign libraries"],
)
def test_what_the_tool_refuses(inputs: dict[str, str], text: str, tmp_path: Path) -> None:
    got = tool(tmp_path, **inputs)
    assert got.returncode == 1
    assert text in got.stderr
    assert list(tmp_path.glob("*.whl")) == []
