"""The session that this process made last, as modules below :mod:`replicad.session` use it."""

from __future__ import annotations

from typing import Any, Protocol

from .life import Life
from .rank import Order, Rank

__all__ = ["Session"]


class Session(Protocol):
    """What these modules use of a :class:`replicad.Session`, and of one that is off."""

    enabled: bool
    order: Order

    @property
    def rank(self) -> Rank:
        """The rank underneath."""

    @property
    def life(self) -> Life:
        """Where the training thread is."""

    @property
    def at(self) -> int:
        """The step whose state is live."""

    @property
    def resumed(self) -> bool:
        """Whether an epoch is open for the rank."""

    def iterated(self, loader: Any) -> None:
        """A loader of this package that no session keeps is about to hand out batches."""

    def commit(self, timeout: float | None = None) -> int:
        """Waits until the live step is committed."""

    def leave(self, timeout: float | None = None) -> None:
        """Reports that training is done."""


#: It is set while that session is open.
session: Session | None = None
