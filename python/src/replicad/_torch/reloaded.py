"""What ``load_state_dict`` of an optimizer has made anew: the tensors that were registered take its values, and their place again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .optimizers import part

__all__ = ["putting_back"]


def putting_back(optimizers: Iterable[torch.optim.Optimizer]) -> Callable[[], None]:
    """Call it before a program loads a checkpoint of its own, and the result afterwards. What does not fit stays as it was loaded, for who looks at that."""
    optimizers = list(optimizers)
    states = [(o, o.state, _noted(dict(o.state))) for o in map(part, optimizers)]
    groups = [(o, [_noted(dict(g)) for g in o.param_groups]) for o in optimizers]

    def back() -> None:
        for o, state, had in states:
            now = _merged(had, dict(o.state))
            for key in had.keys() - now.keys():
                now[key] = had[key]  # a checkpoint from before the first step has no state of it
            state.clear()
            state.update(now)
            o.state = state
        for o, noted in groups:
            for group, before in zip(o.param_groups, noted, strict=False):
                for key in before.keys() & group.keys() - {"params"}:
                    group[key] = _merged(before[key], group[key])

    return back


def _noted(tree: Any) -> Any:
    """The tree's own dicts and lists, with the tensors that are in there now."""
    if isinstance(tree, dict):
        return {k: _noted(v) for k, v in tree.items()}
    return [_noted(v) for v in tree] if type(tree) is list else tree


def _merged(had: Any, now: Any) -> Any:
    """What is there now, but for tensors that were there before: they take the values."""
    if isinstance(now, torch.Tensor) and isinstance(had, torch.Tensor) and had.shape == now.shape:
        if had is not now:
            with torch.no_grad():
                had.copy_(now)
        return had
    if isinstance(now, dict) and isinstance(had, dict):
        return {k: _merged(had.get(k), v) for k, v in now.items()}
    if type(now) is list and type(had) is list and len(now) == len(had):
        return [_merged(a, b) for a, b in zip(had, now, strict=True)]
    return now
