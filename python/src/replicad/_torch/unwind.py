"""A trainer without in-process restarts, whose epoch is closed: its process groups are aborted for it, so that the collective that it waits in ends."""

from __future__ import annotations

import logging
import threading
import time

from .._core.latest import Session
from ..errors import Error

__all__ = ["Unwinder"]

log = logging.getLogger("replicad")

#: A trainer has so many seconds to come back by itself: Gloo tells it of a peer that died, and a step that has begun ends.
SOFT = 2.0
#: Blocks of :mod:`replicad.inprocess` that are being run, which free their thread themselves.
blocks = 0


class Unwinder(threading.Thread):
    """Beside a training thread. What lost a peer may wait for it in a collective as long as its watchdog allows, half an hour with NCCL, or meet
    survivors in one more collective on its way out (a last checkpoint, a barrier in a trainer's teardown). All that time the job waits. So once
    the epoch is closed and the thread has not come back soon, its groups are aborted, and again while it makes others: collectives raise, and the
    program calls :meth:`Session.resume` or ends. One that does neither is killed by its daemon, as a hang (``timing.settle`` and ``ack`` after the fault)."""

    def __init__(self, session: Session, soft: float = SOFT) -> None:
        super().__init__(name="replicad-unwinder", daemon=True)
        self._session, self._soft, self._over = session, soft, threading.Event()

    def end(self) -> None:
        """The session is closed: what the program does with its groups is its own business now."""
        self._over.set()

    def run(self) -> None:
        """Until the session is closed."""
        session = self._session
        while not self._over.is_set():
            try:
                if session.life.resumed.wait(0.2) and session.rank.wait_fence(0.2) and not blocks and not session.life.left:
                    self._free()
            except Error:
                return  # the rank was closed

    def _free(self) -> None:
        session, began, said = self._session, time.monotonic(), False
        while not self._over.wait(0.1) and session.life.resumed.is_set() and session.rank.fenced:
            if time.monotonic() - began < self._soft or session.life.changing:
                continue  # an optimizer step ends by itself, and its copy is wanted
            if not said:
                said = True
                session.rank.freeze_good()
                log.warning(
                    "replicad: another rank was lost %.1f s ago, and this one has not called session.resume(): its process groups are aborted, so that "
                    "the collective that it waits in raises. An error of torch.distributed that follows is this",
                    time.monotonic() - began,
                )
            free(self._soft)
            self._over.wait(self._soft)


def free(timeout: float = SOFT) -> None:
    """Aborts the process groups of an epoch that is closed, so that whatever waits in their collectives goes on: a thread, or a device."""
    from ..inprocess.abort import AbortProcessGroups

    try:
        AbortProcessGroups(timeout=timeout).free()
    except Exception as err:
        log.warning("replicad: aborting the process groups of the closed epoch failed: %s: %s", type(err).__name__, err)


def free_alone() -> None:
    """A device does not come to its end: it waits for ranks that were lost, as a rule. A block of :mod:`replicad.inprocess` has seen to that before."""
    if not blocks:
        free()
