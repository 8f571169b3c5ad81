"""The memory that copies are made from, as it was registered; and noticing that a tensor lies elsewhere now.

A region's address is given once, when the rank attaches, and the C client copies from there ever after; a process that resumes reads the bytes in the order that its
tensors had then. So what a live tensor says of itself later (address, shape, order of dimensions, type) is never taken for what its copy is: it is compared with what
was registered.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..errors import Mismatch
from .staging import Staging
from .tensors import Leaf, some

__all__ = ["Memory", "by_accelerate"]

# What says which bytes a tensor has and how they are read, without a line of Python for each tensor.
_POINTER, _CONTIGUOUS, _STRIDE = torch.Tensor.data_ptr, torch.Tensor.is_contiguous, torch.Tensor.stride
_SHAPE: Callable[[torch.Tensor], torch.Size] = operator.attrgetter("shape")
_DTYPE: Callable[[torch.Tensor], torch.dtype] = operator.attrgetter("dtype")


class Said:
    """What tensors said of themselves when this was made."""

    def __init__(self, leaves: Iterable[Leaf], *questions: Callable[[torch.Tensor], Any]) -> None:
        self._named = [(x.name, x.tensor) for x in leaves]
        self._tensors = [t for _, t in self._named]
        self._was = {ask: list(map(ask, self._tensors)) for ask in questions}

    def other(self, ask: Callable[[torch.Tensor], Any]) -> list[tuple[str, Any, Any]]:
        """The names of those that say something else now, with what they say and said."""
        now, was = list(map(ask, self._tensors)), self._was[ask]
        return [] if now == was else [(n, a, b) for (n, _), a, b in zip(self._named, now, was, strict=True) if a != b]


class Memory:
    """Where the tensors of a session lie that are registered in place, in which order and as what their bytes are read, and how large all of them are. It is made once,
    and outlives what takes the place of staged tensors."""

    def __init__(self, staging: Staging) -> None:
        self._staging, fixed = staging, staging.fixed
        self._fixed = Said(fixed, _SHAPE, _DTYPE, _POINTER, _CONTIGUOUS, _STRIDE)
        # Shape and contiguity say the order of dimensions of most tensors, at half the price of strides. It is no matter then which stride a dimension of one has.
        self._ordered = Said((x for x in fixed if not x.tensor.is_contiguous()), _STRIDE)
        self.bound()

    def bound(self) -> None:
        """Others have taken the place of the staged tensors. They must be as large as the stages, and are copied by what they say of themselves then: where they lie, in
        whatever order of dimensions."""
        self._staged = Said(self._staging.live, _SHAPE, _DTYPE)

    def check(self) -> None:
        """Refuses, by name, tensors whose copies are made from elsewhere, are of another size, or would be read in another order or as another type."""
        for tensors in (self._fixed, self._staged):
            for what, ask in (("shape", _SHAPE), ("type", _DTYPE)):
                if other := tensors.other(ask):
                    raise _laid_out(other, what)
        if moved := self._fixed.other(_POINTER):
            raise Mismatch(
                f"{some([n for n, _, _ in moved])} has moved to other memory (`.data =`, .to()) after the session was made, and the copies go on from the old memory: move it "
                f"before the session is made, copy_ into what is there (p.copy_(old) for p.data = old), or make the session with staging=True{by_accelerate()}"
            )
        if self._fixed.other(_CONTIGUOUS) or self._ordered.other(_STRIDE):
            raise _laid_out(self._fixed.other(_STRIDE), "strides")


def by_accelerate() -> str:
    """What to say besides of tensors that are not where they were, where accelerate is in use: its ``prepare`` places them on its device, the CPU's too."""
    return ". accelerator.prepare() does that: call replicad.accelerate.prepare(...) after it, and make no other session" if "accelerate" in sys.modules else ""


def _laid_out(other: Sequence[tuple[str, Any, Any]], what: str) -> Mismatch:
    now = [f"{n} ({what} {_plain(a)}, was {_plain(b)})" for n, a, b in other]
    return Mismatch(
        f"{some(now)}: it is laid out otherwise than when the session was made, and copies are made as it was then: give it its full size, order of dimensions and type before the "
        "session is made (run one forward before, where the first one makes it grow), and leave them: copy_ values into what is there"
    )


def _plain(said: Any) -> str:
    return str(tuple(said) if isinstance(said, torch.Size) else said).removeprefix("torch.")
