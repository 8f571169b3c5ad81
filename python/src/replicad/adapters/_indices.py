"""Where torch's own ``DataLoader`` is in its epoch. It has no state of its own: the order of its samples follows from the generators as they were when that order was drawn."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from .. import rng
from ..errors import Mismatch, Unsupported

__all__ = ["Indices", "stream"]

log = logging.getLogger("replicad")


class Indices:
    """In the place of a loader's batch sampler, or of its sampler where that gives the batches: what there is in it, and from which batch on."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Is put there. :class:`replicad.Unsupported` for a dataset without numbers."""
        if why := stream(loader):
            raise Unsupported(why)
        self._loader, self._name = loader, "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self.inner: Any = getattr(loader, self._name)
        self._own = _generators(self.inner, loader.generator)
        self._marks: list[Any] = []  # the generators when the iterator was made, and when it was first asked
        self._begin: tuple[list[Any], int] | None = None
        vars(loader)[self._name] = self  # torch refuses to set it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def taken_out(self) -> None:
        """The loader has what it had."""
        vars(self._loader)[self._name] = self.inner

    def state(self, used: int) -> dict[str, Any]:
        """Its place, where so many batches of the present iteration were used."""
        return {"used": used, "of": len(self), "marks": list(self._marks)}

    def set_state(self, state: dict[str, Any]) -> None:
        """The next iteration goes on from there. :class:`replicad.Mismatch` where it has another number of batches."""
        if state["of"] != len(self):
            raise Mismatch(f"the copy is of a DataLoader with {state['of']} batches, this one has {len(self)}: give it the same dataset, batch size and number of ranks")
        self._begin = (state["marks"], state["used"]) if state["marks"] else None

    def __iter__(self) -> Iterator[Any]:
        if self._begin is not None:
            return self._going_on()
        self._marks = [self._now()]
        return self._first(iter(self.inner))

    def _going_on(self) -> Iterator[Any]:
        """The rest of an iteration. Torch's loader may make several of one, and asks one of them. Its generators are as they were before."""
        assert self._begin is not None
        (marks, used), self._begin = self._begin, None
        loops, self._marks = rng.get(), list(marks)
        try:
            self._put(marks[0])
            indices = iter(self.inner)
            if asked := len(marks) > 1:
                self._put(marks[1])
                indices = self._skip(indices, used)
        finally:
            rng.set(loops)
        yield from indices if asked else self._first(indices)

    def _skip(self, indices: Iterator[Any], used: int) -> Iterator[Any]:
        """What is left behind those that were used: it may be all, as workers ask ahead."""
        first = [next(indices)]
        drawn = rng.get()
        for _ in range(used - 1):
            next(indices)
        if rng.get() != drawn:
            log.warning(
                "replicad: %s draws from the process's generators while it is iterated: after this restart its order is another one. Give it a generator of its own",
                type(self.inner).__name__,
            )
        return itertools.chain([] if used else first, indices)

    def _first(self, indices: Iterator[Any]) -> Iterator[Any]:
        """What a sampler draws it draws, as a rule, when it is asked for the first time."""
        del self._marks[1:]
        self._marks.append(self._now())
        yield from indices

    def _now(self) -> Any:
        return [rng.get(), *(g.get_state() for g in self._own)]

    def _put(self, mark: Any) -> None:
        rng.set(mark[0])
        for g, state in zip(self._own, mark[1:], strict=True):
            g.set_state(state)


def stream(loader: DataLoader[Any]) -> str:
    """Why a place can't be found in it, with what to do instead; empty where its samples have numbers."""
    if not isinstance(loader.dataset, IterableDataset):
        return ""
    return f"a DataLoader of {type(loader.dataset).__name__}, an IterableDataset: a restart can't find its place in it: give torchdata's StatefulDataLoader, or samples by number"


def _generators(*of: Any) -> list[torch.Generator]:
    """Those that samplers have, and the samplers that they go through."""
    found: dict[int, torch.Generator] = {}
    seen: dict[int, Any] = {}
    left = list(of)
    while left:
        obj = left.pop()
        if isinstance(obj, torch.Generator):
            found[id(obj)] = obj
        elif (isinstance(obj, Sampler) or type(obj).__name__ == "_DatasetSamplerWrapper") and id(obj) not in seen:  # Lightning's, of a sampler that it shards
            seen[id(obj)] = obj
            left += reversed(vars(obj).values())
    return list(found.values())
