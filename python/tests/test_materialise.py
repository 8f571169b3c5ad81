"""Making an optimizer's state beforehand leaves its first steps as they would have been."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from replicad.state import materialise

OPTIMIZERS: dict[str, Callable[[list[object]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, weight_decay=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1, weight_decay=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1, weight_decay=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1, weight_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_first_steps_are_those_of_a_fresh_optimizer(make: Callable[[list[object]], torch.optim.Optimizer]) -> None:
    ends = []
    for beforehand in (False, True):
        torch.manual_seed(1)
        p = torch.nn.Parameter(torch.randn(8))
        optimizer = make([p])
        if beforehand:
            materialise(optimizer)
        for _ in range(4):
            optimizer.zero_grad()
            (p * torch.randn(8)).sum().backward()
            optimizer.step()
        ends.append(p.detach().clone())
    assert torch.equal(*ends)
