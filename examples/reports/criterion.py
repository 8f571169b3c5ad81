"""A loss with parameters and a buffer of its own: uncertainty weights, the centre of a centre loss (miles-credit#473, FairMOT#364, sentence-transformers PR #2648).

Its parameters are in the optimizer, and it is in no model of the session. VAR=given: the session has it as a model.
"""

import os

import torch
from fault import end, fault, steps

import replicad


class Uncertain(torch.nn.Module):
    """Two losses with learned weights, one of them towards a moving centre."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.centre.lerp_(out.mean(0), 0.1)
        losses = torch.stack([(out - y).pow(2).mean(), (out - self.centre).abs().mean()])
        return (losses * torch.exp(-self.weights) + self.weights).sum()


torch.manual_seed(1)
model, criterion = torch.nn.Linear(8, 4), Uncertain()
optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=0.05)

with replicad.Session({"model": model, "criterion": criterion} if os.environ.get("VAR") == "given" else model, optimizer) as session:
    session.resume()
    for step in steps(session, 20):
        x = torch.randn(16, 8)
        loss = criterion(model(x), x[:, :4] * 2)
        optimizer.zero_grad()
        loss.backward()
        fault("backward", step)
        with session.step():
            optimizer.step()
    end(model=model, criterion=criterion, optimizer=optimizer)
