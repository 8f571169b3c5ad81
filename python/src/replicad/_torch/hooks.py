"""A session's hooks on the program's objects, which stay with these objects alone."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Hook"]


class _Silent:
    """What a copy has in the place of a hook. One that was pickled loads without this package; torch 2.6 breaks a graph at that one, at this one it does not."""

    def __call__(self, *args: Any) -> Any:
        """Nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Silent:
        return _Silent()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments


class Hook(_Silent):
    """Calls a session's method while there is the session, and not while torch traces a graph. The copy of an object that has it, pickled or not, has one instead that
    does nothing: a session hears of its own objects, can't be copied, and need not be where the copy is loaded."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> Any:
        """What torch calls, with the module or optimizer first. What the method returns takes the place of the arguments, where torch has it so."""
        if not torch.compiler.is_compiling() and (method := self._method()) is not None:
            return method(*args)
        return None
