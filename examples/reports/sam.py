"""Sharpness-aware minimisation: climb, a second backward, come back, step.

VAR=out: the climb lies before the block, as loops have it; VAR=in: the block has all of it. DATA=1: `p.data` is swapped, as in the implementation that most people use.
The session has the wrapper, with BASE=1 the optimizer in it, with BOTH=1 both.
"""

import os
from typing import Any

import torch
from fault import end, fault, steps

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group


class SAM(torch.optim.Optimizer):
    """The wrapper."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, dict(rho=rho, **options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def climb(self) -> None:
        """To the worst weights nearby."""
        ps = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in ps]).norm() + 1e-12
        for p in ps:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad, alpha=float(self.param_groups[0]["rho"] / norm))
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Back, and a step by the gradients from there."""
        for g in self.param_groups:
            for p in g["params"]:
                if "old" in self.state[p] and os.environ.get("DATA") == "1":
                    p.data = self.state[p]["old"]
                elif "old" in self.state[p]:
                    p.copy_(self.state[p]["old"])
        self.base.step()

    def step(self, closure: Any = None) -> None:
        closure = torch.enable_grad()(closure)
        self.climb()
        closure()
        self.descend()


torch.manual_seed(1)
x = torch.randn(256, 8)
y = (x.sum(1, keepdim=True) > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
loader = Loader(torch.utils.data.TensorDataset(x, y), 8, seed=1)
kept = [optimizer, optimizer.base] if os.environ.get("BOTH") else optimizer.base if os.environ.get("BASE") else optimizer
cost = torch.nn.functional.binary_cross_entropy_with_logits

with replicad.Session(model, kept, data=loader, staging=bool(os.environ.get("STAGING"))) as session:
    session.resume()
    init_process_group(session)
    parallel, batches = ddp(model), loader.endless()
    for step in steps(session, 20):
        a, b = next(batches)
        optimizer.zero_grad()
        cost(parallel(a), b).backward()
        if os.environ.get("VAR", "out") == "out":
            optimizer.climb()
            cost(parallel(a), b).backward()
            fault("backward", step)
            with session.step():
                optimizer.descend()
        else:
            fault("backward", step)
            with session.step():
                optimizer.climb()
                cost(parallel(a), b).backward()
                fault("window", step)
                optimizer.descend()
    end(model=model, optimizer=optimizer.base)
