"""What a session keeps: its objects, where their tensors are copied from, their small values, and what looks at all of it.

It is one thing, so that a growth makes another and puts it in this one's place once the job has taken it up, or leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .._core.rank import Rank
from .._core.region import Region
from . import conversion, loaders
from .alarm import Alarm
from .lacking import Lacking
from .layout import Layout, grouped, sharded
from .live import Live
from .loaded import Loaded
from .memory import Memory
from .objects import Objects
from .staging import Staging
from .state import Capsule, regions
from .tensors import orders
from .trained import Trained

__all__ = ["TENSORS", "How", "Kept"]

#: So many bytes may name what a copy lacks.
MARKED = 8 << 10
#: How the names of capsules with an object's tensors begin.
TENSORS = "replicad.own."


@dataclass(frozen=True)
class How:
    """What a session was asked for. ``own`` reads what is a rank's own, of some objects."""

    own: Callable[..., dict[str, Any]]
    staging: bool = False
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)


class Kept:
    """Of some objects. What hangs on the rank is there after :meth:`bind`."""

    alarm: Alarm
    live: Live
    loaded: Loaded
    layout: Layout

    def __init__(self, objects: Objects, how: How) -> None:
        rooms = objects.grown.rooms
        self.objects, self._how = objects, how
        self.staging = Staging(objects.leaves, how.staging, conversion.kept_dtypes(objects.leaves, how.dtypes))
        self.memory = Memory(self.staging)
        self.trained = Trained(objects, self.memory)
        self.lacking = Lacking(objects)
        self.shared = Capsule("replicad.shared", False, "any", self.common, self.trained.most, rooms.get("replicad.shared", 0))
        more = MARKED + sum(loaders.room(o) for o in objects.data.values())
        self.own = Capsule("replicad.own", True, "window", self._of_rank, more, rooms.get("replicad.own", 0), objects.implicit.reserve, self._taken)
        self.tensors = {k: self._of_tensors(k) for k in objects.tensors}

    def _of_rank(self, *of: Any) -> dict[str, Any]:
        """What is the rank's own."""
        return self._how.own(self.objects, *of) | {"cadence": self.lacking.cadence.text()}

    def _taken(self) -> int:
        """How much of its room what nobody has given takes."""
        return self.objects.implicit.taken

    def _of_tensors(self, name: str) -> Capsule:
        """The capsule of an object with tensors of changing size."""
        of = self.objects.tensors[name]
        of.packed(name)  # says whose state is too large
        return Capsule(f"{TENSORS}{name}", True, "window", lambda: self.objects.tensors[name].state_dict(), room=of.most + 8)

    def grew(self, objects: Objects) -> Kept:
        """The same, of objects with more to keep; this one stays what it is."""
        return Kept(objects, self._how)

    def bind(self, rank: Rank, say: Callable[[str, str], None]) -> None:
        """Hangs it on the rank."""
        self.alarm = Alarm(rank, self.staging, self.objects.live, say)
        self.live = Live(rank, self.staging, self.alarm, say)
        self.loaded = Loaded(rank, self.staging, lambda: self.trained)
        self.sharded = sharded(rank.world, self.objects)
        self.layout = Layout(self.sharded, orders(self.objects.leaves), grouped(self.objects), (leaf.name for leaf in self.objects.leaves))

    def rebound(self, objects: Objects) -> None:
        """Other objects take the place of these, which consist of tensors that are alike."""
        if objects.leaves is not self.objects.leaves:
            self.staging.bind(objects.leaves)
            self.memory.bound()
            self.alarm.rebound(objects.live)
            self.loaded.forget()
            self.trained = Trained(objects, self.memory)
        self.objects, self.lacking = objects, Lacking(objects)

    def common(self) -> dict[str, Any]:
        """What ranks of a replica group have in common."""
        return self.objects.common() | {"trained": self.trained.value()}

    def table(self) -> list[Region]:
        """What is registered."""
        return [*regions(self.staging.leaves), self.layout.region, self.shared.region, self.own.region, *(c.region for c in self.tensors.values())]

    def registered(self, rank: Rank, table: list[Region]) -> None:
        """The rank copies from there now."""
        self.alarm.registered(table)
        self.loaded.registered(table)
        rank.judge = self.alarm.judge
        if self.staging:
            rank.stage = self.live.bring

    def write(self, *of: Any) -> Any:
        """Packs the small values as they are now, and returns what is the rank's own. ``of`` is for who reads that."""
        for k, c in self.tensors.items():
            c.put(self.objects.tensors[k].packed(k))
        self.trained.kept = self.shared.write()["trained"]
        return self.own.write(*of)

    def set_tensors(self) -> None:
        """Gives what was loaded to the objects that have tensors of changing size."""
        for k, c in self.tensors.items():
            self.objects.tensors[k].load_state_dict(c.value())

    @property
    def tight(self) -> bool:
        """Whether small values take more than half of the room that they have."""
        return self.shared.larger != self.shared.room or self.own.larger != self.own.room

    @property
    def rooms(self) -> dict[str, int]:
        """The room of each capsule."""
        return {c.name: c.room for c in (self.shared, self.own)}

    @property
    def wanted(self) -> dict[str, int]:
        """The room that each should have by now."""
        return {c.name: c.larger for c in (self.shared, self.own)}
