"""The thread that raises restarts ends with its run, wherever the last restart lands."""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib
import operator
import os
import threading
import weakref
from multiprocessing import util
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from replicad._torch import unwind
from replicad.inprocess.interrupt import Interrupter, Restart, Unraisable

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


class Life:
    """A step begins between two looks of the fault thread. At the third one the training thread, which is blocked, may go on."""

    def __init__(self) -> None:
        self.resumed, self.changing = threading.Event(), False
        self.resumed.set()
        self.blocked = threading.Lock()
        self.blocked.acquire()
        self._looks = 0

    @property
    def in_step(self) -> bool:
        self._looks += 1
        if self._looks == 3:
            self.blocked.release()
        return self._looks > 1


def test_what_began_since_the_look_is_not_broken_off() -> None:
    """One of some 300 restarts on a busy machine came as a loader's worker had just been started, and left two pipes."""
    life = Life()
    session: Any = SimpleNamespace(life=life, rank=SimpleNamespace(wait_fence=lambda _: True, freeze_good=lambda: None))
    quiet: Any = SimpleNamespace(begin=lambda *_: None, over=lambda *_: None)
    with Interrupter(lambda: session, [], 0.01, quiet, lambda *_, **__: None) as faults:
        faults.inside()
        life.blocked.acquire()


@pytest.mark.parametrize("finalizer", [util.Finalize, weakref.finalize], ids=["multiprocessing", "weakref"])
def test_a_restart_that_lands_on_a_finalizer_leaves_no_descriptor(finalizer: Any) -> None:
    """It was on its way as the last reference to a worker process went: all in C, so that the finalizer's first line is the first of Python's that runs."""

    class Process:
        pass

    ends, held = os.pipe(), [Process()]
    if finalizer is util.Finalize:
        finalizer(held[0], util.close_fds, ends)
    else:
        finalizer(held[0], util.close_fds, *ends)
    comes = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Restart))
    with Unraisable():
        collections.deque(map(operator.methodcaller("__call__"), (comes, held.clear)), maxlen=0)
    assert held == [] and not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in ends)
