"""Lightning 2.6.6 examples/pytorch/tensor_parallel/train.py and its guide to 2.0; transformers 5.23.0 examples/pytorch/language-modeling/run_mlm.py and its callbacks.

Programs of our own, each with what its class names of the published example: hooks that initialise, state in plain attributes of what a trainer holds, generators of the
program's own, and a second training in the same program. They are small, and their data is drawn here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torchmetrics
import transformers
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments

import replicad
from replicad.testing.conformance import Run, Subject

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
transformers.logging.set_verbosity_error()

EPOCHS = 2


# -- Lightning 2.6.6, examples/pytorch/tensor_parallel/train.py, and its guide to 2.0 --------------------------------------------


class Samples(Dataset[torch.Tensor]):
    """With noise from a generator of its own, which both trainings draw from."""

    def __init__(self) -> None:
        self.x, self.rng = torch.randn(20, 8, generator=torch.Generator().manual_seed(1)), np.random.default_rng(5)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.x[i] + torch.from_numpy(self.rng.standard_normal(8).astype("float32"))


class Net(pl.LightningModule):
    """What Lightning's guide has in the place of training_epoch_end, a value that begins as None, a metric, and weights and a rate that on_train_start sets."""

    def __init__(self, run: Run, first: int, rate: float) -> None:
        super().__init__()
        self.seen, self.first, self.rate = run, first, rate
        self.layer, self.mean = torch.nn.Linear(8, 4), torchmetrics.MeanMetric()
        self.training_step_outputs: list[torch.Tensor] = []
        self.running: Any = None

    def on_train_start(self) -> None:
        torch.nn.init.normal_(self.layer.weight, std=0.3)
        self.layer.bias.data.zero_()
        for group in self.optimizers().param_groups:
            group["lr"] = self.rate / 2

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).pow(2).mean()
        self.training_step_outputs.append(loss)
        self.mean(loss.detach())
        self.running = loss.detach() if self.running is None else 0.9 * self.running + 0.1 * loss.detach()
        self.seen.event("step", self.first + self.trainer.global_step + 1, loss=loss.item(), running=self.running.item())
        return loss

    def on_train_epoch_end(self) -> None:
        at = self.first + self.trainer.global_step
        self.seen.at("epoch end", at)
        mean = torch.stack(self.training_step_outputs).mean()
        self.seen.event("epoch", at, mean=mean.item(), metric=self.mean.compute().item(), n=len(self.training_step_outputs))
        self.log("mean", mean)
        self.training_step_outputs.clear()
        self.mean.reset()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.rate)
        self.seen.watch(self.layer, optimizer, lambda: self.first + self.trainer.global_step + 1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Average(pl.Callback):
    """An average of the weights that begins with a training, and the best loss of all: the same callback is in both."""

    best: float | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.shadow = {k: v.clone() for k, v in module.state_dict().items()}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for k, v in module.state_dict().items():
            self.shadow[k].mul_(0.9).add_(v, alpha=0.1)
        if self.best is None or outputs["loss"] < self.best:
            self.best = float(outputs["loss"])


class Lightning(Subject):
    """A sweep of two rates."""

    name = "lightning, on_train_start, attributes, two fits of 2.6.6"
    faults = (("forward", 4), ("forward", 11), ("epoch end", 15))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        pl.seed_everything(1, verbose=False)
        self.samples, self.average, self.keep = Samples(), Average(), None

    @property
    def session(self) -> Any:
        return self.keep and self.keep.session

    def train(self) -> None:
        self.results = []
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        for trial, rate in enumerate((0.1, 0.3)):
            self.keep = replicad.lightning.Keep() if self.run.kept else None
            self.net = Net(self.run, trial * EPOCHS * 5, rate)
            trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, callbacks=[self.average, *([self.keep] if self.keep else [])], **quiet)
            trainer.fit(self.net, DataLoader(self.samples, 4, shuffle=True))
            self.results.append((rate, trainer.global_step, trainer.callback_metrics["mean"].item()))

    def digests(self) -> Mapping[str, Any]:
        return {"weights": self.net.state_dict(), "results": self.results, "average": self.average.shadow, "best": self.average.best, "noise": self.samples.rng.random()}


# -- transformers 5.23.0, examples/pytorch/language-modeling/run_mlm.py ----------------------------------------------------------


class Worst(Trainer):
    """A Trainer's subclass that has something of its own, which begins as None."""

    worst: float | None = None
    seen: Run
    first = 0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        loss = super().compute_loss(model, inputs, **more)
        if self.worst is None or loss > self.worst:
            self.worst = loss.item()
        self.seen.event("step", self.first + self.state.global_step + 1, loss=loss.item(), worst=self.worst)
        return loss


class Shadow(TrainerCallback):
    """Weights that on_train_begin initialises, and an average of them that begins there."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.1)
        self.shadow = model.bert.embeddings.LayerNorm.weight.detach().clone()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.shadow.mul_(0.9).add_(model.bert.embeddings.LayerNorm.weight.detach(), alpha=0.1)


class HuggingFace(Subject):
    """The masking collator with its own seed, which both trainings have, and the callbacks of users."""

    name = "huggingface, run_mlm.py of 5.23.0, attributes, two trainings"
    faults = (("forward", 3), ("forward", 9), ("forward", 14))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        words = {w: i for i, w in enumerate(["[PAD]", "[MASK]", "[UNK]", *map(str, range(29))])}
        given: dict[str, Any] = {"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        tokens = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")), **given)
        g = torch.Generator().manual_seed(3)
        self.texts = [{"input_ids": torch.randint(3, 32, (16,), generator=g).tolist()} for _ in range(16)]
        self.collator = DataCollatorForLanguageModeling(tokens, mlm_probability=0.3, seed=42)
        self.trainer: Any = None

    @property
    def session(self) -> Any:
        return self.trainer.session

    def train(self) -> None:
        self.results = []
        for trial, rate in enumerate((0.01, 0.003)):
            transformers.set_seed(trial)
            small: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
            args = TrainingArguments(
                output_dir=str(self.run.folder / "out"), use_cpu=True, num_train_epochs=EPOCHS, per_device_train_batch_size=4, learning_rate=rate, logging_steps=1,
                report_to="none", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            )  # fmt: skip
            self.shadow = Shadow()
            trainer = Worst(model=BertForMaskedLM(BertConfig(**small)), args=args, train_dataset=self.texts, data_collator=self.collator)
            trainer.seen, trainer.first = self.run, trial * EPOCHS * 4
            self.trainer = replicad.huggingface.keep(trainer) if self.run.kept else trainer
            trainer.add_callback(self.shadow)
            if not self.run.kept:
                trainer.create_optimizer()
            self.run.watch(trainer.model, trainer.optimizer, lambda t=trainer: t.first + t.state.global_step + 1)  # type: ignore[misc]
            result = trainer.train()
            self.results.append((rate, trainer.state.global_step, result.training_loss))

    def digests(self) -> Mapping[str, Any]:
        return {"weights": self.trainer.model.state_dict(), "results": self.results, "worst": self.trainer.worst, "shadow": self.shadow.shadow}
