"""Whether what is trained is still what was loaded, when training is about to go on with it.

Between :meth:`replicad.Session.resume` and the first step a program can put other values into what it has just loaded: pretrained weights, a fresh initialisation. In the
first life that is what it means; after a fault it undoes the training, and nothing else would show it. A count that torch keeps of changes in place is only a question (DDP
broadcasts equal values); the bytes are the answer, and those of tensors that moved are the only ones that are read.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
import operator
from collections.abc import Callable, Collection, Sequence

import torch

from .._core.rank import Rank
from .._core.region import Region
from ..errors import Error, Mismatch
from .staging import Staging
from .tensors import Leaf, some

__all__ = ["Loaded"]

log = logging.getLogger("replicad")

#: So many bytes in the middle of each tensor in host memory are remembered, for changes that torch does not count (``p.data.normal_()``).
SAMPLE = 64
_VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


class Loaded:
    """Of a session's tensors that change in its steps. ``passed`` are names of those that a forward may change (embeddings with ``max_norm``)."""

    def __init__(self, rank: Rank, staging: Staging, passed: Collection[str]) -> None:
        self._rank, self._staging, self._passed = rank, staging, passed
        self._regions: dict[str, int] = {}
        self.asked = False  #: whether the program has looked at the step since, as one does that puts values in place at step 0 alone
        self.forget()

    def forget(self) -> None:
        """Nothing was loaded, or what was is no longer held against anything."""
        self._leaves: list[Leaf] = []
        self._counts: list[int] = []
        self._samples: list[bytes] = []

    def registered(self, regions: Sequence[Region]) -> None:
        """These were registered, in this order."""
        starts = sorted((r.address, i) for i, r in enumerate(regions))
        for leaf in self._staging.leaves:
            self._regions[leaf.name] = starts[bisect.bisect_right(starts, (leaf.local.data_ptr(), len(regions))) - 1][1]

    def taken(self) -> None:
        """The loaded state is in place: it is what the next step is to begin with."""
        self.asked = False
        self._leaves = [x for x in (*self._staging.fixed, *self._staging.live) if x.changes == "window" and x.name not in self._passed and x.tensor.numel()]
        self._counts, self._samples = self._now()

    def _now(self) -> tuple[list[int], list[bytes]]:
        with torch._C.DisableTorchFunctionSubclass():
            counts = [-1 if x.tensor.is_inference() else _VERSION(x.tensor) for x in self._leaves]
        return counts, [_sample(x.tensor) for x in self._leaves]

    def check(self, at: int, before: str, say: Callable[[str, str], None]) -> None:
        """Before training goes on: :class:`Mismatch` where tensors are not what was loaded, by name. In a job that begins, where that may be what is meant, ``say`` says so."""
        if not self._leaves:
            return
        leaves = self._leaves
        counts, samples = self._now()
        moved = [x for x, a, b, c, d in zip(leaves, self._counts, counts, self._samples, samples, strict=True) if a != b or c != d]
        self.forget()
        if not (names := [x.name for x in moved if not self._same(x)]):
            return
        if at:
            raise Mismatch(
                f"{some(names)} changed between session.resume() and {before}: it was step {at}'s, which this process has loaded, and is something else now (pretrained weights? a "
                "fresh initialisation?). Put that before the session, or under `if session.at == 0:`"
            )
        if not self.asked:
            say(
                "after resume",
                f"{some(names)} changed between session.resume() and {before}: a process that takes this one's place would do that again, to what it has loaded, and is refused "
                "then. Put it before the session, or under `if session.at == 0:`",
            )

    def _same(self, leaf: Leaf) -> bool:
        """Whether a tensor has the bytes that were loaded. One that nobody can tell any more counts as the same."""
        for live, stage in zip(self._staging.live, self._staging.stages, strict=True):
            if live.name == leaf.name:
                return torch.equal(_bytes(leaf.local.to(stage.dtype)), _bytes(stage.to(leaf.local.dtype).to(stage.dtype)))
        try:
            return self._rank.as_loaded(self._regions[leaf.name])
        except Error as err:
            log.info("replicad: %s may have changed since it was loaded: %s", leaf.name, err)
            return True


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().contiguous().reshape(-1).view(torch.uint8)


def _sample(t: torch.Tensor) -> bytes:
    """Some bytes in a tensor's middle, where they can be read at once."""
    if t.device.type != "cpu":
        return b""
    rest = int(t.untyped_storage().nbytes()) - int(t.storage_offset()) * t.element_size()  # to the end of what it is a part of
    nbytes = t.numel() * t.element_size() if t.is_contiguous() else rest
    n = min(nbytes, SAMPLE)
    return ctypes.string_at(t.data_ptr() + (nbytes - n) // 2, n)
