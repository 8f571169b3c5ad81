"""Ordered lists of things to do between two runs of a block: all are done, whatever some of them raise."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .._core import preloading
from .watchdog import Watchdog

log = logging.getLogger("replicad.inprocess")

__all__ = ["Part", "accelerator", "captured", "freeze", "given", "live", "run_all"]


class Part(Protocol):
    """One thing to do. It may be called any number of times, also where there is nothing to do.

    A part of ``abort`` may have a method ``begin`` besides: what frees a training thread that is blocked, called in the place of the part
    on another thread while that one is still blocked. It must not wait for what the part waits for."""

    def __call__(self) -> None:
        """Does it, or nothing where there is nothing to do."""


def name(part: Callable[[], None]) -> str:
    """What a part is called in logs and traces."""
    of = part.__self__ if inspect.ismethod(part) else part
    return getattr(of, "__name__", None) or type(of).__name__


def given(call: Any, parts: Iterable[Any]) -> list[Part]:
    """The parts, those that take an argument with the call in its place."""
    return [_given(part, call) for part in parts]


def _given(part: Any, call: Any) -> Any:
    if not _takes(part):
        return part
    bound: Any = functools.partial(part, call)
    bound.__name__ = name(part)
    if (begin := getattr(part, "begin", None)) is not None:
        bound.begin = _given(begin, call)
    return bound


def _takes(part: Any) -> bool:
    """Whether it can't be called without an argument."""
    try:
        parameters = inspect.signature(part).parameters.values()
    except (TypeError, ValueError):
        return False  # of some that are written in C nothing is known
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def run_all(kind: str, parts: Iterable[Part], watchdog: Watchdog, trace: Callable[..., None]) -> list[tuple[str, BaseException]]:
    """Runs every part of a kind (abort, finalize, health) in order, each within the watchdog's deadline, and returns what they raised, by name.
    None keeps the others from running, whatever it raises: :class:`replicad.Fenced` and ``CancelledError`` are no ``Exception``."""
    errors: list[tuple[str, BaseException]] = []
    for part in parts:
        began, what, more = time.monotonic(), name(part), {}
        try:
            with watchdog.during(f"{kind} part {what}"):
                part()
        except BaseException as err:
            more["error"] = f"{type(err).__name__}: {err}"
            log.warning("replicad: %s part %s: %s (the other parts run all the same)", kind, what, more["error"])
            errors.append((what, err))
        trace(kind, part=what, seconds=time.monotonic() - began, **more)
    return errors


#: Objects that were frozen and that parts may look for: modules, optimizers, data loaders and their iterators.
_frozen: list[weakref.ref[Any]] = []


def live(kind: type) -> Iterator[Any]:
    """Every live object of a class that the garbage collector follows; of those that :func:`freeze` took out of its sight, modules, optimizers,
    data loaders and their iterators. It asks the type, not the object: an object's ``__class__`` may be a property that warns, raises or does work. An
    abstract class would remember every type that it was asked for."""
    frozen = [obj for ref in _frozen if (obj := ref()) is not None]
    for obj in [*frozen, *preloading.objects()]:
        if kind in type(obj).__mro__:
            yield obj


def accelerator() -> Any:
    """What asks a device (:mod:`replicad._torch.device`), if the process has begun to use one."""
    if "torch" not in sys.modules:
        return None
    from .._torch import device

    return device if device.ready() else None


#: Graphs of the device from before the block that is wrapped now, if one is.
_older: list[weakref.ref[Any]] | None = None


def captured() -> list[Any]:
    """The graphs that were captured since the block was wrapped: they may hold collectives of groups that were made in it."""
    if (device := accelerator()) is None or (kind := device.graphs()) is None:
        return []
    older = {id(graph) for ref in _older or () if (graph := ref()) is not None}
    return [graph for graph in live(kind) if id(graph) not in older]


_FROZEN = (
    "torch.nn.modules.module.Module",
    "torch.optim.optimizer.Optimizer",
    "torch.utils.data.dataloader.DataLoader",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
)


class _Wanted(dict[type, bool]):
    """Whether parts may look for objects of a type. Asked for each object that there is, so it asks each type once."""

    def __missing__(self, of: type) -> bool:
        names = {f"{c.__module__}.{c.__name__}" for c in of.__mro__}
        self[of] = not names.isdisjoint(_FROZEN)
        return self[of]


@contextmanager
def freeze() -> Iterator[None]:
    """What there is now is not looked through by the garbage collector until the end, which a restart would wait for. Nothing is collected before:
    others may wait for this process now."""
    with _noted_graphs(), _frozen_objects():
        yield


@contextmanager
def _noted_graphs() -> Iterator[None]:
    """Until the end it is known which graphs there are now."""
    global _older
    if _older is not None:  # a block in another one: the graphs of both may hold groups that the outer one made
        yield
        return
    _older = [weakref.ref(graph) for graph in captured()]
    try:
        yield
    finally:
        _older = None


@contextmanager
def _frozen_objects() -> Iterator[None]:
    if gc.get_freeze_count() > preloading.frozen:  # by the user, and so to remain
        yield
        return
    wanted = _Wanted()
    _frozen[:] = [weakref.ref(obj) for obj in gc.get_objects() if wanted[type(obj)]]
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen.clear()
