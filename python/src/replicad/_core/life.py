"""Where a session's training thread is, as the threads beside it ask."""

from __future__ import annotations

import threading
from typing import Any

from .rank import Order

__all__ = ["Life", "Resumed"]


class Life:
    """The training thread writes it. Any thread reads it."""

    def __init__(self) -> None:
        self.resumed = threading.Event()  #: an epoch is open for the training thread
        self.left = False  #: the rank has said that it is done
        self.closed = False  #: the session is closed
        self.behind = 0.0  #: for so many seconds its program may do what follows the last step (:mod:`replicad._core.behind`); 0: it makes steps
        self.inside: object = None  #: the step that is open: none, or a mark of its own
        self.entering = False  #: a step begins, or what it changed is being looked at
        self.resume: Any = None  #: what the last resume() returned, until its epoch is lost
        self.moving = False  #: memory is being given back or taken again

    def stops(self) -> None:
        """The training thread is in no epoch any more."""
        self.resumed.clear()
        self.resume, self.behind = None, 0.0

    @property
    def over(self) -> bool:
        """Whether no more steps are made: what the program does with its model is its own business."""
        return self.left or self.behind > 0

    @property
    def changing(self) -> bool:
        """Whether registered memory is being changed: that ends by itself. Where a step begins, or is over, the thread may wait for a device that waits for who was lost."""
        return (self.inside is not None and not self.entering) or self.moving

    @property
    def in_step(self) -> bool:
        """Whether the training thread is between the beginning of step() and the start of its capture: no restart is raised there."""
        return self.inside is not None or self.entering or self.moving


class Resumed(int):
    """The step whose state is in place, and where that came from. Training goes on with the next step."""

    #: "fresh", "own-ram", "peer-ram", "durable", "from": a generation of another run (replicad run --from), or
    #: "otherwise": what resume(otherwise=) has loaded.
    source: str
    epoch: int
    #: Of "durable" and "from": which generation, how old, which were passed over, what is not exact. Else it is empty.
    told: str

    def __new__(cls, order: Order, source: str, step: int | None = None, told: str = "") -> Resumed:
        """The step of an order, or another one of its epoch."""
        self = super().__new__(cls, order.step if step is None else step)
        self.source, self.epoch, self.told = source, order.epoch, told
        return self

    def __repr__(self) -> str:
        more = f": {self.told}" if self.told else ""
        return f"step {int(self)} from {self.source}, epoch {self.epoch}{more}"
