"""What batches change in the worker processes of a stock ``DataLoader``: generators that they draw from, numbers that they count.

The training process sees none of it, and a worker that begins in the middle of an epoch begins it anew. So each worker looks at what makes its batches, behind the first few
and then now and then, and tells the training process what has moved. What it tells is named; a loader whose batches leave nothing behind is not.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

from .._core import draws
from . import values
from .implicit import Implicit
from .slots import Drawn, Slot

__all__ = ["Workers", "told", "unwrapped"]

#: A worker looks behind so many batches, and each so many.
LOOKS, ROUND = frozenset((1, 2, 3, 4, 8, 16, 64)), 256
#: So many names does a worker tell, of so many bytes: what goes through a pipe at once is never mixed with another's.
MOST, NAME = 64, 400


class Workers:
    """Of one loader. ``roots`` has the names of its ``dataset``, ``collate_fn`` and ``worker_init_fn``, as programs write them, and of the loader itself."""

    def __init__(self, loader: Any, name: str, **roots: str) -> None:
        self.n = int(loader.num_workers)
        self._loader, self._name = loader, name
        given = getattr(loader, "multiprocessing_context", None)
        context = multiprocessing.get_context(given) if given is None or isinstance(given, str) else given
        told, tell = context.Pipe(duplex=False)
        self._told: Any = told
        os.set_blocking(tell.fileno(), False)  # a batch must never wait for who reads this
        names = {key: roots.get(key, f"{name}.{key}") for key in ("dataset", "collate_fn", "worker_init_fn")}
        self._was = loader.collate_fn, loader.worker_init_fn
        self._now = _Collates(loader.collate_fn, names["collate_fn"], tell), _Begins(loader.worker_init_fn, names)
        loader.collate_fn, loader.worker_init_fn = self._now

    def taken_out(self) -> None:
        """The loader has what it had."""
        self._loader.collate_fn, self._loader.worker_init_fn = self._was

    def said(self) -> Iterator[tuple[str, str]]:
        """What workers have told since it was asked last: the name, and what to do about it."""
        while self._told.poll():
            kind, _, name = self._told.recv_bytes().decode(errors="replace").partition(" ")
            begins = "a worker that begins in the middle of an epoch, as after a restart, begins it anew, and so does what follows from it. Have it follow from the sample's number"
            if kind == "process":
                name = f"{self._name}.workers.{name}"
                yield (
                    name,
                    (
                        f"{name}: batches draw from {name.rpartition('.')[2]}'s own generator in the {self.n} worker processes of {self._name}: {begins}, or make batches in the "
                        "training process (num_workers=0), where it is kept"
                    ),
                )
            else:
                done = "is drawn from" if kind == "drawn" else "is counted"
                yield name, f"{name} {done} in worker processes: {begins}, or make batches in the training process (num_workers=0), where it is kept"


def told(objects: Any) -> Iterator[tuple[str, str]]:
    """What the workers of all loaders have told since the last step: of what a session was given that has a method ``workers``."""
    for o in (*objects.data.values(), *objects.extra.values()):
        inner = getattr(o, "obj", o)
        if getattr(type(inner), "workers", None) is not None:
            for of in inner.workers():
                yield from of.said()


def unwrapped(f: Any) -> Any:
    """A loader's function, without what is put around it here."""
    return f.inner if isinstance(f, (_Collates, _Begins)) else f


class _Holders:
    """In a worker: what may carry something, in the place of a session's objects."""

    keep_rng = True

    def __init__(self, **of: Any) -> None:
        self.models: dict[str, Any] = {}
        self.optimizers: dict[str, Any] = {}
        self.schedulers: dict[str, Any] = {}
        self.scalers: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.leaves: list[Any] = []
        self.extra = {"workers": self}
        self._held = of

    def holders(self) -> dict[str, Any]:
        """By name."""
        return self._held


class _Looks:
    """At some objects, in a worker."""

    def __init__(self, **of: Any) -> None:
        self._objects = _Holders(**of)
        self._implicit = Implicit(self._objects)
        self._last: dict[str, Any] = {}
        self._moved = set[str]()

    def look(self) -> Iterator[tuple[str, str]]:
        """What has moved since: a generator that was there, at once; a number, or what was made meanwhile, if it moves twice."""
        for name, slot in self._implicit.slots.items():
            if isinstance(slot, Drawn):
                if slot.moved():
                    yield "drawn", name
            elif isinstance(slot, Slot):
                now = slot.held.get(slot.key)
                generator = values.kept(now) and not values.plain(now) and _generator(now)
                if not (generator or values.shared(now) or type(now) in (int, float)):
                    continue
                printed = values.printed(now)
                if name in self._last and self._last[name] != printed:
                    if name in self._moved or generator:
                        yield ("drawn" if generator else "counted"), name
                    self._moved.add(name)
                self._last[name] = printed


def _generator(v: Any) -> bool:
    return draws.found(v)


class _Begins:
    """In the place of a loader's ``worker_init_fn``."""

    def __init__(self, inner: Callable[[int], Any] | None, names: dict[str, str]) -> None:
        self.inner, self._names = inner, names

    def __call__(self, worker: int) -> None:
        if self.inner is not None:
            self.inner(worker)
        info = get_worker_info()
        of = {self._names["dataset"]: getattr(info, "dataset", None), self._names["worker_init_fn"]: self.inner}
        _here.begins({name: o for name, o in of.items() if o is not None})


class _Collates:
    """In the place of a loader's ``collate_fn``."""

    def __init__(self, inner: Callable[[Any], Any], name: str, tell: Any) -> None:
        self.inner, self._name, self._tell = inner, name, tell

    def __call__(self, batch: Any) -> Any:
        if get_worker_info() is None:
            return self.inner(batch)
        _here.collates(self._name, self.inner)
        out = self.inner(batch)
        _here.looks(self._tell)
        return out


class _Here:
    """Of this worker process."""

    def __init__(self) -> None:
        self._of: list[_Looks] = []
        self._drawn: dict[str, Any] = {}
        self._batches, self._collate, self._said = 0, "", set[tuple[str, str]]()

    def begins(self, of: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # it may be a fork of a worker
        self._of, self._drawn = [_Looks(**of)], _process()

    def collates(self, name: str, f: Any) -> None:
        """Before it makes a batch."""
        if not self._collate:
            self._collate = name
            self._of.append(_Looks(**{name: f}))

    def looks(self, tell: Any) -> None:
        self._batches += 1
        if self._batches not in LOOKS and self._batches % ROUND:
            return
        found = [x for of in self._of for x in of.look()]
        found += [("process", name) for name, state in _process().items() if self._drawn.get(name, state) != state]
        for x in found:
            if x not in self._said and len(self._said) < MOST:
                try:
                    tell.send_bytes(" ".join(x).encode()[:NAME])
                except (BlockingIOError, BrokenPipeError):  # it is full, or nobody reads any more: told at another look
                    return
                self._said.add(x)


_here = _Here()


def _process() -> dict[str, Any]:
    """The generators of the process."""
    out: dict[str, Any] = {"random": random.getstate(), "torch": torch.default_generator.get_state().numpy().tobytes()}
    if np := sys.modules.get("numpy"):
        out["numpy"] = repr(np.random.get_state(legacy=False))
    return out
