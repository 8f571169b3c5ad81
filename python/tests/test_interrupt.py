"""The thread that raises restarts ends with its run, wherever the last restart lands."""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from replicad._torch import unwind
from replicad.inprocess.interrupt import Interrupter, Restart

wrap: Any = importlib.import_module("replicad.inprocess.wrap")  # the package has a function of that name


class Early(Interrupter):
    """A restart is raised as the ending begins, once."""

    early = True

    def __exit__(self, *of: object) -> None:
        if Early.early:
            Early.early = False
            raise Restart
        super().__exit__(*of)


@pytest.mark.parametrize("fails", [False, True])
def test_a_restart_as_the_ending_begins_leaves_no_thread(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It raised a restart of the next epoch in a thread that was taking down what the run after it had left, and the process ended by it."""
    monkeypatch.setattr(wrap, "Interrupter", Early)
    Early.early, before = True, unwind.blocks

    def block() -> None:
        if fails:
            raise RuntimeError("of its own")

    trace: Any = wrap.Trace(None)
    quiet: Any = SimpleNamespace(begin=lambda *_: None, over=lambda *_: None)
    runs = wrap.Runs(lambda: None, block, wrap.Call(lambda: None), [], [], [], 1.0, 1.0, quiet, trace)
    with pytest.raises(Restart):
        runs.until_one_returns()
    assert [t for t in threading.enumerate() if t.name == "replicad-faults"] == []
    assert unwind.blocks == before
