"""An alarm that is always on: at each step one tensor in turn is looked at where it lies now, and held against its copy before the copy counts.

That tensors are those which were registered is compared at every step (:mod:`replicad._torch.memory`, :mod:`replicad._torch.trained`). This asks for nothing that
they know: it goes through models and optimizers anew, takes bytes from where it finds a tensor when the step ends, and has the C client compare them with what the
copy of that very step has. Of a tensor that has a stage the bytes in the stage are compared, before the C client copies them. A tensor that is
registered where it lies, and whose bytes are to be read in another order than then, is a difference by itself.

What the program changes between two steps may be in the copy, and is no fault of it: bytes that changed in place, and of a tensor that has a stage, other memory.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .._core.rank import Rank
from .._core.region import Region
from ..errors import Error, Mismatch
from . import device
from .staging import Staging
from .tensors import Leaf

__all__ = ["Alarm"]

log = logging.getLogger("replicad")

#: So many bytes of a tensor are compared at a step (the C client's ``RP_EXPECT_MAX``); of a larger one another piece each time that it is its turn.
PIECE = 64 << 10
#: So many tensors that can't be compared (frozen ones, shards in their whole's place) are passed over at a step.
PASSED = 64
DIFFERS = "the copy has other bytes than the tensor had when the step ended"


@dataclass(frozen=True)
class Place:
    """Where a tensor's copy is: which region, where in it, and the tensor that was registered, which is a stage or itself."""

    region: int
    offset: int
    registered: torch.Tensor
    staged: bool

    def ordered(self, t: torch.Tensor) -> bool:
        """Whether a tensor's bytes are to be read in the order of the registered ones."""
        return t.stride() == self.registered.stride() or _order(t) == _order(self.registered)


@dataclass(frozen=True)
class Held:
    """A tensor that was looked at, with the memory in which it lay then."""

    leaf: Leaf
    live: torch.Tensor
    changes: int  # how often it had been changed in place
    staged: bool

    @classmethod
    def of(cls, leaf: Leaf, live: torch.Tensor, staged: bool) -> Held:
        return cls(leaf, live, _changes(live), staged)

    @property
    def changed(self) -> bool:
        """Whether it was changed in place since."""
        return _changes(self.live) != self.changes

    @property
    def moved(self) -> bool:
        """Whether it was given other memory since, from where its stage is filled then."""
        return self.staged and self.leaf.local.data_ptr() != self.live.data_ptr()


class Alarm:
    """Of a session's tensors. The training thread calls it, and the worker :meth:`staged`."""

    def __init__(self, rank: Rank, staging: Staging, walk: Callable[[], Iterator[Leaf]], say: Callable[[str, str], None]) -> None:
        """``walk`` goes through the live tensors, as they are found now. ``say`` names a tensor that was changed outside of its time, with what to do about it."""
        self._rank, self._staging, self._say = rank, staging, say
        self._places: dict[str, Place] = {}
        self._walk = walk
        self._left: Iterator[Leaf] = iter(())  # of a walk
        self._round = 0
        self._due: tuple[Leaf, Place] | None = None
        self._compared, self._staged_compared = 0, 0
        self._held: Held | None = None  # what was looked at last
        self._was: torch.Tensor | None = None  # the piece's memory on the host
        self._piece: tuple[int, torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # a step; of what is staged: live, in the stage, and as it was

    def rebound(self, walk: Callable[[], Iterator[Leaf]]) -> None:
        """Others have taken the place of the tensors."""
        self._walk, self._left = walk, iter(())
        self.reset()

    def reset(self) -> None:
        """State was loaded: what was taken before says nothing about it."""
        self._due = self._held = self._piece = None

    def registered(self, regions: Sequence[Region]) -> None:
        """These were registered, in this order."""
        starts = sorted((r.address, i) for i, r in enumerate(regions))
        staged = {x.name for x in self._staging.live}
        for leaf in self._staging.leaves:
            t = leaf.local
            start, i = starts[bisect.bisect_right(starts, (t.data_ptr(), len(regions))) - 1]
            r = regions[i]
            if t.numel() and r.changes != "never" and (leaf.name not in staged or r.changes == "window"):
                self._places[leaf.name] = Place(i, t.data_ptr() - start, t, leaf.name in staged)

    def exiting(self, step: int) -> None:
        """A step is over: nothing of it has been copied yet."""
        if self._due is None or self._rank.compared + self._staged_compared != self._compared:
            self._compared = self._rank.compared + self._staged_compared
            self._due = None
            with contextlib.suppress(Error, RuntimeError):  # of a walk, where things came or went, or can't be copied: that is refused elsewhere
                self._due = self._next()
            if self._due is None:
                self._left = iter(())
        if self._due is not None and self._ordered(*self._due):
            leaf, place = self._due
            if place.staged:
                self._take(step, leaf, place)
            else:
                self._expect(leaf, place)

    def _next(self) -> tuple[Leaf, Place] | None:
        for _ in range(PASSED):
            leaf = next(self._left, None)
            if leaf is None:
                self._left, self._round = self._walk(), self._round + 1
                continue
            place = self._places.get(leaf.name)
            if place is not None and leaf.local.shape == place.registered.shape and (not place.staged or place.ordered(leaf.local)):
                return leaf, place
        return None

    def _ordered(self, leaf: Leaf, place: Place) -> bool:
        """Whether a tensor has its bytes in the order of its copy. To a stage values are copied, in whatever order they lie, which can't be compared; any other is
        copied as it lies."""
        t = leaf.local
        if place.ordered(t):
            return True
        if not place.staged:
            raise self._fault(
                leaf.name, "the end of a step", f"its bytes are read in another order (strides {t.stride()}) than those of its copy (strides {place.registered.stride()})"
            )
        self._due = None
        return False

    def _span(self, nbytes: int) -> tuple[int, int]:
        """The piece of a tensor whose turn it is: where it begins, and its size."""
        at = self._round % -(-nbytes // PIECE) * PIECE
        return at, min(PIECE, nbytes - at)

    def _expect(self, leaf: Leaf, place: Place) -> None:
        t = leaf.local
        at, n = self._span(t.numel() * t.element_size())
        self._held = Held.of(leaf, t, place.staged)
        self._rank.expect(place.region, place.offset + at, t.data_ptr() + at, n)

    def _take(self, step: int, leaf: Leaf, place: Place) -> None:
        t, stage = leaf.local, place.registered
        at, n = (x // stage.element_size() for x in self._span(stage.numel() * stage.element_size()))
        live, there = (x.as_strided((x.numel(),), (1,), x.storage_offset())[at : at + n] for x in (t, stage))
        if self._was is None:
            self._was = device.pinned([PIECE])[0] if device.lies_on(live) else torch.empty(PIECE, dtype=torch.uint8)
        was = self._was.view(stage.dtype)[:n]  # the former piece has been compared, or nobody waits for its copy any more
        was.copy_(live, non_blocking=device.lies_on(live))
        self._held = Held.of(leaf, t, place.staged)
        self._piece = step, live, there, was

    def staged(self, step: int) -> None:
        """The step is in the stages, and not known to be good yet."""
        if self._piece is None or self._piece[0] != step or self._held is None:
            return
        _, live, there, was = self._piece
        self._staged_compared += 1
        if not _equal(there, was) and _equal(torch.empty_like(was).copy_(live), was) and (err := self.judge(f"the stage of step {step}")):
            raise err

    def judge(self, what: str) -> Mismatch | None:
        """What to make of a copy that has other bytes than its tensor: a fault, unless the tensor was changed between the end of the step and its copy. One that was
        changed in place, and back, is noticed and named elsewhere."""
        held = self._held
        if held is None:
            return self._fault("a tensor", what, DIFFERS)
        if held.changed:
            return None
        if held.moved:
            name = held.leaf.name
            self._say(
                name,
                f"{name} was given other memory with other values (`.data =`) after a step had ended: the copy of the step is made meanwhile, and has the change or not; "
                "ranks that should be equal can be found to differ. Do it inside `with session.step()`",
            )
            return None
        return self._fault(held.leaf.name, what, DIFFERS)

    def _fault(self, name: str, what: str, why: str) -> Mismatch:
        self._rank.freeze_good()
        err = Mismatch(
            f"{name}: {what}: {why}, so the step is not kept. The tensor is copied from other memory than it lies in now, or in another order, or was changed and changed back "
            "through `.data` meanwhile: copy_ into what the session was made with, or make it with staging=True and give what was made anew to session.rebind(); and swap weights "
            "after session.commit()"
        )
        log.error("replicad: %s", err)
        return err


def _order(t: torch.Tensor) -> list[tuple[int, int]]:
    """The dimensions of which it matters where their next element lies."""
    return [(n, stride) for n, stride in zip(t.shape, t.stride(), strict=True) if n != 1]


def _changes(t: torch.Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all numbers are the same; what is none equals what is none, as conversions may write it in several ways."""
    return bool(((a == b) | ((a != a) & (b != b))).all())
