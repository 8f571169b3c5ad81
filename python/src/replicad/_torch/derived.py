"""Tensors that follow from others: they are in no copy, and the program makes them anew after a load."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from ..errors import Invalid

__all__ = ["Derived"]


class Derived:
    """By name, as messages name tensors (``model.head.weight``); ``*`` stands for anything."""

    def __init__(self, given: Mapping[str, Callable[[], object]] | None = None) -> None:
        self._rebuild = dict(given or {})
        for name, rebuild in self._rebuild.items():
            if not callable(rebuild):
                raise Invalid(f"derived: {name!r:.80}: want a function without arguments that makes these tensors from what was loaded, not {type(rebuild).__name__}")
        self._patterns = [name for name in self._rebuild if any(c in name for c in "*?[")]  # adapters name each of thousands of tensors

    def __bool__(self) -> bool:
        return bool(self._rebuild)

    def has(self, name: str) -> bool:
        """Whether a tensor follows from others."""
        return name in self._rebuild or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)

    def check(self, found: Iterable[str], names: Iterable[str]) -> None:
        """Refuses a name that none of the tensors that were found has: what was meant would be copied, without a word. ``names`` are those of all tensors."""
        there = set(found)
        for pattern in self._rebuild:
            if pattern not in there and not any(fnmatch.fnmatchcase(n, pattern) for n in there):
                few = ", ".join(islice(names, 3)) or "none"
                raise Invalid(f"derived: no tensor is named {pattern!r:.80}: want names as messages give them ({few}, ...), or patterns ('model.*')")

    def rebuild(self) -> None:
        """Has each made from what was loaded; what makes several of them is called once."""
        for make in dict.fromkeys(self._rebuild.values()):
            make()
