"""Lightning's Trainer: ``Trainer(..., callbacks=[replicad.lightning.Keep()])``.

A step begins when the gradients are clipped and ends behind ``optimizer.step()``. It is over when the loop asks for the next batch: schedulers, hooks, a validation and the end of
an epoch belong to it, and are done again with it where they were interrupted. A run that goes on begins where the loop asks for that batch. Lightning's own restart from a
checkpoint begins elsewhere, and leaves out what was interrupted. What this needs of the Trainer's insides is patched on the instance while it fits.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .. import moves, own, place, rng
from .._core import behind
from ..alone import launched
from ..errors import Invalid, SessionState, Unsupported
from ..session import Session
from . import _fits as fits
from ._loop import want

want("lightning", "2.6")

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.fit_loop import RestartStage
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn

from ._fabric import keep
from ._lightning import Callbacks, Feed, Metrics, On, Place, loops, unkept
from ._logs import Logs, opened_by

__all__ = ["Keep", "keep"]

log = logging.getLogger("replicad")


class Keep(Callback):  # type: ignore[misc]
    """Keeps what a Trainer fits; its session is ``keep.session``, once ``fit`` has one. A further ``fit`` of the program, with this or another one, takes it over.

    ``replace`` is that of :meth:`replicad.Session.resume`.
    ``longest`` is how many seconds a validation or a save may take, before a rank in it counts as one that hangs. ``metrics`` is how many bytes metrics of one epoch may take.
    ``extra`` and the other arguments are those of :class:`replicad.Session`. Where no launcher started the program, the Trainer trains as it did.
    :class:`replicad.Unsupported`, when ``fit`` begins, for what can't be kept, by name, with what to do instead.
    """

    def __init__(self, *, longest: float = 3600.0, metrics: int = 1 << 20, extra: Mapping[str, Any] | None = None, replace: Collection[str] = (), **session: Any) -> None:
        for name in ("model", "optimizer", "scheduler", "scaler", "data"):
            if name in session:
                raise Invalid(f"Keep({name}=...): the Trainer says which that is: leave it out")
        self.session: Session | None = None
        self._longest, self._most, self._extra, self._given = longest, metrics, dict(extra or {}), session
        self.passed: fits.Passed | None = None  #: of a fit that was over when this process began: it was gone through, and its module does not have its last weights
        self._logs = Logs()
        self._anew()
        self._module: LightningModule | None = None  # of the first run
        self._averages: list[Any] = []
        self._configured: tuple[Any, Any] = (), ()  # its optimizers and schedulers
        self._replace = replace
        self._open = False  # a step
        self._pauses = 0
        self._step = -1  # of the checkpoint that fit(ckpt_path=) has read
        self._goes_on = ""  # where the run that begins goes on: "", "batch" or "end"
        self._generators: Any = None  # as of the resume, until the first batch is asked for

    def _anew(self) -> None:
        """What is of one fit."""
        self._place, self._feed, self._metrics, self._callbacks, self._data = Place(), Feed(), Metrics(), Callbacks(self), _Datamodule()
        self._feed.place = self._place

    # -- Lightning's hooks ---------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses what can't be kept, and has the rest begin once all is set up."""
        if stage != TrainerFn.FITTING.value:
            return
        if refused := _refused(trainer) or next(filter(None, map(unkept, _given(trainer))), ""):
            raise Unsupported(f"Keep: {refused}")
        if self.session is not None and self.session.enabled and (self.session.life.left or (self.session.life.behind and not self._keeps)):
            raise SessionState("a fit after session.leave(), by which this job has ended: call it behind the last fit")
        if self.passed is not None or (self.session is not None and self.session.life.behind):
            self._anew()
        for of in (self._place, self._feed, self._metrics, self._callbacks, self._data, self._logs):
            of.trainer = trainer
        if self._again(pl_module):
            trainer.strategy.setup_optimizers = self._same_optimizers
        if self.session is not None and self.session.enabled and self.session.at >= 0 and not self.session.life.behind:  # it has a state of its own, which may be copied meanwhile
            trainer._checkpoint_connector._restore_modules_and_callbacks = self._not_again
        vars(trainer).pop("_run_stage", None)
        trainer._run_stage = functools.partial(self._fit, trainer, pl_module, trainer._run_stage)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A step that is open is torn by it."""
        if self.session is not None:
            self._open = False
            self.session.step_end(exception)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint on disk: the job's step."""
        return {} if self.session is None else {"step": self.session.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of such a checkpoint, from which a job counts on that has no other state."""
        self._step = state_dict["step"]

    # -- the run ---------------------------------------------------------------------------------------------------------------

    def _fit(self, trainer: Trainer, module: LightningModule, run: Callable[[], Any]) -> Any:
        """In the place of Trainer._run_stage: everything is set up, and a checkpoint is read."""
        vars(trainer).pop("_run_stage")
        vars(trainer._checkpoint_connector).pop("_restore_modules_and_callbacks", None)
        self._open, self._pauses = False, 0
        if self._keeps and not self._again(module) and (ended := fits.over()) is not None:
            return self._passes(module, ended)
        with contextlib.ExitStack() as patches:
            if self._bind(trainer, module):
                self._resume(trainer)
            else:
                self._logs.begins()
            self._patch(trainer, patches)
            out = run()
        assert self.session is not None
        behind.stays(self.session)
        fits.ends({"loops": self._place.state_dict(), "callbacks": self._callbacks.state_dict(), "metrics": self._metrics.last()})
        return out

    @property
    def _keeps(self) -> bool:
        """Whether a launcher started the program, and nothing says otherwise."""
        return launched() and self._given.get("enabled") is not False and self._given.get("connection") is None

    def _passes(self, module: LightningModule, ended: Mapping[str, Any]) -> None:
        """A fit that is over. Its hooks have run."""
        self._place.load_state_dict(ended["loops"])
        self._place.put()
        self._callbacks.load_state_dict(ended["callbacks"])
        self._metrics.put_last(ended["metrics"])
        self.session, self.passed = Session(enabled=False), fits.Passed(module)
        self.session.resume()

    def _bind(self, trainer: Trainer, module: LightningModule) -> bool:
        """Makes the session, or gives it what this run has made anew. Whether it is to resume: one that goes on from the fit before has its state in place."""
        averages = [c for c in trainer.callbacks if isinstance(c, WeightAveraging)]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self._again(module):
            assert self.session is not None
            for c, average in zip(averages, self._averages, strict=True):
                c._average_model = average
            if scaler is not None:
                self.session.rebind(scaler=scaler)
            return True
        if self.passed is not None:
            self.passed.trained()
        self._module, self._averages = module, [c._average_model for c in averages]
        self._configured = trainer.strategy.optimizers, trainer.strategy.lr_scheduler_configs
        for o in trainer.optimizers:
            o.register_step_pre_hook(self._stepped_beside)
        given: dict[str, Any] = {
            "model": module if not averages else {"module": module, **{f"average{i or ''}": m for i, m in enumerate(self._averages)}},
            "optimizer": list(trainer.optimizers),
            "scheduler": [c.scheduler for c in trainer.lr_scheduler_configs],
            "scaler": scaler if scaler is not None else (),
        }
        earlier = fits.stays() if self._keeps else None
        if self.session is not None and earlier is None and self.passed is None:
            self.session.rebind(**given)
            return True
        self._place.began = False
        given |= {"data": {"train": self._feed}, "extra": self._kept(trainer)}
        if earlier is not None:
            fits.takes_over(earlier, given)
            self.session = earlier
        else:
            self.session = Session(**given, **self._given)
        _say_unkept(trainer)
        return earlier is None

    def _kept(self, trainer: Trainer) -> dict[str, Any]:
        datamodule = {"datamodule": moves(self._data)} if trainer.datamodule is not None and _has(trainer.datamodule, "state_dict") else {}
        return {
            "loops": moves(self._place),
            "callbacks": moves(self._callbacks),
            "metrics": own(self._metrics, most=self._most),
            "logs": moves(self._logs),
            **datamodule,
            **self._extra,
        }

    def _again(self, module: LightningModule) -> bool:
        """Whether a block is run again with the module that the session has. Where the session is off, each fit is another run, with optimizers of its own."""
        return self.session is not None and self.session.enabled and module is self._module and not self.session.life.behind

    def _not_again(self, path: Any = None, weights_only: Any = None) -> None:
        """In the place of _CheckpointConnector._restore_modules_and_callbacks: what it reads nothing of, nothing restores later."""

    def _same_optimizers(self, trainer: Trainer) -> None:
        """In the place of Strategy.setup_optimizers, where a block is run again: the session has the optimizers of the first run."""
        trainer.strategy.optimizers, trainer.strategy.lr_scheduler_configs = self._configured

    def _resume(self, trainer: Trainer) -> None:
        session, path = self.session, trainer.ckpt_path
        assert session is not None
        otherwise = (lambda: self._step if self._step >= 0 else trainer.global_step) if path else None
        resumed = session.resume(otherwise=otherwise, replace=self._replace)
        self._goes_on, self._generators = "", None
        if not session.enabled:
            return
        if not self._place.loaded:
            self._logs.begins()
            return
        self._place.put()
        self._metrics.put()
        if not self._place.began:
            self._logs.begins()
            return
        self._logs.goes_on(trainer.fit_loop.epoch_loop._batches_that_stepped)
        self._goes_on, self._generators = "end" if self._place.ended else "batch", rng.get()
        for loop in loops(trainer.fit_loop):  # what a checkpoint has left
            loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        trainer.fit_loop._combined_loader_states_to_load = []
        trainer.fit_loop.epoch_loop.val_loop._restarting = True  # no sanity check: a fresh job has had it
        if path and trainer.is_global_zero:
            log.warning("replicad: %r goes before ckpt_path=%r: give another --job, or none, to begin with that", resumed, str(path))

    def _overwrite(self, trainer: Trainer, patches: contextlib.ExitStack) -> None:
        """What ModelCheckpoint has written behind the step that the job goes on from, it is to write again under the same name."""
        since, until = self._place.loaded["time"], time.time()

        def of_lost_steps(c: ModelCheckpoint, path: Any) -> bool:
            return bool(trainer.is_global_zero and c._fs.exists(path) and since <= c._fs.modified(path).timestamp() <= until)

        def exists(c: ModelCheckpoint, there: Callable[..., bool], path: Any, t: Trainer) -> bool:
            return there(path, t) and not t.strategy.reduce_boolean_decision(of_lost_steps(c, path), all=False)

        for c in trainer.checkpoint_callbacks:
            if isinstance(c, ModelCheckpoint):
                c.file_exists = functools.partial(exists, c, c.file_exists)
                patches.callback(vars(c).pop, "file_exists", None)

    def _patch(self, trainer: Trainer, patches: contextlib.ExitStack) -> None:
        fit = trainer.fit_loop
        epochs = fit.epoch_loop
        for obj, name, method in (
            (trainer.precision_plugin, "_after_closure", self._begin),
            (epochs.automatic_optimization, "run", self._end),
            (epochs.manual_optimization, "run", self._end),
            (epochs, "_on_before_fetch", self._asks),
            (epochs.val_loop, "run", self._paused),
            (trainer, "save_checkpoint", self._paused),
            (fit, "_load_combined_loader_states", self._has_loaders),
            (fit, "reset", self._begins),
            (epochs, "reset", self._epoch_begins),
            (fit, "run", self._runs),
            (fit, "on_run_start", self._started),
            (fit, "on_run_end", self._trained),
        ):
            setattr(obj, name, functools.partial(method, trainer, getattr(obj, name)))
            patches.callback(vars(obj).pop, name, None)
        patches.callback(self._feed.unbind)
        if self._goes_on:
            self._overwrite(trainer, patches)

    # -- a step ----------------------------------------------------------------------------------------------------------------

    def _begin(self, trainer: Trainer, after: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Behind the closure, the hooks and the clipping. One batch is one step, whatever it updates."""
        out = after(*args, **kwargs)
        if not self._open:
            assert self.session is not None
            self.session.step_begin()
            self._open = self._place.began = True
        return out

    def _end(self, trainer: Trainer, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = run(*args, **kwargs)
        if self._open:
            self._open = False
            assert self.session is not None
            self.session.step_end()
        return out

    def _stepped_beside(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuses an update that Lightning does not see; with a closure the session looks behind it."""
        if not self._open and self.session is not None and self.session.resumed and len(args) < 2 and "closure" not in kwargs and not self.session.life.over:
            raise SessionState(
                f"{type(optimizer).__name__}.step() beside Lightning: it counts no step by that, and neither does this. Step what self.optimizers() returns, in training_step"
            )

    def _asks(self, trainer: Trainer, before: Callable[[], None]) -> None:
        """The loop asks for a batch."""
        if self._generators is not None:
            self._back()
            self._generators = None
        self._feed.tell()
        before()

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        assert self.session is not None
        with contextlib.ExitStack() as stack:
            if not self._pauses and not self.session.life.over:
                stack.enter_context(self.session.pause(self._longest))
            self._pauses += 1
            try:
                yield
            finally:
                self._pauses -= 1

    def _paused(self, trainer: Trainer, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._pause():
            return run(*args, **kwargs)

    # -- where a run begins and ends -------------------------------------------------------------------------------------------------

    def _back(self) -> None:
        """What a process draws until its loop goes on is no part of the run."""
        assert self.session is not None
        self.session.parts.objects.implicit.again()
        rng.set(self._generators)
        self._place.put_reloaded()

    def _has_loaders(self, trainer: Trainer, load: Callable[[], None]) -> None:
        load()
        if self._goes_on == "batch":
            fit = trainer.fit_loop
            assert fit._combined_loader is not None
            for loader in fit._combined_loader.flattened:  # workers are given their first indices before the epoch begins
                _set_epoch(loader, fit.epoch_progress.current.processed)
        assert self.session is not None
        self._feed.bind(self.session.enabled)

    def _begins(self, trainer: Trainer, reset: Callable[[], None]) -> None:
        """In the place of _FitLoop.reset."""
        fetcher = trainer.fit_loop._data_fetcher
        if isinstance(fetcher, _DataLoaderIterDataFetcher):
            raise Unsupported("Keep: training_step(dataloader_iter) fetches batches by itself, and nobody knows how many it has used: take (batch, batch_idx)")
        if fetcher is None or fetcher.length is None:
            raise Unsupported(
                "Keep: the training loader has no length, so that Lightning fetches one batch ahead of what is trained: give Trainer(limit_train_batches=N), or a length"
            )
        if self._goes_on != "batch":
            reset()
        else:
            torch.set_grad_enabled(True)
            trainer.fit_loop._restart_stage = RestartStage.RESTARTED_MID_EPOCH
            trainer.fit_loop._resuming_from_checkpoint = True  # the loaders are iterated already
        if self._goes_on:
            self._back()

    def _epoch_begins(self, trainer: Trainer, reset: Callable[[], None]) -> None:
        """In the place of _TrainingEpochLoop.reset: the epoch that goes on has begun."""
        if self._goes_on != "batch":
            self._place.ended = False
            reset()
        self._goes_on = ""

    def _started(self, trainer: Trainer, start: Callable[[], None]) -> None:
        """Behind the hooks that begin a fit (on_train_start)."""
        goes_on = self._place.began
        start()
        assert self.session is not None
        if self.session.enabled:
            self.session.parts.loaded.stands(goes_on)

    def _runs(self, trainer: Trainer, run: Callable[[], None]) -> None:
        """In the place of _FitLoop.run. Where all is trained, what follows that is done again."""
        fit = trainer.fit_loop
        if self._goes_on == "end":
            fit.setup_data()
            if fit.done:
                self._begins(trainer, lambda: None)
                fit.on_run_start()
                fit.on_run_end()
                return
        run()

    def _trained(self, trainer: Trainer, on_run_end: Callable[[], None]) -> None:
        """The last step is over, with what followed it, before on_train_end puts other weights in."""
        assert self.session is not None
        self._place.ended = True
        self.session.commit()
        on_run_end()


opened_by(lambda callback: callback._logs if isinstance(callback, Keep) and callback._given.get("enabled", True) else None)


class _Datamodule(On):
    """The state of the trainer's datamodule."""

    def state_dict(self) -> dict[str, Any]:
        return dict(self.trainer.datamodule.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.datamodule.load_state_dict(state)


def _set_epoch(loader: Any, epoch: int) -> None:
    from lightning.fabric.utilities.data import _set_sampler_epoch

    _set_sampler_epoch(loader, epoch)


def _has(obj: Any, method: str) -> bool:
    """Whether a program's class has its own, and not only Lightning's empty one."""
    return any(method in vars(c) for c in type(obj).__mro__ if not c.__module__.startswith("lightning."))


def _say_unkept(trainer: Trainer) -> None:
    """What only a checkpoint on disk would have."""
    if trainer.is_global_zero:
        for obj in (trainer.lightning_module, trainer.datamodule, *trainer.callbacks):
            if _has(obj, "on_save_checkpoint"):
                log.warning(
                    "replicad: a restart would lack what %s.on_save_checkpoint saves: give it to Keep(extra={'name': object}), with state_dict and load_state_dict",
                    type(obj).__name__,
                )


def _given(trainer: Trainer) -> list[Any]:
    """The loaders that fit() was given; those that a hook returns are looked at later."""
    source = trainer.fit_loop._data_source
    if source.is_module():
        return []
    return list(getattr(source.instance, "flattened", None) or tree_leaves(source.instance))  # of a CombinedLoader


def _refused(trainer: Trainer) -> str:
    """What can't be kept of it, with what to do instead."""
    if not isinstance(trainer, Trainer):
        return f"a Trainer of {type(trainer).__module__.partition('.')[0]}: import lightning.pytorch instead, which is the same"
    strategy, world = trainer.strategy, place()[1] if launched() else trainer.world_size
    if isinstance(strategy, FSDPStrategy):
        return "FSDPStrategy (FSDP 1) runs on a GPU alone, and was never run under this: use ModelParallelStrategy(), which is FSDP2"
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy, ModelParallelStrategy)):
        return f"{type(strategy).__name__} is not supported: use DDPStrategy() or ModelParallelStrategy()"
    if getattr(strategy, "_start_method", "popen") != "popen":
        return f"DDPStrategy(start_method={strategy._start_method!r}) starts processes of its own: use strategy='ddp'"
    if trainer.world_size != world:
        return f"the Trainer trains on {trainer.world_size} ranks, and the job has {world}: give it devices= and num_nodes= of the job"
    for c in trainer.callbacks:
        if isinstance(c, (LearningRateFinder, BatchSizeFinder)):
            return f"{type(c).__name__} (Trainer.tune, Tuner) trains before the training, and each restart would do it again: run it in a program of its own, and give its result"
        if isinstance(c, StochasticWeightAveraging):
            return "StochasticWeightAveraging has its weights in its own state_dict, which is no place for tensors of that size: use WeightAveraging"
    return ""
