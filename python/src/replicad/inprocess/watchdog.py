"""The end of a process in which something hangs between a fault and the next run of the block."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Running", "Watchdog"]


@dataclass(eq=False)
class Running:
    """Something that must be over within the deadline: what, on which thread, since when."""

    what: str
    thread: int
    since: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        where, frame = "", sys._current_frames().get(self.thread)
        if frame is not None:
            where = f", now at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return f"{self.what} (for {time.monotonic() - self.since:.1f} s{where})"


class Watchdog:
    """Kills the process once something that was begun here is not over after ``hard`` seconds: other ranks wait for this one, and a new
    process finds the arena. What may wait for others for as long as they take (a rendezvous, an order, the program itself) is not begun here.

    It has a thread of its own, which is never the one that hangs, and takes no lock that another one may hold. ``rank`` says whose
    process it is, ``trace`` is told of the end.
    """

    def __init__(self, hard: float, rank: Callable[[], int], trace: Callable[..., None]) -> None:
        self._hard, self._rank, self._trace = min(hard, threading.TIMEOUT_MAX), rank, trace
        self._running: set[Running] = set()
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to go on
        self._thread = threading.Thread(target=self._watch, name="replicad-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is watched any more but what is still running: the end of the process."""
        if not self._running:
            self._news.put(False)
            self._thread.join()

    def begin(self, what: str, thread: int | None = None) -> Running:
        """Must be over within the deadline, on this thread or another. Without :meth:`over` it is what the process ends with."""
        running = Running(what, threading.get_ident() if thread is None else thread)
        self._running.add(running)
        self._news.put(True)
        return running

    def over(self, running: Running) -> None:
        """It did not hang. It may be said more than once."""
        self._running.discard(running)

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A block that must be over within the deadline."""
        running = self.begin(what)
        try:
            yield
        finally:
            self.over(running)

    def last(self) -> None:
        """Sees to it that the process ends: its rank has stopped and comes to no epoch any more, which all others wait for. A program's own
        threads, or an end that waits for a communicator, would keep it."""
        self.begin("the end of the process", threading.main_thread().ident)

    def _watch(self) -> None:
        left: float | None = None
        while True:
            try:
                if not self._news.get(timeout=left):
                    return
            except queue.Empty:
                pass
            running, now = sorted(self._running, key=lambda r: r.since), time.monotonic()
            left = running[0].since + self._hard - now if running else None
            if left is not None and left <= 0:
                self._kill(running, now - running[0].since)

    def _kill(self, running: list[Running], after: float) -> None:
        with contextlib.suppress(RuntimeError):  # no thread starts at the interpreter's end
            sure = threading.Timer(1.0, _die)  # whatever the rest waits for: a pipe that nobody reads, a file system
            sure.daemon = True
            sure.start()
        try:
            what = "; ".join(map(str, running))
            text = f"replicad: {what}: that is more than `hard`, {self._hard:g} s, so this process is killed, and its launcher starts rank {self._rank()} anew\n"
            os.write(2, text.encode(errors="replace"))  # not by ``logging``: another thread may hang in a handler, and hold its lock
            self._trace("killed", after=after, running=[r.what for r in running])
        finally:
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
