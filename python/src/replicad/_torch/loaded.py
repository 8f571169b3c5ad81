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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._core.rank import Rank
from .._core.region import Region
from ..errors import Error, Mismatch
from .staging import Staging
from .tensors import Leaf, some
from .trained import Trained

__all__ = ["Loaded"]

log = logging.getLogger("replicad")

#: So many bytes in the middle of each tensor in host memory are remembered, for changes that torch does not count (``p.data.normal_()``).
SAMPLE = 64
#: So many times a BatchNorm may be called in one compiled forward.
BATCHES = 64
_VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


class Loaded:
    """Of a session's tensors, but for those that a forward changes (embeddings with ``max_norm``), and of buffers for the statistics of BatchNorm alone, which count the forwards.

    What is frozen is kept once, as of the resume at which the job begins. A program that puts it in place behind that (pretrained weights) has the job keep it anew."""

    def __init__(self, rank: Rank, staging: Staging, trained: Callable[[], Trained]) -> None:
        self._rank, self._staging, self._trained = rank, staging, trained
        self._regions: dict[str, int] = {}
        self._anew: list[str] = []
        self._begins = False
        self.asked = False  #: whether the program has looked at the step since, as one does that puts values in place at step 0 alone
        self.forget()

    def forget(self) -> None:
        """Nothing was loaded, or what was is no longer held against anything."""
        self._leaves: list[Leaf] = []
        self._counts: list[int] = []
        self._samples: list[bytes] = []
        self._wholes: list[tuple[str, torch.Tensor, int]] = []
        self._statistics = Statistics()

    def registered(self, regions: Sequence[Region]) -> None:
        """These were registered, in this order."""
        starts = sorted((r.address, i) for i, r in enumerate(regions))
        for leaf in self._staging.leaves:
            self._regions[leaf.name] = starts[bisect.bisect_right(starts, (leaf.local.data_ptr(), len(regions))) - 1][1]

    def taken(self, begins: bool) -> None:
        """The loaded state is in place: it is what the next step is to begin with, the job's first one perhaps."""
        self.asked, self._begins, self._anew = False, begins, []
        self._notes()

    def _notes(self) -> None:
        self._leaves = [x for x in (*self._staging.fixed, *self._staging.live) if x.tensor.numel()]
        self._counts, self._samples = self._now()
        trained = self._trained()
        self._wholes = [(name, t, _count(t)) for of in (True, False) for name, t in trained.tensors(of) if hasattr(t, "__tensor_flatten__")]
        self._statistics = Statistics(trained.norms)

    def _now(self) -> tuple[list[int], list[bytes]]:
        return [_count(x.tensor) for x in self._leaves], [_sample(x.tensor) for x in self._leaves]

    def check(self, at: int, before: str, say: Callable[[str, str], None]) -> None:
        """Before training goes on: :class:`Mismatch` where tensors are not what was loaded, by name. In a job that begins, where that may be what is meant, ``say`` says so."""
        if not self._leaves:
            return
        trained = self._trained()
        written = self._statistics.written()
        moved = [x for x in self._moved() if x.name in written or (x.changes != "any" and not (x.name in trained.renormalised or x.name.startswith(trained.groups)))]
        self.forget()
        others = self._others(moved)
        if self._begins:
            self._anew = [x.name for x in others if x.changes == "never"]
        if not (names := [x.name for x in others if x.changes != "never" or not (self._begins or trained.merges)]):
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

    @property
    def anew(self) -> list[str]:
        """What is frozen, and was put in place behind the resume at which the job begins: the job has what was there before. Asked once."""
        anew, self._anew = self._anew, []
        return anew

    def _moved(self) -> list[Leaf]:
        """Those that may have changed: a DTensor counts what is done to it, and not the shard that it is made of."""
        counts, samples = self._now()
        wholes = tuple(f"{name}." for name, t, was in self._wholes if _count(t) != was)
        every = zip(self._leaves, self._counts, counts, self._samples, samples, strict=True)
        return [x for x, a, b, c, d in every if a != b or c != d or f"{x.name}.".startswith(wholes)]

    def stands(self, goes_on: bool) -> list[str]:
        """Behind the hooks with which a trainer begins in each process. What they put into tensors (a fresh initialisation), buffers too, they had put there before the job's first
        step, and the job has trained since: in one that ``goes_on`` it is put back. Returns its names."""
        others, staged = self._others([x for x in self._moved() if goes_on or x.changes == "never"]), self._stages()
        changed = others if goes_on else []
        with torch.no_grad():
            for x in changed:
                if (stage := staged.get(x.name)) is not None:
                    x.local.copy_(stage)
                else:
                    self._rank.load_again(self._regions[x.name])
        if names := [x.name for x in changed]:
            log.info("replicad: %s changed in the hooks that begin the training, and are again what was loaded", some(names))
        elif self._begins:
            self._anew = [x.name for x in others]
        self._notes()
        return names

    def _stages(self) -> dict[str, torch.Tensor]:
        return dict(zip((x.name for x in self._staging.live), self._staging.stages, strict=True))

    def _others(self, moved: list[Leaf]) -> list[Leaf]:
        """Those of them that have other bytes than were loaded. One of which nobody can tell that any more counts as the same."""
        staged = self._stages()
        return [x for x in moved if not (self._as_loaded(x) if (stage := staged.get(x.name)) is None else _alike(x.local, stage))]

    def _as_loaded(self, leaf: Leaf) -> bool:
        try:
            return self._rank.as_loaded(self._regions[leaf.name])
        except Error as err:
            log.info("replicad: %s may have changed since it was loaded: %s", leaf.name, err)
            return True


class Statistics:
    """The buffers of BatchNorms, which change in each forward that trains, of a part of the model too: each counts its forwards in another buffer. A DDP gives rank 0's to the
    others, when it is made and in a forward: only there it is known that something else has written them."""

    def __init__(self, norms: Mapping[str, Any] | None = None) -> None:
        self._of = [(name, counter, _count(counter), int(counter)) for name, m in (norms or {}).items() if (counter := m.num_batches_tracked) is not None]

    def written(self) -> set[str]:
        """The names of those that something else than forwards has written."""
        out = set[str]()
        if dist.is_available() and dist.is_initialized() and dist.get_rank():
            return out
        for name, counter, count, was in self._of:
            if not self._went(_count(counter) - count, counter, was):
                out |= {f"{name}.{k}" for k in ("running_mean", "running_var", "num_batches_tracked")}
        return out

    @staticmethod
    def _went(changes: int, counter: Any, was: int) -> bool:
        """Whether it was counted on. A compiled forward may count several at once."""
        return changes > 0 and 0 < int(counter) - was <= BATCHES * changes


def _alike(live: torch.Tensor, stage: torch.Tensor) -> bool:
    """Whether a tensor is what its stage, which may have a wider type, made of it."""
    return torch.equal(_bytes(live.to(stage.dtype)), _bytes(stage.to(live.dtype).to(stage.dtype)))


def _count(t: torch.Tensor) -> int:
    """How often torch has changed it in place."""
    with torch._C.DisableTorchFunctionSubclass():
        return -1 if t.is_inference() else _VERSION(t)


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
