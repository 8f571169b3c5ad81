"""A plain loop for check_trainer, exact, or with something that its checkpoint forgets: the program's argument names it."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quick  # isort: skip: before torch
import torch

import replicad
from replicad.data import Loader
from replicad.testing import Recorder

assert quick, "imported for what it does"

EPOCHS, BATCHES = 3, 5


class Plain:
    """An epoch has five batches, an update is made of two of them, and the last one of an epoch is made of what is left; what is counted is kept from epoch to epoch."""

    #: What it forgets: a name of the checkpoint, or a way to be wrong.
    forgets = ""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.ema = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.data = torch.randn(4 * BATCHES, 4, generator=torch.Generator().manual_seed(1))
        self.sampler = torch.Generator().manual_seed(2)
        self.place, self.micro, self.steps, self.order = 0, 0, 0, list(range(4 * BATCHES))

    def train(self, record: Recorder, resume: Path | None) -> None:
        if resume is not None:
            self.load(resume)
        noise = torch.randn(()) if self.forgets == "any order" else 0.0
        while self.place < EPOCHS * BATCHES:
            i = self.place % BATCHES
            if i == 0:
                self.order = torch.randperm(4 * BATCHES, generator=self.sampler).tolist()
            self.place, self.micro = self.place + 1, self.micro + 1
            x = self.data[self.order[4 * i : 4 * i + 4]] + 0.01 * random.random()
            loss = self.model(x).square().mean() + noise
            self.scaler.scale(loss).backward()
            if self.micro % 2 and i + 1 < BATCHES:
                continue
            self.update()
            record.step(self.steps, loss=loss)
            if self.steps % 2 == 0:
                record.event("evaluation", self.steps, loss=self.evaluate())

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.steps += 1
        for e, p in zip(self.ema, self.model.parameters(), strict=True):
            e.lerp_(p.detach(), 0.1)

    def evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = self.model(self.data).square().mean().item()
        self.model.train()
        return loss

    def state(self) -> Mapping[str, Any]:
        return {
            "weights": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict(), "scaler": self.scaler.state_dict(),
            "ema": self.ema,
        }  # fmt: skip

    def save(self, path: Path) -> None:
        state = {
            **self.state(), "place": self.place, "micro": self.micro, "steps": self.steps, "order": self.order, "sampler": self.sampler.get_state(), "cpu": torch.get_rng_state(),
            "python": list(random.getstate()[1]),
        }  # fmt: skip
        torch.save({k: v for k, v in state.items() if k != self.forgets}, path)
        if self.forgets == "a save that draws":
            torch.randn(1)

    def load(self, path: Path) -> None:
        has = torch.load(path, weights_only=True)
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if (key := "weights" if name == "model" else name) in has:
                getattr(self, name).load_state_dict(has[key])
        for name in ("ema", "place", "micro", "steps", "order"):
            setattr(self, name, has.get(name, getattr(self, name)))
        if "place" not in has:
            self.place = 0
        if "sampler" in has:
            self.sampler.set_state(has["sampler"])
        if "cpu" in has:
            torch.set_rng_state(has["cpu"])
        if "python" in has:
            random.setstate((3, tuple(has["python"]), None))


def make(folder: Path) -> Plain:
    trainer = Plain(folder)
    trainer.forgets = sys.argv[1] if len(sys.argv) > 1 else ""
    return trainer


class Kept:
    """With a session, and a checkpoint without generators."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.loader = Loader(torch.utils.data.TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1))), 4, seed=2)
        self.session = replicad.Session(model=self.model, optimizer=self.optimizer, data=self.loader)

    def train(self, record: Recorder, resume: Path | None) -> None:
        self.session.resume()
        at = 0
        if resume is not None:
            at, model, optimizer, place = torch.load(resume, weights_only=True)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            self.loader.load_state_dict(place)
        batches = self.loader.endless()
        for step in range(at + 1, 9) if resume is not None else self.session.steps(8):
            (x,) = next(batches)
            loss = self.model(x).square().mean()
            loss.backward()
            with self.session.step():
                self.optimizer.step()
                self.optimizer.zero_grad()
            record.step(step, loss=loss)
        self.session.leave()

    def state(self) -> Mapping[str, Any]:
        return {"weights": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def save(self, path: Path) -> None:
        torch.save((self.session.at, self.model.state_dict(), self.optimizer.state_dict(), self.loader.state_dict()), path)


def kept(folder: Path) -> Kept:
    return Kept(folder)


def other(folder: Path) -> torch.nn.Module:
    return torch.nn.Linear(1, 1)
