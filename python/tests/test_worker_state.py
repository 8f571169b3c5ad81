"""What worker processes of a trainer's stock DataLoader draw and count is named, once, as programs write it; what leaves nothing behind is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from conftest import Daemon, imports
from replicad._torch.workers import Workers, unwrapped


class Samples(torch.utils.data.Dataset[Any]):
    """``how`` says what it does in a worker."""

    def __init__(self, how: str = "") -> None:
        self.how, self.calls, self.rng, self.cache, self.me, self.table, self.late = how, 0, np.random.default_rng(5), dict[int, float](), None, None, None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> float:
        if self.me is None:
            self.me = get_worker_info().id if get_worker_info() else -1
        if self.table is None:
            self.table = list(range(100))
        if i not in self.cache:
            self.cache[i] = float(i)
        x = self.cache[i] + self.table[i] + self.me
        if "rng" in self.how:
            x += self.rng.standard_normal()
        if "count" in self.how:
            self.calls += 1
            x += self.calls
        if "torch" in self.how:
            x += torch.rand(()).item()
        if "late" in self.how:
            if self.late is None:
                self.late = np.random.default_rng(i)
            x += self.late.random()
        return float(x)


class Inits:
    """A worker_init_fn that hands each worker a generator of its own, and numbers them."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self, worker: int) -> None:
        self.begun += 1
        info = get_worker_info()
        assert info is not None
        info.dataset.rng = np.random.default_rng(100 + worker)


class Collates:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, batch: list[float]) -> torch.Tensor:
        self.n += 1
        return torch.tensor(batch) * self.n


def named(dataset: Any, context: str = "fork", **options: Any) -> dict[str, str]:
    """What the workers of a loader tell over an epoch."""
    loader = DataLoader(dataset, 8, num_workers=1, multiprocessing_context=context, **options)
    was = loader.collate_fn, loader.worker_init_fn
    workers = Workers(loader, "train_dataloader", dataset="train_dataset")
    assert (unwrapped(loader.collate_fn), unwrapped(loader.worker_init_fn)) == was
    assert len(list(loader)) == 8
    said = dict(workers.said())
    assert list(workers.said()) == []
    workers.taken_out()
    assert (loader.collate_fn, loader.worker_init_fn) == was
    return said


ALL = ["train_dataloader.collate_fn.n", "train_dataloader.workers.torch", "train_dataset.calls", "train_dataset.late", "train_dataset.rng"]


def test_what_is_named() -> None:
    said = named(Samples("rng count torch late"), collate_fn=Collates(), worker_init_fn=Inits())
    assert sorted(said) == ALL
    for name, text in said.items():
        assert re.match(rf"{name}(:| is (drawn from|counted)) .*worker processes.* begins it anew.*make batches in the training process \(num_workers=0\), where it is kept$", text)


def test_what_leaves_nothing_behind_is_not_named() -> None:
    """A cache, a table that is made once, a worker's own number, what a worker_init_fn does alike in each worker."""
    assert named(Samples(), worker_init_fn=Inits()) == {}


@pytest.mark.long
def test_processes_that_are_spawned_tell_it_too() -> None:
    assert sorted(named(Samples("rng count torch late"), "spawn", collate_fn=Collates(), worker_init_fn=Inits())) == ALL


PROGRAM = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import torch, replicad
KIND, HOW = sys.argv[1:3]

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.calls, self.rng = torch.randn(48, 8, generator=torch.Generator().manual_seed(1)), 0, torch.Generator().manual_seed(5)
    def __len__(self):
        return 48
    def __getitem__(self, i):
        x = self.x[i]
        if "count" in HOW:
            self.calls += 1
            x = x * (1 + self.calls % 3)
        if "rng" in HOW:
            x = x + torch.rand(8, generator=self.rng)
        return {"x": x, "labels": x} if KIND == "huggingface" else x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x=None, labels=None):
        y = self.layer(x)
        return {"loss": (y - x).pow(2).mean(), "logits": y}

torch.manual_seed(1)
net, data = Net(), Samples()
if KIND == "huggingface":
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(sys.argv[3], num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True, dataloader_num_workers=2,
                             report_to=[], disable_tqdm=True, save_strategy="no")
    trainer = replicad.huggingface.keep(Trainer(model=net, args=args, train_dataset=data))
    trainer.train()
    session = trainer.session
elif KIND == "lightning":
    import lightning.pytorch as pl
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
        def training_step(self, x, i):
            return self.net(x)["loss"]
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.01)
    keep = replicad.lightning.Keep()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, callbacks=[keep], **quiet).fit(Module(), torch.utils.data.DataLoader(data, 4, shuffle=True, num_workers=2))
    session = keep.session
else:
    from accelerate import Accelerator
    a = Accelerator(cpu=True)
    net, optimizer, loader = a.prepare(net, torch.optim.AdamW(net.parameters(), 0.01), torch.utils.data.DataLoader(data, 4, shuffle=True, num_workers=2))
    session = replicad.accelerate.prepare(a, net, optimizer, loader)
    session.resume()
    for x in loader:
        a.backward(net(x)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    session.leave()
print("NOTICED", *session.noticed, flush=True)
"""
FIRST = {"huggingface": "train_dataset", "lightning": "train_dataloader.dataset", "accelerate": "loader.dataset"}


@pytest.mark.parametrize("kind", FIRST)
def test_under_a_trainer(kind: str, daemon: Daemon, tmp_path: Any) -> None:
    first = imports(Path(__file__).parent / f"subject_{kind}.py")
    for how, want in (("count+rng", [f"{FIRST[kind]}.calls", f"{FIRST[kind]}.rng"]), *([("nothing", [])] if kind == "accelerate" else [])):
        out = daemon.run(PROGRAM, kind, how, str(tmp_path), imports=first).done()
        (said,) = re.findall(r"^NOTICED ?(.*)$", out, re.M)
        assert sorted(said.split()) == want, out
        assert len(re.findall(r"worker processes", out)) == len(want), out
