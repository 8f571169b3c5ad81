"""Hooks that a block registers on what was made outside of it: its next run registers them again, and each would work twice."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .parts import live

__all__ = ["hooks"]

log = logging.getLogger("replicad.inprocess")

_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hooks() -> Callable[[], None]:
    """Notes the hooks of all modules, their parameters, and optimizers. The result takes off the parameters what came since, as HyperPod does with all hooks of
    tensors. What came to modules and optimizers it names in one warning: a library may have registered it that does so once for the life of a module."""
    if "torch" not in sys.modules:
        return lambda: None
    before: dict[int, tuple[weakref.ref[Any], dict[str, set[int]]]] = {}
    for owner, kinds in _owners():
        before[id(owner)] = weakref.ref(owner), {kind: set(getattr(owner, kind) or ()) for kind in kinds}
    named: set[str] = set()

    def back() -> None:
        came: list[str] = []
        for owner, kinds in _owners():
            ref, noted = before.get(id(owner), (None, {}))
            if ref is None or ref() is not owner:
                continue  # made by the block
            new = [(held, n) for kind in kinds for held in (getattr(owner, kind) or {},) for n in held if n not in noted[kind]]
            for held, number in new:
                if kinds is _OF_PARAMETERS:
                    del held[number]
                    continue
                hook = held[number]
                what = f"{getattr(hook, '__qualname__', type(hook).__qualname__)} on {type(owner).__name__}"
                if what in named or (getattr(hook, "__module__", None) or "").partition(".")[0] in ("torch", "replicad"):
                    continue
                named.add(what)
                came.append(what)
        if came:
            log.warning(
                "replicad: the block registered hooks on what was made outside of it (%s), and its next run will register them once more: "
                "register them outside, or take them off before the block ends (handle.remove() in a `finally`)",
                ", ".join(came),
            )

    return back


def _owners() -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every module, parameter and optimizer, with what its hooks are kept in. A module whose ``__init__`` broke off may still be about, without any."""
    for module in live(sys.modules["torch"].nn.Module):
        if "_parameters" in vars(module):
            yield module, _OF_MODULES
            yield from ((p, _OF_PARAMETERS) for p in module.parameters(recurse=False))
    yield from ((o, _OF_OPTIMIZERS) for o in live(sys.modules["torch"].optim.Optimizer) if vars(o).keys() >= set(_OF_OPTIMIZERS))
