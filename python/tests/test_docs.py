"""The programs of the documentation run as they are printed there, with the commands that are printed beside them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: the documentation's programs are PyTorch programs")

import cluster
import replicad
from conftest import PATIENCE, ROOT, Daemon, Job, environment, installed, launched

DOCS = ROOT / "docs"
#: A page's programs (a block whose first line is "# NAME.py"), and what the last line of the output of its commands says.
PAGES = {
    "pytorch.md": ["step 50 loss"],
    "loops.md": ["epoch 5, best 0.9", "noticed {}"],
    "inprocess.md": ["at step 50 in run 2"],
    "migration-hyperpod.md": ["at step 30 in run 2"],
    "lora.md": ["step 30 loss"],
    "sharded.md": ["at step 30"],
    "torchrun.md": ["step 50 loss"],
    "../python/README.md": ["step 50 loss"],  # the wheel's own page
    "testing.md": ["Resumption(steps=8, resumed_at=5", "Dropout and shuffling draw otherwise", "step 30, survived"],
}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def programs(page: str) -> dict[str, str]:
    return {b.split("\n", 1)[0].removeprefix("# "): b for b in blocks(page, "python") if re.match(r"# \w+\.py\n", b)}


def test_every_page_that_has_a_program_is_here() -> None:
    assert {p.name for p in DOCS.glob("*.md") if programs(p.name) or "torchrun" in p.name} == {p for p in PAGES if "/" not in p}


#: What needs FSDP2; and what has a file of tests of its own.
MARKS = {"sharded.md": [cluster.fsdp2], "testing.md": [pytest.mark.long], "lora.md": [pytest.mark.long]}


@pytest.mark.parametrize("page", [pytest.param(p, marks=MARKS.get(p, [])) for p in PAGES])
def test_programs_and_commands(page: str, own_daemon: Daemon, tmp_path: Path) -> None:
    for name, text in (programs("pytorch.md") | programs(page)).items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(ROOT / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    seen = os.pathsep.join([own_daemon.env["PYTHONPATH"], str(installed(tmp_path))])
    commands = [line for b in blocks(page, "sh") for line in b.splitlines() if not line.endswith("&")]
    assert len(commands) == len(PAGES[page])
    for command, want in zip(commands, PAGES[page], strict=True):
        env = own_daemon.env | {"PATH": path, "STEPS": "50"}
        if command.startswith("replicad run ") and "--warm" not in command:  # ranks fork; with processes that wait, under torchrun and over nodes they are as a user has them
            run, _, program = command.partition(" -- ")
            job = Job.of(launched([str(ROOT / "bin" / "replicad"), *run.split()[1:]], program.split(), env, tmp_path), page)
            status, said = job.wait(), job.printed()
        else:
            done = subprocess.run(command.split(), env=env | {"PYTHONPATH": seen}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE)
            status, said = done.returncode, done.stdout
        assert status == 0, f"{command}:\n{said}"
        assert want in said, f"{command}:\n{said}"


def test_the_program_of_session_leaves_its_job(daemon: Daemon) -> None:
    """One that does not leave is started again for ever."""
    shown = re.search(r"::\n\n(        with .*?)\n\n", replicad.Session.__doc__ or "", re.S)
    assert shown is not None
    program = textwrap.dedent(shown[1])
    assert program.count("...  # forward, backward") == 1
    before = """
import torch, replicad
from replicad.data import Loader
print("STARTED", flush=True)
model, last = torch.nn.Linear(2, 1), 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = Loader(torch.utils.data.TensorDataset(torch.ones(8, 2)), 2)
"""
    job = daemon.run(before + program.replace("...  #", "model(torch.ones(2, 2)).sum().backward()  #") + "\nprint('LEFT', session.at)\n")
    assert re.findall(r"^(?:STARTED|LEFT).*", job.done(), re.M) == ["STARTED", "LEFT 3"]


def test_several_nodes_on_one_machine(tmp_path: Path) -> None:
    """The page's scripts as they are, but for the address, which is nobody else's."""
    pid = os.getpid()
    address = f"127.{192 + (pid >> 16 & 31)}.{pid >> 8 & 255}.{pid & 255 or 1}"
    scripts = {b.split(":", 1)[0].removeprefix("# "): b.replace("127.0.0.1", address) for b in blocks("nodes.md", "sh")}
    for name, text in (programs("pytorch.md") | scripts).items():
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(ROOT / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment() | {"PATH": path, "STEPS": "50"}
    try:
        with (tmp_path / "out").open("w") as out:  # no pipe: the daemons would hold it
            for script in ("cluster.sh", "job.sh"):
                done = subprocess.run(["bash", "-e", script], env=env, cwd=tmp_path, stdout=out, stderr=out, check=False, timeout=3 * PATIENCE)
                assert done.returncode == 0, (tmp_path / "out").read_text()
        said = (tmp_path / "out").read_text()
        assert [re.search(rf"^{node} +alive ", said, re.M) is not None for node in "abc"] == [True] * 3, said
        assert "job train  ended, newest commit step 50, on disk step 50: finished" in said
        for rank in (0, 1):
            assert f"rank {rank} step 50 loss" in (tmp_path / f"rank{rank}.log").read_text()
    finally:
        for node in "abc":
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((tmp_path / f"{node}.pid").read_text()), signal.SIGTERM)
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                command = entry.read_bytes().split(b"\0")
                if b"keeper" in command and any(a.startswith(os.fsencode(tmp_path) + b"/") for a in command):
                    os.kill(int(entry.parent.name), signal.SIGTERM)
