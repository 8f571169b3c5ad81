"""Does a plain Lightning checkpoint go on as its run did? `python check_lightning.py`; no daemon is needed. docs/testing.md says what it prints."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from replicad.testing import check_trainer, of_lightning


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        return self.body(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.body(batch[0]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def make_trainer(folder):
    pl.seed_everything(1, verbose=False)
    data = TensorDataset(torch.randn(40, 8))
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", val_check_interval=2, default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, logger=False)
    return of_lightning(trainer, Network(), DataLoader(data, 8, shuffle=True), DataLoader(data, 8))


if __name__ == "__main__":
    print(check_trainer(make_trainer))
