"""What a rank is to do next, as the daemons order it."""

from __future__ import annotations

import threading
import time

from ..errors import Error, Fenced, Gone, RegroupNeeded, StaleProcessGroup, Timeout
from .gathering import LOOK, awaited, scattered
from .rank import Order, Rank

__all__ = ["Orders"]

#: For so many seconds a resume waits for the name of its durable generation.
NAMED = 5.0


class Orders:
    """The orders of one rank. :meth:`rest` has the next one waited for beside the training thread, :meth:`next` takes it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._waiting: _Waiting | None = None

    def origin(self, source: str) -> str:
        """What launchers print of an order's durable generation. A resume goes on without an answer."""
        if source != "durable":
            return ""
        try:
            return self._rank.resumed(NAMED)
        except Error as err:
            return f"({err})"

    @property
    def resting(self) -> bool:
        """Whether the rank has stopped and nobody has taken the next order yet."""
        return self._waiting is not None

    def rest(self) -> None:
        """Stops the rank, which lets the daemons plan the next epoch, and returns at once."""
        self._waiting = _Waiting(self._rank)
        self._waiting.start()

    def next(self, timeout: float | None) -> Order:
        """Waits for the next order. A rank looks now and then whether all must meet again that have met for it, or must meet as another one waits for them."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            survives = self._rank.met is None and self._rank.ordered > 0
            slice_ = left if self._rank.met is None and not survives else LOOK if left is None else min(LOOK, left)
            try:
                order = self._rank.join(slice_) if self._waiting is None else self._waiting.order(slice_)
                self._waiting = None
                if self._rank.met is None or order.epoch >= self._rank.met.epoch:
                    return order
                continue  # it came while the ranks met, for an epoch that was closed before they had
            except (Timeout, Gone):
                if end is not None and time.monotonic() >= end:
                    raise
            except BaseException:
                if self._waiting is not None and self._waiting.over:
                    self._waiting = None  # it ended with this; else it goes on, and is asked again
                raise
            if survives and awaited(self._rank):
                raise StaleProcessGroup(
                    "resume: the process that takes a lost rank's place makes its process group before it has a session, with all ranks, and this one made its own before the "
                    "loss: this process ends, and a new one makes the group with it. A group that survivors are to make again belongs into the block, before resume() as in each "
                    "new process"
                )
            if scattered(self._rank):
                raise RegroupNeeded("a process of the gathering died before it had a rank, and all ranks gather again: let this end the process, or the block")


class _Waiting(threading.Thread):
    """Waits for one order."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(name="replicad-orders", daemon=True)
        self._rank, self._got = rank, threading.Event()
        self._order: Order | None = None
        self._error: BaseException | None = None
        rank.threads.append(self)  # which the rank's end waits for

    def run(self) -> None:
        while True:
            try:
                self._order = self._rank.join(beside=True)
            except Fenced:
                continue
            except BaseException as err:
                self._error = err
            self._got.set()
            return

    @property
    def over(self) -> bool:
        """Whether it has an order, or will have none."""
        return self._got.is_set()

    def order(self, timeout: float | None) -> Order:
        """The order, or what the wait for it ended in."""
        if not self._got.wait(timeout):
            raise Timeout("resume: no order yet. The job waits for other ranks, or has no quorum: `replicad status` names them; call session.resume() again")
        self.join()
        self._rank.threads.remove(self)
        if self._error is not None:
            raise self._error
        assert self._order is not None
        return self._order
