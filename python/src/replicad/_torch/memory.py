"""The memory that copies are made from, as it was registered; and noticing that a tensor lies elsewhere now.

A region's address is given once, when the rank attaches, and the C client copies from there ever after. So what a live tensor says of itself later
is never taken for where its copy comes from: it is compared with what was registered.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import Mismatch
from .staging import Staging
from .tensors import some

__all__ = ["Memory"]

_SIZE, _POINTER, _STRIDE = torch.Tensor.numel, torch.Tensor.data_ptr, torch.Tensor.stride
_SHAPE: Callable[[torch.Tensor], torch.Size] = operator.attrgetter("shape")


class Memory:
    """Where the tensors of a session lie that are registered in place, and how large all of them are. It is made once, and outlives what takes
    the place of staged tensors."""

    def __init__(self, staging: Staging, early: bool = False) -> None:
        """``early``: of those alone that are copied when a step begins."""
        self._staging, self._early = staging, early
        fixed = [x for x in staging.fixed if not early or (x.private and x.changes == "any")]
        self._names, self._tensors = [x.name for x in fixed], [x.tensor for x in fixed]
        self._addresses = list(map(_POINTER, self._tensors))
        self._sizes, self._strides = list(map(_SIZE, self._tensors)), list(map(_STRIDE, self._tensors))
        self.bound()

    def bound(self) -> None:
        """Others have taken the place of the staged tensors. They must be as large as the stages."""
        staged = [(x, stage) for x, stage in zip(self._staging.live, self._staging.stages, strict=True) if not self._early or x.changes == "any"]
        self._staged_names, self._staged = [x.name for x, _ in staged], [x.tensor for x, _ in staged]
        self._shapes = [s.shape for _, s in staged]

    def check(self, *, whole: bool = False) -> None:
        """Refuses, by name, tensors whose copies are made from elsewhere, or are of another size. ``whole``: the order of dimensions of those that are registered in place,
        too, which costs as much again."""
        _same(self._names, list(map(_SIZE, self._tensors)), self._sizes, "elements")
        _same(self._staged_names, list(map(_SHAPE, self._staged)), self._shapes, "shape")
        if (addresses := list(map(_POINTER, self._tensors))) != self._addresses:
            now = [n for n, _, _ in _unlike(self._names, addresses, self._addresses)]
            raise Mismatch(
                f"{some(now)} has moved to other memory (`.data =`, .to()) after the session was made, and the copies go on from the old memory: move it before the session is "
                "made, copy_ into what is there, or make the session with staging=True"
            )
        if whole:
            _same(self._names, list(map(_STRIDE, self._tensors)), self._strides, "strides")


def _same(names: Sequence[str], now: Sequence[Any], was: Sequence[Any], what: str) -> None:
    if now != was:
        now = [f"{n} ({what} {tuple(a) if isinstance(a, torch.Size) else a}, was {tuple(b) if isinstance(b, torch.Size) else b})" for n, a, b in _unlike(names, now, was)]
        raise Mismatch(
            f"{some(now)}: it is laid out otherwise than when the session was made, and copies are made as it was then: give it its full size and order of dimensions before the "
            "session is made (a forward does, where the first one makes it grow), and leave them"
        )


def _unlike(names: Sequence[str], now: Sequence[Any], was: Sequence[Any]) -> list[tuple[str, Any, Any]]:
    return [(n, a, b) for n, a, b in zip(names, now, was, strict=True) if a != b]
