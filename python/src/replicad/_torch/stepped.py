"""What a session that keeps the state and one that is off have in common: they count steps."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from torch.utils.hooks import RemovableHandle

from .._core.life import Life, Resumed
from .._core.rank import Order
from ..errors import Invalid, SessionState, Signal
from .held import Held
from .loop import Loop
from .steps import Follows, Steps
from .told import Told

__all__ = ["Stepped"]

_Self = TypeVar("_Self", bound="Stepped")


class Stepped(ABC):
    """The step that a session is at, the loop around it, and the step that a trainer's hooks hold open."""

    order: Order  #: what the last :meth:`resume` carried out
    enabled = True  #: whether anything is kept

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._life = Life()
        self._at = -1  # the step whose state is live; -1 before resume
        self._loop = Loop()
        self._follows = Follows()
        self._held, self._told_of = Held(), Told()

    @abstractmethod
    def step(self, *, updated: bool = True, timeout: float = 30.0) -> AbstractContextManager[int]:
        """The optimizer step."""

    @abstractmethod
    def leave(self, timeout: float | None = None) -> None:
        """Reports that training is done."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session."""

    @abstractmethod
    def _go_on(self, loop: Steps) -> int:
        """An iteration ends, and the next one begins."""

    @abstractmethod
    def _between(self, what: str) -> None:
        """Refuses ``what`` where no step may begin."""

    @abstractmethod
    def _check(self) -> None:
        """Refuses a session that is closed, or another process's."""

    @abstractmethod
    def _abandon(self) -> None:
        """The open step, if there is one, will never end."""

    @abstractmethod
    def _failed(self, err: BaseException) -> None:
        """The block of the session ends by an exception."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, err: BaseException | None, *_: object) -> None:
        try:
            if kind is None and not self._life.closed:
                self.leave()
            elif err is not None:
                self._failed(err)
        finally:
            self.close()

    @property
    def _closed(self) -> bool:
        """For deepspeed.py and megatron.py, whose rows of docs/conformance.md are run by hand after a change."""
        return self._life.closed

    @property
    def life(self) -> Life:
        """Where the training thread is, for replicad's own threads."""
        return self._life

    def step_begin(self, *, updated: bool = True, timeout: float = 30.0) -> int:
        """Begins a step as :meth:`step` does, for the hooks of a trainer whose loop is not yours, and returns its number: :meth:`step_end` ends it, in another hook. It may be
        called inside of ``optimizer.step(closure)``, once the closure has the gradients. An exception in between tears the step where :class:`replicad.inprocess`, the end of
        the program or ``step_end(error=)`` sees it. A step that is open when :meth:`resume` is called is given up."""
        return self._held.begin(self.step(updated=updated, timeout=timeout))

    def step_end(self, error: BaseException | None = None) -> int:
        """Ends the step that :meth:`step_begin` has begun, and returns the step that is live. ``error`` is an exception that the trainer has seen and does not raise here: the
        step is torn by it if one is open, and nothing happens if none is. :class:`SessionState` where no step is open and there is no error."""
        if error is None:
            self._check()
            self._held.end(self._life.inside)
        elif isinstance(error, Signal) and self._held:
            self._abandon()
        else:
            self._held.tear(error)
        return self._at

    def on_resumed(self, fn: Callable[[Resumed], None]) -> RemovableHandle:
        """Has ``fn`` called with what :meth:`resume` returns, before each returns, on the same thread: a progress bar that goes to that step. ``remove()`` of the result ends
        that. What it raises, :meth:`resume` raises."""
        return self._told_of.on_resumed(fn)

    def on_lost(self, fn: Callable[[int], None]) -> RemovableHandle:
        """Has ``fn`` called with the step that was live, once for each epoch that is lost while this process stays: when the block of :mod:`replicad.inprocess` has ended, or
        when :meth:`resume` is called again. An exception of its own is logged."""
        return self._told_of.on_lost(fn)

    def steps(self, last: int) -> Steps:
        """The steps that are left, up to ``last``: ``for step in session.steps(last): ...``, after :meth:`resume`. An iteration is a step: what follows the block (an evaluation,
        a scheduler, a log) belongs to it, and is done again where it was interrupted. An iteration without a block, by ``continue`` say, counts as a step that updates nothing.

        :class:`Invalid` where ``last`` lies below the step that the session is at; :class:`SessionState` before resume, inside of a step, and while another such loop runs."""
        self._between("steps")
        try:
            last = operator.index(last)
        except TypeError:
            raise Invalid(f"steps({last!r:.80}): want a whole number, the step that is to be the last") from None
        if last < self._at:
            raise Invalid(
                f"steps({last}): this job is at step {self._at} already: give a number that is not below, or another --job to begin anew. A loop "
                f"that is over when a later one begins is `session.steps(max({last}, session.at))`"
            )
        if self._loop.over_steps is not None:
            raise SessionState("steps inside of a loop over session.steps(): a session counts one loop at a time. Leave that loop first, or call close() on it")
        steps = Steps(last, self._go_on)
        self._loop.runs(steps)
        return steps

    def follow(self, name: str) -> None:
        """Inside of a step: something will follow it that draws or changes what is kept (``"evaluate"``), in a trainer whose loop is not yours. It is kept with the step. After a
        restart :attr:`due` has the name if it may have been interrupted; it is to be done then, and meets the generators as they were. Call :meth:`done` after it."""
        self._check()
        if self._life.inside is None:
            raise SessionState(f"follow({name!r:.80}) outside of a step: call it inside of the `with session.step()` that it follows")
        self._follows.add(name)

    @property
    def due(self) -> tuple[str, ...]:
        """What was to follow the step whose state is live (:meth:`follow`), and is not done."""
        return tuple(self._follows.due)

    def _outside(self, what: str) -> None:
        if self._held:
            raise SessionState(f"{what} inside of step {self._at + 1}, which session.step_begin() has begun: call session.step_end() first")
        if self._life.inside is not None:
            nested = "steps don't nest, and this one" if what == "a step" else "it"
            raise SessionState(
                f"{what} inside of step {self._at + 1}: {nested} is open until its `with` block ends. Leave the block first. "
                "A generator that holds the block keeps it open after `break` from the loop: close the generator"
            )
