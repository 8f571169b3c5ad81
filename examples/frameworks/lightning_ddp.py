"""Lightning's Trainer under DDP, with accumulation, a schedule, validations and saves. One callback is replicad's: Keep()."""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import replicad

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="saves")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = cross_entropy(self.body(x), y)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("val_loss", cross_entropy(self.body(x), y), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print(f"validated after step {self.trainer.global_step}", flush=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)]


pl.seed_everything(1)
labels = torch.randint(4, (512,))
samples = TensorDataset(torch.randn(4, 16)[labels] + torch.randn(512, 16), labels)
train, held_out = torch.utils.data.random_split(samples, [448, 64])
_, world = replicad.place()
keep = replicad.lightning.Keep()
best = ModelCheckpoint(args.out, monitor="val_loss")
trainer = pl.Trainer(
    accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=args.epochs, accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False,
    enable_progress_bar=False, callbacks=[keep, EarlyStopping("val_loss", patience=3), best],
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(train, 16, shuffle=True), DataLoader(held_out, 32))
print(f"rank {trainer.global_rank} at step {keep.session.at}, best {best.best_model_score:.4f}, noticed {keep.session.noticed}", flush=True)
