"""A trainer whose loop is not yours: hooks begin and end the step, and name what follows it."""

from __future__ import annotations

import torch

import replicad

STEPS, EVERY = 30, 5


class Trainer:
    """Stands for a library's: it owns the loop, and calls hooks."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, hooks: Hooks) -> None:
        self.model, self.optimizer, self.hooks = model, optimizer, hooks

    def fit(self, last: int) -> None:
        step = self.hooks.on_train_begin(self)
        while step < last:
            step += 1
            loss = (self.model(torch.randn(8, 8)) - 1).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.hooks.on_before_update()
            self.optimizer.step()
            self.hooks.on_after_update(step)
            if step % EVERY == 0:
                self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> None:
        self.model[0].eval()
        loss = torch.stack([(self.model(torch.randn(8, 8)) - 1).pow(2).mean() for _ in range(4)]).mean()  # with the dropout on
        self.model.train()
        self.hooks.on_evaluated(loss.item())


class Hooks:
    """What an adapter hangs into the trainer."""

    def __init__(self, session: replicad.Session) -> None:
        self.session = session

    def on_train_begin(self, trainer: Trainer) -> int:
        start = self.session.resume()
        if "evaluate" in self.session.due:  # interrupted, or not begun
            trainer.evaluate()
        return int(start)

    def on_before_update(self) -> None:
        self.session.step_begin()

    def on_after_update(self, step: int) -> None:
        if step % EVERY == 0:
            self.session.follow("evaluate")
        self.session.step_end()  # the step is over: it is copied from here on

    def on_evaluated(self, loss: float) -> None:
        print(f"after step {self.session.at} loss {loss:.4f}", flush=True)
        self.session.done("evaluate")


torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with replicad.Session(model, optimizer) as session:
    Trainer(model, optimizer, Hooks(session)).fit(STEPS)
    print(f"step {session.at}, noticed {session.noticed}", flush=True)
