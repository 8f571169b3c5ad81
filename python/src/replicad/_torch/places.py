"""Where the tensors of models and optimizers hang, so that every step can see at once whether something else hangs there now.

A step looks at thousands of places, so nothing here makes a name, calls a function or runs a line of Python for a tensor. The collector's
:func:`gc.get_referents` lists what dicts hold, and lists are compared as lists. Hyperparameters and other plain values change all the time and are
passed over, one by one.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Places", "identical", "persistent"]

_MODULES: Callable[[torch.nn.Module], Any] = operator.attrgetter("_modules")
_PARAMETERS: Callable[[torch.nn.Module], Any] = operator.attrgetter("_parameters")
_TENSORS: Callable[[torch.nn.Module], tuple[Any, ...]] = operator.attrgetter("_parameters", "_buffers")


class Places:
    """What ``models``, and ``optimizers`` with the ``states`` of those that hold what lies here, consisted of when this was made."""

    def __init__(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], states: Iterable[Mapping[Any, Any]]) -> None:
        self._modules = [x for model in models for x in model.modules()]
        self._optimizers = list(optimizers)
        self._tables = [x for x in self._modules if x._non_persistent_buffers_set]  # they may come and go
        self._plain = [x for x in self._modules if not x._non_persistent_buffers_set]
        states = list(states)
        self._flat = [state for state in states if _is_flat(state)]
        self._others = [state for state in states if not _is_flat(state)]
        self._had = self._parts(), self._tensors()

    def same(self) -> bool:
        """Whether all of it still hangs where it did."""
        parts, tensors = self._had
        now = self._parts()
        return len(now) == len(parts) and all(map(operator.is_, now, parts)) and identical(self._tensors(), tensors)

    def _parts(self) -> list[Any]:
        return gc.get_referents(*map(_MODULES, self._modules))

    def _tensors(self) -> list[Any]:
        found = gc.get_referents(*chain.from_iterable(map(_TENSORS, self._plain)), *map(_PARAMETERS, self._tables))
        for x in self._tables:
            found += persistent(x).values()
        for state in self._flat:
            found += state.values()  # another dict with the very same tensors is as good
            found += gc.get_referents(*state.values())
        for tree in self._others:
            _collect(tree.values(), found)
        for o in self._optimizers:
            for group in o.param_groups:
                found += group["params"]
                _collect((v for k, v in group.items() if k != "params"), found)
        return found


def _is_flat(state: Mapping[Any, Any]) -> bool:
    """Whether an optimizer's state is of dicts of tensors alone, as most are."""
    return isinstance(state, dict) and all(type(v) is dict and all(x is None or isinstance(x, torch.Tensor) for x in v.values()) for v in state.values())


class _NotIdentical(TorchFunctionMode):
    """Ends whatever torch is asked to do, which is to say whether two tensors have equal values."""

    def __torch_function__(self, *_: Any) -> Any:
        raise LookupError


def identical(a: list[Any], b: list[Any]) -> bool:
    """Whether two lists, of tensors and of dicts of tensors, have the same tensors. Python takes an object to equal itself, so that torch is asked only
    about tensors that are not the same."""
    try:
        with _NotIdentical():
            return a == b
    except LookupError:
        return False


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
