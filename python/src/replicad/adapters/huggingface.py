"""Hugging Face's Trainer, and TRL's, which is one: ``trainer = replicad.huggingface.keep(Trainer(...))``.

The Trainer has no door for a position in an epoch, and callbacks do not get it: what this needs is patched on the instance. A step begins behind the last hook before the
optimizer's step and ends behind the last hook after it. The flags that the hooks have raised by then say what follows: a log, an evaluation, a save, the end of the epoch. It is
kept with the step, and done again where it may have been interrupted, with the generators that an undisturbed run has there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .. import moves, own, rng
from .._core import behind
from .._core.capsule import Opaque
from .._torch.workers import Workers
from ..alone import launched
from ..errors import Invalid, SessionState, Unsupported
from ..session import Session
from . import _fits as fits
from ._loop import want
from ._makes import Makes

want("transformers", "5.20")

from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from ._boards import Boards

__all__ = ["keep"]

log = logging.getLogger("replicad")

#: What training changes of a TrainerState. The rest is of the program's arguments.
STATE = (
    "epoch", "global_step", "num_input_tokens_seen", "total_flos", "best_metric", "best_global_step", "best_model_checkpoint", "stateful_callbacks",
)  # fmt: skip
#: What its loop keeps in the Trainer, and begins anew in each train().
LOOP = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen", "current_flos")
#: What TRL's Trainers count besides.
TRL = ("_step", "_total_train_tokens")
#: What follows a step, by the flag that says so.
FOLLOWS = {"log": "should_log", "evaluation": "should_evaluate", "save": "should_save"}
#: What its loop is told that it goes on from. It loads nothing of it.
GOES_ON = "what replicad has"
EPOCH_END = "end of the epoch"
#: Of its log history so many bytes are kept, the newest lines: each step copies them.
HISTORY = 4 << 20
#: And so many lines when a training is over and another one follows.
LINES = 16
#: No number is longer as JSON.
LONGEST = -2.2250738585072014e-308


def keep(trainer: Any, *, longest: float = 3600.0, completions: int = 0, extra: Mapping[str, Any] | None = None, replace: Collection[str] = (), **session: Any) -> Any:
    """Keeps the training of a ``transformers.Trainer``, and returns it; its session is ``trainer.session``. Call it once, before ``trainer.train()``, on all ranks.

    ``replace`` is that of :meth:`replicad.Session.resume`.
    ``longest`` is how many seconds an evaluation or a save may take, before a rank in it counts as one that hangs. ``completions`` is for TRL's GRPO and RLOO, where they generate
    for several steps at once: how many bytes that takes at most, for which each copy of a step has room. ``extra`` and the other arguments are those of
    :class:`replicad.Session`. Where no launcher started the program, the trainer trains as it did.
    :class:`replicad.Unsupported` for a version that this was not tested with, and for what can't be kept, by name, with what to do instead; :class:`replicad.Invalid` for what is
    no Trainer; :class:`replicad.SessionState` for one that is kept already.
    """
    if not isinstance(trainer, Trainer):
        raise Invalid(f"keep: want a transformers.Trainer, not {type(trainer).__module__}.{type(trainer).__qualname__}")
    if isinstance(getattr(trainer, "session", None), Session):
        raise SessionState("keep: this Trainer is kept already, as trainer.session")
    if refused := _refused(trainer):
        raise Unsupported(f"keep: {refused}")
    kept: Any = trainer
    extra = dict(extra or {})
    if _generates_ahead(kept):
        if not completions:
            raise Unsupported(
                "keep: this Trainer generates for several steps at once: give keep(trainer, completions=BYTES), the most that these take on a rank (64 << 20, for example)"
            )
        extra["completions"] = own(_Completions(kept), most=completions)
    kept.passed = None  #: of a training that was over when this process began: it is gone through, and the model may not have its last weights
    kept.session = _Keeper(kept, longest, extra, session, replace).session
    return kept


def _refused(trainer: Any) -> str:
    """What can't be kept of it, with what to do instead."""
    args = trainer.args
    for given, text in (
        (args.auto_find_batch_size, "auto_find_batch_size begins training anew with other batches where memory runs out: set per_device_train_batch_size"),
        (args.ignore_data_skip, "ignore_data_skip has each restart read the epoch from its beginning: leave it out"),
        (trainer.model_init is not None, "model_init makes another model in each train(): pass model="),
        (trainer.is_deepspeed_enabled, "DeepSpeed keeps weights in partitions of its own: train without it"),
        (
            getattr(trainer, "is_distributed_loading_by_transformers", False),
            "the model was sharded as it was loaded: load it whole, or shard in a loop of your own (docs/sharded.md)",
        ),
        (trainer.is_fsdp_enabled, "FSDP shards the model in train(), behind this: train with DDP, or shard in a loop of your own (docs/sharded.md)"),
    ):
        if given:
            return text
    return ""


def _generates_ahead(trainer: Any) -> bool:
    """Whether what it has generated lasts for more than a step."""
    args = trainer.args
    return hasattr(trainer, "_buffered_inputs") and args.steps_per_generation * trainer.num_iterations > args.gradient_accumulation_steps


class _Keeper:
    """Kept of a Trainer what a session does not see by itself: where it is in the epoch, its counters, and what follows a step."""

    def __init__(self, trainer: Any, longest: float, extra: dict[str, Any], given: dict[str, Any], replace: Collection[str]) -> None:
        self.trainer, self.longest, self.replace = trainer, longest, replace
        self.loader: Any = None
        self.prepared: Any = None  # model and loader, once they are
        self.makes = Makes("train_dataset", "data_collator")
        self.at = _Position(self.makes)
        self.grad_norm: Any = None
        self.learning_rate: float | None = None
        self.kept: dict[str, Any] = {}  # what was loaded last
        self.generators: Any = None  # those of the step that was resumed
        self.loaded = False  # a state, by the resume of this train()
        self.back = False  # in the epoch that a resume goes on in
        self.otherwise = False  # which is of a checkpoint of the Trainer's own
        self.behind: Any = None  # the generators once the first batch after a resume is fetched, until then
        self.first = 0  # that batch
        self.steps_in_epoch, self.ended = 0, False
        self.history, self.boards = _History(trainer), Boards(trainer)
        self.workers: list[Workers] = []
        self.on = launched() and given.get("enabled") is not False
        self.passes: Mapping[str, Any] | None = None  # what the trainer of a training that is over had in the end
        self.takes: dict[str, Any] | None = None  # what takes the place of another training's objects
        self.final: dict[str, Any] = {}  # when the last step was over, and what followed it
        with rng.preserved():  # train() does it again, and draws again
            self._place()
        self.session = self._session(extra, given)
        self._patch()

    def _place(self) -> None:
        """Makes what train() would make later, so that a session can be made of it."""
        trainer, args = self.trainer, self.trainer.args
        if not (trainer.place_model_on_device or trainer.is_model_parallel):
            trainer._move_model_to_device(trainer.model, args.device)
        max_steps = trainer.set_initial_training_values(args, trainer.get_train_dataloader())[-1]
        trainer.create_optimizer_and_scheduler(num_training_steps=max_steps)

    def _session(self, extra: dict[str, Any], given: dict[str, Any]) -> Session:
        """Of the job: for its first training, or that of the one before, which this one takes over when it begins."""
        trainer = self.trainer
        objects: dict[str, Any] = {
            "model": trainer.model, "optimizer": trainer.optimizer, "scheduler": _Scheduler(trainer), "scaler": getattr(trainer.accelerator, "scaler", None), "data": self.at,
            "extra": {"trainer": moves(_Kept(self)), **extra},
        }  # fmt: skip
        if launched() and given.get("enabled") is not False and given.get("connection") is None:
            if (ended := fits.over()) is not None:
                self.passes = ended
                return Session(enabled=False)
            if (earlier := fits.stays()) is not None:
                self.takes = objects
                return earlier
        return Session(**objects, **given)

    def _patch(self) -> None:
        """On instances: a class or module has other users."""
        self.original = {}
        for owner, names in (
            (self.trainer, (
                "train", "_load_from_checkpoint", "get_train_dataloader", "_init_training_state", "_prepare_for_training", "_run_epoch", "get_batch_samples", "_load_rng_state",
                "_get_grad_norm", "_get_learning_rate", "_maybe_log_save_evaluate", "_evaluate", "_load_best_model", "_finalize_training",
            )),
            (self.trainer.callback_handler, ("on_train_begin", "on_epoch_begin", "on_pre_optimizer_step", "on_step_end", "on_epoch_end")),
        ):  # fmt: skip
            for name in names:
                self.original[name] = getattr(owner, name)
                setattr(owner, name, functools.partial(getattr(self, name.removeprefix("_")), self.original[name]))

    # -- what is kept -------------------------------------------------------------------------------------------------------

    def holders(self) -> dict[str, Any]:
        """What may carry something from step to step in its attributes."""
        trainer, out = self.trainer, dict[str, Any]()
        for callback in trainer.callback_handler.callbacks:
            if not _says(callback):
                name = type(callback).__name__
                out[name if name not in out else f"{name}.{sum(n.partition('.')[0] == name for n in out) + 1}"] = callback
        return {"train_dataset": trainer.train_dataset, "data_collator": trainer.data_collator, **out, "trainer": trainer}

    def state(self) -> dict[str, Any]:
        """As of the step that is over."""
        trainer, norm = self.trainer, self.grad_norm
        return {
            "grad_norm": norm.item() if isinstance(norm, torch.Tensor) else norm, "learning_rate": self.learning_rate,
            "loss": float(getattr(trainer, "_tr_loss", 0.0)), "loop": {name: getattr(trainer, name, 0) for name in LOOP},
            "state": {name: _plain(getattr(trainer.state, name)) for name in STATE}, "last": trainer.state.max_steps, "history": self.history.text(),
            "trl": {name: getattr(trainer, name) for name in TRL if hasattr(trainer, name)},
            "metrics": {mode: dict(of) for mode, of in getattr(trainer, "_metrics", {}).items()},
            "control": trainer.control.state()["args"], "callbacks": {name: _of(c) for name, c in _stateful(trainer)},
            "boards": self.boards.state(),
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """What the loop begins anew by itself is put in place when it has (:meth:`on_train_begin`)."""
        trainer, self.kept, self.loaded = self.trainer, dict(state), True
        self.grad_norm, self.learning_rate = state["grad_norm"], state["learning_rate"]
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        for name, value in state["trl"].items():
            setattr(trainer, name, value)
        for mode, of in state["metrics"].items():
            trainer._metrics[mode].clear()
            trainer._metrics[mode].update(of)
        self.history.load(state["history"])
        self.boards.load(state["boards"])
        self._put_control()
        for name, callback in _stateful(trainer):
            if name in state["callbacks"]:
                _put(callback, state["callbacks"][name])
            else:
                log.warning("replicad: the copy has no state of the callback %s, which was added since: it begins anew", name)

    def _put_control(self) -> None:
        control, state = self.trainer.control, self.trainer.state
        for name, value in self.kept["control"].items():
            setattr(control, name, value)
        if self.kept["last"] == state.global_step < state.max_steps:  # the program trains further than the one before it
            control.should_training_stop = False

    # -- train ----------------------------------------------------------------------------------------------------------------

    def train(self, train: Callable[..., Any], resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """The whole of it, and in a block that is run again once more."""
        if trial is not None:
            raise Unsupported("train(trial=...): a search trains many models under one session: search without keep, and keep the Trainer that trains the best one")
        trainer = self.trainer
        if self.passes is not None:
            return self._pass(self.passes)
        if self.session.enabled and self.session.life.over and self.takes is None:
            raise SessionState("train() after its end: this Trainer is done. Keep another Trainer to train further, or give another --job what save_model() has written")
        if trainer.accelerator.distributed_type != "NO" and not dist.is_initialized():  # the run of a block before this has taken it down
            dist.init_process_group(trainer.accelerator.state.backend)
        self.prepared = None  # by a run that ended before it trained
        # Prepared by the run before: DDP is of groups that are gone, and autocast would be put around what has it.
        trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        trainer.model_wrapped = trainer.model
        trainer.optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        try:
            result = train(resume_from_checkpoint=resume_from_checkpoint, ignore_keys_for_eval=ignore_keys_for_eval)
        except BaseException as err:
            self.session.step_end(error=err)
            raise
        behind.stays(self.session)
        fits.ends({"state": self.final, "loss": result.training_loss, "metrics": result.metrics})
        return result

    def _pass(self, ended: Mapping[str, Any]) -> TrainOutput:
        """A training that is over. Its callbacks have run."""
        trainer = self.trainer
        self.load(ended["state"])
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
            self.original["_load_best_model"]()
        else:
            trainer.passed = fits.Passed(trainer.model)
        return TrainOutput(trainer.state.global_step, ended["loss"], dict(ended["metrics"]))

    def load_from_checkpoint(self, load: Callable[..., None], *args: Any, **more: Any) -> None:
        """A session that has resumed has weights of its own, which the daemon may copy meanwhile."""
        if not (self.session.enabled and self.session.at >= 0):
            load(*args, **more)

    def get_train_dataloader(self, get: Callable[[], Any]) -> Any:
        """For what is prepared early. Where this process makes the batches itself they may draw, each before the steps that are made meanwhile."""
        self.loader = loader = get()
        self.at.of(loader)
        base: Any = getattr(loader, "base_dataloader", None)
        if isinstance(loader, DataLoaderShard) and getattr(base, "batch_sampler", None) is not None and not base.num_workers:
            object.__setattr__(base, "batch_sampler", _Fetches(base.batch_sampler, self.fetches))  # a DataLoader refuses it otherwise
        if self.on and base is not None and base.num_workers:
            self.workers = [Workers(base, "train_dataloader", dataset="train_dataset", collate_fn="data_collator")]
        return loader

    def init_training_state(self, init: Callable[..., tuple[int, int]], max_steps: int, per_epoch: int, epochs: int, path: Any, trial: Any) -> tuple[int, int]:
        """Where the Trainer asks for its position. It is prepared here, since DDP spreads the buffers of rank 0 when it is made, and the state is loaded after that."""
        trainer, session = self.trainer, self.session
        self.at.epoch, self.at.batches = init(max_steps, per_epoch, epochs, path, trial)
        placing, trainer.accelerator.device_placement = trainer.accelerator.device_placement, False  # on a CPU it moves every tensor, each time
        try:
            self.prepared = trainer._prepare_for_training(max_steps, self.loader, None)
        finally:
            trainer.accelerator.device_placement = placing
        self._begin()
        step = trainer.state.global_step
        self.loaded = False
        load = functools.partial(self._load, path)
        if self.takes is not None:
            fits.takes_over(session, self.takes)
            self.takes, self.back, self.generators = None, False, rng.get()
            return self.at.epoch, self.at.batches
        resumed = session.resume(otherwise=load if path is not None else None, replace=self.replace)
        if path is not None and not session.enabled and resumed.source != "otherwise":
            load()  # a session that is off asks for it once in its life, and each train() is another run
        if path is not None and self.loaded and session.at != step:
            log.warning(
                "replicad: train(resume_from_checkpoint=%r) is of step %d, and the job has step %d (%s): it goes on from that; another --job begins from the checkpoint",
                path, step, session.at, resumed.source,
            )  # fmt: skip
        began = self.kept["state"]["global_step"] > self.kept["loop"]["_initial_global_step"] or path is not None  # a step of this training, which need not be the job's first
        self.back, self.otherwise, self.generators = self.loaded and session.at > 0 and began, resumed.source == "otherwise", rng.get()
        return self.at.epoch, self.at.batches

    def _begin(self) -> None:
        """As the loop begins, before it does: what a job begins with is kept, too."""
        trainer = self.trainer
        trainer._tr_loss = torch.tensor(0.0, device=trainer.args.device)
        trainer._total_loss_scalar = 0.0
        trainer._globalstep_last_logged = trainer._initial_global_step = trainer.state.global_step
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        self.at.begin(self.at.epoch, self.at.batches)
        self.at.before = self.makes.get()
        self.grad_norm = self.learning_rate = None
        self.kept = self.state()

    def _load(self, path: str) -> int:
        """The Trainer has loaded weights and its own state; optimizer, scheduler and generators follow."""
        self.trainer._load_optimizer_and_scheduler(path)
        self.trainer._load_scaler(path)
        self.original["_load_rng_state"](path)
        return int(self.trainer.state.global_step)

    def prepare_for_training(self, prepare: Callable[..., Any], *args: Any) -> Any:
        """Once for each train(): early."""
        if self.prepared is None:
            return prepare(*args)
        prepared, self.prepared = self.prepared, None
        return prepared

    def on_train_begin(self, begin: Callable[..., Any], *args: Any) -> Any:
        """The loop has begun anew what it has."""
        trainer = self.trainer
        trainer._tr_loss.fill_(self.kept["loss"])
        for name, value in self.kept["loop"].items():
            setattr(trainer, name, value)
        control = begin(*args)
        if self.session.enabled:
            self.session.parts.loaded.stands(self.back)
        if self.back:
            self.session.parts.objects.implicit.again()
            self.boards.goes_on(trainer.state.global_step + (not {"log", "evaluation"} & set(self.session.due)))
        return control

    def finalize_training(self, finalize: Callable[..., Any], *args: Any) -> Any:
        """What is done after the last step may take its time."""
        state, history = self.state(), self.trainer.state.log_history
        self.final = state | {"history": Opaque(b"".join(map(_line, history[-LINES:])))}
        with self.session.pause(self.longest):
            return finalize(*args)

    def load_best_model(self, load: Callable[[], Any]) -> Any:
        """Other weights come into the place of those of the last step, of which there has to be a copy by then."""
        self.session.commit()
        best = load()
        if self.session.enabled:
            self.session.parts.rewritten()
        return best

    # -- an epoch -------------------------------------------------------------------------------------------------------------

    def on_epoch_begin(self, begin: Callable[..., Any], *args: Any) -> Any:
        """The epoch that a restart goes on in has begun; one of the Trainer's own checkpoint begins as it does without this."""
        return self.trainer.control if self.back and not self.otherwise else begin(*args)

    def run_epoch(self, run: Callable[..., None], **given: Any) -> None:
        """An epoch from its beginning, or what is left of one."""
        self.steps_in_epoch, self.ended = given["steps_in_epoch"], False
        if self.back:
            self.back = False
            return self._go_on(run, given)
        begun = given["steps_trained_in_current_epoch"] if given["epoch"] == given["epochs_trained"] else 0
        self.at.begin(given["epoch"], begun)
        return run(**given)

    def _go_on(self, run: Callable[..., None], given: dict[str, Any]) -> None:
        """From behind the step that was resumed: what was to follow it comes first."""
        control = self.trainer.control
        given["model"].train()  # as a step leaves it
        rng.set(self.generators)  # what a process draws on its way here is no part of the run
        self._put_control()  # the epoch's hooks have lowered flags
        if self.session.due:
            self._follow_up(given)
        if self.at.batches >= self.steps_in_epoch or control.should_epoch_stop or control.should_training_stop:
            self.trainer.control = self.trainer.callback_handler.on_epoch_end(self.trainer.args, self.trainer.state, control)
            return self._follow_up(given)
        for name in self.session.due:  # the end of an epoch that goes on after all
            self.session.done(name)
        self.behind, self.first = self.makes.get(), self.at.batches
        self.at.again()
        return run(**given | {"resume_from_checkpoint": GOES_ON})

    def _follow_up(self, given: dict[str, Any]) -> None:
        trainer = self.trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, self.grad_norm, given["model"], given["trial"], given["epoch"], given["ignore_keys_for_eval"], given["start_time"], learning_rate=self.learning_rate
        )

    def on_epoch_end(self, end: Callable[..., Any], *args: Any) -> Any:
        """What is called behind a step is called behind the epoch now."""
        control = end(*args)
        self.ended = True
        return control

    def get_batch_samples(self, get: Callable[..., Any], *args: Any) -> Any:
        """The batches of a step."""
        found = get(*args)
        self.at.batches += len(found[0])
        return found

    def fetches(self, i: int) -> None:
        """The epoch's batch ``i``, from 0, is fetched next: it draws what it drew in the process that fetched it first, and the one behind it what an undisturbed run has there."""
        if self.behind is not None and i <= self.first + 1:
            if i < self.first:
                return  # it is left out
            if i > self.first:
                self._behind()
            else:
                self.makes.set(self.at.before)
        self.at.before = self.makes.get()

    def _behind(self) -> None:
        self.makes.set(self.behind)
        self.behind = None

    def load_rng_state(self, load: Callable[[Any], None], path: Any) -> None:
        """The first batches after a resume are there."""
        if self.behind is not None:
            self._behind()
        elif path != GOES_ON:
            load(path)

    # -- a step ---------------------------------------------------------------------------------------------------------------

    def get_grad_norm(self, get: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """For the log."""
        self.grad_norm = get(*args, **more)
        return self.grad_norm

    def get_learning_rate(self, get: Callable[[], float]) -> float:
        """For the log."""
        self.learning_rate = get()
        return self.learning_rate

    def on_pre_optimizer_step(self, before: Callable[..., Any], *args: Any) -> Any:
        """The last that happens before the update."""
        control = before(*args)
        self.session.step_begin()
        return control

    def on_step_end(self, end: Callable[..., Any], *args: Any) -> Any:
        """The flags are raised: what follows is known."""
        trainer = self.trainer
        control = trainer.control = end(*args)
        for name, flag in FOLLOWS.items():
            if getattr(control, flag):
                self.session.follow(name)
        if self.at.batches >= self.steps_in_epoch or control.should_epoch_stop or control.should_training_stop:
            self.session.follow(EPOCH_END)
        self.session.step_end()
        return control

    def maybe_log_save_evaluate(self, do: Callable[..., None], loss: Any, norm: Any, model: Any, trial: Any, epoch: Any, ignore: Any, start: Any, **more: Any) -> None:
        """It is called behind a step, and once more behind an epoch."""
        control = self.trainer.control
        takes_time = control.should_evaluate or control.should_save
        with self.session.pause(self.longest) if takes_time else contextlib.nullcontext():
            do(loss, self.grad_norm if norm is None else norm, model, trial, epoch, ignore, start, **more)
        for name in self.session.due:
            if name != EPOCH_END or self.ended:
                self.session.done(name)

    def evaluate(self, evaluate: Callable[..., Any], *args: Any, skip_scheduler: bool = False, **more: Any) -> Any:
        """``eval_on_start`` is of the job's start, not of a process's."""
        if not skip_scheduler:
            return evaluate(*args, **more)
        if self.back:
            return {}
        with self.session.pause(self.longest):
            return evaluate(*args, skip_scheduler=True, **more)


class _Position:
    """Which samples come next."""

    def __init__(self, makes: Makes) -> None:
        self.epoch, self.batches = 0, 0  #: so many batches of the epoch are used
        self.drawn: Any = rng.get()  #: the generators when the epoch began
        self.before: Any = makes.get()  #: and before the batch was fetched that is next: the loader is one ahead
        self.shuffled: Any = None  #: that of the sampler, when the epoch began
        self._sampler: torch.Generator | None = None

    def of(self, loader: Any) -> None:
        """The loader that is used from now on."""
        batches: Any = getattr(loader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler
        sampler = getattr(batches, "sampler", None)
        # accelerate's seeds its own by the epoch's number.
        self._sampler = None if isinstance(sampler, SeedableRandomSampler) else getattr(sampler, "generator", None)

    def begin(self, epoch: int, batches: int) -> None:
        """An epoch begins."""
        self.epoch, self.batches, self.drawn, self.shuffled = epoch, batches, rng.get(), self._now()

    def again(self) -> None:
        """An epoch begins as it began: what is drawn for the order of its samples is the same."""
        rng.set(self.drawn)
        self._shuffle(self.shuffled)

    def _now(self) -> Any:
        return None if self._sampler is None else self._sampler.get_state()

    def _shuffle(self, state: Any) -> None:
        if self._sampler is not None and state is not None:
            self._sampler.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        """It is as small as this."""
        return {"epoch": self.epoch, "batches": self.batches, "drawn": self.drawn, "before": self.before, "shuffled": self.shuffled, "sampler": self._now()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse."""
        self.epoch, self.batches, self.drawn, self.before, self.shuffled = (state[k] for k in ("epoch", "batches", "drawn", "before", "shuffled"))
        self._shuffle(state["sampler"])


class _Fetches:
    """A batch sampler that says when a batch is fetched: behind all that the sampler draws, and before anything that the batch does."""

    def __init__(self, of: Any, fetches: Callable[[int], None]) -> None:
        self._of, self._fetches = of, fetches

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(self._of):
            self._fetches(i)
            yield batch

    def __len__(self) -> int:
        return len(self._of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class _Kept:
    """What a session is given of a keeper. It has slots alone: what looks for generators in what is kept does not look into these. The Trainer's follow from its position."""

    __slots__ = ("_of",)

    def __init__(self, of: _Keeper) -> None:
        self._of = of

    def holders(self) -> dict[str, Any]:
        """That of the keeper."""
        return self._of.holders()

    def workers(self) -> list[Workers]:
        """That make its batches."""
        return self._of.workers

    def state_dict(self) -> dict[str, Any]:
        """That of the keeper."""
        return self._of.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the keeper."""
        self._of.load(state)


class _Completions:
    """What GRPO has generated, for the steps to come."""

    __slots__ = ("_trainer",)

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The batches that there are."""
        return {"batches": self._trainer._buffered_inputs or []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Onto the device that they are trained on."""
        device = self._trainer.args.device
        batches = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()} for batch in state["batches"]]
        self._trainer._buffered_inputs = batches or None


class _Scheduler:
    """That of the Trainer, which makes another one in each train()."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def optimizer(self) -> Any:
        """The one that it drives, without what accelerate puts around it."""
        optimizer = self._trainer.lr_scheduler.optimizer
        return getattr(optimizer, "optimizer", optimizer)

    def state_dict(self) -> Any:
        """That of the one there is."""
        return self._trainer.lr_scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Into the one there is."""
        self._trainer.lr_scheduler.load_state_dict(state)


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's."""
    return value.item() if hasattr(value, "item") else value


class _History:
    """The log history of a Trainer, which grows by a line now and then and is kept in every step: each line is written once, and takes the same room on all ranks, whatever
    their clocks say. They have more room made together, or not at all."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._lines, self._text = trainer, 0, b""
        self._named = False

    def text(self) -> Opaque:
        """A line of JSON each."""
        history = self._trainer.state.log_history
        if len(history) < self._lines:  # another train()
            self._lines, self._text = 0, b""
        for entry in history[self._lines :]:
            self._text += _line(entry)
        self._lines = len(history)
        while len(self._text) > HISTORY:
            self._text = self._text[self._text.index(b"\n") + 1 :]
            self._name()
        return Opaque(self._text)

    def _name(self) -> None:
        if not self._named and self._trainer.is_world_process_zero():
            log.warning(
                "replicad: the Trainer's log history takes more than %d MiB: from a restart on it lacks its oldest lines. The log itself has them; raise logging_steps to have all",
                HISTORY >> 20,
            )
        self._named = True

    def load(self, text: bytes) -> None:
        """The inverse."""
        self._trainer.state.log_history = [json.loads(line) for line in text.splitlines()]
        self._lines, self._text = len(self._trainer.state.log_history), bytes(text)


def _line(entry: Mapping[str, Any]) -> bytes:
    """A line of JSON, as long as it is with the longest numbers."""
    plain = {key: _plain(value) for key, value in entry.items()}
    longest = {key: LONGEST if isinstance(value, (int, float)) else value for key, value in plain.items()}
    return json.dumps(plain, default=float).ljust(len(json.dumps(longest, default=float))).encode() + b"\n"


def _stateful(trainer: Any) -> Iterator[tuple[str, TrainerCallback]]:
    """The callbacks that say what they have, by name."""
    seen = Counter[str]()
    for callback in trainer.callback_handler.callbacks:
        name = type(callback).__name__
        seen[name] += 1
        if _says(callback):
            yield name if seen[name] == 1 else f"{name}.{seen[name]}", callback


def _says(callback: TrainerCallback) -> bool:
    return isinstance(callback, ExportableState) or (hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict"))


def _of(callback: Any) -> Any:
    return callback.state()["attributes"] if isinstance(callback, ExportableState) else callback.state_dict()


def _put(callback: Any, state: Any) -> None:
    if not isinstance(callback, ExportableState):
        callback.load_state_dict(state)
        return
    for name, value in state.items():
        setattr(callback, name, value)
