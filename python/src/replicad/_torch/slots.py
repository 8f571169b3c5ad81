"""Places that may carry something from step to step: an attribute of an object, a variable that a function closes over, a generator. What each was first, and how it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import rng
from . import attributes, values

__all__ = ["Cell", "Drawn", "Slot"]


class Slot:
    """A place that may carry something: an attribute of an object."""

    def __init__(self, name: str, holder: Any, held: dict[str, Any], key: str) -> None:
        self.name, self.holder, self.held, self.key = name, holder, held, key
        self.uses = attributes.uses(type(holder))  # type: ignore[arg-type]
        self.there = key in held
        self.base = held.get(key)
        self.print: Any = None
        self.made: Any = None  # the tree of what it was first; None where that has none
        self.dead = False  # it is kept otherwise, or can't be
        self.sample: Any = None

    def settle(self, beside: Callable[[torch.Tensor], bool]) -> None:
        """Takes down what it is."""
        if values.plain(self.base):
            self.made = (self.base,)
            return
        try:
            self.print = values.printed(self.base)
            self.made = (values.tree(self.base, beside)[0],)
        except values.Beside:
            self.dead = True
        except values.Unkept:
            self.made = None

    def moved(self) -> bool:
        """Whether it is another value than it was first."""
        now = self.held.get(self.key)
        if now is self.base:
            return self.print is not None and values.printed(now) != self.print
        if values.plain(now) and values.plain(self.base):
            return type(now) is not type(self.base) or (now != self.base and (now == now or self.base == self.base))
        return values.kept(now)

    def value(self, beside: Callable[[torch.Tensor], bool]) -> tuple[Any, int, int]:
        """What is kept of it: whether it is the object that it was first, and its tree; how many bytes it has, and how much room is taken around them."""
        now = self.held.get(self.key)
        made, n, more = values.tree(now, beside)
        return {"same": now is self.base, "value": made}, n, more

    def put(self, kept: Mapping[str, Any]) -> None:
        """The inverse."""
        if kept["same"] and not values.plain(self.base):
            self.held[self.key] = self.base
        self.held[self.key] = values.put(kept["value"], self.held.get(self.key), kept["same"])

    def reset(self) -> None:
        """It has what it had first."""
        if not self.there:
            self.held.pop(self.key, None)
        elif self.made is not None:
            self.held[self.key] = self.base
            if not values.plain(self.base):
                self.held[self.key] = values.put(self.made[0], self.base, True)
                self.print = values.printed(self.base)

    def carries(self) -> bool:
        """Of one that no copy can have: whether it is state, as its class reads it and writes it then, or as it is changed in place, and has changed at the same size."""
        now = self.held.get(self.key)
        if not (self.key in self.uses.renewed or now is self.base):
            return False
        if isinstance(now, torch.Tensor) or hasattr(now, "dtype"):
            was, self.sample = self.sample, _sample(now)
            return was is not None and was[0] == self.sample[0] and was[1] != self.sample[1]
        return True


class Cell(Slot):
    """A variable that a function closes over."""

    def __init__(self, name: str, function: Any, cell: Any, key: str) -> None:
        self._cell = cell
        super().__init__(name, function, {key: cell.cell_contents}, key)

    def moved(self) -> bool:
        self.held[self.key] = self._cell.cell_contents
        return super().moved()

    def value(self, beside: Callable[[torch.Tensor], bool]) -> tuple[Any, int, int]:
        self.held[self.key] = self._cell.cell_contents
        return super().value(beside)

    def put(self, kept: Mapping[str, Any]) -> None:
        super().put(kept)
        self._cell.cell_contents = self.held[self.key]

    def reset(self) -> None:
        super().reset()
        self._cell.cell_contents = self.held[self.key]


class Drawn:
    """A generator that hangs on something, wherever."""

    dead = False

    def __init__(self, name: str, generator: Any) -> None:
        self.name, self.generator = name, generator
        self.layout, self.base = rng.state_of(generator)

    def moved(self) -> bool:
        return rng.state_of(self.generator)[1] != self.base

    def value(self, beside: Callable[[torch.Tensor], bool]) -> tuple[Any, int, int]:
        made, n, more = values.tree(self.generator, beside)
        return {"same": True, "value": made}, n, more

    def put(self, kept: Mapping[str, Any]) -> None:
        values.put(kept["value"], self.generator, True)

    def reset(self) -> None:
        rng.put_state(self.generator, self.layout, self.base)

    def carries(self) -> bool:
        return True


def _sample(v: Any) -> Any:
    """What a large tensor is, and some of its bytes."""
    if isinstance(v, torch.Tensor):
        if v.device.type == "meta" or v.layout != torch.strided or type(v) is not torch.Tensor:
            return (type(v), tuple(v.shape)), v._version
        flat = v.detach().reshape(-1)[:: max(1, v.numel() // 1024)]
        return (v.dtype, tuple(v.shape)), flat.cpu().tolist()
    return (v.dtype, v.shape), v.reshape(-1)[:: max(1, v.size // 1024)].tobytes()
