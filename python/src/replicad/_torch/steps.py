"""Loops over steps, and what follows a step.

A step of the training loop is more than the block that updates: people evaluate after it, step a scheduler, log, save. All of that belongs to the step whose block came
before, and a restart from that step must find it done. So the session has to know where the next iteration begins. :class:`Steps` knows, as the loop asks it for the next number.
A :class:`replicad.data.Loader` knows as well, as the loop asks it for the next batch. Where there is neither a step is over when its block ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from ..errors import Invalid, SessionState

__all__ = ["Follows", "Steps", "step_of"]


def step_of(loaded: object) -> int:
    """The step that ``resume(otherwise=)`` was told of."""
    try:
        step = operator.index(loaded)  # type: ignore[arg-type]
    except TypeError:
        step = -1
    if not 0 <= step < 1 << 38:
        raise Invalid(f"resume: otherwise returned {loaded!r:.80}: want the step of the checkpoint that it has loaded, 0 where there is none")
    return step


class Steps(Iterator[int]):
    """The steps that are left up to ``last``, one for each iteration. ``go_on`` is told of the iteration that ends, with the step that it was for (0: none), and returns the step
    that the next one is for."""

    def __init__(self, last: int, go_on: Callable[[Steps], int]) -> None:
        self.last, self._go_on = last, go_on
        self.step = 0  #: of the iteration that runs
        self.over = False

    def __next__(self) -> int:
        if self.over:
            raise StopIteration
        step = self._go_on(self)
        if step > self.last:
            self.over = True
            raise StopIteration
        self.step = step
        return step

    def close(self) -> None:
        """Ends the loop, so that another one may begin."""
        self.over = True


class Follows:
    """What a program does after a step and wants to know of if it is interrupted in it."""

    def __init__(self) -> None:
        self.named: list[str] = []  #: in the step that is open
        self.due: list[str] = []  #: after the step whose state is live

    def add(self, name: str) -> None:
        """Something will follow the step that is open."""
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise Invalid(f"follow({name!r:.80}): want a name of 1 to 200 characters")
        if name not in self.named:
            self.named.append(name)

    def ended(self) -> None:
        """The step has ended: what it named is due."""
        self.due, self.named = self.named, []

    def done(self, name: str, step: int) -> None:
        """What followed has been done."""
        if name not in self.due:
            what = f"{', '.join(self.due)} is" if self.due else "nothing is"
            raise SessionState(f"done({name!r}) after step {step}: {what} due. Call session.follow({name!r}) inside of the step that it follows")
        self.due.remove(name)

    def check(self, step: int) -> None:
        """Refuses the next step while something is due: it would never be known whether it was done."""
        if self.due:
            raise SessionState(
                f"a step while {', '.join(self.due)} is due, which was to follow step {step}: do it, and call session.done({self.due[0]!r}) then. After a restart session.due "
                "says what was interrupted"
            )
