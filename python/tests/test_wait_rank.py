"""A process that was started beforehand waits for its rank, and for nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replicad
from conftest import PATIENCE
from replicad import Invalid
from replicad._core.waiting import wait_rank


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    r, w = os.pipe()
    monkeypatch.setenv("REPLICAD_WAIT_FD", str(r))
    monkeypatch.setenv("REPLICAD_WAIT_PIPE", os.readlink(f"/proc/self/fd/{r}"))
    monkeypatch.setenv("REPLICAD_WAIT_PARENT", str(os.getppid()))
    for name in ("REPLICAD_RANK", "RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "before")
    return w


def test_a_rank_is_given(pipe: int) -> None:
    os.write(pipe, json.dumps({"REPLICAD_RANK": "3", "REPLICAD_WORLD": "4", "RANK": "3", "TORCHELASTIC_RUN_ID": "replicad:job"}).encode() + b"\n")
    os.close(pipe)
    wait_rank()
    assert os.environ["REPLICAD_RANK"] == os.environ["RANK"] == "3"
    assert "REPLICAD_WAIT_FD" not in os.environ
    wait_rank()  # at once


@pytest.mark.parametrize(
    "answer",
    [
        b"\n",
        b"3\n",
        b"{}\n",
        b'{"REPLICAD_RANK": 3}\n',
        b'{"REPLICAD_RANK": "3", "RANK": 3}\n',
        b'{"REPLICAD_RANK": "3", "PATH": "/"}\n',
        b'{"REPLICAD_RANK": "3", "TORCHELASTIC_ERROR_FILE": "/"}\n',
        b"x" * (65 << 10) + b"\n",
    ],
)
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
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "before"
    os.close(pipe)


#: It says which rank it is, of those that it is not why.
SAYS = "import replicad, os; print(replicad.place(), [n for n in os.environ if n.startswith('REPLICAD_WAIT')])"


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        ('"$0" -c "$1"; exit $?', True),
        ('exec "$0" -c "$1"', True),
        ('sh -c \'"$0" -c "$1"; exit $?\' "$0" "$1"; exit $?', True),
        ('exec "$0" -c "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], close_fds=False))" -c "$1"', False),
        ('exec "$0" -c "import os, sys; os.fork() or exec(sys.argv[1]); os.wait()" "$1"', False),
        ('exec 3<&-; "$0" -c "$1"; exit $?', False),
        ('exec 3</dev/null; "$0" -c "$1"; exit $?', False),
    ],
    ids=["a script", "a script that executes it", "a script in a script", "a subprocess", "a fork", "a closed descriptor", "another file"],
)
def test_the_first_python_waits(script: str, waits: bool) -> None:
    """Of what the launcher starts (this process), whatever scripts stand between; and nothing else, which is then told why it has no rank."""
    r, w = os.pipe()
    os.set_inheritable(r, True)
    os.write(w, b'{"REPLICAD_RANK": "3", "REPLICAD_WORLD": "4"}\n')
    os.close(w)
    env = {n: v for n, v in os.environ.items() if not n.startswith("REPLICAD_") and n not in ("RANK", "WORLD_SIZE")}
    env |= {
        "PYTHONPATH": str(Path(replicad.__file__).parent.parent),
        "REPLICAD_WAIT_FD": "3",
        "REPLICAD_WAIT_PIPE": os.readlink(f"/proc/self/fd/{r}"),
        "REPLICAD_WAIT_PARENT": str(os.getpid()),
    }
    # Descriptor 3, as the launcher has it.
    command = ["sh", "-c", script, sys.executable, SAYS]
    done = subprocess.run(command, env=env, preexec_fn=lambda: os.dup2(r, 3), close_fds=False, capture_output=True, text=True, timeout=PATIENCE)
    os.close(r)
    if waits:
        assert done.stdout.strip() == "(3, 4) []", done.stderr
    else:
        assert done.stdout == ""
        assert "REPLICAD_RANK is not set: `replicad run --warm` started this process to wait for a rank, but another program stands between" in done.stderr
        assert "`exec python ...`" in done.stderr


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
    with pytest.raises(Invalid, match="REPLICAD_WORLD='' are not numbers"):
        replicad.place()
