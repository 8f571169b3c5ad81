"""Lightning 2.6.6 basics/backbone_image_classifier.py; transformers 5.23.0 language-modeling/run_clm.py; accelerate 1.15.0 examples/nlp_example.py.

Programs of our own, each with the calls of the published example that its class names, in their order, and what follows the training: with the frameworks' own loggers,
progress bars, callbacks and loaders. They are small, and their data is drawn here."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, default_data_collator, get_linear_schedule_with_warmup

import replicad
from replicad.testing.conformance import Run, Subject
from subject_lightning import tables

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
transformers.logging.set_verbosity_error()

#: What differs from run to run.
TIMES = ("runtime", "per_second")


def untimed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not k.endswith(TIMES)}


# -- Lightning 2.6.6, examples/pytorch/basics/backbone_image_classifier.py -----------------------------------------------------


class LitClassifier(pl.LightningModule):
    """A backbone that is given, hyperparameters that are saved."""

    def __init__(self, run: Run, backbone: torch.nn.Module, learning_rate: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["run", "backbone"])
        self.backbone, self.seen = backbone, run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.backbone(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        if not self.trainer.sanity_checking:
            self.seen.at("evaluation", self.trainer.global_step)
        self.log("valid_loss", cross_entropy(self(x), y), on_step=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.seen.at("test", self.trainer.global_step)
        self.log("test_loss", cross_entropy(self(x), y))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int | None = None) -> torch.Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
        self.seen.watch(self.backbone, optimizer, lambda: self.trainer.global_step + 1)
        return optimizer


class MyDataModule(pl.LightningDataModule):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(42)
        y = torch.randint(4, (48,), generator=g)
        self.train, self.valid, self.tested = random_split(TensorDataset(torch.randn(48, 8, generator=g), y), [32, 8, 8], generator=torch.Generator().manual_seed(42))
        self.batch_size = batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.valid, batch_size=self.batch_size)

    def test_dataloader(self) -> Any:
        return DataLoader(self.tested, batch_size=self.batch_size)

    predict_dataloader = test_dataloader


class Lightning(Subject):
    """fit, test(ckpt_path="best"), predict(ckpt_path="best"), with what a Trainer has by itself: its logger, its bars, its checkpoint."""

    name = "lightning, backbone_image_classifier.py of 2.6.6"
    faults = (("forward", 3), ("evaluation", 16), ("test", 24))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        pl.seed_everything(1234, verbose=False)
        backbone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
        self.model, self.datamodule = LitClassifier(run, backbone), MyDataModule()
        self.keep = replicad.lightning.Keep() if run.kept else None

    @property
    def session(self) -> Any:
        return self.keep and self.keep.session

    def train(self) -> None:
        trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=3, default_root_dir=self.run.folder / "root", callbacks=[self.keep] if self.keep else None)
        trainer.fit(self.model, datamodule=self.datamodule)
        self.weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.tested = trainer.test(ckpt_path="best", datamodule=self.datamodule)
        self.predicted = trainer.predict(ckpt_path="best", datamodule=self.datamodule)

    def digests(self) -> Mapping[str, Any]:
        root = self.run.folder / "root"
        files = [tables(root), sorted(str(path.relative_to(root)) for path in root.rglob("*.ckpt"))]
        return {"weights": self.weights, "tested": self.tested, "predicted": self.predicted, "files": files}


# -- transformers 5.23.0, examples/pytorch/language-modeling/run_clm.py ---------------------------------------------------------


class Places(TrainerCallback):
    """Where faults are, and the log."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.event("epoch", state.global_step, epoch=state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if not state.global_step >= state.max_steps:
            self._run.event("log", state.global_step, **untimed(logs or {}))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.at("evaluation", state.global_step)


class HuggingFace(Subject):
    """train, save_model, log_metrics, save_metrics, save_state, evaluate, log_metrics, save_metrics, with HF's own sampler, collator, bars and saves."""

    name = "huggingface, run_clm.py of 5.23.0"
    faults = (("forward", 3), ("evaluation", 8), ("saved", 12))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        args = TrainingArguments(
            output_dir=str(run.folder / "out"), use_cpu=True, num_train_epochs=3, per_device_train_batch_size=4, per_device_eval_batch_size=4, learning_rate=0.01, logging_steps=2,
            eval_strategy="epoch", save_strategy="epoch", report_to="none", dataloader_pin_memory=False,
        )  # fmt: skip
        transformers.set_seed(args.seed)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
        texts = [[{"input_ids": t, "labels": t} for t in torch.randint(32, (n, 8), generator=torch.Generator().manual_seed(n))] for n in (16, 8)]
        self.trainer = Trainer(model=model, args=args, train_dataset=texts[0], eval_dataset=texts[1], data_collator=default_data_collator, callbacks=[Places(run)])
        if run.kept:
            self.trainer = replicad.huggingface.keep(self.trainer)
        else:
            self.trainer.create_optimizer()
        run.watch(model, self.trainer.optimizer, lambda: self.trainer.state.global_step + 1)

    @property
    def session(self) -> Any:
        return self.trainer.session

    def train(self) -> None:
        trainer = self.trainer
        result = trainer.train(resume_from_checkpoint=None)
        trainer.save_model()
        metrics = {**result.metrics, "train_samples": len(trainer.train_dataset)}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
        self.run.at("saved", trainer.state.global_step)
        metrics = trainer.evaluate()
        metrics |= {"eval_samples": len(trainer.eval_dataset), "perplexity": math.exp(metrics["eval_loss"])}
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)

    def digests(self) -> Mapping[str, Any]:
        out = Path(self.trainer.args.output_dir)
        said = {name: untimed(json.loads((out / name).read_text())) for name in ("train_results.json", "eval_results.json", "all_results.json")}
        history = [untimed(line) for line in json.loads((out / "trainer_state.json").read_text())["log_history"]]
        return {"weights": self.trainer.model.state_dict(), "said": said, "history": history, "model": (out / "model.safetensors").read_bytes()}


# -- accelerate 1.15.0, examples/nlp_example.py ---------------------------------------------------------------------------------


class Accelerate(Subject):
    """set_seed, prepare of five, a loop of epochs with the model's mode set in it, an evaluation behind each, gather_for_metrics, end_training."""

    name = "accelerate, nlp_example.py of 1.15.0"
    faults = (("forward", 3), ("evaluation", 16))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.accelerator = accelerator = Accelerator(cpu=True)
        self.epochs, self.step, self.scores = 3, 0, Scores()
        set_seed(42)
        g = torch.Generator().manual_seed(1)
        y = torch.randint(4, (40,), generator=g)
        train, held_out = TensorDataset(torch.randn(32, 8, generator=g), y[:32]), TensorDataset(torch.randn(8, 8, generator=g), y[32:])
        model: Any = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
        run.watch(model, optimizer, lambda: self.step + 1)
        loaders = DataLoader(train, shuffle=True, batch_size=4, drop_last=True), DataLoader(held_out, shuffle=False, batch_size=4)
        scheduler: Any = get_linear_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=2, num_training_steps=8 * self.epochs)
        self.bare = model
        self.model, self.optimizer, self.train_dataloader, self.eval_dataloader, self.scheduler = accelerator.prepare(model, optimizer, *loaders, scheduler)
        self._session = None
        if run.kept:
            kept = (self.model, self.optimizer, self.train_dataloader, self.scheduler)
            self._session = replicad.accelerate.prepare(accelerator, *kept, extra={"scores": self.scores})

    @property
    def session(self) -> Any:
        return self._session

    def train(self) -> None:
        accelerator, model = self.accelerator, self.model
        if self._session is not None:
            self._session.resume()
            self.step = self._session.at
        for epoch in range(self.train_dataloader.iteration, self.epochs):
            model.train()
            for x, y in self.train_dataloader:
                loss = cross_entropy(model(x), y)
                accelerator.backward(loss)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.step += 1
            model.eval()
            right = 0
            for x, y in self.eval_dataloader:
                with torch.no_grad():
                    predictions = model(x).argmax(dim=-1)
                self.run.at("evaluation", self.step)
                predictions, references = accelerator.gather_for_metrics((predictions, y))
                right += int((predictions == references).sum())
            self.scores.of.append(right)
            accelerator.print(f"epoch {epoch}:", right)
        if self._session is not None:
            self._session.leave()
        accelerator.end_training()

    def digests(self) -> Mapping[str, Any]:
        return {"weights": self.bare.state_dict(), "optimizer": self.optimizer.state_dict()["state"], "scores": self.scores.of, "scheduler": self.scheduler.state_dict()}


class Scores:
    """What the program has counted."""

    def __init__(self) -> None:
        self.of: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"of": list(self.of)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.of = list(state["of"])
