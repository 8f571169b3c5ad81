"""Where the tensors of models and optimizers hang, so that every step can see at once whether something else hangs there now.

A step looks twice, at thousands of places, so nothing here makes a name or runs a line of Python for a tensor: what hangs in dicts that have
nothing but tensors, modules and further dicts is compared by identity in one go. Hyperparameters and other plain values change all the time and are
passed over, one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch

__all__ = ["Places", "persistent"]

#: The dicts of a module in which its parts hang.
_PARTS: Callable[[torch.nn.Module], tuple[Any, ...]] = operator.attrgetter("_modules", "_parameters", "_buffers")


class Places:
    """What ``models``, and ``optimizers`` with the ``states`` of those that hold what lies here, consisted of when this was made."""

    def __init__(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], states: Iterable[Mapping[Any, Any]]) -> None:
        self._modules = [x for model in models for x in model.modules()]
        self._optimizers = list(optimizers)
        self._dicts: list[Mapping[Any, Any]] = []  # of nothing but what is compared by identity
        self._others: list[Mapping[Any, Any]] = []
        self._tables = [x for x in self._modules if x._non_persistent_buffers_set]  # they may come and go
        for x in self._modules:
            self._dicts += (x._modules, x._parameters)
            if not x._non_persistent_buffers_set:
                self._dicts.append(x._buffers)
        for state in states:
            self._take(state)
        self._had = self._found()

    def same(self) -> bool:
        """Whether all of it still hangs where it did."""
        now = self._found()
        return len(now) == len(self._had) and all(map(operator.is_, now, self._had))

    def _take(self, tree: Mapping[Any, Any]) -> None:
        if isinstance(tree, dict) and all(v is None or isinstance(v, (torch.Tensor, dict)) for v in tree.values()):
            self._dicts.append(tree)
            for v in tree.values():
                if isinstance(v, dict):
                    self._take(v)
        else:
            self._others.append(tree)

    def _found(self) -> list[Any]:
        found = list(chain.from_iterable(map(_PARTS, self._modules)))
        found += chain.from_iterable(map(dict.values, self._dicts))  # type: ignore[arg-type]
        for x in self._tables:
            found += persistent(x).values()
        for tree in self._others:
            _collect(tree.values(), found)
        for o in self._optimizers:
            for group in o.param_groups:
                _collect((v for k, v in group.items() if k != "params"), found)
        return found


def persistent(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers that a state_dict has. Others (tables, caches) are the program's to make anew."""
    return {k: b for k, b in module._buffers.items() if k not in module._non_persistent_buffers_set}


def _collect(values: Iterable[Any], found: list[Any]) -> None:
    """Adds the tensors in them, in their order."""
    for v in values:
        if isinstance(v, torch.Tensor):
            found.append(v)
        elif isinstance(v, dict):
            _collect(v.values(), found)
        elif isinstance(v, (list, tuple)):
            _collect(v, found)
