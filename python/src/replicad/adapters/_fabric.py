"""A session under a loop of Lightning Fabric. The loop is the program's: ``optimizer.step()`` is a step, and a loader that Fabric has set up knows its place."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.fabric.wrappers import _FabricDataLoader, _FabricModule, _FabricOptimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from .. import rng
from .._torch.workers import Workers
from ..alone import launched
from ..errors import Invalid, Mismatch, Unsupported
from ..session import Session
from ._indices import Indices
from ._loop import OneStep

__all__ = ["keep"]


def keep(fabric: Fabric, *objects: Any, extra: Mapping[str, Any] | None = None, **options: Any) -> Session:
    """A session of what ``fabric.setup()`` and ``fabric.setup_dataloaders()`` have returned, and of schedulers: ``keep(fabric, model, optimizer, loader, scheduler)``, after
    ``fabric.launch()``. ``optimizer.step()`` is a step of it, or a part of the block that the program has open. ``loader.epoch`` says in which epoch a loop goes on.
    ``options`` are those of :class:`replicad.Session`. :class:`replicad.Invalid` for what was not set up, :class:`replicad.Unsupported` for what can't be kept."""
    if not isinstance(fabric.strategy, (SingleDeviceStrategy, DDPStrategy, ModelParallelStrategy)):
        raise Unsupported(f"keep: {type(fabric.strategy).__name__} is not supported: use DDPStrategy() or ModelParallelStrategy()")
    given: dict[str, Any] = {"model": [], "optimizer": [], "scheduler": [], "data": []}
    loaders = sum(isinstance(o, _FabricDataLoader) for o in objects)
    for o in objects:
        kind, kept = _sorted(o, "data" if loaders == 1 else f"data.{len(given['data'])}", launched() and options.get("enabled") is not False)
        given[kind].append(kept)
    scaler = getattr(fabric._precision, "scaler", None)
    session = Session(**given, scaler=() if scaler is None else scaler, extra=extra, **options)
    one = OneStep(given["data"])
    for o in objects:
        if isinstance(o, _FabricOptimizer):
            o.step = functools.partial(_step, session, one, o, o.step)
    return session


def _sorted(o: Any, name: str, watched: bool) -> tuple[str, Any]:
    """Which argument of a session it is, and what is kept of it; a loader has this ``name`` there, and is ``watched`` for what its workers change."""
    if isinstance(o, _FabricModule):
        return "model", o.module
    if isinstance(o, _FabricOptimizer):
        return "optimizer", o.optimizer
    if isinstance(o, _FabricDataLoader):
        return "data", Place(o, name, watched)
    if isinstance(o, DataLoader) or hasattr(o, "param_groups") or hasattr(o, "named_parameters"):
        raise Invalid(f"keep: {type(o).__name__} is not what fabric.setup() or fabric.setup_dataloaders() returned: call those first, and give their results here")
    return ("data" if hasattr(o, "__iter__") else "scheduler"), o


def _step(session: Session, one: OneStep, optimizer: _FabricOptimizer, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if session.life.inside is not None:
        return step(*args, **kwargs)
    one.begins(optimizer)
    with session.step():
        return step(*args, **kwargs)


class Place:
    """Where a loop is in a loader of Fabric's. It takes the place of the loader inside of that, and tells when a batch is asked for."""

    room = 64 << 10  #: the generators that shuffle an epoch

    def __init__(self, loader: Any, name: str, watched: bool) -> None:
        if isinstance(loader._dataloader, Place):
            raise Invalid("keep: this loader is kept already: give each to one session")
        self._fabrics, self._loader = loader, loader._dataloader
        self._indices = Indices(self._loader)
        self._workers = [Workers(self._loader, name)] if watched and self._loader.num_workers else []
        self._hooks: OrderedDict[int, Any] = OrderedDict()
        self._used, self._life, self._goes_on = 0, 0, False
        loader.epoch, loader.numbered = 0, self.numbered
        loader._dataloader = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._life += 1
        life = self._life
        self._tell()
        now, goes_on, self._goes_on = rng.get(), self._goes_on, False
        batches = iter(self._loader)
        if goes_on:  # what torch's loader draws when it begins was drawn already
            rng.set(now)
        while self._life == life:
            if (batch := next(batches, self)) is self:
                return
            self._used += 1
            if self._used == len(self):
                self._used, self._fabrics.epoch = 0, self._fabrics.epoch + 1
            yield batch
            if self._used:
                self._tell()

    def workers(self) -> list[Workers]:
        """That make the batches."""
        return self._workers

    @property
    def epoch(self) -> int:
        """The epoch that the loop is in."""
        return int(self._fabrics.epoch)

    @property
    def used(self) -> int:
        """How many batches of it the loop was given."""
        return self._used

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """The rest of the epoch, each batch with its number in the epoch."""
        yield from enumerate(self._fabrics, self._used if self._goes_on else 0)

    def before_a_batch(self, hook: Any) -> RemovableHandle:
        """As of replicad.data.Loader."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def _tell(self) -> None:
        for hook in list(self._hooks.values()):
            hook(self)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._fabrics.epoch, "used": self._used, "indices": self._indices.state(self._used) if self._used else None, "batches": len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["batches"] != len(self):
            raise Mismatch(f"the copy is of a DataLoader with {state['batches']} batches, this one has {len(self)}: give it the same dataset, batch size and number of ranks")
        self._life += 1
        self._used, self._goes_on = state["used"], state["used"] > 0
        self._fabrics.epoch = self._fabrics._num_iter_calls = state["epoch"]  # which Fabric gives to samplers
        if state["indices"]:
            self._indices.set_state(state["indices"])
