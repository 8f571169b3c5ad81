"""Programs with the loggers that people use, whose files are judged: Lightning's by default and by name, TensorBoard's and W&B's of three frameworks. What a subject's run has
written lies in its folder; `files` says what a reader of the log sees in the end."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import replicad
import subject_accelerate
import subject_huggingface
from replicad.testing.conformance import Run, Subject
from subject_lightning import tables

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")


class Line(pl.LightningModule):
    """A value of each step, one of each epoch, one of each validation, and a rate."""

    def __init__(self, run: Run, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters("width")
        self.body = torch.nn.Linear(width, 1)
        self.seen = run

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x,) = batch
        loss = mse_loss(self.body(x), x.sum(1, keepdim=True))
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        (x,) = batch
        self.log("val_loss", mse_loss(self.body(x), x.sum(1, keepdim=True)))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        self.seen.watch(self.body, optimizer, lambda: self.trainer.global_step + 1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def samples(n: int) -> TensorDataset:
    return TensorDataset(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)))


class Ends(pl.Callback):
    """The places that only the callbacks see."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._run.at("on_train_epoch_end", trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._run.at("on_train_batch_end", trainer.global_step)


class Csv(Subject):
    """The folder has a version."""

    name = "lightning, CSVLogger(version=)"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        pl.seed_everything(1, verbose=False)
        self.network = Line(run)
        self.folder = run.folder / "log"
        self.keep = replicad.lightning.Keep() if run.kept else None

    def logger(self) -> Any:
        return CSVLogger(self.folder, version=0)

    def arguments(self) -> Mapping[str, Any]:
        return {}

    @property
    def session(self) -> Any:
        return self.keep and self.keep.session

    def train(self) -> None:
        self.trainer = pl.Trainer(
            accelerator="cpu", devices=self.run.world, strategy="ddp" if self.run.world > 1 else "auto", max_epochs=3, log_every_n_steps=1, logger=self.logger(),
            default_root_dir=self.folder, callbacks=[Ends(self.run), LearningRateMonitor("step"), *([self.keep] if self.keep else ())], enable_progress_bar=False,
            enable_model_summary=False, **self.arguments(),
        )  # fmt: skip
        self.trainer.fit(self.network, DataLoader(samples(16 * self.run.world), 4, shuffle=True), DataLoader(samples(8), 4))

    def digests(self) -> Mapping[str, Any]:
        written = self.files() if self.run.rank == 0 else []
        return {"weights": self.network.state_dict(), "files": written}

    def files(self) -> Any:
        return tables(self.folder)


class Default(Csv):
    """Nothing is said of a logger: Lightning chooses one, and a folder, where checkpoints go too."""

    name = "lightning, its default logger"

    def logger(self) -> Any:
        return True

    def files(self) -> Any:
        return [written(self.folder), sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.ckpt"))]


def written(folder: Path) -> Any:
    """By whatever logger Lightning has chosen."""
    return boards(folder) if any(folder.rglob("*tfevents*")) else tables(folder)


def boards(folder: Path) -> Any:
    """What TensorBoard shows of each folder: by tag, step and value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted({file.parent for file in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        shown = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in sorted(events.Tags()["scalars"]) if not tag.endswith(TIMES)}
        found[str(path.relative_to(folder))] = shown
    return found


#: What differs from run to run; hp_metric is written by each process, with the same value.
TIMES = ("runtime", "per_second", "hp_metric")


class Board(Csv):
    name = "lightning, TensorBoardLogger"

    def logger(self) -> Any:
        from lightning.pytorch.loggers import TensorBoardLogger

        return TensorBoardLogger(self.folder)

    def files(self) -> Any:
        return boards(self.folder)


def runs(folder: Path, axis: str) -> dict[str, dict[Any, Any]]:
    """What W&B has of each run: the values of its rows by step and names. A step that is done again has its row twice, with the same values."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.wandb")):
        of = found.setdefault(path.stem.removeprefix("run-"), {})
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            row = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if axis in row:
                names = sorted(name for name in row if not name.startswith("_") and not name.endswith(TIMES))
                values = [row[name] for name in names]
                assert of.setdefault((int(row[axis]), *names), values) == values
    return found


def records(data: bytes, block: int = 32768) -> Iterator[bytes]:
    """Of a file of W&B: the log format of LevelDB behind a header of 7 bytes. A process that was killed leaves a piece of one."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + 7 + size > len(data):
            return
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield parts
            parts = b""


class Wandb(Csv):
    """As the page says."""

    name = "lightning, WandbLogger(id=)"

    def logger(self) -> Any:
        from lightning.pytorch.loggers import WandbLogger

        self.folder.mkdir(exist_ok=True)
        return WandbLogger(id="one", save_dir=self.folder, offline=True)

    axis = "trainer/global_step"

    def files(self) -> Any:
        import wandb

        wandb.finish()  # it writes behind the program: its rows are judged by the test
        return []


class HfBoard(subject_huggingface.Kept):
    """The folder is the Trainer's choice."""

    name = "huggingface, report_to=tensorboard"
    to: str = "tensorboard"

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"report_to": [self.to], "output_dir": str(self.run.folder / "log")}

    def train(self) -> None:
        if self.to == "wandb":
            os.environ.update(WANDB_RUN_ID="one", WANDB_RESUME="allow", WANDB_DIR=str(self.run.folder))
        super().train()

    def digests(self) -> Mapping[str, Any]:
        return {**super().digests(), "files": self.files() if self.run.rank == 0 else []}

    def files(self) -> Any:
        return list(boards(self.run.folder / "log").values())  # the folder has a time in its name


class HfWandb(HfBoard):
    name = "huggingface, report_to=wandb"
    to, axis = "wandb", "train/global_step"

    def files(self) -> Any:
        import wandb

        wandb.finish()
        return []


class AccBoard(subject_accelerate.Kept):
    """As the page says: trackers are made behind resume()."""

    name = "accelerate, log_with=tensorboard"
    to = "tensorboard"

    def begins(self) -> None:
        from accelerate.utils import ProjectConfiguration

        accelerator, run = self.accelerator, self.run
        accelerator.trackers = []  # of the run of a block before this one
        accelerator.log_with, accelerator.project_configuration = [self.to], ProjectConfiguration(str(run.folder / "log"))
        if self.to == "tensorboard":
            accelerator.init_trackers("one", init_kwargs={"tensorboard": {"purge_step": (self.session.at if run.kept else 0) + 1}})
        else:
            accelerator.init_trackers("project", init_kwargs={"wandb": {"id": "one", "resume": "allow", "dir": str(run.folder)}})

    def train(self) -> None:
        super().train()
        self.accelerator.end_training()

    def batch(self, model: torch.nn.Module, x: torch.Tensor) -> None:
        super().batch(model, x)
        if self.accelerator.sync_gradients:
            self.accelerator.log({"rate": self.scheduler.get_last_lr()[0], "best": self.progress.best, "train/step": self.progress.step}, step=self.progress.step)

    def digests(self) -> Mapping[str, Any]:
        return {**super().digests(), "files": self.files() if self.run.rank == 0 else []}

    def files(self) -> Any:
        return boards(self.run.folder / "log")


class AccWandb(AccBoard):
    name = "accelerate, log_with=wandb"
    to, axis = "wandb", "train/step"

    def files(self) -> Any:
        return []
