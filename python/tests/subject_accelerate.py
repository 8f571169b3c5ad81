"""A loop of accelerate under its adapter, for replicad.testing.conformance: items and dropout that draw, batch norm, accumulation with a remainder, clipping, a schedule,
evaluations behind steps and at the end of each epoch, and an object of the program's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs

import replicad
from replicad.testing.conformance import Run, Subject

EPOCHS = 4


class Items(torch.utils.data.Dataset):  # type: ignore[misc]
    """Items that are augmented."""

    def __init__(self, n: int, seed: int) -> None:
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.x[i] + 0.1 * torch.randn(4)


class Progress:
    """What the program counts."""

    def __init__(self) -> None:
        self.step, self.best = 0, 1e9

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class Kept(Subject):
    name = "accelerate"
    #: 5 batches a rank and epoch make updates of 2, 2 and 1.
    steps = EPOCHS * 3

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        torch.manual_seed(1)
        several = [DistributedDataParallelKwargs(find_unused_parameters=True)] if run.world > 2 else []  # so that three add up in one order, in a new process too
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=several)
        self.bare = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(self.bare.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3 * run.world, 0.8)
        loader = torch.utils.data.DataLoader(Items(20 * run.world, 1), 4, shuffle=True)
        self.progress = Progress()
        run.watch(self.bare, optimizer, lambda: self.progress.step + 1)
        self.accelerator.register_for_checkpointing(self.progress)
        prepared = self.accelerator.prepare(self.bare, optimizer, loader, scheduler)
        self.model, self.optimizer, self.loader, self.scheduler = prepared
        self.held_out = self.accelerator.prepare(torch.utils.data.DataLoader(Items(8 * run.world, 2), 4))
        self._session = replicad.accelerate.prepare(self.accelerator, *prepared) if run.kept else None

    @property
    def session(self) -> Any:
        return self._session

    def train(self) -> None:
        model = self.model
        if self.session is not None:
            self.session.resume()
            if self.run.how == "raise":
                model = replicad.accelerate.again(self.accelerator, self.session, model)
        self.begins()
        for _ in range(self.loader.iteration, EPOCHS):
            for x in self.loader:
                self.batch(model, x)
            self.evaluate(model, "epoch end")
            self.run.at("epoch end", self.progress.step)
        if self.session is not None:
            self.session.leave()

    def begins(self) -> None:
        """Behind resume()."""

    def batch(self, model: torch.nn.Module, x: torch.Tensor) -> None:
        with self.accelerator.accumulate(model):
            loss = model(x).square().mean()
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.progress.step += 1
            self.run.event("step", self.progress.step, loss=loss.item(), rate=self.scheduler.get_last_lr(), kept=sum(b.double().sum().item() for b in self.bare.buffers()))
            self.run.at("log", self.progress.step)
            if self.progress.step % 4 == 1:
                self.evaluate(model, "evaluation")

    def evaluate(self, model: torch.nn.Module, name: str) -> None:
        model.eval()
        with torch.no_grad():
            losses = self.accelerator.gather_for_metrics(torch.stack([model(x).square().mean() for x in self.held_out]))
        model.train()
        self.run.at("evaluation", self.progress.step)
        self.progress.best = min(self.progress.best, losses.mean().item())
        self.run.event(name, self.progress.step, loss=losses.mean().item(), best=self.progress.best)

    def forget(self) -> None:
        self.session._loop.asks = False  # a step is over when its block ends
        for place in self.session.parts.objects.data.values():
            place._before.clear()

    def digests(self) -> Mapping[str, Any]:
        state = self.optimizer.state_dict()
        return {
            "weights": self.bare.state_dict(),
            "optimizer": state["state"],
            "groups": state["param_groups"],
            "scheduler": self.scheduler.state_dict(),
            "own": vars(self.progress),
        }
