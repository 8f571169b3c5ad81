"""What a session is made of, for replicad's own modules: they read this, and nobody's privates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._core.rank import Rank
from .._core.region import Region
from .layout import Sharded
from .loaded import Loaded
from .objects import Objects
from .rates import Rates
from .staging import Staging

__all__ = ["Parts", "Standing"]


@dataclass(frozen=True)
class Standing:
    """What was loaded: tensors, and the numbers of optimizers' groups."""

    tensors: Loaded
    rates: Rates

    def stands(self, goes_on: bool) -> list[str]:
        """Behind the hooks with which a trainer begins in each process: in one that ``goes_on`` what they have changed is again what was loaded. Returns its names."""
        return [*self.tensors.stands(goes_on), *self.rates.stands(goes_on)]


@dataclass(frozen=True)
class Parts:
    """The parts as they are now: a rebind puts others in their place."""

    rank: Rank
    objects: Objects
    staging: Staging
    regions: Callable[[], list[Region]]  #: what is registered
    sharded: Sequence[Sharded]  #: what is laid over ranks
    renormalised: frozenset[str]  #: the weights that forwards bring back to a norm
    noticed: dict[str, str]  #: what was seen to change outside of its time
    common: Callable[[], Any]  #: what the shared capsule would have now
    loaded: Standing  #: whether what was loaded is still there
    rewritten: Callable[[], None]  #: says that weights were written behind the last step's copy, as the framework does it
