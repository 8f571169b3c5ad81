"""The in-process wrapper's decisions, on a session without a daemon."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from replicad import inprocess


class Rank:
    """What the wrapper asks of a rank."""

    def __init__(self, attached: bool) -> None:
        self.attached, self.fenced, self.failed = attached, False, []

    number = 0

    def freeze_good(self) -> None: ...

    def wait_fence(self, timeout: float) -> bool:
        return False

    def fail(self, text: str) -> None:
        self.failed.append(text)


def session(attached: bool) -> SimpleNamespace:
    return SimpleNamespace(rank=Rank(attached), _resumed=threading.Event(), _in_step=lambda: False, rest=lambda: None)


def block(calls: list[int]) -> object:
    def run(call: object) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("no")
        return "done"

    return run


def test_a_process_that_was_never_the_rank_ends() -> None:
    calls: list[int] = []
    with pytest.raises(RuntimeError, match="no"):
        inprocess.wrap(session(attached=False), abort=[], finalize=[], health=[])(block(calls))()
    assert len(calls) == 1


def test_a_fault_of_an_attached_rank_is_reported_and_the_block_runs_again() -> None:
    calls: list[int] = []
    s = session(attached=True)
    assert inprocess.wrap(s, abort=[], finalize=[], health=[])(block(calls))() == "done"
    assert len(calls) == 3 and s.rank.failed == ["RuntimeError: no"] * 2
