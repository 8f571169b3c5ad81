"""The small GPT of gpt.py, sharded by FSDP2, under replicad.

    replicad run --job fsdp --world 2 --groups auto -- python fsdp.py                 fully sharded: each rank has its own shard
    replicad run --job hsdp --world 4 --groups auto -- python fsdp.py --shards 2       two replicas of two shards

A shard that no other rank has is mirrored by the daemons to other nodes, every step; where replicas exist, they are the copies.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import common
import gpt
import sharded
import torch
from torch.distributed.fsdp import fully_shard


class FSDP2(sharded.Layout):
    """Each block a unit of its own; parameters are DTensors."""

    def spread(self, args: argparse.Namespace, world: int, model: gpt.GPT) -> tuple[Any, Any, Any]:
        mesh = sharded.mesh(args, world)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, model, gpt.adamw(args, model)

    def micro(self, computes: Any, last: bool) -> AbstractContextManager[Any]:
        computes.set_requires_gradient_sync(last)
        return nullcontext()

    def whole(self, model: Any) -> list[tuple[str, torch.Tensor]]:
        return [(k, v.full_tensor()) for k, v in model.state_dict().items()]


if __name__ == "__main__":
    sys.exit(common.main(partial(sharded.train, FSDP2()), sharded.arguments(__doc__).parse_args()))
