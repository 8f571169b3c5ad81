"""The same program without a launcher: it trains, and nothing is kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import replicad
from conftest import PATIENCE, ROOT, SRC
from replicad.errors import Invalid, SessionState


def plain() -> dict[str, str]:
    """An environment of no launcher."""
    return {k: v for k, v in os.environ.items() if not k.startswith("REPLICAD_") and k not in ("RANK", "WORLD_SIZE")} | {"PYTHONPATH": str(SRC)}


def test_the_documentations_program(tmp_path: Path) -> None:
    """The first example, with DDP and all, runs by itself and says that nothing is kept."""
    program = re.search(r"^```python\n(# train.py\n.*?)^```", (ROOT / "docs" / "pytorch.md").read_text(), re.M | re.S)
    assert program is not None
    (tmp_path / "train.py").write_text(program[1])
    done = subprocess.run(
        [sys.executable, "train.py"], env=plain() | {"STEPS": "5", "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 step 5 loss" in done.stdout
    assert done.stderr.count("nothing is kept, as no launcher started it") == 1, done.stderr


def off(**options: object) -> replicad.Session:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    return replicad.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), enabled=False, **options)  # type: ignore[arg-type]


def test_words() -> None:
    with off(scheduler=None, staging=True) as session:
        assert not session.enabled
        with pytest.raises(SessionState, match="a step before resume"), session.step():
            pass
        start = session.resume()
        assert (start, start.source, session.resumed, session.at) == (0, "fresh", True, 0)
        for step in (1, 2):
            with session.step() as number:
                assert number == step
        with session.pause(1), session.offload() as nbytes:
            assert nbytes == 0
        assert (session.commit(), session.committed, session.noticed, session.resume()) == (2, 2, {}, 2)
        assert (list(session.trained()), list(session.frozen())) == (["weight"], ["bias"])
        for word in (session.explain, session.feasible, lambda: session.rank, lambda: session.parts):
            with pytest.raises(SessionState, match="start the program with `replicad run`"):
                word()
        assert repr(session) == "<replicad.Session, off, at step 2>"


def test_a_word_that_no_session_knows() -> None:
    with pytest.raises(TypeError, match="schedular"):
        off(schedular=None)


def test_a_step_that_raises_is_none() -> None:
    session = off()
    session.resume()
    with pytest.raises(ZeroDivisionError), session.step():
        _ = 1 / 0
    assert session.at == 0


def test_a_block_runs_once() -> None:
    session = off()
    runs = []

    @replicad.inprocess.wrap(session)
    def block(call: object) -> None:
        runs.append(call)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert len(runs) == 1

    @replicad.inprocess.wrap(lambda: session)
    def other(call: object) -> str:
        return "done"

    assert other() == "done"


def test_where_a_launcher_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPLICAD_RANK", "REPLICAD_WAIT_FD", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Invalid, match="REPLICAD_RANK is not set: start this program with `replicad run`"):
        replicad.Session(torch.nn.Linear(2, 2), enabled=True)
    monkeypatch.setenv("RANK", "0")  # torchrun's: several processes that would each train alone
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Invalid, match="no daemon is named"):
        replicad.Session(torch.nn.Linear(2, 2))


def test_names_of_the_package() -> None:
    names = dir(replicad)
    assert {"Session", "data", "rng", "inprocess"} <= set(names)
    assert [n for n in names if n.startswith("_")] == []
    adapters = set(replicad._ADAPTERS)  # each is for a framework that may be missing
    assert adapters <= set(names)
    assert all(getattr(replicad, n) is not None for n in names if n not in adapters)
