"""How a Lightning Trainer trains under its adapter, for replicad.testing.conformance: a network with batch norm and dropout, accumulation with a remainder, clipping, schedules, a
stock loader, validations, early stopping, saves and a log of every step."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassAccuracy

import replicad
from replicad.testing.conformance import Break, Run, Subject

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BATCH, EPOCHS = 4, 4


class Events(pl.Callback):
    """Knows of the run, and nothing of replicad."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._run.at("on_train_batch_start", trainer.global_step + 1)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._run.at("on_train_epoch_start", trainer.global_step + 1)
        self._run.event("epoch", trainer.global_step, epoch=trainer.current_epoch)

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._run.at("on_before_zero_grad", trainer.global_step + 1)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._run.at("on_before_optimizer_step", trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._run.at("on_train_batch_end", trainer.global_step)
        x = batch[0] if isinstance(batch, list) else batch["long"][0]
        kept = sum(b.double().sum().item() for b in module.buffers())
        self._run.event("batch", trainer.global_step, epoch=trainer.current_epoch, batch=batch_idx, loss=outputs["loss"].item(), x=x.sum().item(), kept=kept)

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            self._run.at("evaluation", trainer.global_step)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self._run.at("on_validation_end", trainer.global_step)
            self._run.event("evaluation", trainer.global_step, **_values(trainer))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._run.at("on_train_epoch_end", trainer.global_step)
        self._run.event("epoch end", trainer.global_step, epoch=trainer.current_epoch, rate=trainer.optimizers[0].param_groups[0]["lr"], **_values(trainer))

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self._run.at("save", trainer.global_step)
        self._run.event("save", trainer.global_step, epoch=trainer.current_epoch)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._run.at("on_train_end", trainer.global_step)
        saved = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
        stop = [c.wait_count for c in trainer.callbacks if isinstance(c, EarlyStopping)]
        files = sorted(f.name for c in saved for f in Path(c.dirpath).glob("*")) if trainer.is_global_zero else []
        self._run.event("end", trainer.global_step, files=files, best=[sorted(p.rpartition("/")[2] for p in c.best_k_models) for c in saved], waited=stop)


def _values(trainer: Any) -> dict[str, float]:
    return {k: v.item() for k, v in sorted(trainer.callback_metrics.items())}


class Log(Logger):
    """A log of all ranks."""

    name, version = "log", 0

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._run.event("log", step or 0, **metrics)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class _Watch:
    """Of the run; a network that is copied, for its average, has the same."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, *of: Any) -> None:
        self.run.watch(*of)

    def __deepcopy__(self, memo: Any) -> _Watch:
        return self


class Network(pl.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.watch = _Watch(run)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
        self.accuracy = MulticlassAccuracy(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        out = self(x)
        loss = cross_entropy(out, y)
        self.accuracy(out, y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        noise = torch.randn_like(x) / 10  # an evaluation that draws
        self.log("val_loss", cross_entropy(self(x + noise), y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        self.watch(self.body, optimizer, lambda: self.trainer.global_step + 1)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return [optimizer], [{"scheduler": cosine, "interval": "step"}]


def data(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    return TensorDataset(torch.randn(4, 8, generator=g)[y] + torch.randn(n, 8, generator=g), y)


class Kept(Subject):
    name = "lightning"
    #: 5 batches a rank and epoch make updates of 2, 2 and 1.
    steps = EPOCHS * 3
    module: type[pl.LightningModule] = Network
    flags: tuple[str, ...] = ()
    #: A step each: behind the first two of an epoch there is a validation, with a save if it is the best so far.
    raised: tuple[Break, ...] = (Break("forward", 2), Break("on_validation_end", 5), Break("on_train_epoch_end", 6, 1), Break("step", 9), Break("on_train_end", 12, 1))
    killed: tuple[Break, ...] = (Break("second forward", 2), Break("evaluation", 5, 1), Break("on_train_epoch_end", 9))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        torch.set_num_threads(1)  # another number adds up in another order
        pl.seed_everything(1, verbose=False)
        self.network = self.module(run)
        self.loader = self.loaders()
        self.held_out = DataLoader(data(8 * run.world, 3), 4)
        self.keep = self.keeper() if run.kept else None

    def keeper(self) -> Any:
        return replicad.lightning.Keep()

    def loaders(self) -> Any:
        return DataLoader(data(5 * BATCH * self.run.world, 2), BATCH, shuffle=True)

    def arguments(self) -> dict[str, Any]:
        strategy = {1: "auto", 2: "ddp"}.get(self.run.world, "ddp_find_unused_parameters_true")  # so that three add up in one order, in a new process too
        return {"strategy": strategy, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "val_check_interval": 2}

    def callbacks(self) -> list[pl.Callback]:
        best = ModelCheckpoint(self.run.folder / "saves", monitor="val_loss", save_top_k=2)
        return [Events(self.run), EarlyStopping("val_loss", patience=50), best]

    @property
    def session(self) -> Any:
        return self.keep and self.keep.session

    def train(self) -> None:
        callbacks = [*self.callbacks(), *([self.keep] if self.keep else ())]
        self.trainer = pl.Trainer(
            accelerator="cpu", devices=self.run.world, max_epochs=EPOCHS, callbacks=callbacks, logger=[CSVLogger(self.run.folder / "log"), Log(self.run)], log_every_n_steps=1,
            enable_progress_bar=False, enable_model_summary=False, **self.arguments(),
        )  # fmt: skip
        self.fit()

    def fit(self) -> None:
        self.trainer.fit(self.network, self.loader, self.held_out)

    def forget(self) -> None:
        self.keep._feed.tell = lambda: None  # a step is over when its block ends

    def digests(self) -> Mapping[str, Any]:
        optimizers = [o.state_dict() for o in self.trainer.optimizers]
        schedulers = [c.scheduler.state_dict() for c in self.trainer.lr_scheduler_configs]
        files = tables(self.run.folder / "log") if self.run.rank == 0 else []
        return tree_map(_local, {"weights": self.network.state_dict(), "optimizers": optimizers, "schedulers": schedulers, "files": files})


def tables(folder: Path) -> Any:
    """What CSVLogger has written, in which folders."""
    found = sorted(folder.rglob("metrics*.csv"))
    return [[str(path.relative_to(folder)), [sorted(row.items()) for row in csv.DictReader(path.read_text().splitlines())]] for path in found]


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


class Plateau(Network):
    """Is validated at the end of each epoch, which has its rate follow from that."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        self.watch(self.body, optimizer, lambda: self.trainer.global_step + 1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


class Epochs(Kept):
    """Lightning's defaults; workers read, and early stopping ends it."""

    name = "lightning, by epochs"
    module = Plateau
    raised = (Break("forward", 1), Break("evaluation", 3), Break("on_train_epoch_end", 6, 1), Break("on_train_epoch_start", 7, 1), Break("save", 9))
    killed = (Break("on_validation_end", 3, 1), Break("on_train_epoch_end", 6), Break("on_before_zero_grad", 8))

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "val_check_interval": 1.0}

    def callbacks(self) -> list[pl.Callback]:
        return [Events(self.run), EarlyStopping("val_loss", patience=2), ModelCheckpoint(self.run.folder / "saves", save_top_k=-1, save_last=True)]

    def loaders(self) -> Any:
        return DataLoader(data(5 * BATCH * self.run.world, 2), BATCH, shuffle=True, num_workers=2, persistent_workers=True)


class FromCheckpoint(Kept):
    """From a checkpoint of the Trainer's own, which lies beside what the runs leave."""

    name = "lightning, ckpt_path"

    def fit(self) -> None:
        self.trainer.fit(self.network, self.loader, self.held_out, ckpt_path=self.run.folder.parent / "six.ckpt", weights_only=False)


class Adversaries(Network):
    """Steps two optimizers by itself, one of them in every second batch."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.automatic_optimization = False
        self.noise = torch.nn.Linear(8, 8)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        down, up = self.optimizers()
        loss = cross_entropy(self(x + self.noise(x).detach()), y)
        down.zero_grad()
        self.manual_backward(loss)
        down.step()
        if batch_idx % 2:
            worse = -cross_entropy(self(x + self.noise(x)), y) + self.noise(x).pow(2).mean()
            up.zero_grad()
            self.manual_backward(worse)
            up.step()
            self.lr_schedulers().step()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss.detach()

    def configure_optimizers(self) -> Any:
        down, up = torch.optim.AdamW(self.body.parameters(), lr=0.01), torch.optim.SGD(self.noise.parameters(), lr=0.01)
        self.watch(self.body, down, lambda: self.trainer.global_step + 1)
        return [down, up], [torch.optim.lr_scheduler.StepLR(up, 2)]


class Manual(Kept):
    name = "lightning, manual optimization"
    module = Adversaries
    raised = (Break("forward", 2), Break("on_validation_end", 6), Break("on_train_epoch_end", 7, 1), Break("step", 9), Break("on_train_end", 28, 1))
    killed = (Break("forward", 2), Break("evaluation", 6, 1), Break("on_train_epoch_end", 14))

    def arguments(self) -> dict[str, Any]:
        strategy = "ddp_find_unused_parameters_true" if self.run.world > 1 else "auto"
        return {"strategy": strategy, "val_check_interval": 2}


class Averaged(Kept):
    name = "lightning, averaged weights"

    def callbacks(self) -> list[pl.Callback]:
        return [EMAWeightAveraging(decay=0.8), *super().callbacks()]


class Scaled(Kept):
    name = "lightning, fp16 with a scaler"

    def arguments(self) -> dict[str, Any]:
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3))
        return {**super().arguments(), "plugins": [plugin]}


class Shards(Network):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        if not isinstance(self.body[0].weight, DTensor):
            for layer in (self.body[0], self.body[4]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.body, mesh=mesh)


class Sharded(Kept):
    name = "lightning, FSDP2"
    module = Shards
    flags = ("--groups", "auto")

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "strategy": ModelParallelStrategy(data_parallel_size=self.run.world, tensor_parallel_size=1)}


class Two(Network):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch["long"], batch_idx) + cross_entropy(self(batch["short"][0]), batch["short"][1])


class Combined(Kept):
    """Two loaders: one keeps its place itself, and the other one, with a generator of its own, begins anew in each epoch."""

    name = "lightning, two loaders"
    module = Two

    def loaders(self) -> Any:
        long = StatefulDataLoader(data(5 * BATCH * self.run.world, 2), BATCH, shuffle=True)
        short = DataLoader(data(3 * BATCH * self.run.world, 4), BATCH, shuffle=self.run.world == 1, generator=torch.Generator().manual_seed(5))
        return {"long": long, "short": short}


class Ours(Kept):
    name = "lightning, replicad.data.Loader"

    def loaders(self) -> Any:
        return replicad.data.Loader(data(5 * BATCH * self.run.world, 2), BATCH, seed=1, rank=self.run.rank, world=self.run.world)


class Adapted(Network):
    """Trains adapters on what is frozen."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.body = get_peft_model(self.body, LoraConfig(r=2, lora_dropout=0.1, target_modules=["0", "4"], modules_to_save=["1"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)
        self.watch(self.body, optimizer, lambda: self.trainer.global_step + 1)
        return optimizer


class Lora(Kept):
    name = "lightning, peft"
    module = Adapted


class Numbers(torch.utils.data.IterableDataset):
    """A stream that knows where it is."""

    def __init__(self, of: TensorDataset) -> None:
        self.of, self.at = of, 0

    def __iter__(self) -> Any:
        self.at %= len(self.of)
        while self.at < len(self.of):
            self.at += 1
            yield self.of[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at = state["at"]


class Streamed(Kept):
    name = "lightning, a stream with state"

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "limit_train_batches": 5}

    def loaders(self) -> Any:
        return StatefulDataLoader(Numbers(data(5 * BATCH, 10 + self.run.rank)), BATCH)
