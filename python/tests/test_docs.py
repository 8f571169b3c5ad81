"""The programs of the documentation run as they are printed there, with the commands that are printed beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: the documentation's programs are PyTorch programs")

import cluster
from conftest import PATIENCE, ROOT, Daemon

DOCS = ROOT / "docs"
#: A page's programs (a block whose first line is "# NAME.py"), and what the last line of the output of its commands says.
PAGES = {
    "pytorch.md": ["step 50 loss"],
    "inprocess.md": ["at step 50 in run 2"],
    "adapters.md": ["step 30 loss"],
    "sharded.md": ["at step 30"],
    "torchrun.md": ["step 50 loss"],
    "testing.md": ["Resumption(steps=8, resumed_at=5", "step 30, survived"],
}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def programs(page: str) -> dict[str, str]:
    return {b.split("\n", 1)[0].removeprefix("# "): b for b in blocks(page, "python") if re.match(r"# \w+\.py\n", b)}


def test_every_page_that_has_a_program_is_here() -> None:
    assert {p.name for p in DOCS.glob("*.md") if programs(p.name) or "torchrun" in p.name} == set(PAGES)


@pytest.mark.parametrize("page", [pytest.param(p, marks=cluster.fsdp2) if p == "sharded.md" else p for p in PAGES])
def test_programs_and_commands(page: str, own_daemon: Daemon, tmp_path: Path) -> None:
    if page == "adapters.md":
        pytest.importorskip("peft", reason="peft is missing: see python/requirements-torch.txt")
    for name, text in (programs("pytorch.md") | programs(page)).items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(ROOT / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = [line for b in blocks(page, "sh") for line in b.splitlines() if not line.endswith("&")]
    assert len(commands) == len(PAGES[page])
    for command, want in zip(commands, PAGES[page], strict=True):
        env = own_daemon.env | {"PATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command.split(), env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE)
        assert done.returncode == 0, f"{command}:\n{done.stdout}"
        assert want in done.stdout, f"{command}:\n{done.stdout}"
