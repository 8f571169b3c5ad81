"""The first step of a process equals its n-th: what a process makes lazily, and what an optimizer begins with, is what an undisturbed run has by then."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ranks import Ranks
from replicad.parallel import ddp, divides_alike

# -- gradients that are views of a bucket ---------------------------------------------------------------------------------

STEPS, AT = 8, 4


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


def _pair(rank: int, by: str, kept: bool, hook: bool = False) -> tuple[bytes, bytes]:
    """The weights after all steps, and those of a DDP that is made anew after some."""
    torch.manual_seed(rank)
    batches = torch.randn(STEPS, 8, 8)

    def made(state: Any) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if state:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        options: dict[str, Any] = {"gradient_as_bucket_view": True}
        forward = ddp(model, **options) if by == "ddp" else nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, **options)
        assert divides_alike(forward) is (by == "ddp")
        if hook:
            forward.register_comm_hook(None, default_hooks.allreduce_hook)
        return model, optimizer, forward

    def train(of: tuple[nn.Module, torch.optim.Optimizer, nn.Module], first: int) -> bytes:
        model, optimizer, forward = of
        for x in batches[first:]:
            optimizer.zero_grad(set_to_none=not kept)
            (forward(x) - x.sum(1, keepdim=True)).square().mean().backward()
            states.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
            optimizer.step()
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    states: list[Any] = []
    whole = train(made(None), 0)
    return whole, train(made(states[AT]), AT)


@pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified")
@pytest.mark.parametrize(("by", "kept", "hook", "same"), [("ddp", True, False, True), ("ddp", False, False, True), ("ddp", True, True, True), ("hand", True, False, False)])
def test_gradients_that_are_views_are_scaled_alike(three: Ranks, by: str, kept: bool, hook: bool, same: bool) -> None:
    """DDP multiplies by 1/3 what it copies into a bucket, and divides by 3 what it finds there. The last row shows that the comparison can fail."""
    for whole, anew in three(_pair, by, kept, hook):
        assert (whole == anew) is same
