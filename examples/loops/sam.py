"""Sharpness-aware minimisation: climb to the worst weights nearby, take gradients there, come back, and step by them.

The session has the inner optimizer, and the block has all of it.
"""

import torch

import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import destroy_process_group, init_process_group

STEPS, RHO = 30, 0.05


class SAM:
    """Climbs and comes back; ``base`` is the optimizer that steps."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.old = base, []

    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self.base.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def climb(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm() + 1e-12
        self.old = [(p, p.clone()) for p in self.parameters()]
        for p, _ in self.old:
            p.add_(p.grad, alpha=float(RHO / norm))
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for p, old in self.old:
            p.copy_(old)  # not p.data = old: copies are made of the memory that the session knows
        self.base.step()


torch.manual_seed(1)
x = torch.randn(256, 8)
y = (x.sum(1, keepdim=True) > 0).float()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
loader = Loader(torch.utils.data.TensorDataset(x, y), 8, seed=1)
cost = torch.nn.functional.binary_cross_entropy_with_logits

with replicad.Session(model, optimizer.base, data=loader) as session:  # the inner one
    session.resume()
    init_process_group(session)
    parallel, batches = ddp(model), loader.endless()
    for step in session.steps(STEPS):
        inputs, targets = next(batches)
        optimizer.base.zero_grad()
        cost(parallel(inputs), targets).backward()
        with session.step():  # climb, second backward, and back
            optimizer.climb()
            loss = cost(parallel(inputs), targets)
            loss.backward()
            optimizer.descend()
    print(f"step {session.at} loss {loss.item():.4f}, noticed {session.noticed}", flush=True)
destroy_process_group()
