"""A hook with collectives of its own beside the search for unused parameters ends the process on Gloo: ddp() refuses it by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from replicad.parallel import ddp


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


HOOKS: list[Any] = [powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)]


@pytest.mark.parametrize("hook", HOOKS, ids=["plain", "batched", "wrapped"])
def test_powersgd(group: None, hook: Any) -> None:
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    with pytest.raises(ValueError, match=r"PowerSGD|powerSGD|hook.* find_unused_parameters=True.*ddp\(model, find_unused_parameters=False\)"):
        ddp(torch.nn.Linear(4, 4)).register_comm_hook(state, hook)
    made = ddp(torch.nn.Linear(4, 4), find_unused_parameters=False)
    made.register_comm_hook(state, hook)
    made(torch.ones(2, 4)).sum().backward()


def test_other_hooks(group: None) -> None:
    made = ddp(torch.nn.Linear(4, 4))
    made.register_comm_hook(None, default_hooks.fp16_compress_hook)
    made(torch.ones(2, 4)).sum().backward()
