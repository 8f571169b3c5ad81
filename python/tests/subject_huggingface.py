"""How a transformers.Trainer trains under its adapter, for replicad.testing.conformance: a tiny GPT-2 with dropout, accumulation with a remainder, clipping, a schedule,
evaluations, saves and a log of every step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import peft
import torch
import transformers
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import replicad
from replicad.testing.conformance import Run, Subject

transformers.logging.set_verbosity_error()

EPOCHS = 4
#: What differs from run to run.
TIMES = ("runtime", "per_second", "preparation_time", "step_time")


class Events(TrainerCallback):
    """Knows of the run, and nothing of replicad."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.event("epoch", state.global_step, epoch=state.epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_step_end", state.global_step)
        self._run.event("step", state.global_step, epoch=state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        self._run.at("on_log", state.global_step)
        self._run.event("log", state.global_step, **{k: v for k, v in (logs or {}).items() if not k.endswith(TIMES)})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **_: Any) -> None:
        self._run.at("on_evaluate", state.global_step)
        self._run.event("evaluation", state.global_step, **{k: v for k, v in (metrics or {}).items() if not k.endswith(TIMES)})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_save", state.global_step)
        self._run.event("save", state.global_step, best=state.best_global_step, metric=state.best_metric)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_epoch_end", state.global_step)
        self._run.event("epoch end", state.global_step, epoch=state.epoch)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_train_end", state.global_step)
        self._run.event("end", state.global_step, history=[{k: v for k, v in line.items() if not k.endswith(TIMES)} for line in state.log_history])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_pre_optimizer_step", state.global_step + 1)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_optimizer_step", state.global_step + 1)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_step_begin", state.global_step + 1)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("on_substep_end", state.global_step + 1)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("evaluation", state.global_step)


def dataset(n: int, seed: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(32, (n, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": t, "labels": t} for t in tokens]


class Kept(Subject):
    name = "huggingface"
    #: 5 batches a rank and epoch make updates of 2, 2 and 1.
    steps = EPOCHS * 3
    kept: Mapping[str, Any] = {}

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.trainer = self.make(self.arguments())
        if run.kept:
            self.trainer = replicad.huggingface.keep(self.trainer, **self.kept)
        run.watch(self.trainer.model, self.optimizer(), lambda: self.trainer.state.global_step + 1)

    def arguments(self) -> dict[str, Any]:
        run = self.run
        return dict(  # noqa: C408 (as arguments are written)
            output_dir=str(run.folder / "saves"), use_cpu=True, seed=1, num_train_epochs=EPOCHS, per_device_train_batch_size=1, gradient_accumulation_steps=2,
            learning_rate=0.01, lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4,
            load_best_model_at_end=True, metric_for_best_model="eval_loss", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip

    def make(self, arguments: dict[str, Any]) -> Trainer:
        torch.manual_seed(1)
        more = {"callbacks": [Events(self.run)], **self.more()}
        trainer = Trainer(model=self.model(), args=TrainingArguments(**arguments), train_dataset=self.data(5 * self.run.world), eval_dataset=dataset(4, 3), **more)
        save = trainer._save_checkpoint

        def saved(*args: Any) -> None:
            save(*args)
            self.run.at("save", trainer.state.global_step)

        trainer._save_checkpoint = saved
        return trainer

    def optimizer(self) -> torch.optim.Optimizer:
        if self.trainer.optimizer is None:
            self.trainer.create_optimizer()
        return self.trainer.optimizer

    def model(self) -> Any:
        return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))

    def data(self, n: int) -> Any:
        return dataset(n, 2)

    def more(self) -> dict[str, Any]:
        return {}

    @property
    def session(self) -> replicad.Session:
        return self.trainer.session

    def train(self) -> None:
        self.trainer.train()

    def digests(self) -> Mapping[str, Any]:
        t = self.trainer
        state = t.optimizer.state_dict()
        return {"weights": t.model.state_dict(), "optimizer": state["state"], "groups": state["param_groups"], "scheduler": t.lr_scheduler.state_dict()}


class Drawn(torch.utils.data.Dataset):  # type: ignore[misc]
    """What it gives of a sample depends on two generators of the process."""

    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        sample = self._samples[i]["input_ids"].roll(random.randrange(8))
        return {"input_ids": sample, "labels": sample}


def masked(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """As collators for masked models do."""
    batch = torch.utils.data.default_collate(samples)
    hidden = torch.rand(batch["input_ids"].shape) < 0.3
    return {"input_ids": batch["input_ids"].masked_fill(hidden, 0), "labels": batch["labels"]}


class Draws(Kept):
    """Samples and batches draw, and so does the sampler."""

    name = "huggingface, batches that draw"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"accelerator_config": {"use_seedable_sampler": False}, "gradient_accumulation_steps": 1, "num_train_epochs": 3}

    def data(self, n: int) -> Any:
        return Drawn(dataset(n, 2))

    def more(self) -> dict[str, Any]:
        return {"data_collator": masked}


class ByEpoch(Kept):
    """An evaluation, a save and a log of each epoch, a schedule by what the evaluation has seen, and an end that it brings about. An evaluation before the first step."""

    name = "huggingface, by epoch"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {
            "eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0},
            "warmup_steps": 0, "num_train_epochs": 8, "eval_on_start": True,
        }  # fmt: skip

    def more(self) -> dict[str, Any]:
        return {"callbacks": [Events(self.run), EarlyStoppingCallback(2)]}


class ToStep(Kept):
    """A number of steps, which ends in the middle of an epoch; samples by their length; what is best is saved."""

    name = "huggingface, max_steps"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"max_steps": 8, "save_strategy": "best", "train_sampling_strategy": "group_by_length"}


class Adapters(Kept):
    """LoRA."""

    name = "huggingface, peft"

    def model(self) -> Any:
        return peft.get_peft_model(super().model(), peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights="gaussian"))


class Autocast(Kept):
    """bfloat16, and workers that make batches."""

    name = "huggingface, bf16, workers"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"bf16": True, "dataloader_num_workers": 1}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Nobody knows how long it is."""

    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self._samples)


class Streams(Kept):
    """A dataset without a length."""

    name = "huggingface, a stream"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"max_steps": 12}

    def data(self, n: int) -> Any:
        return Stream(dataset(n, 2))


class FromCheckpoint(Kept):
    """From a checkpoint of the Trainer's own, which lies beside what the runs leave."""

    name = "huggingface, resume_from_checkpoint"

    def train(self) -> None:
        self.trainer.train(resume_from_checkpoint=str(self.run.folder.parent / "checkpoint-4"))
