"""Optimizers and schedulers that a program makes, or takes up, once it has a session.

A scheduler is heard of when it is made, and named when it has counted on: until then it has nothing that a restart would lack. An optimizer is heard of when it is stepped.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import lr_scheduler, optimizer

from .._core import draws
from .objects import Objects
from .optimizers import part

__all__ = ["Later", "deaf", "listen", "made"]

#: The classes of schedulers whose making is heard of. The others of torch's have that of the first one called.
KINDS = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau, lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)

_made: list[weakref.ref[Any]] = []
_stepped: weakref.WeakSet[Any] = weakref.WeakSet()  #: not judged yet
_judged: weakref.WeakSet[Any] = weakref.WeakSet()
_undo: list[Callable[[], None]] = []


def listen() -> None:
    """From now on it is heard what is made and stepped in this process."""
    deaf()
    for kind in KINDS:
        _wrap(kind)
    handle = optimizer.register_optimizer_step_post_hook(_on_step)
    _undo.append(handle.remove)


def deaf() -> None:
    """Nothing is heard any more, and torch is as it was."""
    while _undo:
        _undo.pop()()
    _made.clear()
    _stepped.clear()
    _judged.clear()


def made() -> list[Any]:
    """The schedulers that were made, and have not counted on."""
    return [s for r in _made if (s := r()) is not None]


def _wrap(kind: Any) -> None:
    makes = vars(kind)["__init__"]

    @functools.wraps(makes)
    def heard(self: Any, *args: Any, **more: Any) -> None:
        makes(self, *args, **more)
        if not any(r() is self for r in _made):
            _made.append(weakref.ref(self))

    def back() -> None:
        if vars(kind).get("__init__") is heard:
            kind.__init__ = makes

    kind.__init__ = heard
    _undo.append(back)


def _on_step(o: Any, *_: Any) -> None:
    if not torch.compiler.is_compiling() and o not in _judged:
        _stepped.add(o)


class Later:
    """Looks whether what was heard of is a session's."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def look(self) -> Iterator[tuple[str, str]]:
        """A step has ended: what has state that no copy has, by name, with what to do about it."""
        if _made:
            yield from self._schedulers()
        if _stepped:
            yield from self._optimizers()

    def _schedulers(self) -> Iterator[tuple[str, str]]:
        known: set[int] | None = None
        inner = {id(x) for r in _made for x in getattr(r(), "_schedulers", ())} if len(_made) > 1 else set()
        for r in list(_made):
            if (s := r()) is None:
                _made.remove(r)
            elif _counts(s):
                _made.remove(r)
                if known is None:
                    known = self._within((*self._objects.schedulers.values(), *self._objects.extra.values()))
                name = next((k for k, o in self._objects.optimizers.items() if s.optimizer.param_groups is o.param_groups), "")
                if name and id(s) not in known and id(s) not in inner:
                    yield (
                        f"{name}, {type(s).__name__}",
                        f"a {type(s).__name__} of {name} was made after the session and is in no copy: a restart begins its count anew. Make it before the session and give it "
                        "with the others: scheduler=[first, second]; which of them is stepped may change later",
                    )

    def _optimizers(self) -> Iterator[tuple[str, str]]:
        objects = self._objects
        own = {id(x) for o in objects.optimizers.values() for x in (o, part(o))}
        for o in [o for o in _stepped if id(o) in own or not any(o.state.values())]:  # one without state keeps nothing, so far
            _stepped.discard(o)
            if id(o) in own:
                _judged.add(o)
        if not (stepped := list(_stepped)):
            return
        inner = self._within((*objects.optimizers.values(), *objects.extra.values()))
        trained = objects.names.keys() | {id(p) for o in objects.optimizers.values() for g in o.param_groups for p in g["params"]}
        for o in stepped:
            _stepped.discard(o)
            _judged.add(o)
            kind = type(o).__name__
            if not (id(o) in inner or not own.isdisjoint(self._within((o,))) or trained.isdisjoint(id(p) for g in o.param_groups for p in g["params"])):
                yield (
                    f"optimizer, {kind}",
                    f"a {kind} that is not registered steps what this session trains: its state is in no copy, and a restart begins it anew. Make it before the session and give "
                    'both: optimizer={"first": ..., "second": ...}; which of them is stepped may change later',
                )

    @staticmethod
    def _within(given: tuple[Any, ...]) -> set[int]:
        return {id(x) for o in given for _, x in draws.within(o, "", of_program=False)}


def _counts(s: Any) -> bool:
    """Whether it was stepped since it was made."""
    if isinstance(s, lr_scheduler.ChainedScheduler):
        return any(map(_counts, vars(s)["_schedulers"]))
    return bool(s.last_epoch > 0)
