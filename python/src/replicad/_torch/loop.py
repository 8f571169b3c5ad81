"""What the loop has told of where an iteration begins, and what that means for the step that is not over yet. Rules alone: the session does what they say."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .feeds import Feeds
from .steps import Steps

__all__ = ["Ended", "Loop"]


@dataclass(frozen=True)
class Ended:
    """A step whose block has ended, and which is not over yet: what follows it belongs to it."""

    step: int
    updated: bool
    generators: bytes | None  #: when the block ended, in the form of :func:`replicad.rng.get`


class Loop:
    """The loop of a program around a session."""

    def __init__(self) -> None:
        self.asks = False  #: it asks a registered loader for its batches
        self.ended: Ended | None = None  #: the step that what happens now still belongs to
        self.feeds = Feeds()
        self._steps: weakref.ref[Steps] | None = None
        self._asked: Mapping[str, Any] | None = None  # what was the rank's own when the loop asked for the first batch after the step that was resumed
        self._begins: bytes | None = None  # the generators with which a loop over steps goes on from there

    def resumed(self, step: int, own: Mapping[str, Any]) -> None:
        """State was loaded, of which ``own`` is the rank's own. The initial one is as of resume: what a program draws before its loop is drawn again."""
        self.ended = self._steps = None
        self._asked = own if step and own["asked"] is not None else None
        self._begins = own["rng"] if step else None

    @property
    def over_steps(self) -> Steps | None:
        """The loop over steps that runs."""
        loop = None if self._steps is None else self._steps()
        return None if loop is None or loop.over else loop

    @property
    def tells(self) -> bool:
        """Whether it will say when an iteration begins, so that what follows a step can be told from what the next one begins with."""
        return self.asks or self.over_steps is not None

    def runs(self, steps: Steps) -> None:
        """A loop over steps begins."""
        self._steps = weakref.ref(steps)

    def begins_with(self, first: bool) -> bytes | None:
        """A loop over steps asks for its first step, or the next: the generators to put back, as what a process draws before its loop is no part of the run."""
        back, self._begins = self._begins, None
        return back if first else None

    def followed(self, now: bytes | None) -> None:
        """What was due after the step that was resumed has drawn: a loop over steps that begins now goes on behind it."""
        if self._begins is not None:
            self._begins = now

    def enters(self) -> Any:
        """A step begins. It returns what was the rank's own when the step before was over, where that was noted."""
        if self.over_steps is None:
            self._begins = None  # another loop has begun
        self._asked = None
        return self.feeds.trains()

    def block_ended(self, ended: Ended) -> None:
        """A step's block has ended."""
        self.feeds.ended()
        self.ended = ended

    def forward(self, training: bool) -> tuple[bool, Any]:
        """A forward begins. Whether the step before is over by that, and what was the rank's own then, where that was noted."""
        if not training:
            self.feeds.evaluated()
            return False, None
        then = self.feeds.trains()
        return self.ended is not None and self.over_steps is None, then

    def batch(self, name: str) -> str:
        """A loader is asked for a batch. "over": the step before is over. "note": it is if the loop trains from this loader. "then": the place at which the copy that
        was resumed was made."""
        trains = self.feeds.asked(name)
        if self.over_steps is not None:
            return ""
        if self.ended is not None:
            return "over" if trains else "" if self.feeds.noted(name) else "note"
        return "then" if self._asked is not None and self._asked["asks"] == name else ""

    def then(self) -> Mapping[str, Any]:
        """What was the rank's own there, once."""
        asked, self._asked = self._asked, None
        assert asked is not None
        return asked
