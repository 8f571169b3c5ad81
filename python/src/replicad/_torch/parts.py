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
from .staging import Staging

__all__ = ["Parts"]


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
    loaded: Loaded  #: whether what was loaded is still there
