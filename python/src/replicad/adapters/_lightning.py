"""What Lightning has beside weights and optimizers: where its loops are, what its callbacks have counted, and what was logged of an epoch that is not over."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle
from torchmetrics import Metric

from .._torch import loaders
from .._torch.workers import Workers, unwrapped
from ..errors import Mismatch, Unsupported
from ._indices import Indices, stream

__all__ = ["Callbacks", "Feed", "Metrics", "Place", "loops", "unkept"]

log = logging.getLogger("replicad")

#: How Lightning uses up one of several loaders, as a function of the number of batches of the epoch and of the loader's.
USED: dict[str, Callable[[int, int], int]] = {"max_size_cycle": lambda n, of: n if n <= of else (n - 1) % of + 1, "min_size": min, "max_size": min}


#: What ModelCheckpoint's own state leaves out, and what it saves next depends on.
SAVES = ("current_score", "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


#: The last values that were logged, as Lightning's connector has them.
LAST = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class On:
    """Something that is kept of the trainer that fits now: another one, where a block is run again."""

    trainer: Trainer


class Place(On):
    """Where the loops are. What was loaded is given to them by :meth:`put`, when they are about to run."""

    def __init__(self) -> None:
        self.began = False  # a step
        self.ended = False  # the last one is over, and so is what followed it
        self.loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        t = self.trainer
        return {
            "began": self.began,
            "ended": self.ended,
            "time": time.time(),
            "progress": {path: p.state_dict() for path, p in _progress(t)},
            "stepped": t.fit_loop.epoch_loop._batches_that_stepped,
            "stop": t.should_stop,
            "accumulate": t.accumulate_grad_batches,
            "reloaded": [t.fit_loop._last_train_dl_reload_epoch, t.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch],
            "validated": list(t.fit_loop.epoch_loop.val_loop._seen_batches_per_dataloader.items()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loaded = dict(state)

    def put(self) -> None:
        """Has the loops be where they were."""
        t, state = self.trainer, self.loaded
        self.began, self.ended = state["began"], state["ended"]
        for path, p in _progress(t):
            p.load_state_dict(deepcopy(state["progress"][path]))
        epochs = t.fit_loop.epoch_loop
        epochs._batches_that_stepped = state["stepped"]
        t.should_stop, t.accumulate_grad_batches = state["stop"], state["accumulate"]

    def put_reloaded(self) -> None:
        """When loaders were asked for last; a process that begins asks for them at another time."""
        fit, state = self.trainer.fit_loop, self.loaded
        fit._last_train_dl_reload_epoch, fit.epoch_loop.val_loop._last_val_dl_reload_epoch = state["reloaded"]
        fit.epoch_loop.val_loop._seen_batches_per_dataloader.update(dict(state["validated"]))


class Feed(On):
    """The loaders that the trainer reads, and the session's word of when the next batch is asked for."""

    room = 64 << 10  #: generators of the iteration, and a loader's own state

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, Any] = OrderedDict()
        self._loaders: list[Any] = []
        self._workers: list[Workers] = []
        self._loaded: list[Any] | None = None
        self.place: Place

    def before_a_batch(self, hook: Any) -> RemovableHandle:
        """As of replicad.data.Loader."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def tell(self) -> None:
        """A batch is asked for."""
        for hook in list(self._hooks.values()):
            hook(self)

    def workers(self) -> list[Workers]:
        """That make the batches."""
        return self._workers

    def bind(self, watched: bool) -> None:
        """The trainer has its loaders, and is about to iterate them. ``watched`` is whether workers tell what they change."""
        self.unbind()
        combined = self.trainer.fit_loop._combined_loader
        assert combined is not None
        self._mode = combined._mode
        self._loaders = [_kept(o) for o in combined.flattened]
        named = [(f"train_dataloader{i or ''}", o) for i, o in enumerate(combined.flattened)]
        self._workers = [Workers(o, name) for name, o in named if watched and isinstance(o, DataLoader) and o.num_workers and not _stateful(o)]
        if self._loaded is not None:
            if len(self._loaded) != len(self._loaders):
                raise Mismatch(f"the copy is of {len(self._loaded)} loaders, and the Trainer has {len(self._loaders)}: give it the same")
            for o, state in zip(self._loaders, self._loaded, strict=True):
                o.set_state(state) if isinstance(o, Indices) else loaders.set_state(o, state)
            self._loaded = None

    def unbind(self) -> None:
        """The user's loaders are as they were."""
        for o in self._loaders:
            if isinstance(o, Indices):
                o.taken_out()
        for of in self._workers:
            of.taken_out()
        self._loaders, self._workers = [], []

    def state_dict(self) -> dict[str, Any]:
        if self.place.ended or not self.place.began:
            return {"loaders": None}
        n = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return {"loaders": [o.state(USED[self._mode](n, len(o))) if isinstance(o, Indices) else loaders.state(o) for o in self._loaders]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state["loaders"]


def unkept(loader: Any) -> str:
    """Why its place can't be kept, with what to do instead; empty where it can."""
    if _stateful(loader):
        return ""
    if isinstance(loader, DataLoader):
        return stream(loader)
    return f"a {type(loader).__name__} as a training loader has no place that a restart could go to: give a torch DataLoader, or one with state_dict and load_state_dict"


def _stateful(loader: Any) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _kept(loader: Any) -> Any:
    """What tells the place of a loader."""
    if refused := unkept(loader):
        raise Unsupported(f"Keep: {refused}")
    if isinstance(loader, DataLoader) and not (_stateful(loader) and (stream(loader) or hasattr(loader.dataset, "state_dict"))):
        return Indices(loader)  # a stateful one, too: the sampler that Lightning puts into it has no state
    if loaders.ours(loader):
        loader.asked = True
    return loader


class Callbacks(On):
    """The state of the trainer's callbacks, as Lightning's checkpoints have it."""

    def __init__(self, but: Any) -> None:
        self._but = but

    def _all(self) -> Iterator[Any]:
        return (c for c in self.trainer.callbacks if c is not self._but)

    def holders(self) -> dict[str, Any]:
        """What may carry something from step to step in its attributes: callbacks that say nothing, and what makes the samples."""
        out: dict[str, Any] = {}
        for c in self._all():
            if not any("state_dict" in vars(k) for k in type(c).__mro__ if not k.__module__.startswith("lightning.")):
                name = type(c).__name__
                out[name if name not in out else f"{name}.{sum(n.partition('.')[0] == name for n in out) + 1}"] = c
        if (datamodule := self.trainer.datamodule) is not None:
            out["datamodule"] = datamodule
        combined = self.trainer.fit_loop._combined_loader
        given = [] if combined is None else combined.flattened
        for i, loader in enumerate(given):
            if isinstance(loader, DataLoader) and not _stateful(loader.dataset):
                name = f"train_dataloader{i or ''}"
                out |= {f"{name}.dataset": loader.dataset, f"{name}.collate_fn": unwrapped(loader.collate_fn)}
        return out

    def state_dict(self) -> dict[str, Any]:
        states = {c.state_key: state for c in self._all() if (state := c.state_dict())}
        return {"states": states, "saves": {c.state_key: {n: getattr(c, n) for n in SAVES} for c in self._all() if isinstance(c, ModelCheckpoint)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for c in self._all():
            if (own := state["states"].get(c.state_key)) is not None:
                c.load_state_dict(deepcopy(own))
            for name, value in state["saves"].get(c.state_key, {}).items():
                setattr(c, name, value)


class Metrics(On):
    """What was logged of the epoch that is not over, what callbacks and schedulers see of the last values, and the states of torchmetrics."""

    def __init__(self) -> None:
        self._loaded: Mapping[str, Any] | None = None

    def keeps(self, obj: Any) -> bool:
        """Whether all of an object is kept here."""
        return isinstance(obj, Metric)

    def state_dict(self) -> dict[str, Any]:
        t = self.trainer
        connector = t._logger_connector
        return {
            "first": connector._first_loop_iter,
            "last": [dict(connector._callback_metrics), dict(connector._logged_metrics), dict(connector._progress_bar_metrics)],
            "results": [r for key, m in t.fit_loop.epoch_loop._results.items() if (r := _result(key, m)) is not None],
            "metrics": {name: _metric(m) for name, m in _metrics(t)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state

    def last(self) -> dict[str, Any]:
        """What callbacks and schedulers see, when a fit is over."""
        connector = self.trainer._logger_connector
        return {name: dict(getattr(connector, name)) for name in LAST}

    def put_last(self, state: Mapping[str, Any]) -> None:
        """The inverse."""
        for name in LAST:
            setattr(self.trainer._logger_connector, name, dict(state[name]))

    def put(self) -> None:
        """Has them be as they were."""
        state, t = self._loaded, self.trainer
        assert state is not None
        connector, results = t._logger_connector, t.fit_loop.epoch_loop._results
        connector._first_loop_iter = state["first"]
        connector._callback_metrics, connector._logged_metrics, connector._progress_bar_metrics = map(dict, state["last"])
        for name, m in _metrics(t):
            _set_metric(m, state["metrics"][name])
        results.clear()
        for r in state["results"]:
            results[r["key"]] = _made(r, t)


def loops(loop: Any) -> Iterator[_Loop]:
    """A loop and those in it."""
    yield loop
    for inner in vars(loop).values():
        if isinstance(inner, _Loop):
            yield from loops(inner)


def _progress(trainer: Trainer) -> Iterator[tuple[str, _BaseProgress]]:
    for loop in loops(trainer.fit_loop):
        yield from ((f"{type(loop).__name__}.{name}", p) for name, p in vars(loop).items() if isinstance(p, _BaseProgress))


def _metrics(trainer: Trainer) -> Iterator[tuple[str, Metric]]:
    return ((name, m) for name, m in trainer.lightning_module.named_modules() if isinstance(m, Metric))


def _metric(m: Metric) -> dict[str, Any]:
    return {"updates": m._update_count, "values": {name: getattr(m, name) for name in m._defaults}}


def _set_metric(m: Metric, state: Mapping[str, Any]) -> None:
    m._update_count, m._computed = state["updates"], None
    for name, value in state["values"].items():
        setattr(m, name, [v.to(m.device) for v in value] if isinstance(value, list) else value.to(m.device))


#: What Lightning's own description of a logged value has in plain values.
META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "dataloader_idx", "metric_attribute")


def _result(key: str, m: _ResultMetric) -> dict[str, Any] | None:
    sync = m.meta.sync
    if sync.group is not None:
        log.warning("replicad: %s is logged with sync_dist_group=, which is in no copy: after a restart its mean over the epoch lacks what came before: leave it out", key)
        return None
    return {
        "key": key,
        "meta": {name: getattr(m.meta, name) for name in META},
        "reduce": m.meta.reduce_fx.__name__,
        "sync": [sync.should, sync.rank_zero_only],
        "reset": m.has_reset,
        "values": _metric(m) if m.is_tensor else None,
        "cache": m._forward_cache,
    }


def _made(r: Mapping[str, Any], trainer: Trainer) -> _ResultMetric:
    meta = _Metadata(**r["meta"], reduce_fx=getattr(torch, r["reduce"]))
    should, rank_zero_only = r["sync"]
    meta.sync = _Sync(_should=should, fn=trainer.strategy.reduce, rank_zero_only=rank_zero_only)
    m = _ResultMetric(meta, r["values"] is not None)
    if r["values"] is not None:
        _set_metric(m, r["values"])
    else:
        m.value = trainer.lightning_module.get_submodule(r["meta"]["metric_attribute"])
    m.has_reset, m._forward_cache = r["reset"], r["cache"]
    return m
