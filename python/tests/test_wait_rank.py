"""A process that was started beforehand waits for its rank, and for nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replicad
from replicad import Invalid
from replicad.waiting import wait_rank


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    r, w = os.pipe()
    monkeypatch.setenv("REPLICAD_WAIT_FD", str(r))
    monkeypatch.setenv("REPLICAD_WAIT_PARENT", str(os.getppid()))
    monkeypatch.setenv("REPLICAD_RANK", "before")
    return w


def test_a_rank_is_given(pipe: int) -> None:
    os.write(pipe, json.dumps({"REPLICAD_RANK": "3", "REPLICAD_WORLD": "4"}).encode() + b"\n")
    os.close(pipe)
    wait_rank()
    assert os.environ["REPLICAD_RANK"] == "3"
    assert "REPLICAD_WAIT_FD" not in os.environ
    wait_rank()  # at once


@pytest.mark.parametrize("answer", [b"\n", b"3\n", b"{}\n", b'{"REPLICAD_RANK": 3}\n', b'{"REPLICAD_RANK": "3", "PATH": "/"}\n', b"x" * (65 << 10) + b"\n"])
def test_another_answer_is_an_error(pipe: int, answer: bytes) -> None:
    pid = os.fork()
    if pid == 0:  # a long answer does not fit the pipe
        os.write(pipe, answer)
        os._exit(0)
    os.close(pipe)
    with pytest.raises(Invalid, match="wait_rank"):
        wait_rank()
    os.waitpid(pid, 0)
    assert os.environ["REPLICAD_RANK"] == "before"


def test_a_launcher_that_goes_away_ends_the_process(pipe: int) -> None:
    os.close(pipe)
    with pytest.raises(SystemExit):
        wait_rank()


def test_subprocesses_do_not_wait(pipe: int) -> None:
    program = "import replicad, os; replicad.wait_rank(); print(os.environ['REPLICAD_RANK'])"
    env = os.environ | {"PYTHONPATH": str(Path(replicad.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "before"
    os.close(pipe)


def test_the_place_is_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPLICAD_RANK", "REPLICAD_WORLD", "REPLICAD_WAIT_FD", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert replicad.place() == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert replicad.place() == (1, 3)
    monkeypatch.setenv("REPLICAD_RANK", "0")
    monkeypatch.setenv("REPLICAD_WORLD", "2")
    assert replicad.place() == (0, 2)
    monkeypatch.setenv("REPLICAD_RANK", "2")
    with pytest.raises(Invalid, match="REPLICAD_RANK=2 of REPLICAD_WORLD=2: want 0 to 1"):
        replicad.place()
    monkeypatch.setenv("REPLICAD_WORLD", "")
    with pytest.raises(Invalid, match="REPLICAD_WORLD='' are no numbers"):
        replicad.place()
