"""A model, an optimizer and a user's object that can be made again, alike or not."""

from __future__ import annotations

import torch
from torch import nn


class Mean:
    """A user's object."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def model(**changes: object) -> nn.Sequential:
    m = nn.Sequential(nn.Linear(4, int(changes.get("width", 4))), nn.BatchNorm1d(int(changes.get("width", 4))))
    if changes.get("frozen"):
        m[0].bias.requires_grad_(False)
    if changes.get("more"):
        m.append(nn.Linear(4, 2))
    if changes.get("double"):
        m.double()
    if changes.get("without"):
        m[1] = nn.Identity()
    return m


def optimizer(m: nn.Module, **more: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(m.parameters(), lr=0.1, **({"momentum": 0.9} | more))
