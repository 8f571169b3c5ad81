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
_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hooks() -> Callable[[], None]:
    """Notes the hooks of all modules and their parameters. The result takes off the parameters what came since, as HyperPod does with all hooks of tensors.
    What came to modules it names in a warning: a library may have registered it that does so once for the life of a module."""
    if "torch" not in sys.modules:
        return lambda: None
    before: dict[int, tuple[weakref.ref[Any], dict[str, set[int]]]] = {}
    for module in _modules():
        for owner, kinds in ((module, _OF_MODULES), *((p, _OF_PARAMETERS) for p in module.parameters(recurse=False))):
            before[id(owner)] = weakref.ref(owner), {kind: set(getattr(owner, kind) or ()) for kind in kinds}
    named: set[str] = set()

    def new(owner: Any, kinds: tuple[str, ...]) -> Iterator[tuple[dict[int, Any], int]]:
        """Where hooks of an object that was noted came since, and their numbers."""
        ref, noted = before.get(id(owner), (None, {}))
        if ref is None or ref() is not owner:
            return  # made by the block
        for kind in kinds:
            held = getattr(owner, kind) or {}
            for number in [n for n in held if n not in noted[kind]]:
                yield held, number

    def back() -> None:
        for module in _modules():
            for p in module.parameters(recurse=False):
                for held, number in new(p, _OF_PARAMETERS):
                    del held[number]
            for held, number in new(module, _OF_MODULES):
                hook = held[number]
                what = f"{getattr(hook, '__qualname__', type(hook).__qualname__)} on {type(module).__name__}"
                if what in named or (getattr(hook, "__module__", None) or "").partition(".")[0] in ("torch", "replicad"):
                    continue
                named.add(what)
                log.warning(
                    "replicad: the block registered a hook on a module that was made outside of it (%s), and its next run will register it once more: "
                    "register it outside, or take it off before the block ends (handle.remove() in a `finally`)",
                    what,
                )

    return back


def _modules() -> Iterator[Any]:
    return live(sys.modules["torch"].nn.Module)
