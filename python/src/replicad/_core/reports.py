"""What a session reports to its daemon when it fails, or ends."""

from __future__ import annotations

import contextlib
import logging
import os

from ..errors import Error
from .life import Life
from .rank import Rank

__all__ = ["Reports"]

log = logging.getLogger("replicad")

#: How many seconds a program may be on its way out, beyond what any survivor has, before it counts as one that hangs.
ENDING = 30.0


class Reports:
    """Faults of a rank, and that its program is on its way out."""

    def __init__(self, rank: Rank, life: Life) -> None:
        self._rank, self._life, self._pid = rank, life, os.getpid()
        self._late = ""  # a fault that is not reported yet
        self._ends = False  # the daemon knows

    @property
    def wanted(self) -> bool:
        """Whether the daemon has to know how this process ends: it is the rank, and has not left."""
        return not (self._life.closed or self._life.left) and self._pid == os.getpid() and self._rank.attached

    def resumed(self) -> None:
        """The program goes on: it was not on its way out."""
        self._ends = False

    def fault(self, text: str) -> None:
        """Reports a fault, which closes the epoch."""
        try:
            self._rank.fail(text)
        except Error as err:
            log.warning("replicad: the daemon did not hear of this: %s (%s)", text, err)

    def later(self, text: str) -> None:
        """A fault that this thread must not wait to report: :meth:`late` does."""
        self._late = text

    def late(self) -> None:
        """Reports that fault, if there is one."""
        if self._late:
            text, self._late = self._late, ""
            self.fault(text)

    def ending(self) -> None:
        """Reports, once, that this program ends: its exit handlers, or a last upload, are no hang. What a daemon that was away has not
        heard the next place reports again."""
        if self._ends or not self.wanted:
            return
        with contextlib.suppress(Error):
            self._rank.ending(ENDING)
            self._ends = True
