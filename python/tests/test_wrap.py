"""The in-process wrapper's decisions, on a session without a daemon."""

from __future__ import annotations

import threading
import time
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


def test_no_restart_is_raised_in_a_destructor() -> None:
    """What a destructor was about to free (a loader's worker processes, descriptors) would stay for ever."""
    inside, closed, asked, finished = threading.Event(), threading.Event(), [], []

    class Held:
        def __del__(self) -> None:
            inside.set()
            while len(asked) < 5:  # the epoch is closed, and the fault thread has tried more than once
                time.sleep(0)
            finished.append(1)

    s = session(attached=True)
    s.rank.wait_fence = lambda timeout: closed.wait(timeout)
    s._in_step = lambda: asked.append(1) or False
    s._resumed.set()

    @inprocess.wrap(s, abort=[], finalize=[], health=[])
    def block(call: inprocess.Call) -> str:
        if call.runs > 1:
            return "again"
        s._resumed.set()
        held = Held()
        threading.Thread(target=lambda: inside.wait() and closed.set()).start()
        del held
        while True:  # the restart comes here
            time.sleep(0)

    assert block() == "again" and finished == [1]
