"""Trainers of frameworks, as :func:`replicad.testing.check_trainer` looks at them. A framework is imported by whoever has one of its trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .recorder import LATER, Recorder, Trainer

__all__ = ["of_huggingface", "of_lightning"]

#: How the names of values end that differ from run to run.
TIMES = ("runtime", "per_second", "preparation_time", "step_time")


def of_lightning(trainer: Any, module: Any, *data: Any, **fit: Any) -> Trainer:
    """A ``lightning.Trainer`` that is to run ``trainer.fit(module, *data, **fit)``: loaders or a datamodule. It saves as ``ModelCheckpoint(every_n_train_steps=)`` does, at the end
    of a batch."""
    from lightning.pytorch.callbacks import Callback

    class Seen(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            made.batch(outputs)

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                made.event("evaluation", **trainer.callback_metrics)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            made.event("end of an epoch", epoch=trainer.current_epoch, **trainer.callback_metrics)

        def on_save_checkpoint(self, *_: Any) -> None:
            made.saving()

    from .. import alone

    made = _Lightning(trainer, module, data, fit)
    kept = []
    if alone.launched():
        from ..adapters.lightning import Keep

        made.keep = Keep()
        kept = [made.keep]
    trainer.callbacks = trainer._callback_connector._reorder_callbacks([*trainer.callbacks, Seen(), *kept])  # noqa: SLF001
    return made


class _Lightning:
    """One of Lightning's."""

    def __init__(self, trainer: Any, module: Any, data: tuple[Any, ...], fit: Mapping[str, Any]) -> None:
        self._trainer, self._module, self._data, self._fit = trainer, module, data, fit
        self._record: Any = None
        self.keep: Any = None
        self._saves = False  # for the check
        self._step = 0

    @property
    def session(self) -> Any:
        """Of the callback."""
        return self.keep and self.keep.session

    def train(self, record: Recorder, resume: Path | None) -> None:
        self._record = record
        self._trainer.fit(self._module, *self._data, **self._fit, ckpt_path=None if resume is None else str(resume))

    def save(self, path: Path) -> None:
        self._saves = True
        self._trainer.save_checkpoint(path)
        self._saves = False

    def state(self) -> Mapping[str, Any]:
        t = self._trainer
        return {
            "weights": self._module.state_dict(),
            "optimizer": [o.state_dict() for o in t.optimizers],
            "scheduler": [c.scheduler.state_dict() for c in t.lr_scheduler_configs],
            "scaler": t.precision_plugin.state_dict(),
            "callbacks": {c.state_key: state for c in t.callbacks if (state := c.state_dict()) and c is not self.keep},
            "loops": {"step": t.global_step, "epoch": t.current_epoch, "batch": t.fit_loop.batch_idx},
        }

    def batch(self, outputs: Any) -> None:
        if self._trainer.global_step > self._step:
            self._step = self._trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            self._record.step(self._step, loss=loss)

    def event(self, name: str, **values: Any) -> None:
        self._record.event(name, self._trainer.global_step, **values)

    def saving(self) -> None:
        if not self._saves:
            self.event("save")


def of_huggingface(trainer: Any) -> Trainer:
    """A ``transformers.Trainer``, or TRL's. It saves as its own flag has it save, behind log and evaluation of the step."""
    from transformers import TrainerCallback

    class Seen(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            made.stepped(state, control)

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
            made.event("log", state, logs or {})

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any) -> None:
            made.event("evaluation", state, metrics or {})

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            made.saved(state)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            made.event("end of an epoch", state, {"epoch": state.epoch})

    from .. import alone

    if alone.launched():
        from ..adapters.huggingface import keep

        keep(trainer)
    made = _HuggingFace(trainer)
    trainer.add_callback(Seen())
    return made


class _HuggingFace:
    """One of Hugging Face's."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._record: Any = None
        self._losses: list[float] = []
        self._control: Any = None
        self._asked = self._alone = False  # to save, and for the check alone
        step = trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            self._losses.append(loss.item())
            return loss

        trainer.training_step = training_step

    @property
    def session(self) -> Any:
        """Of the adapter."""
        return getattr(self._trainer, "session", None)

    def train(self, record: Recorder, resume: Path | None) -> None:
        self._record = record
        self._trainer.train(resume_from_checkpoint=None if resume is None else str(resume))

    def save(self, path: Path) -> object:
        self._asked, self._alone, self._control.should_save = True, not self._control.should_save, True
        return LATER

    def state(self) -> Mapping[str, Any]:
        t = self._trainer
        at = t.state
        return {
            "weights": t.model.state_dict(),
            "optimizer": t.optimizer.state_dict(),
            "scheduler": t.lr_scheduler.state_dict(),
            "scaler": {} if t.accelerator.scaler is None else t.accelerator.scaler.state_dict(),
            "loops": {"step": at.global_step, "epoch": at.epoch, "best": at.best_metric, "best step": at.best_global_step},
        }

    def stepped(self, state: Any, control: Any) -> None:
        self._control = control
        losses, self._losses = self._losses, []
        self._record.step(state.global_step, loss=losses)

    def event(self, name: str, state: Any, values: Mapping[str, Any]) -> None:
        self._record.event(name, state.global_step, **{k: v for k, v in values.items() if not k.endswith(TIMES)})

    def saved(self, state: Any) -> None:
        if self._asked:
            self._asked = False
            self._record.saved(Path(self._trainer.args.output_dir, f"checkpoint-{state.global_step}"))
            if self._alone:
                return
        self.event("save", state, {})
