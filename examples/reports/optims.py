"""Optimizers of torch, of other packages (prodigyopt, pytorch_optimizer), and one of one's own, with schedulers: an argument names the optimizer.

FIRST=1 takes a step before the session is made, as a refusal advises.
"""

import os
import sys
from typing import Any

import torch
from fault import end, fault, steps

import replicad


class Lookahead(torch.optim.AdamW):
    """Slow weights, which begin as the weights are when they are first wanted."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                if "slow" not in state:
                    state["slow"] = p.clone()
                elif group["count"] % 3 == 0:
                    state["slow"].lerp_(p, 0.5)
                    p.copy_(state["slow"])


def made(name: str, model: torch.nn.Sequential) -> list[Any]:
    """The optimizers of this name."""
    matrices, rest = ([p for p in model.parameters() if (p.ndim == 2) is flat] for flat in (True, False))
    if name == "muon":
        return [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]
    if name == "lookahead":
        return [Lookahead(model.parameters(), lr=0.01)]
    if name == "adafactor":
        return [torch.optim.Adafactor(model.parameters(), lr=0.01)]
    if name == "rprop":
        return [torch.optim.Rprop(model.parameters(), lr=0.01)]
    if name == "asgd":
        return [torch.optim.ASGD(model.parameters(), lr=0.01, t0=3)]
    if name == "tensor-lr":  # one tensor for both groups
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}]
        return [torch.optim.AdamW(groups, lr=torch.tensor(0.01), foreach=False)]
    if name == "Prodigy":
        import prodigyopt

        return [prodigyopt.Prodigy(model.parameters(), safeguard_warmup=True)]
    import pytorch_optimizer

    return [getattr(pytorch_optimizer, name)(model.parameters())]


def scheduled(name: str, optimizer: Any) -> list[Any]:
    """Its schedulers."""
    if name in ("muon", "tensor-lr"):
        return [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=25)]
    return [torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 6)] if name == "adafactor" else []


torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizers = made(sys.argv[1], model)
if os.environ.get("FIRST"):
    torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
    for o in optimizers:
        o.step()
        o.zero_grad()
schedulers = [s for o in optimizers for s in scheduled(sys.argv[1], o)]

with replicad.Session(model, optimizers, scheduler=schedulers) as session:
    session.resume()
    for step in steps(session, 20):
        x = torch.randn(16, 8)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            for o in (*optimizers, *schedulers):
                o.step()
    end(model=model, **{f"optimizer{i}": o for i, o in enumerate(optimizers)})
