"""The exception that ends a block whose epoch is closed, and the thread that raises it."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

from .._core.ending import chain
from .._torch import unwind
from ..errors import Signal
from .parts import Part, run_all
from .watchdog import Running, Watchdog

__all__ = ["Interrupter", "Restart", "Unraisable"]

#: A thread that is on its way out of the block, in a ``finally`` say, is not interrupted again for so many seconds.
CLEAN_UP = 5.0


class Restart(Signal):
    """Raised in the training thread when the epoch is closed: the block ends and runs again."""


class Interrupter:
    """One run's fault thread: once the epoch is closed it raises :class:`Restart` in the training thread, before anything is
    aborted, and again until the thread has come back, or is on its way with what it has to clean up. An exception can't be delivered to a thread that is blocked in C, so
    the process groups are aborted next, and a thread that has not come back in time is ended with the process by the
    :class:`Watchdog`: the launcher starts another, and the arena stays.

    Inside of the optimizer step nothing is raised: the step ends, and its capture begins, first. Nor is anything where it would
    leave a process or a descriptor behind (:func:`_unsafe`).
    """

    def __init__(self, session: Callable[[], Any], free: Sequence[Part], soft: float, watchdog: Watchdog, trace: Callable[..., None]) -> None:
        self._get, self._soft, self._watchdog, self._trace = session, soft, watchdog, trace
        self._free: list[Part] = [getattr(part, "begin", part) for part in free]
        self._target = threading.get_ident()
        self._late: Running | None = None  # the training thread's way back
        self._inside, self._over = threading.Event(), threading.Event()
        self._lock, self._ended = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="replicad-faults", daemon=True)

    def __enter__(self) -> Interrupter:
        unwind.blocks += 1
        self._thread.start()
        return self

    def inside(self) -> None:
        """The first thing inside of the ``with``: an exception that came before would not be seen to have come out of it."""
        self._inside.set()

    def _run(self) -> None:
        self._inside.wait()
        while not self._over.is_set():
            if (session := self._get()) is None:
                self._over.wait(0.1)
            elif session.life.resumed.wait(0.1) and session.rank.wait_fence(0.1):
                self._trace("fenced")
                self._interrupt(session)

    def _interrupt(self, session: Any) -> None:
        """Until the thread has left the block, or joins the next epoch by itself."""
        began, freed = time.monotonic(), False
        self._late = self._watchdog.begin("the training thread, which is to leave the block", self._target)
        while not self._over.is_set() and session.life.resumed.is_set():
            waited = time.monotonic() - began
            with self._lock:
                if not self._over.is_set() and not self._busy(session) and not (waited < CLEAN_UP and _leaving(self._target)):
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(Restart))
                    if self._busy(session):  # on a busy machine it had the interpreter for a moment since the look before, and began what is not broken off
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), None)
            if not freed and waited >= self._soft and not session.life.changing and not _unsafe(self._target):
                freed = True
                session.rank.freeze_good()
                run_all("abort", self._free, self._watchdog, lambda _, **more: self._trace("free", **more))
            self._over.wait(self._soft if waited < 1 else 0.5)
        self._watchdog.over(self._late)

    def _busy(self, session: Any) -> bool:
        """Whether the training thread is where nothing is raised: it is not blocked, and comes back by itself."""
        return bool(session.life.in_step) or _unsafe(self._target)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Nothing is raised any more once this has returned. Who handles what came out of the ``with`` calls it again: a restart that was on its way may be raised as the ending
        begins, and would leave a thread that raises others in whatever the training thread does from then on."""
        while not self._ended:
            try:
                with self._lock:
                    self._over.set()
                    self._inside.set()
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), None)
                if self._late is not None:
                    self._watchdog.over(self._late)  # it is back, and waits for the parts that still run, which have a deadline each
                self._thread.join()
                self._ended = True
            except Restart:
                continue  # it was on its way already
            unwind.blocks -= 1


#: What starts and ends a data loader's worker processes, and takes the memory of a batch from them, by module and function.
_WORKERS = {
    ("torch.utils.data.dataloader", "__init__"),
    ("torch.utils.data.dataloader", "_shutdown_workers"),
    ("torch.multiprocessing.reductions", "rebuild_storage_fd"),
    ("multiprocessing.process", "start"),
    ("multiprocessing.util", "__call__"),
}


def _unsafe(thread: int) -> bool:
    """Whether a thread is in a destructor, or starts or ends worker processes or takes a batch from one: what an exception there leaves half
    done (a child that was waited for and is not known to be gone, descriptors that nobody closes) is never put right."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__" or (frame.f_globals.get("__name__"), name) in _WORKERS:
            return True
        frame = frame.f_back
    return False


def _leaving(thread: int) -> bool:
    """Whether a thread is handling a restart: in a ``finally``, an ``except`` or an ``__exit__`` on its way out."""
    handled: Any = sys._current_exceptions().get(thread)
    if isinstance(handled, tuple):  # before Python 3.12
        handled = handled[1]
    return handled is not None and any(isinstance(e, Restart) for e in chain(handled))


class Unraisable:
    """A :class:`Restart` that lands in a destructor or a callback is not lost: the fault thread raises it again. One that was on its way as a worker process was
    given up lands on the first line of the finalizer that closes that process's descriptors. A finalizer is called again: nobody else has what it gives back."""

    def __enter__(self) -> None:
        self._before = sys.unraisablehook

        def hook(info: Any) -> None:
            if not isinstance(info.exc_value, Restart):
                self._before(info)
            elif isinstance(info.object, (Finalize, weakref.finalize)):
                info.object()  # nothing, where it has begun before

        sys.unraisablehook = hook

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._before
