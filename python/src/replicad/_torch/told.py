"""Who wants to know when a session has resumed, and when an epoch was lost: progress bars, counters of loggers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

__all__ = ["Told"]

log = logging.getLogger("replicad")


class Told:
    """Calls them, on the training thread."""

    def __init__(self) -> None:
        self._resumed: OrderedDict[int, Callable[[Any], None]] = OrderedDict()
        self._lost: OrderedDict[int, Callable[[int], None]] = OrderedDict()
        self._open = False  # somebody was told of an epoch, and not of its end

    def on_resumed(self, fn: Callable[[Any], None]) -> RemovableHandle:
        """``fn`` is told of each epoch."""
        return _added(self._resumed, fn)

    def on_lost(self, fn: Callable[[int], None]) -> RemovableHandle:
        """``fn`` is told of the end of each."""
        return _added(self._lost, fn)

    def resumed(self, now: Any) -> None:
        """An epoch begins. What a hook raises is the program's to see: it is in ``resume()``, which it can call again."""
        self._open = True
        for fn in list(self._resumed.values()):
            fn(now)

    def lost(self, step: int) -> None:
        """The epoch is lost, if that is news. Between two epochs nobody can handle what a hook raises, and all ranks wait."""
        if not self._open:
            return
        self._open = False
        for fn in list(self._lost.values()):
            try:
                fn(step)
            except Exception as err:
                log.warning("replicad: a hook of on_lost failed after step %d: %s: %s (the others run all the same)", step, type(err).__name__, err)


def _added(hooks: OrderedDict[int, Any], fn: Any) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = fn
    return handle
