"""What a program says of an object that it gives as ``extra=``: that it moves between steps, or holds tensors of changing size."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from .._core import capsule
from ..errors import Invalid, Mismatch, SessionState

__all__ = ["Moves", "Own", "moves", "own"]


class Moves:
    """An object that may change at any time. Its state is kept as it is when a step is over, and is never compared with anything."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj
        if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
            raise SessionState(f"{type(self).__name__.lower()}: {type(obj).__name__} has no state_dict and load_state_dict: give it both")

    def state_dict(self) -> Any:
        """That of the object."""
        return self.obj.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """That of the object."""
        self.obj.load_state_dict(state)


class Own(Moves):
    """An object with tensors of changing size, of at most so many bytes in all."""

    def __init__(self, obj: Any, most: int) -> None:
        super().__init__(obj)
        try:
            self.most = operator.index(most)
        except TypeError:
            self.most = 0
        if self.most < 1:
            raise Invalid(f"own: most={most!r:.80}: want a whole number of bytes, the most that the object's state takes")

    def packed(self, name: str) -> bytes:
        """Its state. :class:`Mismatch` where that takes more than was said: it would be in no copy."""
        state = self.obj.state_dict()
        packed = capsule.pack(state, name)
        if len(packed) > self.most:
            parts = {str(k): len(capsule.pack(v, name)) for k, v in state.items()} if isinstance(state, Mapping) else {}
            largest = f" ({max(parts, key=lambda k: parts[k])} takes most)" if parts else ""
            raise Mismatch(f"{name} takes {len(packed)} bytes{largest}, and replicad.own(..., most={self.most}) was said: give a larger most=, or keep less in it")
        return packed


def moves(obj: Any) -> Moves:
    """For ``extra=``: an object (progress of a loop, counters) that changes between steps as well. It is kept as it is when a step is over, and nobody warns of its changes."""
    return Moves(obj)


def own(obj: Any, *, most: int) -> Own:
    """For ``extra=``: an object with tensors of changing size that are this rank's own (buffered samples, states of metrics). Its state takes at most ``most`` bytes,
    for which each copy of a step has room; more of it ends the step with :class:`replicad.Mismatch`. It may change between steps."""
    return Own(obj, most)
